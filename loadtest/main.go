// Command loadtest measures a whole Gatehouse on this machine: it starts stacks with a
// real Envoy and a real redis-server, loads them and prints what it saw.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/e2e/stack"
	"github.com/gatehouse/gatehouse/sidecar/publish"
	"github.com/gatehouse/gatehouse/sidecar/redisurl"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// options is the command line.
type options struct {
	Scenario string `env:"SCENARIO" default:"all" enum:"all,propagation,coldstart,catchup,ratio,session,steady,flood,revocation" help:"propagation, coldstart, catchup, ratio, session, steady, flood, revocation or all."`
	Updates  int    `env:"UPDATES" default:"10000" help:"Updates that propagation measures."`
	Reads    int    `env:"READS" default:"5000" help:"Reads per second meanwhile."`
	Objects  int    `env:"OBJECTS" default:"100000" help:"Objects of 1 KiB for coldstart and catchup, devices that revocation revokes at once."`
	Changes  int    `env:"CHANGES" default:"1000" help:"Changes that catchup misses."`
	Pairs    int    `env:"PAIRS" default:"8" help:"Pairs of slices that ratio and session measure, for each workload."`
	Devices  int    `env:"DEVICES" default:"1000" help:"Devices of steady and flood, 1 request per second each."`
	Seconds  int    `env:"SECONDS" default:"120" help:"How long steady measures; each part of flood takes a quarter of it."`
	Flood    int    `env:"FLOOD" default:"5000" help:"Wrong credentials per second of flood."`
	Cost     int    `env:"COST" default:"12" help:"bcrypt cost of steady; flood takes at most 8."`
}

// scenario measures one thing and prints it.
type scenario func(ctx context.Context, o *options, out io.Writer) error

func run(args []string, stdout, stderr io.Writer) int {
	var o options
	parser, err := kong.New(&o, kong.Name("loadtest"), kong.Writers(stdout, stderr))
	if err != nil {
		fmt.Fprintln(stderr, "loadtest:", err)
		return 1
	}
	if _, err := parser.Parse(args); err != nil {
		fmt.Fprintln(stderr, "loadtest:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for _, s := range []struct {
		name    string
		measure scenario
	}{{"propagation", propagation}, {"coldstart", coldstart}, {"catchup", catchup}, {"ratio", ratio}, {"session", session}, {"steady", steady}, {"flood", flood}, {"revocation", revocation}} {
		if o.Scenario != "all" && o.Scenario != s.name {
			continue
		}
		if err := s.measure(ctx, &o, stdout); err != nil {
			fmt.Fprintf(stderr, "loadtest: %s: %v\n", s.name, err)
			return 1
		}
	}
	return 0
}

// bench is a stack with a client of its Redis.
type bench struct {
	*stack.Stack
	client    redis.UniversalClient
	publisher *publish.Publisher
	dir       string
}

// start starts a stack with a redis-server of its own. seed may fill Redis before the
// sidecar starts.
func start(ctx context.Context, o stack.Options, seed func(ctx context.Context, p *publish.Publisher) error) (*bench, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("%w: it measures with a real Redis; install redis-server", err)
	}
	b := &bench{}
	if b.dir, err = os.MkdirTemp("", "gatehouse-loadtest-"); err != nil {
		return nil, err
	}
	o.Dir, o.RedisServerPath = b.dir, path
	o.Seed = func(ctx context.Context, url string) error {
		var err error
		if b.client, err = redisurl.Connect(url); err != nil {
			return err
		}
		b.publisher = publish.New(b.client)
		if seed == nil {
			return nil
		}
		return seed(ctx, b.publisher)
	}
	if b.Stack, err = stack.Start(ctx, o); err != nil {
		return nil, errors.Join(err, os.RemoveAll(b.dir))
	}
	return b, nil
}

func (b *bench) stop() error {
	return errors.Join(b.client.Close(), b.Stop(), os.RemoveAll(b.dir))
}
