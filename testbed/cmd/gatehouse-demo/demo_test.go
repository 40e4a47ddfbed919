package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   []string
		status int
		want   string // in the output
	}{
		{"help", []string{"--help"}, 0, "Usage: gatehouse-demo"},
		{"unknown flag", []string{"--nope"}, 2, "unknown flag --nope"},
		{"bad number", []string{"--concurrency=x"}, 2, "--concurrency"},
		{"bad name", []string{"--stack=../x"}, 2, `STACK "../x"`},
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

// TestInTheBackground starts and stops other programs by scripts/demo.sh.
func TestInTheBackground(t *testing.T) {
	name := fmt.Sprint("test-", os.Getpid())
	dir := filepath.Join("..", "..", "..", ".run", name)
	t.Setenv("STACK", name)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Cleanup(func() { _ = exec.Command("../../../scripts/demo.sh", "stop").Run() }) // if the test has failed
	script := func(ok bool, want string, args ...string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "../../../scripts/demo.sh", args...).CombinedOutput()
		if (err == nil) != ok || !strings.Contains(string(out), want) {
			t.Fatalf("%v: got %v, %q; want %q", args, err, out, want)
		}
	}
	const runs = "echo gatehouse ready; echo banner; "
	script(true, "not running", "stop")
	script(false, "what went wrong", "start", "sh", "-c", "echo what went wrong; exit 3")
	script(true, "not running", "stop") // despite a pid file left behind
	script(true, "banner", "start", "sh", "-c", runs+"exec sleep 60")
	script(false, "runs already (pid ", "start", "sh", "-c", runs)
	script(false, "runs already (pid ", "run", "sh", "-c", runs)
	script(true, "stopped stack "+name, "stop")
	script(true, "not running", "stop")
}
