//go:build linux

package proc

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// TestApart has a serving child and an idle child.
func TestApart(t *testing.T) {
	if runtime.NumCPU() < 2 {
		if _, err := PinServingThreads(Server{PID: os.Getpid()}); err == nil {
			t.Error("got no error on a machine with one core")
		}
		return
	}
	var pids []int
	for range 2 {
		child := exec.Command("sleep", "60")
		require.NoError(t, child.Start())
		t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
		pids = append(pids, child.Process.Pid)
	}
	cores := func(pid int) string {
		var set unix.CPUSet
		require.NoError(t, unix.SchedGetaffinity(pid, &set))
		return fmt.Sprint(set.Count(), set.IsSet(0))
	}
	serving := Server{PID: pids[0], Workers: "sleep"}
	if _, err := PinServingThreads(Server{PID: pids[0], Workers: "nobody"}, pids[1]); err == nil ||
		cores(pids[1]) != fmt.Sprint(runtime.NumCPU(), true) {
		t.Errorf("no thread of that name: got %v, and the other on %s", err, cores(pids[1]))
	}
	undo, err := PinServingThreads(serving, pids[1])
	require.NoError(t, err)
	if a, b := cores(pids[0]), cores(pids[1]); a != "1 true" || b != fmt.Sprint(runtime.NumCPU()-1, false) {
		t.Errorf("got the one on %s and the other on %s, want core 0, and all but that", a, b)
	}
	if err := undo(); err != nil || cores(pids[0]) != cores(pids[1]) ||
		cores(pids[0]) != fmt.Sprint(runtime.NumCPU(), true) {
		t.Errorf("undone: got %s and %s (%v), want all cores", cores(pids[0]), cores(pids[1]), err)
	}

	// Children serve by their first thread.
	if _, err := PinServingThreads(Server{PID: pids[0], Forks: true}, pids[1]); err == nil {
		t.Error("got no error for a server without children")
	}
	undo, err = PinServingThreads(Server{PID: os.Getpid(), Forks: true})
	require.NoError(t, err)
	own, child := cores(os.Getpid()), cores(pids[0])
	if err := undo(); err != nil || cores(pids[0]) != fmt.Sprint(runtime.NumCPU(), true) {
		t.Errorf("undone: got %s (%v), want all cores", cores(pids[0]), err)
	}
	if own != fmt.Sprint(runtime.NumCPU()-1, false) || child != "1 true" {
		t.Errorf("got itself on %s and a child on %s, want all but core 0, and core 0", own, child)
	}
}
