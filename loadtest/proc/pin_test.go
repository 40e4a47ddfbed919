//go:build linux

package proc

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

func TestPin(t *testing.T) {
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close(); _ = cmd.Wait() }()
	allowed := func() string {
		t.Helper()
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "Cpus_allowed_list:")
		line, _, _ := strings.Cut(rest, "\n")
		return strings.TrimSpace(line)
	}
	before := allowed()
	if err := Pin(cmd.Process.Pid, "", 0, 1); err != nil {
		t.Fatal(err)
	}
	if got := allowed(); got != "0" {
		t.Errorf("got cores %s, want 0", got)
	}
	if err := Pin(cmd.Process.Pid, "", 0, runtime.NumCPU()); err != nil {
		t.Fatal(err)
	}
	if got := allowed(); got != before {
		t.Errorf("got cores %s, want %s again", got, before)
	}
	if err := Pin(cmd.Process.Pid, "worker", 0, 1); err == nil {
		t.Error("got no error for a thread that isn't there")
	}
}
