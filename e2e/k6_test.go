package e2e

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestK6 runs the scripts that operators run against their own clusters, and checks that they fail where they should.
func TestK6(t *testing.T) {
	long(t, "none; .ci/run has a stage for it, for k6 takes minutes to build")
	t.Parallel()
	e := start(t, stack.Options{Name: "k6"})
	e.put("/v1/products/1", `{"name":"one"}`)
	e.put("/v1/fleet/config", `{}`)
	e.device("k6-device", "k6-secret", 4, "telemetry.write", "config.read")
	e.device("k6-reader", "k6-secret", 4, "config.read")
	await(t, "a hit", patience, func() error {
		if a := e.send("GET /v1/products/1"); !strings.Contains(a.header.Get("Cache-Status"), "; hit") {
			return errors.New(a.header.Get("Cache-Status"))
		}
		return nil
	})
	devices := writeFile(t, "devices.csv", "k6-device,k6-secret\n")
	readers := writeFile(t, "readers.csv", "k6-reader,k6-secret\n")
	binary := k6(t)
	tests := []struct {
		name   string
		script string
		env    []string
		exit   int // 99: a threshold was crossed
	}{
		{"reads", "read.js", []string{"PATHS=/v1/products/1"}, 0},
		{"reads of a device", "read.js", []string{"PATHS=/v1/fleet/config", "DEVICE_ID=k6-device", "DEVICE_SECRET=k6-secret"}, 0},
		{"reads of what is not published", "read.js", []string{"PATHS=/v1/products/none"}, 99},
		{"devices under a flood", "devices.js", []string{"DEVICES=" + devices, "FLOOD=50"}, 0},
		{"devices that may not report", "devices.js", []string{"DEVICES=" + readers}, 99},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// Other tests load the machine: no limit of latency here.
			args := []string{"run", "--quiet", "--no-usage-report", "-e", "BASE_URL=" + e.EdgeURL(), "-e", "RATE=50", "-e", "DURATION=2s", "-e", "P99_MS=5000"}
			for _, pair := range tt.env {
				args = append(args, "-e", pair)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, binary, append(args, filepath.Join("..", "loadtest", "k6", tt.script))...)
			output, err := cmd.CombinedOutput()
			if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != tt.exit {
				t.Errorf("exit: %v, want %d\n%s", err, tt.exit, output)
			}
		})
	}
}

func k6(t *testing.T) string {
	t.Helper()
	path, err := exec.CommandContext(t.Context(), "../scripts/install-k6.sh").Output()
	if err != nil {
		t.Fatalf("install-k6.sh: %v", err)
	}
	return strings.TrimSpace(string(path))
}
