// Command gatehouse-routers sends spellings of protected paths to routers behind the edge and checks the answers. `make
// routers` calls it. See package routers.
//
// Exit status: 0 without a violation, 1 with one or on a failure, 2 on wrong usage.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/gatehouse/gatehouse/e2e/routers"
	"github.com/gatehouse/gatehouse/e2e/suite"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

func main() {
	os.Exit(suite.Run("gatehouse-routers", &commandLine{}, os.Args[1:], os.Stdout, os.Stderr))
}

type commandLine struct {
	Spellings uint64  `default:"40000" help:"How many spellings to send."`
	Seed      string  `help:"Seed of the spellings, to repeat a run. Default: a random one, which is printed."`
	Only      *uint64 `help:"Send only this spelling of the seed, and print all answers."`
	Build     string  `default:"build/routers" type:"path" help:"Directory into which scripts/routers.sh installed the routers."`
	Envoy     string  `env:"ENVOY" help:"Envoy's binary (default: the one in .venv)."`
}

// RunSuite runs the suite, and keeps the logs after a violation or failure.
func (c *commandLine) RunSuite(ctx context.Context, stdout io.Writer) (violations int, err error) {
	config := routers.Config{Spellings: c.Spellings, Only: c.Only, Workers: 8, Build: c.Build, Out: stdout,
		// A JVM and Python start at the same time.
		Stack: stack.Options{Concurrency: 1, ReadyTimeout: 2 * time.Minute, EnvoyPath: c.Envoy}}
	if config.Seed, err = suite.ParseSeed(c.Seed); err != nil {
		return 0, err
	}
	if config.Stack.RedisServerPath, err = exec.LookPath("redis-server"); err != nil {
		return 0, fmt.Errorf("%w: %w; install it (apt-get install redis-server)", stack.ErrUsage, err)
	}
	if config.Stack.Dir, err = os.MkdirTemp("", "gatehouse-routers-"); err != nil {
		return 0, fmt.Errorf("directory for the run: %w", err)
	}
	_, _ = fmt.Fprintf(stdout, "SEED=%d SPELLINGS=%d, logs in %s until all is well\n", config.Seed,
		config.Spellings, config.Stack.Dir)
	violations, err = routers.Run(ctx, config)
	_, _ = fmt.Fprintf(stdout, "violations: %d\n", violations)
	if err != nil || violations > 0 {
		return violations, err
	}
	return 0, os.RemoveAll(config.Stack.Dir)
}
