package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/gatehouse/gatehouse/e2e/stack"
)

type runCommand struct {
	Stack        string `env:"STACK" default:"demo" help:"Name of the stack. Several stacks run side by side with different addresses."`
	Edge         string `env:"EDGE" default:"127.0.0.1:8080" help:"Where clients connect."`
	EnvoyAdmin   string `env:"ENVOY_ADMIN" default:"127.0.0.1:9901" help:"Envoy's admin address."`
	SidecarAdmin string `env:"SIDECAR_ADMIN" default:"127.0.0.1:9090" help:"The sidecar's metrics and health."`
	Upstream     string `env:"UPSTREAM" default:"127.0.0.1:8081" help:"The demo upstream."`
	Redis        string `env:"REDIS" default:"127.0.0.1:6380" help:"The embedded Redis."`
	RedisURL     string `env:"REDIS_URL" help:"A Redis to use instead of the embedded one: redis://HOST:PORT, redis+sentinel://…, redis+cluster://…."`
	Concurrency  int    `env:"CONCURRENCY" default:"2" help:"Envoy's worker count."`
	Config       string `env:"CONFIG" help:"Envoy's configuration: a copy of envoy/envoy.yaml with your rules."`
	Envoy        string `env:"ENVOY" help:"Envoy's binary (default: the one in .venv)."`
	Detach       bool   `help:"Start in the background and return when it is ready."`
	ReadyFD      int    `name:"ready-fd" hidden:"" help:"Where a background process tells its parent that it is ready."`
}

// Run is called by the command line.
func (c *runCommand) Run(out output) error {
	if err := stack.CheckName(c.Stack); err != nil {
		return err
	}
	// SIGHUP: the terminal is closed.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once, and its children with it

	if c.Detach && c.ReadyFD == 0 {
		return detach(ctx, c.Stack, out)
	}
	return c.foreground(ctx, out.stdout)
}

// foreground runs the stack until a signal comes or a part of it dies.
func (c *runCommand) foreground(ctx context.Context, stdout io.Writer) error {
	ready, closeReady := stdout, func() {}
	if c.ReadyFD != 0 {
		syscall.CloseOnExec(c.ReadyFD) // else Envoy and the sidecar would keep the parent waiting
		pipe := os.NewFile(uintptr(c.ReadyFD), "ready")
		ready, closeReady = io.MultiWriter(stdout, pipe), sync.OnceFunc(func() { _ = pipe.Close() })
	}
	defer closeReady()
	dir, err := stackDir(c.Stack)
	if err != nil {
		return err
	}
	held, err := hold(dir, c.Stack)
	if err != nil {
		return err
	}
	defer held.release()

	_, _ = fmt.Fprintf(stdout, "starting stack %s; its logs are in %s\n", c.Stack, shown(dir))
	running, err := stack.Start(ctx, stack.Options{
		Name: c.Stack, Dir: dir,
		Edge: c.Edge, EnvoyAdmin: c.EnvoyAdmin, SidecarAdmin: c.SidecarAdmin, Upstream: c.Upstream,
		Redis: c.Redis, RedisURL: c.RedisURL, Concurrency: c.Concurrency, ConfigPath: c.Config, EnvoyPath: c.Envoy, Seed: seed,
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
	if _, err := io.WriteString(ready, c.banner(running)); err != nil {
		return errors.Join(fmt.Errorf("report readiness: %w", err), running.Stop())
	}
	closeReady()
	err = running.Wait(ctx)
	return errors.Join(err, running.Stop())
}
