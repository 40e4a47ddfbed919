// Command gatehouse-demo runs a whole Gatehouse on one host with data to try: what
// `make run` and `make stop` call. Its flags can also be given as environment variables.
//
// Exit status: 0 after an end that was asked for, 1 when something failed, 2 for usage.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"
	"github.com/redis/go-redis/v9/logging"

	"github.com/gatehouse/gatehouse/e2e/stack"
)

func main() {
	logging.Disable() // errors are printed once
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

type commandLine struct {
	Run  runCommand  `cmd:"" help:"Start a stack and publish demo data."`
	Stop stopCommand `cmd:"" help:"Stop a running stack."`
}

// output is where a command prints.
type output struct{ stdout, stderr io.Writer }

// run is the program without its process: the exit status is its result.
func run(args []string, stdout, stderr io.Writer) int {
	var cli commandLine
	exited := -1 // set by --help
	parser, err := kong.New(&cli, kong.Name("gatehouse-demo"), kong.Writers(stdout, stderr),
		kong.Exit(func(status int) { exited = status }), kong.Bind(output{stdout, stderr}))
	if err != nil {
		return fail(stderr, err)
	}
	command, err := parser.Parse(args)
	if exited >= 0 {
		return exited
	}
	if err != nil {
		return fail(stderr, fmt.Errorf("%w: %w; see gatehouse-demo --help", stack.ErrUsage, err))
	}
	return fail(stderr, command.Run())
}

// fail prints err, if there is one, and returns the exit status for it.
func fail(stderr io.Writer, err error) int {
	var status exitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status) // already reported
	}
	_, _ = fmt.Fprintf(stderr, "gatehouse-demo: %v\n", err)
	if errors.Is(err, stack.ErrUsage) {
		return 2
	}
	return 1
}

// exitStatus is the status of a background process that has reported its error itself.
type exitStatus int

// Error is never shown.
func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }
