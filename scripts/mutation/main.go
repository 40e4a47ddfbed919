// Mutation tests that the tests notice the loss of important checks: each listed check is removed, one at a time, and a
// named test must fail.
//
// A package's list is mutants.txt, beside the tests: functions, and below each function the mutants, with test, code
// and replacement:
//
//	tracker.judgeEvent
//		TestHole: e.Seq > t.seq+1 -> false
//	Cache.Remove
//		TestReadBeforeRemoval: c.removals[c.stripe(key)]++ -> deleted
//		edge/TestReadings: if wrote -> true
//		TestReadings: r.add(&r.live, s) #2 -> deleted
//
// The function must have the code once, as an expression; "deleted" removes a statement. Blanks and line breaks don't
// count. If the function has the code several times, a keyword before the code (if, case, return) or a number behind
// the code chooses. The test is in the same package, or in the package of the directory before the test's name. Unless
// the replacement is true or false, the replaced expression is evaluated, too.
//
// Each test binary is built once, with all mutants off; GATEHOUSE_MUTANT, the list and line of a mutant, turns it on.
// Sources are replaced for the compiler only (go build -overlay).
//
//	go run ./scripts/mutation                          all
//	go run ./scripts/mutation follow/ TestHole         those whose place, function or test contains one of these
//	go run ./scripts/mutation --overlay DIR LIST:LINE  an overlay for go build with this mutant on
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
		return writeOverlay(*dir, flags.Arg(0))
	}
	begin := time.Now()
	work, err := os.MkdirTemp("", "mutation-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	mutants, overlay, err := findMutants(work, "")
	if err != nil {
		return err
	}
	all := len(mutants)
	mutants = slices.DeleteFunc(mutants, func(m mutant) bool { return !m.isChosen(flags.Args()) })
	if len(mutants) == 0 {
		return fmt.Errorf("none of %d mutants is of %q", all, flags.Args())
	}
	r := &runner{dir: work, overlay: overlay}
	if err := r.buildTests(ctx, mutants); err != nil {
		return err
	}
	fmt.Printf("mutation: built in %.0f s\n", time.Since(begin).Seconds())
	if missed := r.runAll(ctx, mutants); len(missed) > 0 {
		return fmt.Errorf("%d of %d checks are missed by no test:\n%w", len(missed), len(mutants), errors.Join(missed...))
	}
	fmt.Printf("mutation: ok: each of %d checks of %d, taken out, is missed by its test (%.0f s)\n",
		len(mutants), all, time.Since(begin).Seconds())
	return nil
}

func writeOverlay(dir, id string) error {
	mutants, overlay, err := findMutants(dir, id)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(mutants, func(m mutant) bool { return m.id == id }) {
		return fmt.Errorf("no mutant at %q, want LIST:LINE", id)
	}
	fmt.Println(overlay)
	return nil
}

// isChosen reports whether place, function or test of the mutant contains one of the strings; without strings, every
// mutant is chosen.
func (m *mutant) isChosen(by []string) bool {
	return len(by) == 0 || slices.ContainsFunc(by, func(s string) bool {
		return strings.Contains(m.id+" "+m.function+" "+m.test, s)
	})
}
