package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/internal/operatorapi"
)

// TestOperatorCommands asks a sidecar that answers nothing but keeps the question.
func TestOperatorCommands(t *testing.T) {
	var asked operatorapi.Question
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/explain", func(w http.ResponseWriter, r *http.Request) {
		asked = operatorapi.Question{}
		_ = json.NewDecoder(r.Body).Decode(&asked)
		fmt.Fprint(w, "{}")
	})
	mux.HandleFunc("GET /v1/top", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"rates": {"a": 1}}`) })
	server := httptest.NewServer(mux)
	defer server.Close()
	s := newShell(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	at := []string{"--sidecar", strings.TrimPrefix(server.URL, "http://")}
	explain := append([]string{"explain", "/a", "--rules",
		write("rules", "rules: [{match: {path: /a}, cache: {}}]")}, at...)
	secret := [2]string{"x-device-token", "secret"}
	for _, tt := range []struct {
		name, stdin string
		args        []string
		want        [][2]string
	}{
		{"on the command line", "", []string{"--header", "x-a: b"}, [][2]string{{"x-a", "b"}}},
		{"a file", "", []string{"--header", "@" + write("headers", "x-device-id: dev\r\n\nx-device-token:secret\n")},
			[][2]string{{"x-device-id", "dev"}, secret}},
		{"standard input", "x-device-token: secret", []string{"--header", "x-device-id: dev", "--header", "@-"},
			[][2]string{{"x-device-id", "dev"}, secret}},
	} {
		s.ok(tt.stdin, slices.Concat(explain, tt.args)...)
		if !slices.Equal(asked.Headers, tt.want) {
			t.Errorf("%s: asked with %q, want %q", tt.name, asked.Headers, tt.want)
		}
	}
	s.fails(exitUsage, "--header: want NAME:VALUE", "", append(explain, "--header", "secret")...)
	s.fails(exitUsage, "--header -, line 2: want NAME:VALUE", "a:b\nsecret", append(explain, "--header", "@-")...)
	s.fails(exitRuntime, "no such file", "", append(explain, "--header", "@"+dir+"/none")...)
	// Not a terminal: top ends after one table.
	if got := s.ok("", append([]string{"top"}, at...)...); !strings.HasPrefix(got, "PER SECOND") {
		t.Errorf("top printed %q, want one table", got)
	}
}
