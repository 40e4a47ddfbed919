package objectcache

import (
	"bytes"
	"container/heap"
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/internal/shrink"
)

// lifetimes schedules checks of keys. A key has one time, the earliest scheduled since the key's last check; the check
// decides the consequences.
type lifetimes struct {
	checks  checkHeap
	checkAt map[string]int64 // by key, unix ms; a check with another time is obsolete
	size    shrink.Map[string, int64]
}

type keyCheck struct {
	atMS int64 // unix ms
	key  string
}

func newLifetimes() lifetimes { return lifetimes{checkAt: make(map[string]int64)} }

func (l *lifetimes) scheduleCheck(key string, atMS int64) {
	if watched, found := l.checkAt[key]; found && watched <= atMS {
		return
	}
	l.checkAt[key] = atMS
	l.size.Add(l.checkAt)
	heap.Push(&l.checks, keyCheck{atMS, key})
	// Each earlier time for a key leaves an obsolete check behind.
	if len(l.checks) > 2*len(l.checkAt)+maxObsolete {
		l.checks = slices.DeleteFunc(l.checks, func(d keyCheck) bool { return l.checkAt[d.key] != d.atMS })
		heap.Init(&l.checks)
	}
}

// maxObsolete is the number of obsolete checks that may remain, in addition to as many as valid ones.
const maxObsolete = 1000

// popDue removes and returns a key whose time has passed, false if no key is due.
func (l *lifetimes) popDue(nowMS int64) (string, bool) {
	for len(l.checks) > 0 && l.checks[0].atMS <= nowMS {
		d := heap.Pop(&l.checks).(keyCheck)
		if l.checkAt[d.key] == d.atMS {
			delete(l.checkAt, d.key)
			l.checkAt = l.size.Fit(l.checkAt)
			return d.key, true
		}
	}
	return "", false
}

// checkHeap is a heap with the earliest first.
type checkHeap []keyCheck

func (d checkHeap) Len() int           { return len(d) }
func (d checkHeap) Less(i, j int) bool { return d[i].atMS < d[j].atMS }
func (d checkHeap) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }

// Push implements [heap.Interface].
func (d *checkHeap) Push(x any) { *d = append(*d, x.(keyCheck)) }

// Pop implements [heap.Interface].
func (d *checkHeap) Pop() any {
	last := (*d)[len(*d)-1]
	*d = shrink.Slice(slices.Delete(*d, len(*d)-1, len(*d)))
	return last
}

// hasExpired reports whether o's lifetime is over.
func hasExpired(o *contract.Object, now time.Time) bool {
	return o.TTLMS > 0 && o.PublishedMS+o.TTLMS <= now.UnixMilli()
}

// sameHead reports whether a and b, of the same time, are the same write, bodies not compared.
func sameHead(a, b *contract.Object) bool {
	return a.Version == b.Version && a.TTLMS == b.TTLMS && a.ETag == b.ETag && a.ContentType == b.ContentType &&
		a.Status == b.Status && a.Headers == b.Headers && a.Seq == b.Seq
}

// sameWrite reports whether a and b, of the same time, are the same write.
func sameWrite(a, b *contract.Object) bool {
	return sameHead(a, b) &&
		slices.EqualFunc(a.Bodies, b.Bodies, func(a, b contract.Body) bool {
			return a.Encoding == b.Encoding && bytes.Equal(a.Bytes, b.Bytes)
		})
}

// Sweep frees the memory of objects that expired a while ago, and no longer counts expired objects as left out. Sweep
// forgets the versions of tombstones that Redis has removed, because a writer may then start over from version 1.
func (c *Cache) Sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now().UnixMilli()
	for key, found := c.lifetimes.popDue(now); found; key, found = c.lifetimes.popDue(now) {
		k := c.newest[key]
		if k.deleted {
			if end := k.sinceMS + contract.TombstoneLife.Milliseconds(); end > now {
				c.lifetimes.scheduleCheck(key, end)
			} else {
				c.forgetKey(key)
			}
			continue
		}
		if k.ttlMS == 0 {
			continue
		}
		if end := k.sinceMS + k.ttlMS + expiryGrace.Milliseconds(); end > now {
			c.lifetimes.scheduleCheck(key, end)
			continue
		}
		if k.location == held {
			c.metrics.Evicted.WithLabelValues("expired").Inc()
		}
		c.releaseObject(key)
	}
	c.reportMetrics()
}
