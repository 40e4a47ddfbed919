//go:build linux

package proc

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

func TestUsageOfOneselfGrows(t *testing.T) {
	servers := []Server{{Name: "self", PID: os.Getpid()}}
	before, err := ReadUsage(servers)
	require.NoError(t, err)
	var u Usage
	for deadline := time.Now().Add(20 * time.Second); u.CPU["self"] < .05 && time.Now().Before(deadline); {
		after, err := ReadUsage(servers) // reading uses enough CPU
		require.NoError(t, err)
		u = after.Since(before)
	}
	if u.CPU["self"] < .05 || u.Total() != u.CPU["self"] || u.Machine <= 0 || u.Busy["self"] <= 0 {
		t.Errorf("got %+v, want 0.05 s of CPU, and a machine that was busy", u)
	}
}

// TestChildrenCount runs a shell that leaves the work to a child.
func TestChildrenCount(t *testing.T) {
	p := exec.Command("/bin/sh", "-c", "(while :; do :; done) & wait")
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-p.Process.Pid, syscall.SIGKILL)
		_ = p.Wait()
	})
	servers := []Server{{Name: "shell", PID: p.Process.Pid, Cores: 1, Forks: true}}
	deadline := time.Now().Add(20 * time.Second)
	before, err := ReadUsage(servers)
	for err != nil && time.Now().Before(deadline) { // until the shell has a child
		before, err = ReadUsage(servers)
	}
	require.NoError(t, err)
	var u Usage
	for u.CPU["shell"] < .05 && time.Now().Before(deadline) {
		after, err := ReadUsage(servers)
		require.NoError(t, err)
		u = after.Since(before)
	}
	if u.CPU["shell"] < .05 || u.Busy["shell"] <= 0 {
		t.Errorf("got %v s of CPU, busy %v, want that of the child", u.CPU, u.Busy)
	}
	checkClock(t, servers)
}

// checkClock compares the clock of servers that compute with the result of ReadUsage. The clock is read before and
// after ReadUsage: the servers may compute for any time between two readings.
func checkClock(t *testing.T, servers []Server) {
	clock, err := NewClock(servers)
	require.NoError(t, err)
	read := func() (r Reading, before, after time.Duration) {
		t.Helper()
		before, err := clock.Read()
		if err == nil {
			r, err = ReadUsage(servers)
		}
		if err == nil {
			after, err = clock.Read()
		}
		require.NoError(t, err)
		return r, before, after
	}
	first, begin, began := read()
	var ticked, least, most time.Duration
	for deadline := time.Now().Add(20 * time.Second); least < 200*time.Millisecond && time.Now().Before(deadline); {
		last, end, ended := read()
		ticked, least, most = time.Duration(last.Since(first).Total()*float64(time.Second)), end-began, ended-begin
	}
	const ticks = 100 * time.Millisecond // possible error of both
	if least < 200*time.Millisecond || ticked < least-ticks || ticked > most+ticks {
		t.Errorf("got %v to %v by the clock, %v by ticks", least, most, ticked)
	}
}

func TestCountersPairNamesWithValues(t *testing.T) {
	got := parseCounters("Ip: A B\nIp: 1 2\nTcp: InSegs RetransSegs\nTcp: 10 7\n")
	if got["Tcp.RetransSegs"] != 7 || got["Ip.A"] != 1 {
		t.Errorf("got %v", got)
	}
}
