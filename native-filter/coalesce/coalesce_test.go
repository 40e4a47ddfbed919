package coalesce

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/edge"
)

// proxy makes and records calls.
type proxy struct {
	asked  int
	next   uint64
	made   []string // bodies
	refuse bool
}

func (p *proxy) ask() { p.asked++ }

func (p *proxy) dispatch(c *edge.Call) (uint64, bool) {
	p.made = append(p.made, string(c.Body))
	p.next++
	return p.next, !p.refuse
}

// shared returns a call that other requests may join, except with the key "".
func shared(key string, newest uint32) edge.Call {
	return edge.Call{Body: []byte(key), Newest: newest, Shared: key != ""}
}

// answers collects answers by waiter.
type answers struct{ got []string }

func (a *answers) to(name string) func([]byte) {
	return func(body []byte) {
		if body == nil {
			body = []byte("failed")
		}
		a.got = append(a.got, name+": "+string(body))
	}
}

func (a *answers) expect(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(a.got)
	if !slices.Equal(a.got, want) {
		t.Errorf("got %q, want %q", a.got, want)
	}
	a.got = nil
}

func TestCoalescing(t *testing.T) {
	var p proxy
	var a answers
	g := NewGroup(p.ask)
	if since, _ := g.JoinCall(shared("k", 10), a.to("first")); since != 10 {
		t.Errorf("first: got %d, want its own time, 10", since)
	}
	if since, _ := g.JoinCall(shared("k", 20), a.to("second")); since != 10 { // before it was dispatched
		t.Errorf("second: got %d, want the time of the first, 10", since)
	}
	g.JoinCall(shared("other", 20), a.to("other"))
	if p.asked != 2 {
		t.Errorf("asked for the main thread %d times, want 2", p.asked)
	}
	g.DispatchCalls(p.dispatch)
	g.JoinCall(shared("k", 30), a.to("third")) // after that
	g.DispatchCalls(p.dispatch)
	if want := []string{"k", "other"}; !slices.Equal(p.made, want) {
		t.Errorf("made %q, want %q", p.made, want)
	}
	a.expect(t)
	g.DeliverAnswer(1, []byte("yes"))
	a.expect(t, "first: yes", "second: yes", "third: yes")
	g.DeliverAnswer(1, []byte("again"))
	a.expect(t)
	if since, _ := g.JoinCall(shared("k", 40), a.to("later")); since != 40 {
		t.Errorf("later: got %d, want a new call at 40", since)
	}
	g.DispatchCalls(p.dispatch)
	g.DeliverAnswer(2, nil)
	g.DeliverAnswer(3, []byte("new"))
	a.expect(t, "later: new", "other: failed")
}

func TestCallsWithoutKey(t *testing.T) {
	var p proxy
	var a answers
	g := NewGroup(p.ask)
	g.JoinCall(edge.Call{Body: []byte("report"), Newest: 1}, a.to("first"))
	g.JoinCall(edge.Call{Body: []byte("report"), Newest: 1}, a.to("second"))
	g.DispatchCalls(p.dispatch)
	if len(p.made) != 2 {
		t.Errorf("made %d calls, want 2: nobody joins a call without a key", len(p.made))
	}
	g.DeliverAnswer(1, []byte("a"))
	g.DeliverAnswer(2, []byte("b"))
	a.expect(t, "first: a", "second: b")
}

func TestRefusedCalls(t *testing.T) {
	p := proxy{refuse: true}
	var a answers
	g := NewGroup(p.ask)
	g.JoinCall(shared("k", 1), a.to("first"))
	g.JoinCall(shared("k", 1), a.to("second"))
	g.DispatchCalls(p.dispatch)
	a.expect(t, "first: failed", "second: failed")
	p.refuse = false
	g.JoinCall(shared("k", 1), a.to("third"))
	g.DispatchCalls(p.dispatch)
	g.DeliverAnswer(2, []byte("yes"))
	a.expect(t, "third: yes")
}

// TestPanicOfDispatch has nobody wait for calls that a panic has prevented.
func TestPanicOfDispatch(t *testing.T) {
	var p proxy
	var a answers
	g := NewGroup(p.ask)
	for _, key := range []string{"first", "second", "third"} {
		g.JoinCall(shared(key, 1), a.to(key))
	}
	func() {
		defer func() { _ = recover() }()
		g.DispatchCalls(func(c *edge.Call) (uint64, bool) {
			if string(c.Body) == "second" {
				panic("asked to")
			}
			return p.dispatch(c)
		})
	}()
	a.expect(t, "second: failed", "third: failed")
	g.DeliverAnswer(1, []byte("yes"))
	a.expect(t, "first: yes")
}

// TestJoinFromAnswer makes a call from the function that gets an answer: the function must not wait for itself.
func TestJoinFromAnswer(t *testing.T) {
	var p proxy
	var a answers
	g := NewGroup(p.ask)
	g.JoinCall(shared("k", 1), func([]byte) { g.JoinCall(shared("k", 2), a.to("again")) })
	g.DispatchCalls(p.dispatch)
	g.DeliverAnswer(1, nil)
	g.DispatchCalls(p.dispatch)
	g.DeliverAnswer(2, []byte("yes"))
	a.expect(t, "again: yes")
}

func TestClose(t *testing.T) {
	var p proxy
	var a answers
	g := NewGroup(p.ask)
	g.JoinCall(shared("dispatched", 1), a.to("dispatched"))
	g.DispatchCalls(p.dispatch)
	g.JoinCall(shared("waiting", 1), a.to("waiting"))
	g.Close()
	a.expect(t, "dispatched: failed", "waiting: failed")
	if _, ok := g.JoinCall(shared("late", 1), a.to("late")); ok {
		t.Error("joined after the end")
	}
	g.DeliverAnswer(1, []byte("late"))
	a.expect(t)
}

// TestEveryoneGetsOneAnswer joins from many goroutines while calls are made and answered.
func TestEveryoneGetsOneAnswer(t *testing.T) {
	var mu sync.Mutex
	got := 0
	g := NewGroup(func() {})
	var next uint64
	const joins = 5000
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for i := range joins {
				g.JoinCall(shared([]string{"a", "b", ""}[i%3], uint32(i)), func([]byte) {
					mu.Lock()
					got++
					mu.Unlock()
				})
			}
		})
	}
	stop := make(chan struct{})
	var main sync.WaitGroup
	main.Go(func() {
		for running := true; running; {
			select {
			case <-stop:
				running = false
			default:
			}
			var ids []uint64
			g.DispatchCalls(func(*edge.Call) (uint64, bool) { next++; ids = append(ids, next); return next, true })
			for _, id := range ids {
				g.DeliverAnswer(id, []byte("x"))
			}
		}
	})
	group.Wait()
	close(stop)
	main.Wait()
	if got != 4*joins {
		t.Errorf("got %d answers, want %d", got, 4*joins)
	}
}

// TestDrain: a drained group takes no call, fails calls that were not made, and waits for the rest.
func TestDrain(t *testing.T) {
	g := NewGroup(func() {})
	answers := make(chan string, 2)
	done := func(name string) func([]byte) { return func(body []byte) { answers <- name + string(body) } }
	g.JoinCall(shared("made", 1), done("made:"))
	g.DispatchCalls(func(*edge.Call) (uint64, bool) { return 7, true })
	g.JoinCall(shared("waiting", 2), done("waiting:"))
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		g.Drain(time.Minute)
	}()
	if got := <-answers; got != "waiting:" {
		t.Errorf("got %q first, want the call that was not made to fail", got)
	}
	if _, ok := g.JoinCall(shared("made", 3), func([]byte) {}); !ok {
		t.Error("got no answer to a call that is under way")
	}
	if _, ok := g.JoinCall(shared("new", 3), func([]byte) {}); ok {
		t.Error("got a new call accepted")
	}
	select {
	case <-drained:
		t.Error("drained before the answer")
	default:
	}
	g.DeliverAnswer(7, []byte("yes"))
	if got := <-answers; got != "made:yes" {
		t.Errorf("got %q", got)
	}
	<-drained
	g.Drain(time.Minute) // there is none
	late := NewGroup(func() {})
	late.JoinCall(shared("lost", 1), func([]byte) {})
	late.DispatchCalls(func(*edge.Call) (uint64, bool) { return 1, true })
	late.Drain(time.Millisecond) // and it doesn't wait for ever
}
