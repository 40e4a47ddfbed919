// Command gatehouse-chaos runs a whole Gatehouse under load while its parts are killed, paused and cut off, and checks
// every answer. `make chaos` calls it. See package chaos.
//
// Exit status: 0 without a violation, 1 with one or on a failure, 2 on wrong usage.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/e2e/chaos"
	"github.com/gatehouse/gatehouse/e2e/suite"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

func main() {
	os.Exit(suite.Run("gatehouse-chaos", &commandLine{}, os.Args[1:], os.Stdout, os.Stderr))
}

type commandLine struct {
	Seconds  int               `env:"CHAOS_SECONDS" default:"60" help:"Duration of the faults."`
	Seed     string            `env:"SEED" help:"Seed of the schedule, to repeat a run. Default: a random one, which is printed."`
	Redis    chaos.Deployment  `env:"CHAOS_REDIS" default:"single" enum:"single,sentinel,cluster,replica" help:"Deployment of Redis: ${enum}."`
	Agent    bool              `env:"CHAOS_AGENT" help:"Put two more edges on the first edge's sidecar."`
	Only     []chaos.FaultKind `help:"Inject only these faults, for example 'sidecar killed'."`
	FailFast bool              `help:"Stop at the first violation."`
	Envoy    string            `env:"ENVOY" help:"Envoy's binary (default: the one in .venv)."`
	Build    string            `default:"build/chaos" help:"What scripts/chaos-build.sh has built."`
}

func (c *commandLine) checkFlags() error {
	if c.Seconds < 1 || c.Seconds > 24*3600 {
		return fmt.Errorf("%w: CHAOS_SECONDS %d: want 1 to %d", stack.ErrUsage, c.Seconds, 24*3600)
	}
	for _, kind := range c.Only {
		if !slices.Contains(chaos.FaultKinds, kind) {
			return fmt.Errorf("%w: --only %q: want some of %q", stack.ErrUsage, kind, chaos.FaultKinds)
		}
	}
	return nil
}

// RunSuite runs the chaos. It keeps the stack's directory after a violation or failure.
func (c *commandLine) RunSuite(ctx context.Context, stdout io.Writer) (violations int, err error) {
	if err := c.checkFlags(); err != nil {
		return 0, err
	}
	seed, err := suite.ParseSeed(c.Seed)
	if err != nil {
		return 0, err
	}
	server, err := exec.LookPath("redis-server")
	if err != nil {
		return 0, fmt.Errorf("%w: %w; install it (apt-get install redis-server)", stack.ErrUsage, err)
	}
	dir, err := makeDir()
	if err != nil {
		return 0, fmt.Errorf("directory for the run: %w", err)
	}
	_, _ = fmt.Fprintf(stdout, "SEED=%d CHAOS_SECONDS=%d CHAOS_REDIS=%s CHAOS_AGENT=%t, logs in %s until all is well\n",
		seed, c.Seconds, c.Redis, c.Agent, dir)
	violations, err = chaos.Run(ctx, chaos.Config{
		Seed: seed, Duration: time.Duration(c.Seconds) * time.Second,
		Keys: 200, Writes: 800, Writers: 16, Reads: 3000, Readers: 16,
		Redis: c.Redis, Agent: c.Agent, Devices: 48, DeviceWrite: 50 * time.Millisecond, Login: 150 * time.Millisecond,
		RedisServerPath: server, ClockPath: filepath.Join(c.Build, "clock.so"), Only: c.Only, FailFast: c.FailFast,
		Out: stdout,
		Stack: stack.Options{
			Name: "chaos", Dir: dir, Concurrency: 2, EnvoyPath: c.Envoy,
			SidecarPath: filepath.Join(c.Build, "gatehouse-sidecar"), WasmPath: filepath.Join(c.Build, "gatehouse.wasm"),
			LibraryPath:  filepath.Join(c.Build, "libgatehouse.so"),
			NginxLibrary: filepath.Join(c.Build, "libgatehouse-nginx.so"),
		},
	})
	if err != nil || violations > 0 {
		return violations, err
	}
	return 0, os.RemoveAll(dir)
}

// makeDir makes the run's directory, in memory if the system has a file system for it: Redis runs with appendfsync
// always, so on disk Redis would answer only as fast as the disk.
func makeDir() (string, error) {
	if dir, err := os.MkdirTemp("/dev/shm", "gatehouse-chaos-"); err == nil {
		return dir, nil
	}
	return os.MkdirTemp("", "gatehouse-chaos-")
}
