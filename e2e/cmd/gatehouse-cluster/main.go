//go:build linux

// Command gatehouse-cluster runs a command in a Kubernetes cluster of one node, which lives as long as the command. See
// package k8s.
//
// Exit status: the command's; 77 if the machine can't run a cluster, 1 on a failure, 2 on wrong usage.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/gatehouse/gatehouse/e2e/k8s"
)

// exitNotRun is the conventional status for "skipped" in test harnesses.
const exitNotRun = 77

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

type commandLine struct {
	Preflight struct{} `cmd:"" help:"Print what the machine lacks."`
	Run       struct {
		Bin     string   `required:"" type:"existingdir" help:"Directory that scripts/k8s-build.sh printed."`
		Image   []string `type:"existingfile" help:"Archive of an image to load."`
		Command []string `arg:"" passthrough:"" help:"Command to run, with KUBECONFIG set: for example bash."`
	} `cmd:"" help:"Run a command in a cluster."`
	Node struct {
		Dir     string   `required:""`
		Bin     string   `required:""`
		Image   []string `name:"image"`
		Command []string `arg:"" passthrough:""`
	} `cmd:"" hidden:""`
	Probe struct {
		Dir string `required:""`
	} `cmd:"" hidden:""`
}

func run(args []string, stdout, stderr io.Writer) int {
	var cli commandLine
	exited := -1 // set by --help
	parser, err := kong.New(&cli, kong.Name("gatehouse-cluster"), kong.Writers(stdout, stderr),
		kong.Exit(func(status int) { exited = status }))
	if err != nil {
		return reportError(stderr, err)
	}
	command, err := parser.Parse(args)
	if exited >= 0 {
		return exited
	}
	if err != nil {
		fmt.Fprintf(stderr, "gatehouse-cluster: %v; see gatehouse-cluster --help\n", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	status := 0
	switch command.Selected().Name {
	case "preflight":
		if missing := k8s.Preflight(); len(missing) > 0 {
			for _, m := range missing {
				fmt.Fprintln(stdout, m)
			}
			return exitNotRun
		}
	case "run":
		c := cli.Run
		status, err = k8s.Run(ctx, k8s.Options{Bin: c.Bin, Images: c.Image, Command: c.Command})
	case "node":
		c := cli.Node
		status, err = k8s.Node(ctx, c.Dir, k8s.Options{Bin: c.Bin, Images: c.Image, Command: c.Command})
	case "probe":
		err = k8s.Probe(cli.Probe.Dir)
	}
	if err != nil {
		return reportError(stderr, err)
	}
	return status
}

func reportError(stderr io.Writer, err error) int {
	fmt.Fprintln(stderr, "gatehouse-cluster:", err)
	return 1
}
