package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// hasherPIDs returns the processes that run bcrypt for a sidecar: its children of this name.
func (e *edge) hasherPIDs(priority string) (pids []int) {
	e.t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(e.t, err)
	for _, path := range paths {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if fields[1] == fmt.Sprint(e.SidecarPID()) && strings.HasSuffix(string(command), "\x00"+priority+"\x00") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// awaitExit waits until a process has exited. A zombie counts as exited.
func awaitExit(t *testing.T, pid int) {
	t.Helper()
	await(t, "the hasher is gone", patience, func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && !strings.Contains(string(stat), ") Z ") {
			return fmt.Errorf("it is there: %s", stat)
		}
		return nil
	})
}

// TestStuckHasher stops the only process that runs bcrypt: the process is killed at its deadline, and devices are
// authenticated.
func TestStuckHasher(t *testing.T) {
	leaveToNative(t)
	e := reuse(t, stack.Options{SidecarArgs: []string{"--bcrypt.workers=1"}})
	for i := range 3 {
		e.putDevice(fmt.Sprint("dev", i), "right", 8, "telemetry.write")
	}
	e.awaitRecords(3)
	in := func(i int) time.Duration {
		t.Helper()
		return await(t, "device is authenticated", 2*patience, func() error {
			return e.sendFromAll(e.workerClients()[:1], let, "POST /v1/telemetry", credential(fmt.Sprint("dev", i), "right")...)
		})
	}
	in(0)
	pids := e.hasherPIDs("bcrypt")
	if len(pids) != 1 {
		t.Fatalf("hashers %v, want one", pids)
	}
	require.NoError(t, syscall.Kill(pids[0], syscall.SIGSTOP))
	t.Logf("in after %v beside a hasher that was stopped, and then after %v", in(1), in(2))
	awaitExit(t, pids[0])
	if n := e.metric("gatehouse_hashers_killed_total"); n < 1 ||
		!strings.Contains(e.readLog("sidecar"), "a hasher gave no answer in time") {
		t.Errorf("%v killed, want it counted and logged", n)
	}
	if now := e.hasherPIDs("bcrypt"); len(now) != 1 || now[0] == pids[0] {
		t.Errorf("hashers %v, want another one", now)
	}
	// A stopped one doesn't outlive the sidecar.
	now := e.hasherPIDs("bcrypt")
	require.NoError(t, syscall.Kill(now[0], syscall.SIGSTOP))
	require.NoError(t, e.KillSidecar())
	awaitExit(t, now[0])
}

// TestSuspectsOnBusyProcessors has one worker, all processors busy, and a suspect's run of bcrypt that gets no CPU:
// clean devices are authenticated meanwhile.
func TestSuspectsOnBusyProcessors(t *testing.T) {
	leaveToLongForm(t, "TestSuspectsHoldNobodyUp of package credential")
	const limit = 10 * time.Second
	e := reuse(t, stack.Options{SidecarArgs: []string{"--bcrypt.workers=1"}})
	e.putDevice("victim", "right", 14, "telemetry.write")
	for i := range 3 {
		e.putDevice(fmt.Sprint("clean", i), "right", 6, "telemetry.write")
	}
	e.putDevice("cheap", "right", 6, "telemetry.write")
	e.awaitRecords(5)
	bad, good := clientFrom(2), clientFrom(3)
	if a, err := e.try(bad, "POST /v1/telemetry", credential("cheap", "wrong")...); err != nil || a.status != 401 {
		t.Fatalf("got %d, %v", a.status, err)
	}
	for range 2 * runtime.NumCPU() {
		busy := exec.Command("sh", "-c", "while :; do :; done")
		require.NoError(t, busy.Start())
		t.Cleanup(func() { _ = busy.Process.Kill(); _ = busy.Wait() })
	}
	await(t, "the suspect's bcrypt runs", patience, func() error {
		_, _ = e.try(bad, "POST /v1/telemetry", credential("victim", "wrong")...)
		if len(e.hasherPIDs("bcrypt-idle")) == 0 {
			return fmt.Errorf("it doesn't")
		}
		return nil
	})
	for i := range 3 {
		took := await(t, "a clean device is authenticated", limit, func() error {
			a, err := e.try(good, "POST /v1/telemetry", credential(fmt.Sprint("clean", i), "right")...)
			if err == nil && a.status != 200 {
				err = fmt.Errorf("got %d", a.status)
			}
			return err
		})
		t.Logf("in after %v beside a suspect's run", took)
	}
	if n := e.metric("gatehouse_bcrypt_total"); n != 4 {
		t.Errorf("%v runs of bcrypt have ended, want 4: the suspect's was to last, or nothing was shown", n)
	}
}
