//go:build linux

// Package peers starts what Gatehouse is compared with: services in Go, listeners of Envoy
// without Gatehouse, nginx and Varnish. All listen on free loopback ports.
package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/e2e/stack"
	"github.com/gatehouse/gatehouse/loadtest/proc"
	"github.com/gatehouse/gatehouse/loadtest/workload"
)

// readyTimeout bounds the wait for a program; varnishd compiles its configuration with a C
// compiler.
const readyTimeout = 20 * time.Second

// MissingError says that a peer's program is not on this machine.
type MissingError struct{ Program string }

// Error names it.
func (e *MissingError) Error() string { return e.Program + " is not installed" }

// Running is a program that serves.
type Running struct {
	Name    string
	Address string // host:port
	process *proc.Process
}

// URL is where it is reached.
func (r *Running) URL() string { return "http://" + r.Address }

// Server is what its CPU is measured by.
func (r *Running) Server() proc.Server { return proc.Server{Name: r.Name, PID: r.process.PID()} }

// Stop ends it.
func (r *Running) Stop() error { return r.process.Stop() }

// StartGo runs a service of this program itself.
func StartGo(ctx context.Context, dir, kind string, cost int) (*Running, error) {
	address, err := stack.FreeAddress()
	if err != nil {
		return nil, err
	}
	return start(ctx, dir, address, proc.Program{Name: kind, Args: []string{"serve", kind, "--address", address, fmt.Sprint("--cost=", cost)}})
}

// find is the path of a program, also where only root's PATH has it.
func find(program string) (string, error) {
	for _, candidate := range []string{program, "/usr/sbin/" + program} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path, nil
		}
	}
	return "", &MissingError{program}
}

// start runs p, which logs to dir, and waits until it answers.
func start(ctx context.Context, dir, address string, p proc.Program) (*Running, error) {
	p.Log = filepath.Join(dir, p.Name+".log")
	process, err := proc.Start(p)
	if err != nil {
		return nil, err
	}
	r := &Running{p.Name, address, process}
	if err := r.await(ctx); err != nil {
		text, _ := os.ReadFile(p.Log) // a reason to show, if there is one
		return nil, errors.Join(fmt.Errorf("%s on %s: %w; it said:\n%s", p.Name, address, err, text), r.Stop())
	}
	return r, nil
}

// await waits until the program gives the device an object.
func (r *Running) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := Probe(ctx, r.URL(), workload.Workload{Method: http.MethodGet, Path: workload.Private1K, Status: http.StatusOK, Bytes: -1,
			Headers: []string{"x-device-id: " + workload.Device, "x-device-token: " + workload.Secret}})
		if err == nil {
			return nil
		}
		select {
		case <-r.process.Done():
			return errors.New("it has ended")
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}

// Probe asks once for what w asks for. It is an error if the answer isn't the one that w
// wants: wrk would take a 401 for a 304.
func Probe(ctx context.Context, url string, w workload.Workload) error {
	request, err := http.NewRequestWithContext(ctx, w.Method, url+w.Path, nil)
	if err != nil {
		return err
	}
	request.Close = true
	request.Header.Set("Accept-Encoding", "identity") // or the client asks for gzip
	for _, h := range w.Headers {
		name, value, _ := strings.Cut(h, ": ")
		request.Header.Set(name, value)
	}
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
		return fmt.Errorf("%s %s on %s: got %d with %d bytes, want %d with %d", w.Method, w.Path, url, response.StatusCode, len(body), w.Status, w.Bytes)
	}
	return nil
}
