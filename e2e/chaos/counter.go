package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
)

const (
	// counterKey is the object that counter writers increment by compare-and-set. Purges of other keys don't reach it.
	counterKey = "//chaos/counter"
	// wrongCount is the rule: no increment is lost or counted twice.
	wrongCount = "wrong count"
	// counterWriters is the number of writers; each increments every countEvery.
	counterWriters = 2
	countEvery     = 40 * time.Millisecond
)

// counter is a writer of the counter object, which has one number for each writer. The fields are written while writing
// is held.
type counter struct {
	index     int // of its number
	world     *world
	writing   *sync.RWMutex // see writer
	publisher *publish.Publisher
	counts    *counts
	report    func(Violation)
	repeats   bool // see writer
	// The number is at least the acknowledged increments that Redis has kept, and at most all increments that may have
	// happened.
	acked []time.Duration // when they were
	begun int
}

// increment reads the counter, checks its number, and writes the next number if nobody else has written meanwhile.
func (c *counter) increment() {
	c.writing.RLock()
	defer c.writing.RUnlock()
	ctx, eras := context.Background(), c.world.eras.Load()
	o, err := c.publisher.Get(ctx, counterKey)
	if err != nil && !errors.Is(err, publish.ErrNotFound) {
		return
	}
	var numbers [counterWriters]int
	if err == nil {
		if _, err := fmt.Sscan(string(o.Bodies[0].Bytes), &numbers[0], &numbers[1]); err != nil {
			c.reportWrong("%q", o.Bodies[0].Bytes)
			return
		}
	}
	if eras%2 == 1 || c.world.eras.Load() != eras {
		return // Redis may be about to lose what was read
	}
	if n := numbers[c.index]; n < len(c.acked) || n > c.begun {
		c.reportWrong("version %d has %d increments of writer %d, who has %d acknowledged and began %d", o.Version, n,
			c.index, len(c.acked), c.begun)
		c.begun, c.acked = n, c.acked[:min(n, len(c.acked))]
	}
	numbers[c.index]++
	c.begun++
	_, err = c.publisher.Put(ctx, publish.Object{Key: counterKey, ContentType: "text/plain", IfVersion: o.Version,
		IfAbsent: o.Version == 0, Body: fmt.Append(nil, numbers[0], numbers[1])})
	refused := errors.Is(err, publish.ErrStale) || errors.Is(err, publish.ErrExists)
	switch {
	case err == nil:
		c.acked = append(c.acked, c.world.now())
		c.counts.counters.Add(1)
	case refused && !c.repeats, outcomeOf(err) == Failed:
		c.begun--
	}
	if refused {
		c.counts.conflicts.Add(1)
	}
}

func (c *counter) reportWrong(format string, args ...any) {
	c.report(Violation{wrongCount, 0, c.world.now(), fmt.Sprintf(format, args...)})
}

// forgetAcks forgets the acknowledgements from since on, because Redis may have lost the increments.
func (c *counter) forgetAcks(since time.Duration) {
	i, _ := slices.BinarySearch(c.acked, since)
	c.acked = c.acked[:i]
}

// reset restarts from zero after Redis was emptied. No write was under way.
func (c *counter) reset() { c.begun, c.acked = 0, nil }
