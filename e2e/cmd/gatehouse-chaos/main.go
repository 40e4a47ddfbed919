// Command gatehouse-chaos runs a whole Gatehouse under load while its parts are killed, paused and cut off, and checks
// every answer. `make chaos` calls it. See package chaos.
//
// Exit status: 0 without a violation, 1 with one or on a failure, 2 on wrong usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/gatehouse/gatehouse/e2e/chaos"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

type commandLine struct {
	Seconds  int               `env:"CHAOS_SECONDS" default:"60" help:"Duration of the faults."`
	Seed     string            `env:"SEED" help:"Seed of the schedule, to repeat a run. Default: a random one, which is printed."`
	Keys     int               `default:"200" help:"Keys that are written and read."`
	Writes   int               `default:"800" help:"Writes a second."`
	Reads    int               `default:"3000" help:"Reads a second."`
	Readers  int               `default:"16" help:"Connections that read."`
	Redis    chaos.Deployment  `env:"CHAOS_REDIS" default:"single" enum:"single,sentinel,cluster" help:"Deployment of Redis: ${enum}."`
	Only     []chaos.FaultKind `help:"Inject only these faults, for example 'sidecar killed'."`
	FailFast bool              `help:"Stop at the first violation."`
	Workers  int               `default:"2" help:"Envoy's worker count."`
	Envoy    string            `env:"ENVOY" help:"Envoy's binary (default: the one in .venv)."`
	Sidecar  string            `default:"build/chaos/gatehouse-sidecar" help:"The sidecar's binary, by scripts/chaos-build.sh."`
	Clock    string            `default:"build/chaos/clock.so" help:"The library by which clocks are stepped, likewise."`
	Wasm     string            `default:"build/chaos/gatehouse.wasm" help:"The filter, likewise."`
	Library  string            `default:"build/chaos/libgatehouse.so" help:"The dynamic module of EDGE_KIND=native, likewise."`

	NginxLibrary string `default:"build/chaos/libgatehouse-nginx.so" help:"The library of EDGE_KIND=nginx, likewise."`
}

func run(args []string, stdout, stderr io.Writer) int {
	var cli commandLine
	exited := -1 // set by --help
	parser, err := kong.New(&cli, kong.Name("gatehouse-chaos"), kong.Writers(stdout, stderr),
		kong.Exit(func(status int) { exited = status }))
	if err != nil {
		return reportError(stderr, err)
	}
	_, err = parser.Parse(args)
	if exited >= 0 {
		return exited
	}
	if err != nil {
		return reportError(stderr, fmt.Errorf("%w: %w; see gatehouse-chaos --help", stack.ErrUsage, err))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	violations, err := cli.runChaos(ctx, stdout)
	if err != nil {
		return reportError(stderr, err)
	}
	if violations > 0 {
		return 1
	}
	return 0
}

func reportError(stderr io.Writer, err error) int {
	_, _ = fmt.Fprintf(stderr, "gatehouse-chaos: %v\n", err)
	if errors.Is(err, stack.ErrUsage) {
		return 2
	}
	return 1
}

func (c *commandLine) checkRanges() error {
	for _, n := range []struct {
		name                string
		value, low, highest int
	}{
		{"CHAOS_SECONDS", c.Seconds, 1, 24 * 3600}, {"--keys", c.Keys, 16, 1000}, {"--writes", c.Writes, 16, 10000},
		{"--reads", c.Reads, 16, 100000}, {"--readers", c.Readers, 1, 256},
	} {
		if n.value < n.low || n.value > n.highest {
			return fmt.Errorf("%w: %s %d: want %d to %d", stack.ErrUsage, n.name, n.value, n.low, n.highest)
		}
	}
	for _, kind := range c.Only {
		if !slices.Contains(chaos.FaultKinds, kind) {
			return fmt.Errorf("%w: --only %q: want some of %q", stack.ErrUsage, kind, chaos.FaultKinds)
		}
	}
	return nil
}

// runChaos runs the chaos. It keeps the stack's directory after a violation or failure.
func (c *commandLine) runChaos(ctx context.Context, stdout io.Writer) (violations int, err error) {
	if err := c.checkRanges(); err != nil {
		return 0, err
	}
	seed := rand.Uint64N(1 << 32)
	if c.Seed != "" {
		if seed, err = strconv.ParseUint(c.Seed, 10, 64); err != nil {
			return 0, fmt.Errorf("%w: SEED %q: want a decimal number", stack.ErrUsage, c.Seed)
		}
	}
	server, err := exec.LookPath("redis-server")
	if err != nil {
		return 0, fmt.Errorf("%w: %w; install it (apt-get install redis-server)", stack.ErrUsage, err)
	}
	dir, err := makeDir()
	if err != nil {
		return 0, fmt.Errorf("directory for the run: %w", err)
	}
	_, _ = fmt.Fprintf(stdout, "SEED=%d CHAOS_SECONDS=%d CHAOS_REDIS=%s, logs in %s until all is well\n",
		seed, c.Seconds, c.Redis, dir)
	const writers = 16
	violations, err = chaos.Run(ctx, chaos.Config{
		Seed: seed, Duration: time.Duration(c.Seconds) * time.Second,
		Keys: c.Keys, Writes: c.Writes, Writers: writers, Reads: c.Reads, Readers: c.Readers,
		Redis: c.Redis, Devices: 48, DeviceWrite: 50 * time.Millisecond, Login: 150 * time.Millisecond,
		RedisServerPath: server, ClockPath: c.Clock, Only: c.Only, FailFast: c.FailFast, Out: stdout,
		Stack: stack.Options{
			Name: "chaos", Dir: dir, Concurrency: c.Workers, EnvoyPath: c.Envoy, SidecarPath: c.Sidecar,
			WasmPath: c.Wasm, LibraryPath: c.Library, NginxLibrary: c.NginxLibrary,
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
