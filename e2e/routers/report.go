package routers

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// shownOfAKind is how many violations of one kind at one router are printed in full.
const shownOfAKind = 3

// A report judges answers and prints violations. It is safe for concurrent use.
type report struct {
	out  io.Writer
	seed uint64

	mu    sync.Mutex
	tally // +checklocks:mu
}

// tally has the numbers of answers and violations.
type tally struct {
	violations int            // number of all
	kinds      map[string]int // of each kind, by router
	counts     map[string]int // number of answers of each kind
	unanswered int            // spellings without an answer in time
	first      uint64         // the lowest number of a spelling with a violation
}

func newReport(out io.Writer, seed uint64) *report {
	return &report{out: out, seed: seed,
		tally: tally{kinds: map[string]int{}, counts: map[string]int{}, first: ^uint64(0)}}
}

// addAnswer judges an answer, or the lack of one.
func (r *report) addAnswer(fallback, router string, s spelling, a answer, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[kindOf(a, err)]++
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if r.unanswered++; r.unanswered <= shownOfAKind {
			_, _ = fmt.Fprintf(r.out, "no answer within %s: spelling %d, %s, default %s: %s\n", patience,
				s.number, router, fallback, s)
		}
	}
	wrong := judgeAnswer(s.who, a)
	if wrong == "" {
		return
	}
	r.first = min(r.first, s.number)
	r.addViolation(router+": "+wrong, fmt.Sprintf(
		"  request:  spelling %d, as %s: %s\n  router:   %s, default %s\n  answer:   %s\n  repeat:   make routers SEED=%d "+
			"ONLY=%d EDGE_KIND=%s\n",
		s.number, s.who.name, s, router, fallback, describeAnswer(a, err), r.seed, s.number,
		cmp.Or(os.Getenv("EDGE_KIND"), string(stack.EnvoyEdge))))
}

// addViolation counts a violation and prints it, unless enough of its kind were printed.
// +checklocks:r.mu
func (r *report) addViolation(kind, text string) {
	r.violations++
	r.kinds[kind]++
	if r.kinds[kind] <= shownOfAKind {
		_, _ = fmt.Fprintf(r.out, "VIOLATION: %s\n%s", kind, text)
	}
}

// kindOf classifies answers for the summary.
func kindOf(a answer, err error) string {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer in time"
	case err != nil:
		return "connection or stream ended"
	case a.cached != "":
		return "answered from the cache"
	case !a.byRouter && a.grpc:
		return "refused by the edge: in gRPC"
	case !a.byRouter:
		return fmt.Sprintf("refused by the edge: %d", a.status)
	case a.served == "":
		return fmt.Sprintf("the router has no such resource: %d", a.status)
	}
	if found, _ := findResource(a.served); found.permission != "" {
		return "protected resource served"
	}
	return "open resource served"
}

// describeAnswer returns an answer in one line.
func describeAnswer(a answer, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case a.cached != "":
		return fmt.Sprintf("%d from the edge's cache, %s", a.status, a.cached)
	case !a.byRouter:
		return fmt.Sprintf("%d from the edge", a.status)
	case a.served == "":
		return fmt.Sprintf("%d from the router", a.status)
	}
	return fmt.Sprintf("%d, %s served, the router saw %q of device %q", a.status, a.served, a.saw, a.sawDevice)
}

// printSummary prints the counts of answers.
func (r *report) printSummary(spellings uint64, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	requests := 0
	for _, n := range r.counts {
		requests += n
	}
	_, _ = fmt.Fprintf(r.out, "%d spellings in %.1f s: %d requests\n", spellings, took.Seconds(), requests)
	for _, kind := range slices.Sorted(maps.Keys(r.counts)) {
		_, _ = fmt.Fprintf(r.out, "%8d  %s\n", r.counts[kind], kind)
	}
	for _, kind := range slices.Sorted(maps.Keys(r.kinds)) {
		_, _ = fmt.Fprintf(r.out, "%8d  VIOLATIONS %s\n", r.kinds[kind], kind)
	}
	if r.violations > 0 {
		_, _ = fmt.Fprintf(r.out, "the first was spelling %d\n", r.first)
	}
}
