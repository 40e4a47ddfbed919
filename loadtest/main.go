//go:build linux

// Command loadtest measures a whole Gatehouse and its alternatives on this machine. See README.md.
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/gatehouse/gatehouse/loadtest/report"
	"github.com/gatehouse/gatehouse/loadtest/scenario"
	"github.com/gatehouse/gatehouse/loadtest/service"
	"github.com/gatehouse/gatehouse/loadtest/traffic"
	"github.com/gatehouse/gatehouse/loadtest/updates"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

//go:embed limits.json
var limits []byte

// commandLine has the flags of loadtest.
type commandLine struct {
	Run     scenario.Options `cmd:"" default:"withargs" help:"Measure (the default)."`
	Serve   service.Command  `cmd:"" help:"Run a peer service; the scenarios start it."`
	Flood   scenario.Flooder `cmd:"" hidden:"" help:"Send wrong credentials until stopped; the scenario flood starts it."`
	Update  updates.Command  `cmd:"" hidden:"" help:"Publish at a constant rate; growth starts it."`
	Traffic traffic.Command  `cmd:"" hidden:"" help:"Send a little of every kind of request; make observe starts it."`
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var c commandLine
	parser, err := kong.New(&c, kong.Name("loadtest"), kong.Writers(stdout, stderr),
		kong.Description("Scenarios:\n\n"+scenario.ListScenarios()), kong.Vars{"scenarios": scenario.Names()})
	if err != nil {
		fmt.Fprintln(stderr, "loadtest:", err)
		return 1
	}
	parsed, err := parser.Parse(args)
	if err == nil && strings.HasPrefix(parsed.Command(), "run") {
		err = c.Run.Check()
	}
	if err != nil {
		fmt.Fprintln(stderr, "loadtest:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch command, _, _ := strings.Cut(parsed.Command(), " "); command {
	case "serve":
		err = c.Serve.Run(ctx)
	case "flood":
		err = c.Flood.Run(ctx)
	case "update":
		err = c.Update.Run(ctx)
	case "traffic":
		err = c.Traffic.Run(ctx)
	default:
		err = measure(ctx, &c.Run, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintln(stderr, "loadtest:", err)
		return 1
	}
	return 0
}

// measure runs the scenarios and saves the report, also if a scenario failed.
func measure(ctx context.Context, o *scenario.Options, stdout, stderr io.Writer) error {
	bounds, err := scenario.ParseLimits(limits)
	if err != nil {
		return err
	}
	envoy, err := stack.FindEnvoy()
	if err != nil {
		return err
	}
	flags := o.ChangedFlags()
	if o.Out, err = filepath.Abs(o.Out); err != nil {
		return err
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return err
	}
	r := &report.Report{Machine: report.DescribeMachine(ctx, envoy, flags)}
	for _, f := range r.Machine.NamedFacts() {
		fmt.Fprintf(stdout, "%s: %s\n", f[0], f[1])
	}
	fmt.Fprintln(stdout)
	err = scenario.Run(ctx, o, bounds, r, stdout, stderr)
	if len(r.Sections) > 0 {
		err = errors.Join(err, r.Save(o.Out))
		fmt.Fprintf(stdout, "report: %s\n", filepath.Join(o.Out, "report.txt"))
	}
	return err
}
