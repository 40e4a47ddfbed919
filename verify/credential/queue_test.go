package credential

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// arrivals adds waiters written as "device/source" or "device/source!class" and returns the refused waiters.
func (q *queue) arrivals(list string) (refused []string) {
	for _, text := range strings.Fields(list) {
		if w := q.add(arrival(text)); w != nil {
			refused = append(refused, w.name())
		}
	}
	return refused
}

func arrival(text string) *waiter {
	text, c, _ := strings.Cut(text, "!")
	device, from, _ := strings.Cut(text, "/")
	w := &waiter{device: device, class: clean}
	fmt.Sscan(from, &w.source)
	switch c {
	case "familiar":
		w.class = familiar
	case "suspect":
		w.class = suspect
	}
	return w
}

func (w *waiter) name() string { return fmt.Sprintf("%s/%d", w.device, w.source) }

// drain empties the queue and returns the order.
func (q *queue) drain() (order []string) {
	for w := q.next(suspect); w != nil; w = q.next(suspect) {
		order = append(order, w.name())
	}
	return order
}

func TestQueueOrder(t *testing.T) {
	for _, test := range []struct {
		name     string
		limit    int
		arrivals string
		refused  string
		served   string
	}{
		{"first in, first out", 9, "a/1 b/1 c/1", "", "a/1 b/1 c/1"},
		{"round robin over devices", 9, "a/1 a/2 a/3 b/1 c/1", "", "a/1 b/1 c/1 a/2 a/3"},
		{"round robin over sources", 9, "a/1 a/1 a/2 a/3", "", "a/1 a/2 a/3 a/1"},
		{"a late source is not behind a second of another", 9, "a/1 a/1 a/2 a/2 a/3", "", "a/1 a/2 a/3 a/1 a/2"},
		{"few of one device and source", 9, "a/1 a/1 a/1 a/1 b/1", "a/1 a/1", "a/1 b/1 a/1"},
		{"few of one device", 99, "a/1 a/2 a/3 a/4 a/5 a/6 a/7 a/8 a/9 b/1", "a/9", "a/1 b/1 a/2 a/3 a/4 a/5 a/6 a/7 a/8"},
		{"familiar first", 9, "a/1 b/1!suspect c/1!familiar", "", "c/1 a/1 b/1"},
		{"suspects are not starved", 9, "s/1!suspect a/1 b/1 c/1 d/1 e/1", "", "a/1 b/1 c/1 s/1 d/1 e/1"},
		{"full: the newest of the longest line", 4, "a/1 a/2 a/3 b/1 c/1", "a/3", "a/1 b/1 c/1 a/2"},
		{"full: the newcomer, if no line is longer", 3, "a/1 b/1 c/1 d/1 a/2", "d/1 a/2", "a/1 b/1 c/1"},
		{"full: a suspect gives way", 3, "a/1 s/1!suspect t/1!suspect b/1 c/1 u/1!suspect", "s/1 t/1 u/1", "a/1 b/1 c/1"},
		{"full: everybody gives way to a familiar one", 2, "a/1 b/1 k/1!familiar l/1!familiar m/1!familiar",
			"a/1 b/1 m/1", "k/1 l/1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			q := newQueue(test.limit)
			if got := strings.Join(q.arrivals(test.arrivals), " "); got != test.refused {
				t.Errorf("refused %q, want %q", got, test.refused)
			}
			if got := strings.Join(q.drain(), " "); got != test.served {
				t.Errorf("served %q, want %q", got, test.served)
			}
		})
	}
}

func TestDemote(t *testing.T) {
	q := newQueue(9)
	q.arrivals("a/1 a/2 b/1 c/3 d/1!suspect d/1!suspect d/1")
	if refused := q.demoteSource(1); len(refused) != 1 || refused[0].name() != "d/1" {
		t.Errorf("refused %v, want the third of d and 1", refused)
	}
	if got, want := strings.Join(q.drain(), " "), "a/2 c/3 d/1 a/1 b/1 d/1"; got != want {
		t.Errorf("served %q, want %q", got, want)
	}
}

// TestQueueCounts makes random steps and checks the counts after each.
func TestQueueCounts(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	q := newQueue(40)
	waiting := map[*waiter]bool{}
	for range 20000 {
		switch n := random.IntN(10); {
		case n < 6:
			w := &waiter{device: fmt.Sprint(random.IntN(12)), source: source(1 + random.IntN(12)),
				class: class(random.IntN(int(classes)))}
			waiting[w] = true
			delete(waiting, q.add(w))
		case n < 9:
			delete(waiting, q.next(suspect))
		default:
			for _, w := range q.demoteSource(source(1 + random.IntN(12))) {
				delete(waiting, w)
			}
		}
		q.check(t, waiting)
	}
}

func (q *queue) check(t *testing.T, waiting map[*waiter]bool) {
	t.Helper()
	found := 0
	for c := range q.lines {
		s := &q.lines[c]
		var lengths [maxPerDevice + 1]int
		for _, l := range s.ring {
			lengths[len(l.waiters)]++
			found += len(l.waiters)
			for i, w := range l.waiters {
				if !waiting[w] || int(w.class) != c || w.rank != (&line{waiters: l.waiters[:i]}).countFrom(w.source) ||
					s.devices[w.device] != l {
					t.Fatalf("%s of class %d and rank %d is wrong where it is", w.name(), w.class, w.rank)
				}
			}
		}
		if lengths != s.lengths || len(s.ring) != len(s.devices) {
			t.Fatalf("lengths %v of %d devices, want %v of %d", s.lengths, len(s.devices), lengths, len(s.ring))
		}
	}
	if found != len(waiting) || found != q.count || found > q.limit {
		t.Fatalf("%d wait, %d are counted, want %d, at most %d", found, q.count, len(waiting), q.limit)
	}
}

// TestFloodIsFair is a cold start under a flood, in runs instead of seconds: good devices are new, strangers from many
// addresses try secrets of each good device at once, and all try again until they are served. After a wrong secret, a
// source is suspect.
func TestFloodIsFair(t *testing.T) {
	const good, strangers, perRun = 200, 150, 40
	random := rand.New(rand.NewPCG(3, 4))
	q := newQueue(100)
	in := map[string]bool{}
	bad := map[source]bool{}
	waiting := map[string]bool{}
	// Like the formula of the load test: each address of a stranger is clean once, and a suspect is served after three
	// clean attempts.
	const most = (good + strangers) * 4 / 3
	runs := 0
	for ; len(in) < good && runs < 10*most; runs++ {
		for range perRun {
			from := source(1 + random.IntN(strangers))
			c := clean
			if bad[from] {
				c = suspect
			}
			q.add(&waiter{device: fmt.Sprint(random.IntN(good)), source: from, class: c})
		}
		for i := range good {
			if id := fmt.Sprint(i); !in[id] && !waiting[id] {
				waiting[id] = true
				if w := q.add(&waiter{device: id, source: source(1000 + i), class: clean}); w != nil && w.source >= 1000 {
					waiting[w.device] = false
				}
			}
		}
		w := q.next(suspect)
		if w.source >= 1000 {
			in[w.device] = true
			continue
		}
		bad[w.source] = true
		q.demoteSource(w.source)
	}
	t.Logf("%d good devices in after %d runs, computed %d", good, runs, most)
	if runs > most {
		t.Errorf("%d of %d good devices are in after %d runs, want all after %d", len(in), good, runs, most)
	}
}

func TestSources(t *testing.T) {
	s := newSources([16]byte{})
	same := [][]string{
		{"192.0.2.1", "::ffff:192.0.2.1"},
		{"2001:db8::1", "2001:db8::ffff:1:2:3", "2001:db8:0:0:1::"},
		{"2001:db8:0:1::1"},
		{"192.0.2.2"},
		{"", "nonsense", "192.0.2.1:80"},
	}
	var seen []source
	for _, group := range same {
		first := s.sourceOf(group[0])
		for _, text := range group {
			if got := s.sourceOf(text); got != first {
				t.Errorf("%q is another source than %q", text, group[0])
			}
		}
		if slices.Contains(seen, first) {
			t.Errorf("%q is the source of others", group[0])
		}
		seen = append(seen, first)
	}
	if seen[len(seen)-1] != 0 {
		t.Error("what is no address has a source")
	}
	one, again := s.pairKey("a", 1), s.pairKey("a", 1)
	if one == s.pairKey("a", 2) || one == s.pairKey("b", 1) || one != again {
		t.Error("pairs are not told apart")
	}
}
