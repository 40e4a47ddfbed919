package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	unmutatedTimeout = time.Minute     // for a test without a mutant, on a busy machine
	patience         = 5 * time.Second // besides twice the usual time: a mutant may prevent an awaited event
)

// runner builds the test binaries and runs tests of them.
type runner struct {
	dir, overlay string
	baselines    sync.Map // package and test → func() (time.Duration, error): duration without a mutant
}

// buildTests compiles each package's tests once.
func (r *runner) buildTests(ctx context.Context, mutants []mutant) error {
	args := []string{"test", "-c", "-overlay", r.overlay, "-o", r.dir + string(filepath.Separator)}
	packages := make(map[string]bool)
	for _, m := range mutants {
		if !packages[m.pkg] {
			packages[m.pkg] = true
			args = append(args, "github.com/gatehouse/gatehouse/"+m.pkg) // also of clients/go, a module of its own
		}
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go test -c with the mutants built in: %w", err)
	}
	return nil
}

// runAll returns the mutants that no test notices, and prints each result at once. Many tests run at the same time: a
// test that fails for lack of a processor, or wins a race by chance, runs alone up to three times more.
func (r *runner) runAll(ctx context.Context, mutants []mutant) []error {
	missed := r.runTests(ctx, mutants, 2*runtime.GOMAXPROCS(0))
	for range 3 {
		var again []mutant
		for _, err := range missed {
			again = append(again, err.mutant)
			r.baselines.Delete(err.mutant.pkg + " " + err.mutant.test)
		}
		missed = r.runTests(ctx, again, 1)
	}
	errs := make([]error, len(missed))
	for i, err := range missed {
		errs[i] = err
	}
	return errs
}

// missedError says why a mutant doesn't count as noticed.
type missedError struct {
	mutant mutant
	why    error
}

func (e *missedError) Error() string {
	return fmt.Sprintf("%s %s: %v", e.mutant.id, e.mutant.test, e.why)
}

// runTests runs the tests of mutants, at most limit at a time: tests mostly wait, for deadlines, and with mutants for
// events that don't occur.
func (r *runner) runTests(ctx context.Context, mutants []mutant, limit int) (missed []*missedError) {
	var done int
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(limit)
	for _, m := range mutants {
		group.Go(func() error {
			begin := time.Now()
			err := r.checkNoticed(ctx, &m)
			mu.Lock()
			defer mu.Unlock()
			done++
			what := "red"
			if err != nil {
				missed = append(missed, &missedError{m, err})
				what = "FAILED: " + err.Error()
			}
			fmt.Printf("mutation: %d/%d %s %s (%.1f s): %s\n", done, len(mutants), m.id, m.test,
				time.Since(begin).Seconds(), what)
			return nil
		})
	}
	_ = group.Wait()
	return missed
}

// checkNoticed returns an error unless the mutant's test passes without and fails with the mutant.
func (r *runner) checkNoticed(ctx context.Context, m *mutant) error {
	once, _ := r.baselines.LoadOrStore(m.pkg+" "+m.test, sync.OnceValues(func() (time.Duration, error) {
		begin := time.Now()
		out, err := r.runTest(ctx, m, "", unmutatedTimeout)
		if err != nil || !bytes.Contains(out, []byte("--- PASS: "+m.test+" ")) {
			return 0, errors.Join(fmt.Errorf("%s of %s doesn't pass as it is: %s", m.test, m.pkg, out), err)
		}
		return time.Since(begin), nil
	}))
	usual, err := once.(func() (time.Duration, error))()
	if err != nil {
		return err
	}
	if _, err := r.runTest(ctx, m, m.id, patience+2*usual); err == nil {
		return fmt.Errorf("%s of %s passes with %s for %s", m.test, m.pkg, m.with, m.code)
	}
	return ctx.Err()
}

// runTest runs the mutant's test with a mutant, or with none, and ends the test and all servers started by the test
// after the time.
func (r *runner) runTest(ctx context.Context, m *mutant, mutant string, most time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	binary := filepath.Join(r.dir, path.Base(m.pkg)+".test")
	cmd := exec.CommandContext(ctx, binary, "-test.v", "-test.run", "^"+m.test+"$")
	cmd.Dir, cmd.Env = m.pkg, append(os.Environ(), variable+"="+mutant)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // a child process of the test may hold its output open
	return cmd.CombinedOutput()
}
