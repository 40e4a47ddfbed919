package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

const (
	// deletePercent is how many of 100 writes delete the object.
	deletePercent = 10
	// coldPercent is how many of 100 writes go to one half of a writer's keys: the next write must not repair every lost
	// update.
	coldPercent = 4
	// hotPercent is how many of 100 writes go to the writer's last key, which readers request most: readers see the short
	// times in which a version could go backwards.
	hotPercent = 40
)

// newRedis returns a client for writers. The client never retries: a write's outcome must be known, or known to be
// unknown.
func newRedis(url string) (redis.UniversalClient, error) {
	// A Cluster's client follows the slots, but sends each server a write only once.
	client, err := redisurl.Settings{URL: url, Once: !strings.Contains(url, "+cluster"), PoolSize: 64}.Connect()
	if err != nil {
		return nil, fmt.Errorf("address of Redis: %w", err)
	}
	return client, nil
}

// quietLogger drops the client's logs of failed dials: the calls return the errors, too.
type quietLogger struct{}

// Printf implements the client's logger.
func (quietLogger) Printf(context.Context, string, ...any) {}

// writer writes to keys concurrently with other writers of the keys.
type writer struct {
	world     *world
	checker   *Checker
	writing   *sync.RWMutex // locked while Redis is emptied
	content   Content
	publisher *publish.Publisher
	keys      []int
	counts    *counts
	report    func(Violation)
	// repeats: a Cluster's client may send a write again, which Redis refuses if the first was applied.
	repeats bool
}

const (
	// batchPercent is how many of 100 writes are batches, few for the same reason as coldPercent.
	batchPercent = 1
	// batchSize is how many objects a batch puts.
	batchSize = 4
)

// run writes at every tick until ctx ends. It ends writes that have begun.
func (w *writer) run(ctx context.Context, every time.Duration) {
	repeat(ctx, every, func() {
		if rand.IntN(100) < batchPercent {
			w.putAll()
		} else {
			w.writeNext(w.pickKey())
		}
	})
}

func (w *writer) pickKey() int {
	half := len(w.keys) / 2
	switch n := rand.IntN(100); {
	case n < coldPercent && half > 0:
		return w.keys[rand.IntN(half)]
	case n < coldPercent+hotPercent:
		return w.keys[len(w.keys)-1]
	}
	return w.keys[half+rand.IntN(len(w.keys)-half)]
}

// writeNext writes the next version of key: an object or a deletion.
func (w *writer) writeNext(key int) {
	kind := Put
	if newest, found := w.checker.NewestKind(key); found && newest == Put && rand.IntN(100) < deletePercent {
		kind = Delete
	}
	w.writeKind(key, kind)
}

func (w *writer) writeKind(key int, kind Kind) {
	w.writing.RLock()
	defer w.writing.RUnlock()
	// The client's timeouts end the write, not the end of the run: the write may happen in any case.
	ctx := context.Background()
	if kind == Delete {
		version := w.checker.BeginFor(key, kind, w.world.now(), 0)
		_, err := w.publisher.Delete(ctx, storedKey(key), version)
		w.endWrite(key, kind, version, err)
		return
	}
	o := w.beginPut(key)
	_, err := w.publisher.Put(ctx, o)
	w.endWrite(key, kind, o.Version, err)
}

// putAll puts the next versions of some keys in one batch.
func (w *writer) putAll() {
	w.writing.RLock()
	defer w.writing.RUnlock()
	keys := make([]int, min(batchSize, len(w.keys)))
	objects := make([]publish.Object, len(keys))
	for i, n := range rand.Perm(len(w.keys))[:len(keys)] {
		keys[i] = w.keys[n]
		objects[i] = w.beginPut(keys[i])
	}
	for i, r := range w.publisher.PutAll(context.Background(), objects) {
		w.endWrite(keys[i], Put, objects[i].Version, r.Err)
	}
	w.counts.batches.Add(1)
}

// beginPut begins a put of key, and returns the object.
func (w *writer) beginPut(key int) publish.Object {
	life := ttlOf(key)
	version := w.checker.BeginFor(key, Put, w.world.now(), life)
	return publish.Object{
		Key: storedKey(key), Body: w.content.Body(key, version), ContentType: contentType(key),
		ETag: etagOf(key, version), Version: version, TTL: life,
		Tags: []string{tagOf(key)},
	}
}

// endWrite records the outcome of a write.
func (w *writer) endWrite(key int, kind Kind, version uint64, err error) {
	outcome := outcomeOf(err)
	now := w.world.now()
	stale := errors.Is(err, publish.ErrStale)
	overtaken := stale && w.checker.MayBeOvertaken(key, version, now)
	if stale && !w.repeats {
		outcome = Failed
	}
	w.checker.End(key, version, outcome, now)
	if overtaken {
		w.counts.overtaken.Add(1)
	} else {
		w.counts.writes[outcome].Add(1)
	}
	if stale && !overtaken && !w.repeats || errors.Is(err, publish.ErrInvalid) {
		w.report(Violation{"write refused", key, now, fmt.Sprintf("%s of version %d: %v", kind, version, err)})
	}
}

func outcomeOf(err error) Outcome {
	if err == nil {
		return Acked
	}
	if errors.Is(err, publish.ErrFull) { // refused before it changed anything
		return Failed
	}
	if network, _ := errors.AsType[*net.OpError](err); network != nil && network.Op == "dial" {
		return Failed
	}
	return Unknown
}
