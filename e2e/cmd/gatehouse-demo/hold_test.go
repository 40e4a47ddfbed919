package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// holderVariable makes this test binary hold a stack's directory instead of testing; with
// stubbornVariable it doesn't heed SIGTERM.
const (
	holderVariable   = "GATEHOUSE_DEMO_HOLDER"
	stubbornVariable = "GATEHOUSE_DEMO_STUBBORN"
)

func TestMain(m *testing.M) {
	dir := os.Getenv(holderVariable)
	if dir == "" {
		os.Exit(m.Run())
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	held, err := hold(dir, "test")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("held")
	<-ended
	if os.Getenv(stubbornVariable) != "" {
		select {}
	}
	held.release()
}

// holder starts another process that holds dir.
func holder(t *testing.T, dir string, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), holderVariable+"="+dir), env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line := make([]byte, 5)
	if _, err := out.Read(line); err != nil || string(line) != "held\n" {
		t.Fatalf("holder: got %q, %v; want held", line, err)
	}
	return cmd
}

func TestHoldAndStop(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, pidFile)
	if pid, err := stop(path, time.Second); pid != 0 || err != nil {
		t.Errorf("stop of nothing: got %d, %v; want 0, nil", pid, err)
	}
	cmd := holder(t, dir)
	_, err := hold(dir, "test")
	want := fmt.Sprintf("stack test runs already (pid %d); end it with: make stop STACK=test", cmd.Process.Pid)
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if pid, err := stop(path, 10*time.Second); pid != cmd.Process.Pid || err != nil {
		t.Errorf("stop: got %d, %v; want %d, nil", pid, err, cmd.Process.Pid)
	}
	if pid, err := stop(path, time.Second); pid != 0 || err != nil {
		t.Errorf("second stop: got %d, %v; want 0, nil", pid, err)
	}
}

func TestStopKillsTheStubborn(t *testing.T) {
	dir := t.TempDir()
	cmd := holder(t, dir, stubbornVariable+"=1")
	pid, err := stop(filepath.Join(dir, pidFile), 100*time.Millisecond)
	if pid != cmd.Process.Pid || err != nil {
		t.Errorf("got %d, %v; want %d, nil", pid, err, cmd.Process.Pid)
	}
}

func TestStalePIDFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, pidFile)
	// What a killed process leaves, its number by now a stranger's: this process's.
	if err := os.WriteFile(path, fmt.Appendln(nil, os.Getpid()), 0o600); err != nil {
		t.Fatal(err)
	}
	if pid, err := stop(path, time.Second); pid != 0 || err != nil {
		t.Errorf("stop: got %d, %v; want 0, nil", pid, err)
	}
	held, err := hold(dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	held.release()
}

func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   []string
		status int
		want   string // in what is printed
	}{
		{"help", []string{"--help"}, 0, "Usage: gatehouse-demo"},
		{"no command", nil, 2, "gatehouse-demo: usage: "},
		{"unknown flag", []string{"run", "--nope"}, 2, "unknown flag --nope"},
		{"bad number", []string{"run", "--concurrency=x"}, 2, "--concurrency"},
		{"bad name", []string{"stop", "--stack=../x"}, 2, `STACK "../x"`},
		{"not running", []string{"stop", "--stack=never-started"}, 0, "stack never-started is not running\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			if got := run(c.args, &out, &out); got != c.status {
				t.Errorf("status: got %d, want %d", got, c.status)
			}
			if !strings.Contains(out.String(), c.want) {
				t.Errorf("output: got %q, want %q in it", out.String(), c.want)
			}
		})
	}
}
