package stack

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// shell starts a child that runs script, and ends the child when the test ends.
func shell(t *testing.T, script string, onExit func(error)) *process {
	t.Helper()
	p, err := start(program{
		name: "child", path: "/bin/sh", args: []string{"-c", script}, log: filepath.Join(t.TempDir(), "child.log"),
	}, onExit)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := p.kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func unexpected(t *testing.T) func(error) {
	return func(err error) { t.Errorf("got %v, want no report of an end that was asked for", err) }
}

// waitForLog returns when the child has written text.
func waitForLog(t *testing.T, p *process, text string) {
	t.Helper()
	await.Until(t, text+" in the log", func() bool { return strings.Contains(readTail(p.log, 0), text) })
}

func TestProcessReportsItsEnd(t *testing.T) {
	reported := make(chan error, 1)
	p := shell(t, "for i in $(seq 30); do echo line $i; done; echo last words >&2; exit 3", func(err error) {
		reported <- err
	})
	var exit *ExitError
	if err := <-reported; !errors.As(err, &exit) {
		t.Fatalf("got %v, want an ExitError", err)
	}
	if exit.Name != "child" || exit.PID != p.pid || exit.Status != "exit status 3" {
		t.Errorf("got %s, pid %d, %s; want child, pid %d, exit status 3", exit.Name, exit.PID, exit.Status, p.pid)
	}
	lines := strings.Split(exit.Tail, "\n")
	if len(lines) != tailLines || lines[0] != "line 12" || lines[tailLines-1] != "last words" {
		t.Errorf("tail: got %q, want the last %d lines", lines, tailLines)
	}
	if want := fmt.Sprintf("child (pid %d) ended: exit status 3; last lines of ",
		p.pid); !strings.HasPrefix(exit.Error(), want) {
		t.Errorf("got %q, want it to begin with %q", exit.Error(), want)
	}
}

func TestProcessStopsBySIGTERM(t *testing.T) {
	for _, c := range []struct {
		name   string
		paused bool
	}{{"running", false}, {"paused", true}} {
		t.Run(c.name, func(t *testing.T) {
			p := shell(t, `trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done`, unexpected(t))
			waitForLog(t, p, "up")
			if c.paused {
				require.NoError(t, p.signal(syscall.SIGSTOP))
			}
			if err := p.stop(await.Deadline); err != nil {
				t.Error(err)
			}
			waitForLog(t, p, "bye")
			if err := p.stop(time.Second); err != nil {
				t.Errorf("second stop: got %v, want nil", err)
			}
		})
	}
}

func TestProcessIsKilledAfterGrace(t *testing.T) {
	p := shell(t, `trap '' TERM; echo up; while :; do sleep 0.05; done`, unexpected(t))
	waitForLog(t, p, "up")
	err := p.stop(50 * time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "did not end within 50ms of SIGTERM and was killed") {
		t.Errorf("got %v, want a report that it was killed", err)
	}
	if p.status != "signal: killed" {
		t.Errorf("status: got %q, want signal: killed", p.status)
	}
}

// TestChildDiesWithItsParent kills a parent: nobody listens any more, neither the child nor a worker of nginx started
// by the child.
func TestChildDiesWithItsParent(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	for _, role := range []string{"parent", "parent of nginx"} {
		t.Run(role, func(t *testing.T) {
			address, err := resolveAddress("CHILD", "")
			require.NoError(t, err)
			parent := exec.Command(self, t.TempDir(), address)
			parent.Env = append(os.Environ(), helperVariable+"="+role)
			require.NoError(t, parent.Start())
			waitForListener(t, address, true)
			require.NoError(t, parent.Process.Kill())
			_ = parent.Wait() // killed
			waitForListener(t, address, false)
		})
	}
}

func waitForListener(t *testing.T, address string, want bool) {
	t.Helper()
	await.Until(t, fmt.Sprintf("listening on %s: %t", address, want), func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return (err == nil) == want
	})
}
