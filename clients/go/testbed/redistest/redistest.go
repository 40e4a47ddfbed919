// Package redistest starts real Redis servers for a test: a single server, a Cluster, or a master with a replica and
// sentinels. All servers listen on free loopback ports and end with the test.
package redistest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"syscall"

	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// T is the part of *testing.T that the package uses. Programs that test can implement T, too.
type T interface {
	Helper()
	Cleanup(func())
	TempDir() string
	Context() context.Context
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// Start runs an empty redis-server without persistence until the test ends, and returns its URL. Without redis-server,
// the test fails.
func Start(t T) (url string) {
	t.Helper()
	return "redis://" + StartServer(t).Address
}

// Server is a redis-server that can be killed and restarted. Only the test's goroutine may call methods.
type Server struct {
	// Address is the server's HOST:PORT.
	Address string
	// Dir holds the server's files.
	Dir string

	t       T
	args    []string
	cmd     *exec.Cmd // nil while not running
	drained chan struct{}
}

// StartServer runs a redis-server with args until the test ends.
func StartServer(t T, args ...string) *Server {
	t.Helper()
	s := &Server{Address: FreeAddress(t), Dir: t.TempDir(), t: t, args: args}
	t.Cleanup(s.stopProcess)
	s.startProcess()
	return s
}

// FreeAddress returns a free loopback address, as [freeport.FindAddress].
func FreeAddress(t T) string {
	t.Helper()
	address, err := freeport.FindAddress()
	require.NoError(t, err)
	return address
}

// Port returns the server's port.
func (s *Server) Port() string {
	_, port, _ := net.SplitHostPort(s.Address)
	return port
}

// Kill ends the server by SIGKILL.
func (s *Server) Kill() {
	s.t.Helper()
	if s.cmd == nil {
		s.t.Fatalf("redis-server on %s does not run", s.Address)
	}
	s.stopProcess()
}

// Restart starts the server after Kill, with the same files.
func (s *Server) Restart() {
	s.t.Helper()
	s.startProcess()
}

// Signal sends the server a signal.
func (s *Server) Signal(signal syscall.Signal) {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Signal(signal))
}

// startProcess waits until the server logs readiness. Otherwise the test fails with the server's output.
func (s *Server) startProcess() {
	s.t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		s.t.Fatalf("redis-server: %v; install it (apt-get install redis-server)", err)
	}
	host, port, _ := net.SplitHostPort(s.Address)
	// With delay 0, a master sends data at once, instead of waiting for more replicas.
	args := []string{"--bind", host, "--port", port, "--dir", s.Dir, "--save", "", "--appendonly", "no",
		"--repl-diskless-sync-delay", "0"}
	if strings.Contains(strings.Join(s.args, " "), "--sentinel") {
		args = []string{s.args[0], "--bind", host, "--port", port, "--dir", s.Dir, "--sentinel"}
	} else {
		args = append(args, s.args...)
	}
	cmd := exec.Command(binary, args...)
	stdout, err := cmd.StdoutPipe()
	require.NoError(s.t, err)
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		s.t.Fatalf("start %s: %v", binary, err)
	}
	var said strings.Builder
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		fmt.Fprintln(&said, lines.Text())
		if strings.Contains(lines.Text(), "Ready to accept connections") ||
			strings.Contains(lines.Text(), "+monitor master") {
			s.cmd, s.drained = cmd, make(chan struct{})
			go func() { // a full pipe would block the server
				defer close(s.drained)
				io.Copy(io.Discard, stdout)
			}()
			return
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	s.t.Fatalf("redis-server on %s ended before it was ready:\n%s", s.Address, said.String())
}

func (s *Server) stopProcess() {
	if s.cmd == nil {
		return
	}
	s.cmd.Process.Kill()
	<-s.drained // Wait closes the pipe: the reader must have finished
	s.cmd.Wait()
	s.cmd = nil
}
