package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/proc"
)

// TestMillionDevices imports a million ready hashes, lists a tenth of them, and starts a sidecar.
func TestMillionDevices(t *testing.T) {
	if testing.Short() {
		t.Skip("long form; TestImport of gatehousectl, with few devices")
	}
	const devices = 1_000_000
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", dir, ".",
		"../../../ctl/cmd/gatehousectl").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	path := filepath.Join(dir, "devices.csv")
	file, err := os.Create(path)
	require.NoError(t, err)
	csv := bufio.NewWriter(file)
	fmt.Fprintln(csv, "id,hash,permissions,labels")
	for i := range devices {
		fmt.Fprintf(csv, "device-%d,$2b$12$%053d,telemetry.write,\"fleet=f%d,site=%d\"\n", i, i, i%10, i%1000)
	}
	require.NoError(t, csv.Flush())
	require.NoError(t, file.Close())
	server := redistest.StartServer(t)
	for _, step := range []struct {
		args []string
		most time.Duration
		mib  int64
	}{
		{[]string{"import", path}, 3 * time.Minute, 160},
		{[]string{"import", path}, 3 * time.Minute, 160}, // all are there
		{[]string{"list", "--label", "fleet=f3"}, time.Minute, 64},
	} {
		args := append([]string{"device"}, step.args...)
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "gatehousectl"), args...)
		cmd.Env = append(os.Environ(), "GATEHOUSE_REDIS=redis://"+server.Address)
		cmd.Stdout, cmd.Stderr = io.Discard, os.Stderr
		begin := time.Now()
		mib, err := runMeasured(cmd)
		require.NoError(t, err)
		took := time.Since(begin)
		t.Logf("%s: %v, %d MiB", step.args[0], took, mib)
		if took > step.most || mib > step.mib {
			t.Errorf("%s: %v and %d MiB, want at most %v and %d MiB", step.args[0], took, mib, step.most, step.mib)
		}
	}
	p := startProcess(t, filepath.Join(dir, "gatehouse-sidecar"), server.Address)
	took := p.ready(t)
	p.fits(t, fmt.Sprintf("ready in %v", took))
}

// runMeasured runs cmd and returns its peak of resident memory, in MiB. That of getrusage(2) has the parent's, too.
func runMeasured(cmd *exec.Cmd) (mib int64, err error) {
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case err := <-done:
			return mib, err
		case <-time.After(20 * time.Millisecond):
			if peak, err := proc.PeakRSS(cmd.Process.Pid); err == nil {
				mib = peak >> 20
			}
		}
	}
}
