// Mutation tests that the tests notice the loss of important checks: it removes each marked check, one at a time, and a
// named test must fail.
//
// A check is marked at the end of its line, with the test and with the mutant that replaces it:
//
//	case e.Seq > f.seq+1: //mutant:TestHole false
//	c.removals[c.stripe(stored)]++ //mutant:TestReadBeforeRemoval deleted
//	return limit/2 //mutant:edge/TestRoom 100*limit
//
// A mark applies to the last of the largest expressions that begin and end on its line: to remove one operand of a
// condition, put it on its own line. "deleted" removes the statement that begins on the line. The test is in the same
// package, or in the one whose directory precedes its name. If a mutant is neither true nor false, the expression that
// it replaces is evaluated, too.
//
// Each test binary is built once, with all mutants off; GATEHOUSE_MUTANT, the file and line of a mutant, turns it on.
// Sources are replaced for the compiler only (go build -overlay).
//
//	go run ./scripts/mutation                          all
//	go run ./scripts/mutation follow/ TestHole         those whose place or test contains one of these
//	go run ./scripts/mutation --overlay DIR FILE:LINE  an overlay for go build with this mutant on
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("mutation", flag.ContinueOnError)
	dir := flags.String("overlay", "", "only write an overlay for go build to this directory, and print its `path`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dir != "" {
		return write(*dir, flags.Arg(0))
	}
	begin := time.Now()
	work, err := os.MkdirTemp("", "mutation-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	marks, overlay, err := find(work, "")
	if err != nil {
		return err
	}
	all := len(marks)
	marks = slices.DeleteFunc(marks, func(m mark) bool { return !m.chosen(flags.Args()) })
	if len(marks) == 0 {
		return fmt.Errorf("none of %d marks is of %q", all, flags.Args())
	}
	r := &runner{dir: work, overlay: overlay}
	if err := r.build(ctx, marks); err != nil {
		return err
	}
	fmt.Printf("mutation: built in %.0f s\n", time.Since(begin).Seconds())
	if missed := r.all(ctx, marks); len(missed) > 0 {
		return fmt.Errorf("%d of %d checks are missed by no test:\n%w", len(missed), len(marks), errors.Join(missed...))
	}
	fmt.Printf("mutation: ok: each of %d checks of %d, taken out, is missed by its test (%.0f s)\n", len(marks), all, time.Since(begin).Seconds())
	return nil
}

func write(dir, id string) error {
	marks, overlay, err := find(dir, id)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(marks, func(m mark) bool { return m.id == id }) {
		return fmt.Errorf("no mark at %q, want FILE:LINE", id)
	}
	fmt.Println(overlay)
	return nil
}

// chosen reports whether the mark's place or test contains one of the strings; without strings, all are chosen.
func (m *mark) chosen(by []string) bool {
	return len(by) == 0 || slices.ContainsFunc(by, func(s string) bool { return strings.Contains(m.id+" "+m.test, s) })
}
