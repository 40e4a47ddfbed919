package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestPod(t *testing.T) {
	ready := true
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, "push: not yet")
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("POST /healthcheck/fail", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "OK") })
	server := httptest.NewServer(mux)
	address := strings.TrimPrefix(server.URL, "http://")
	s := newShell(t)
	if got := s.ok("", "ready", "--url", server.URL+"/readyz"); got != "ok\n" {
		t.Errorf("ready printed %q, want ok", got)
	}
	if got := s.ok("", "drain", "--admin", address); got != "OK\n" {
		t.Errorf("drain printed %q, want OK", got)
	}
	started := time.Now()
	s.ok("", "drain", "--admin", address, "--for", "50ms")
	if took := time.Since(started); took < 50*time.Millisecond {
		t.Errorf("drain --for 50ms took %v", took)
	}
	ready = false
	s.fails(exitRuntime, "503 Service Unavailable: push: not yet", "", "ready", "--url", server.URL+"/readyz")
	s.fails(exitUsage, "invalid", "", "ready", "--url", "http://a b")
	server.Close()
	s.fails(exitRuntime, "refused", "", "ready", "--url", server.URL+"/readyz")
	s.fails(exitRuntime, "refused", "", "drain", "--admin", address)
}
