package mirror

import (
	"bytes"
	"container/heap"
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// lifetimes says when keys are to be looked at. A key has one time, the earliest that
// it was watched for since it was last due; what happens is decided when it comes.
type lifetimes struct {
	next dues
	of   map[string]int64 // by key; a due of another time means nothing
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
	heap.Push(&l.next, due{atMS, key})
	// A key that is watched for ever earlier times leaves a due behind each time.
	if len(l.next) > 2*len(l.of)+maxStale {
		l.next = slices.DeleteFunc(l.next, func(d due) bool { return l.of[d.key] != d.atMS })
		heap.Init(&l.next)
	}
}

// maxStale is how many dues that mean nothing may be kept besides as many as mean something.
const maxStale = 1000

// due is the next key whose time has come, once.
func (l *lifetimes) due(nowMS int64) (string, bool) {
	for len(l.next) > 0 && l.next[0].atMS <= nowMS {
		d := heap.Pop(&l.next).(due)
		if l.of[d.key] == d.atMS {
			delete(l.of, d.key)
			return d.key, true
		}
	}
	return "", false
}

// dues is a heap, the earliest first.
type dues []due

func (d dues) Len() int           { return len(d) }
func (d dues) Less(i, j int) bool { return d[i].atMS < d[j].atMS }
func (d dues) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }

// Push is for package heap.
func (d *dues) Push(x any) { *d = append(*d, x.(due)) }

// Pop is for package heap.
func (d *dues) Pop() any {
	last := (*d)[len(*d)-1]
	*d = slices.Delete(*d, len(*d)-1, len(*d))
	return last
}

// ended reports whether o's lifetime is over.
func ended(o *contract.Object, now time.Time) bool {
	return o.TTLMS > 0 && o.PublishedMS+o.TTLMS <= now.UnixMilli()
}

// sameHead reports whether a and b are the same write but for their bodies.
func sameHead(a, b *contract.Object) bool {
	return a.Version == b.Version && a.PublishedMS == b.PublishedMS && a.TTLMS == b.TTLMS && a.ETag == b.ETag && a.ContentType == b.ContentType
}

// equal reports whether a and b are the same write.
func equal(a, b *contract.Object) bool {
	return sameHead(a, b) &&
		slices.EqualFunc(a.Bodies, b.Bodies, func(a, b contract.Body) bool {
			return a.Encoding == b.Encoding && bytes.Equal(a.Bytes, b.Bytes)
		})
}

// Sweep frees the memory of objects that ended a while ago, or no longer counts them as left
// out, and forgets the versions of tombstones that Redis has forgotten too: a writer may start
// over from version 1.
func (m *Mirror) Sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now().UnixMilli()
	for key, found := m.lifetimes.due(now); found; key, found = m.lifetimes.due(now) {
		k := m.known[key]
		if k.deleted {
			if end := k.publishedMS + contract.TombstoneLife.Milliseconds(); end > now {
				m.lifetimes.watch(key, end)
			} else {
				m.forget(key)
			}
			continue
		}
		if k.ttlMS == 0 {
			continue
		}
		if end := k.publishedMS + k.ttlMS + expiryGrace.Milliseconds(); end > now {
			m.lifetimes.watch(key, end)
			continue
		}
		if k.place == held {
			m.metrics.Evicted.WithLabelValues("expired").Inc()
		}
		m.release(key)
	}
	m.report()
}
