// Package suite has the command line of the suites that are programs.
package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// Suite has the flags of a suite, for kong.
type Suite interface {
	// RunSuite runs the suite, prints the violations and returns their number.
	RunSuite(ctx context.Context, stdout io.Writer) (violations int, err error)
}

// Run runs a suite by a program's arguments. It returns the exit status: 0 without a violation, 1 with one or on a
// failure, 2 on wrong usage.
func Run(name string, s Suite, args []string, stdout, stderr io.Writer) int {
	violations, err := parseAndRun(name, s, args, stdout, stderr)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "%s: %v\n", name, err)
	}
	switch {
	case errors.Is(err, stack.ErrUsage):
		return 2
	case err != nil, violations > 0:
		return 1
	}
	return 0
}

func parseAndRun(name string, s Suite, args []string, stdout, stderr io.Writer) (violations int, err error) {
	helped := false
	parser, err := kong.New(s, kong.Name(name), kong.Writers(stdout, stderr), kong.Exit(func(int) { helped = true }))
	if err != nil {
		return 0, err
	}
	if _, err = parser.Parse(args); helped {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w; see %s --help", stack.ErrUsage, err, name)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return s.RunSuite(ctx, stdout)
}

// ParseSeed returns the seed of a command line, a random one for "".
func ParseSeed(text string) (uint64, error) {
	if text == "" {
		return rand.Uint64N(1 << 32), nil
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: SEED %q: want a decimal number", stack.ErrUsage, text)
	}
	return seed, nil
}
