// Command gatehouse-routers sends spellings of protected paths to routers behind the edge and checks the answers. `make
// routers` calls it. See package routers.
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
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/gatehouse/gatehouse/e2e/routers"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

type commandLine struct {
	Spellings uint64 `default:"40000" help:"How many spellings to send."`
	Seed      string `help:"Seed of the spellings, to repeat a run. Default: a random one, which is printed."`
	Only      string `help:"Send only this spelling of the seed, and print all answers."`
	Workers   int    `default:"8" help:"Concurrent senders."`
	Build     string `default:"build/routers" help:"Directory into which scripts/routers.sh installed the routers."`
	Envoy     string `env:"ENVOY" help:"Envoy's binary (default: the one in .venv)."`
	Sidecar   string `help:"The sidecar's binary (default: build/gatehouse-sidecar)."`
	Wasm      string `help:"The filter (default: build/gatehouse.wasm)."`
}

func run(args []string, stdout, stderr io.Writer) int {
	var cli commandLine
	exited := -1 // set by --help
	parser, err := kong.New(&cli, kong.Name("gatehouse-routers"), kong.Writers(stdout, stderr),
		kong.Exit(func(status int) { exited = status }))
	if err != nil {
		return reportError(stderr, err)
	}
	_, err = parser.Parse(args)
	if exited >= 0 {
		return exited
	}
	if err != nil {
		return reportError(stderr, fmt.Errorf("%w: %w; see gatehouse-routers --help", stack.ErrUsage, err))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	violations, err := cli.runSuite(ctx, stdout)
	if err != nil {
		return reportError(stderr, err)
	}
	if violations > 0 {
		return 1
	}
	return 0
}

func reportError(stderr io.Writer, err error) int {
	_, _ = fmt.Fprintf(stderr, "gatehouse-routers: %v\n", err)
	if errors.Is(err, stack.ErrUsage) {
		return 2
	}
	return 1
}

// routersConfig returns the configuration from the command line, with a random seed if the command line has none.
func (c *commandLine) routersConfig() (routers.Config, error) {
	config := routers.Config{Spellings: c.Spellings, Workers: c.Workers, Seed: rand.Uint64N(1 << 32)}
	if c.Workers < 1 || c.Workers > 256 {
		return config, fmt.Errorf("%w: --workers %d: want 1 to 256", stack.ErrUsage, c.Workers)
	}
	var err error
	if c.Seed != "" {
		if config.Seed, err = strconv.ParseUint(c.Seed, 10, 64); err != nil {
			return config, fmt.Errorf("%w: SEED %q: want a decimal number", stack.ErrUsage, c.Seed)
		}
	}
	if c.Only != "" {
		number, err := strconv.ParseUint(c.Only, 10, 64)
		if err != nil {
			return config, fmt.Errorf("%w: ONLY %q: want the number of a spelling", stack.ErrUsage, c.Only)
		}
		config.Only = &number
	}
	if config.Build, err = filepath.Abs(c.Build); err != nil {
		return config, err
	}
	if config.Stack.RedisServerPath, err = exec.LookPath("redis-server"); err != nil {
		return config, fmt.Errorf("%w: %w; install it (apt-get install redis-server)", stack.ErrUsage, err)
	}
	config.Stack.Concurrency, config.Stack.ReadyTimeout = 1, 2*time.Minute // a JVM and Python start at the same time
	config.Stack.EnvoyPath = c.Envoy
	config.Stack.SidecarPath, config.Stack.WasmPath = c.Sidecar, c.Wasm
	return config, nil
}

// runSuite runs the suite, and keeps the logs after a violation or failure.
func (c *commandLine) runSuite(ctx context.Context, stdout io.Writer) (violations int, err error) {
	config, err := c.routersConfig()
	if err != nil {
		return 0, err
	}
	if config.Stack.Dir, err = os.MkdirTemp("", "gatehouse-routers-"); err != nil {
		return 0, fmt.Errorf("directory for the run: %w", err)
	}
	config.Out = stdout
	_, _ = fmt.Fprintf(stdout, "SEED=%d SPELLINGS=%d, logs in %s until all is well\n", config.Seed,
		config.Spellings, config.Stack.Dir)
	violations, err = routers.Run(ctx, config)
	_, _ = fmt.Fprintf(stdout, "violations: %d\n", violations)
	if err != nil || violations > 0 {
		return violations, err
	}
	return 0, os.RemoveAll(config.Stack.Dir)
}
