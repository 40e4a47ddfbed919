//go:build linux

// Package peers starts the alternatives to Gatehouse: services in Go, listeners of Envoy without Gatehouse, nginx and
// Varnish. All servers listen on free loopback ports.
package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/testbed/proc"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// readyTimeout bounds the wait for a program to start; varnishd compiles its configuration with a C compiler.
const readyTimeout = 20 * time.Second

// MissingError reports that a peer's program is not installed.
type MissingError struct{ Program string }

// Error names the program.
func (e *MissingError) Error() string { return e.Program + " is not installed" }

// Running is a running server.
type Running struct {
	Name    string
	Address string // host:port
	process *stack.Child
}

// URL returns the server's URL.
func (r *Running) URL() string { return "http://" + r.Address }

// Server returns the server for CPU measurements.
func (r *Running) Server() proc.Server { return proc.Server{Name: r.Name, PID: r.process.PID()} }

// Stop ends the server.
func (r *Running) Stop() error { return r.process.Stop() }

// StartGo runs a service of package service.
func StartGo(ctx context.Context, dir, kind string) (*Running, error) {
	address, err := freeport.FindAddress()
	if err != nil {
		return nil, err
	}
	return startServer(ctx, dir, address, kind, "", "serve", kind, "--address", address)
}

// findProgram returns the path of a program, also from /usr/sbin, which only root's PATH has.
func findProgram(program string) (string, error) {
	for _, candidate := range []string{program, "/usr/sbin/" + program} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path, nil
		}
	}
	return "", &MissingError{program}
}

// startServer runs a program (empty path: loadtest itself) with a log in dir, and waits for the right answer to the
// device's request for an object.
func startServer(ctx context.Context, dir, address, name, path string, args ...string) (*Running, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("not ready after %s", readyTimeout))
	defer cancel()
	died := make(chan error, 1)
	child, err := stack.StartChild(name, path, args, nil, filepath.Join(dir, name+".log"), func(err error) { died <- err })
	if err != nil {
		return nil, err
	}
	r := &Running{name, address, child}
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := CheckResponse(ctx, r.URL(), workload.Workload{Method: http.MethodGet, Path: workload.Private1K,
			Status: http.StatusOK, Bytes: -1,
			Headers: []string{"x-device-id: " + workload.Device, "x-device-token: " + workload.Secret}})
		if err == nil {
			return r, nil
		}
		select {
		case err := <-died:
			return nil, err
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("%s on %s: %w: %w", name, address, context.Cause(ctx), err), r.Stop())
		case <-ticker.C:
		}
	}
}

// CheckResponse sends one request of w, and returns an error for an unexpected response: wrk would count a 401 like a
// 304.
func CheckResponse(ctx context.Context, url string, w workload.Workload) error {
	request, err := http.NewRequestWithContext(ctx, w.Method, url+w.Path, nil)
	if err != nil {
		return err
	}
	request.Close = true
	request.Header.Set("Accept-Encoding", "identity") // otherwise the client asks for gzip
	for _, h := range w.Headers {
		name, value, _ := strings.Cut(h, ": ")
		request.Header.Set(name, value)
	}
	request.Host = cmp.Or(request.Header.Get("Host"), request.Host)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != w.Status || w.Bytes >= 0 && len(body) != w.Bytes {
		return fmt.Errorf("%s %s on %s: got %d with %d bytes, want %d with %d", w.Method, w.Path, url,
			response.StatusCode, len(body), w.Status, w.Bytes)
	}
	return nil
}
