package nginx_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/decisions.jsonl again")

const (
	decisionsFile  = "testdata/decisions.jsonl"
	decisionsSeed  = 29
	decisionWorlds = 100
	decisionAsks   = 52 // of each world
)

// decisionLine is a line of the file: a world, or a request in the last world and its decision.
type decisionLine struct {
	World    *worldCase `json:"world,omitempty"`
	Request  *worldAsk  `json:"request,omitempty"`
	Decision *decision  `json:"decision,omitempty"`
}

// TestDecisions decides the file's requests by package policy and by the plugin. While TestDecide compares one with the
// other, this test fails if both change alike, and if the generator makes other cases. After a deliberate change:
//
//	go test ./nginx -run TestDecisions -update
//
// The diff of the file then shows what has changed.
func TestDecisions(t *testing.T) {
	made := makeDecisions(t)
	if *update {
		mustBeNil(t, os.WriteFile(decisionsFile, made, 0o644))
	}
	text, err := os.ReadFile(decisionsFile)
	mustBeNil(t, err)
	n, seen := 0, kinds{}
	for c, want := range readDecisions(t, text) {
		compareDecisions(t, c, "package policy", decideInGo(t, c), want)
		compareDecisions(t, c, "the plugin", decideInLua(t, c), want)
		n += len(want)
		seen.add(want)
	}
	if n < 5000 || len(seen) < 35 {
		t.Errorf("%s has only %d cases with %d kinds of decisions", decisionsFile, n, len(seen))
	}
	t.Logf("%d cases with %d kinds of decisions", n, len(seen))
	if !bytes.Equal(text, made) {
		t.Errorf("the decisions are right, but the generator (world_test.go) makes other cases than %s has: run this test with -update", decisionsFile)
	}
}

// makeDecisions returns the file as the generator makes it, with the decisions of package policy.
func makeDecisions(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false)
	w := &world{Rand: rand.New(rand.NewPCG(decisionsSeed, 0))}
	for range decisionWorlds {
		c := w.next(t, decisionAsks)
		all, requests := decideInGo(t, &c), c.Requests
		c.Requests = nil
		mustBeNil(t, to.Encode(decisionLine{World: &c}))
		for i := range requests {
			mustBeNil(t, to.Encode(decisionLine{Request: &requests[i], Decision: &all[i]}))
		}
	}
	return b.Bytes()
}

// readDecisions yields the file's cases and their decisions.
func readDecisions(t *testing.T, text []byte) func(func(*worldCase, []decision) bool) {
	t.Helper()
	return func(yield func(*worldCase, []decision) bool) {
		from := json.NewDecoder(bytes.NewReader(text))
		var c *worldCase
		var want []decision
		for {
			var line decisionLine
			err := from.Decode(&line)
			if err != nil && !errors.Is(err, io.EOF) {
				t.Fatalf("%s: %v", decisionsFile, err)
			}
			if c != nil && (err != nil || line.World != nil) && !yield(c, want) {
				return
			}
			switch {
			case err != nil:
				return
			case line.World != nil:
				c, want = line.World, nil
			default:
				c.Requests, want = append(c.Requests, *line.Request), append(want, *line.Decision)
			}
		}
	}
}
