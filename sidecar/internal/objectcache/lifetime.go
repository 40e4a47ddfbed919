package objectcache

import (
	"bytes"
	"container/heap"
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/shrink"
)

// lifetimes schedules checks of keys. A key has one time, the earliest that was watched since it was last due; the
// check decides what happens.
type lifetimes struct {
	next dues
	of   map[string]int64 // by key, unix ms; a due with another time is obsolete
	size shrink.Map[string, int64]
}

type due struct {
	atMS int64 // unix ms
	key  string
}

func newLifetimes() lifetimes { return lifetimes{of: make(map[string]int64)} }

func (l *lifetimes) watch(key string, atMS int64) {
	if watched, found := l.of[key]; found && watched <= atMS {
		return
	}
	l.of[key] = atMS
	l.size.Add(l.of)
	heap.Push(&l.next, due{atMS, key})
	// Each earlier time for a key leaves an obsolete due behind.
	if len(l.next) > 2*len(l.of)+maxStale {
		l.next = slices.DeleteFunc(l.next, func(d due) bool { return l.of[d.key] != d.atMS })
		heap.Init(&l.next)
	}
}

// maxStale is the number of obsolete dues that may remain, in addition to as many as valid ones.
const maxStale = 1000

// due returns a key whose time has passed, and removes it; false if there is none.
func (l *lifetimes) due(nowMS int64) (string, bool) {
	for len(l.next) > 0 && l.next[0].atMS <= nowMS {
		d := heap.Pop(&l.next).(due)
		if l.of[d.key] == d.atMS {
			delete(l.of, d.key)
			l.of = l.size.Fit(l.of)
			return d.key, true
		}
	}
	return "", false
}

// dues is a heap with the earliest first.
type dues []due

func (d dues) Len() int           { return len(d) }
func (d dues) Less(i, j int) bool { return d[i].atMS < d[j].atMS }
func (d dues) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }

// Push implements [heap.Interface].
func (d *dues) Push(x any) { *d = append(*d, x.(due)) }

// Pop implements [heap.Interface].
func (d *dues) Pop() any {
	last := (*d)[len(*d)-1]
	*d = shrink.Slice(slices.Delete(*d, len(*d)-1, len(*d)))
	return last
}

// ended reports whether o's lifetime is over.
func ended(o *contract.Object, now time.Time) bool {
	return o.TTLMS > 0 && o.PublishedMS+o.TTLMS <= now.UnixMilli()
}

// sameHead reports whether a and b, of the same time, are the same write, bodies not compared.
func sameHead(a, b *contract.Object) bool {
	return a.Version == b.Version && a.TTLMS == b.TTLMS && a.ETag == b.ETag && a.ContentType == b.ContentType &&
		a.Seq == b.Seq
}

// equal reports whether a and b, of the same time, are the same write.
func equal(a, b *contract.Object) bool {
	return sameHead(a, b) &&
		slices.EqualFunc(a.Bodies, b.Bodies, func(a, b contract.Body) bool {
			return a.Encoding == b.Encoding && bytes.Equal(a.Bytes, b.Bytes)
		})
}

// Sweep frees the memory of objects that expired a while ago, and no longer counts expired ones as left out. It forgets
// the versions of tombstones that Redis has removed, because a writer may then start over from version 1.
func (c *Cache) Sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now().UnixMilli()
	for key, found := c.lifetimes.due(now); found; key, found = c.lifetimes.due(now) {
		k := c.newest[key]
		if k.deleted {
			if end := k.sinceMS + contract.TombstoneLife.Milliseconds(); end > now {
				c.lifetimes.watch(key, end)
			} else {
				c.forget(key)
			}
			continue
		}
		if k.ttlMS == 0 {
			continue
		}
		if end := k.sinceMS + k.ttlMS + expiryGrace.Milliseconds(); end > now {
			c.lifetimes.watch(key, end)
			continue
		}
		if k.place == held {
			c.metrics.Evicted.WithLabelValues("expired").Inc()
		}
		c.release(key)
	}
	c.report()
}
