package hasher

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPriority looks for the thread that hashes among those of a hasher: fields 19 and 41 of
// /proc/PID/task/TID/stat are its niceness and its scheduling policy.
func TestPriority(t *testing.T) {
	p, _ := newPool(t)
	for priority, want := range map[Priority]string{Low: "10 0", Idle: "0 5"} {
		if err := p.Compare(hashOf(t, "right"), "right", priority); err != nil {
			t.Fatal(err)
		}
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.free[priority][0].command.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, path := range threads {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
			if found := fields[16] + " " + fields[38]; found != "0 0" {
				got = append(got, found)
			}
		}
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s: got threads of niceness and policy %q, want one of %q", priority, got, want)
		}
	}
}
