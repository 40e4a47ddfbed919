package hasher

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPriority reads the priority of every thread of a hasher (field 19 of
// /proc/PID/task/TID/stat).
func TestPriority(t *testing.T) {
	p, _ := newPool(t)
	if err := p.Compare(hashOf(t, "right"), "right"); err != nil {
		t.Fatal(err)
	}
	mine, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := min(20-mine+niceness, 19)
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.idle[0].command.Process.Pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("got threads %v, %v", threads, err)
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if got, err := strconv.Atoi(fields[16]); err != nil || got != want {
			t.Errorf("%s: got niceness %d, %v; want %d", path, got, err, want)
		}
	}
}
