// Command gatehouse-demo runs a whole Gatehouse with demo data on one host. `make run` starts gatehouse-demo by
// scripts/demo.sh. Flags can also be given as environment variables.
//
// Exit status: 0 after a requested stop, 1 on a failure, 2 on wrong usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/redis/go-redis/v9/logging"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

type options struct {
	Stack        string `env:"STACK" default:"demo" help:"Name of the stack. Several stacks run side by side with different addresses."`
	Edge         string `env:"EDGE" default:"127.0.0.1:8080" help:"Where clients connect."`
	EnvoyAdmin   string `env:"ENVOY_ADMIN" default:"127.0.0.1:9901" help:"Envoy's admin address."`
	SidecarAdmin string `env:"SIDECAR_ADMIN" default:"127.0.0.1:9090" help:"The sidecar's metrics and health."`
	Upstream     string `env:"UPSTREAM" default:"127.0.0.1:8081" help:"The demo upstream."`
	Redis        string `env:"REDIS" default:"127.0.0.1:6380" help:"The embedded Redis."`
	RedisURL     string `env:"REDIS_URL" help:"A Redis to use instead of the embedded one: redis://HOST:PORT, redis+sentinel://…, redis+cluster://…."`
	Concurrency  int    `env:"CONCURRENCY" default:"2" help:"Envoy's worker count."`
	Config       string `env:"CONFIG" help:"Envoy's configuration: a copy of envoy/envoy.yaml with your rules; of envoy-native.yaml with EDGE_KIND=native."`
	Envoy        string `env:"ENVOY" help:"Envoy's binary (default: the one in .venv)."`
	Trace        string `env:"TRACE_ENDPOINT" name:"trace-endpoint" help:"Collector of the sidecar's traces, such as http://127.0.0.1:4318, as made by scripts/install-jaeger.sh."`
}

func main() {
	logging.Disable() // errors are printed once
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run runs the program and returns the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	var o options
	exited := -1 // set by --help
	parser, err := kong.New(&o, kong.Name("gatehouse-demo"), kong.Writers(stdout, stderr),
		kong.Exit(func(status int) { exited = status }))
	if err == nil {
		if _, err = parser.Parse(args); exited >= 0 {
			return exited
		}
		if err != nil {
			err = fmt.Errorf("%w: %w; see gatehouse-demo --help", stack.ErrUsage, err)
		} else {
			err = o.run(stdout)
		}
	}
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintf(stderr, "gatehouse-demo: %v\n", err)
	if errors.Is(err, stack.ErrUsage) {
		return 2
	}
	return 1
}

// run runs the stack until a signal arrives or a part of the stack exits.
func (o *options) run(stdout io.Writer) error {
	// SIGHUP: the terminal is closed.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends program and children at once
	var sidecarArgs []string
	if o.Trace != "" {
		sidecarArgs = []string{"--trace.endpoint=" + o.Trace, "--trace.ratio=1"}
	}
	running, err := stack.Start(ctx, stack.Options{
		Name: o.Stack, Edge: o.Edge, EnvoyAdmin: o.EnvoyAdmin, SidecarAdmin: o.SidecarAdmin, Upstream: o.Upstream,
		Redis: o.Redis, RedisURL: o.RedisURL, Concurrency: o.Concurrency, ConfigPath: o.Config, EnvoyPath: o.Envoy,
		SidecarArgs: sidecarArgs, Seed: seedRedis,
	})
	if ctx.Err() != nil {
		if running != nil {
			err = running.Stop()
		}
		return errors.Join(errors.New("interrupted before it was ready"), err)
	}
	if err != nil {
		return err
	}
	_, err = io.WriteString(stdout, o.formatBanner(running))
	if err == nil {
		err = running.Wait(ctx)
	}
	return errors.Join(err, running.Stop())
}
