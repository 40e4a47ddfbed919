package hasher

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// scheduling returns the niceness and the scheduling policy, fields 19 and 41, in /proc/PID/task/TID/stat.
func scheduling(t *testing.T, path string) (niceness, policy string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	return fields[16], fields[38]
}

// TestPriority finds a hasher's hashing thread, scheduled differently from other threads and from this process, also in
// a process with a niceness of its own.
func TestPriority(t *testing.T) {
	p, _ := newPool(t)
	own, policy := scheduling(t, "/proc/self/stat")
	niceness, err := strconv.Atoi(own)
	require.NoError(t, err)
	low := fmt.Sprint(min(niceness+10, 19), " 0")
	for priority, want := range map[Priority][]string{Low: {low}, Idle: {own + " 5"}} {
		require.NoError(t, p.Compare(hashOf(t, "right"),
			"right", map[Priority]chan bool{Idle: make(chan bool)}[priority]))
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.freeHashers[priority][0].command.Process.Pid))
		require.NoError(t, err)
		var got []string
		for _, path := range threads {
			if n, p := scheduling(t, path); n != own || p != policy {
				got = append(got, n+" "+p)
			}
		}
		if priority == Low && niceness == 19 {
			want = nil // nothing is nicer
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got threads of niceness and policy %q beside those of %s %s, want %q", priority, got, own, policy,
				want)
		}
	}
	const nice = "GATEHOUSE_TEST_IS_NICE"
	if os.Getenv(nice) != "" {
		return
	}
	for _, n := range []string{"5", "12", "19"} {
		cmd := exec.CommandContext(t.Context(), "nice", "-n", n, os.Args[0], "-test.run=^TestPriority$")
		cmd.Env = append(os.Environ(), nice+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("under nice -n %s: %v: %s", n, err, out)
		}
	}
}

// state returns the state of a process, field 3 of its stat: T means stopped.
func state(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))[0]
}

// TestPause stops a hasher for longer than its deadline; the hasher answers once continued.
func TestPause(t *testing.T) {
	p, _ := newPool(t)
	right := hashOf(t, "right")
	require.NoError(t, p.Compare(right, "right", make(chan bool)))
	long, err := bcrypt.GenerateFromPassword([]byte("right"), 10)
	require.NoError(t, err)
	pid := p.freeHashers[Idle][0].command.Process.Pid
	const short = 2 * time.Second
	p.deadline = func(string, Priority) time.Duration { return short }
	pace, done := make(chan bool, 1), make(chan error, 1)
	pace <- true
	go func() { done <- p.Compare(string(long), "right", pace) }()
	for end := time.Now().Add(20 * time.Second); state(t, pid) != "T"; {
		if time.Now().After(end) {
			t.Fatalf("state %s, want T", state(t, pid))
		}
	}
	select {
	case err := <-done:
		t.Fatalf("got %v while it pauses", err)
	case <-time.After(short + time.Second):
	}
	if got := state(t, pid); got != "T" {
		t.Errorf("state %s, want T", got)
	}
	p.deadline = answerDeadline
	pace <- false
	if err := <-done; err != nil { // after a long time without CPU another hasher answers
		t.Errorf("got %v, want that the right secret is right", err)
	}
}
