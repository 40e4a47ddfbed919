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

	"github.com/gatehouse/gatehouse/sidecar/publish"
	"github.com/gatehouse/gatehouse/sidecar/redisurl"
)

const (
	// deletes is how many of hundred writes to an object delete it.
	deletes = 10
	// cold is how many of hundred writes go to the one half of a writer's keys: a lost
	// update must not always be healed by the next one.
	cold = 4
	// hot is how many go to its last key, which readers ask for most: the short moments in
	// which a version could go backwards must be seen.
	hot = 40
)

// newRedis is a client of the writers. It sends nothing twice: what became of a write
// must be known, or known to be unknown.
func newRedis(url string) (redis.UniversalClient, error) {
	// A Cluster's own client follows the slots; each server is sent a write once all the same.
	client, err := redisurl.Settings{URL: url, Once: !strings.Contains(url, "+cluster"), PoolSize: 64}.Connect()
	if err != nil {
		return nil, fmt.Errorf("address of Redis: %w", err)
	}
	return client, nil
}

// quietLogger drops what the client says of every dial that fails: errors come back from
// the calls anyway.
type quietLogger struct{}

// Printf implements the client's logger.
func (quietLogger) Printf(context.Context, string, ...any) {}

// writer writes to keys that other writers write to at the same time.
type writer struct {
	world     *world
	checker   *Checker
	writing   *sync.RWMutex // is locked while Redis is emptied
	content   Content
	publisher *publish.Publisher
	keys      []int
	counts    *counts
	report    func(Violation)
	// repeats says that the client of a Cluster may send a write again, which is refused if the first one was applied.
	repeats bool
}

// run writes at every tick until ctx ends. A write that has begun is ended.
func (w *writer) run(ctx context.Context, every time.Duration) {
	repeat(ctx, every, func() { w.write(w.pick()) })
}

func (w *writer) pick() int {
	half := len(w.keys) / 2
	switch n := rand.IntN(100); {
	case n < cold && half > 0:
		return w.keys[rand.IntN(half)]
	case n < cold+hot:
		return w.keys[len(w.keys)-1]
	}
	return w.keys[half+rand.IntN(len(w.keys)-half)]
}

// write makes the next version of key: an object, or nothing.
func (w *writer) write(key int) {
	w.writing.RLock()
	defer w.writing.RUnlock()
	kind := Put
	if newest, found := w.checker.Newest(key); found && newest == Put && rand.IntN(100) < deletes {
		kind = Delete
	}
	// It ends by the client's timeouts, not with the run: it may happen in any case.
	ctx := context.Background()
	version := w.checker.Begin(key, kind, w.world.now())
	var err error
	if kind == Delete {
		_, err = w.publisher.Delete(ctx, path(key), version)
	} else {
		_, err = w.publisher.Put(ctx, publish.Object{
			Key: path(key), Body: w.content.Body(key, version), ContentType: contentType(key), ETag: etag(key, version), Version: version,
		})
	}
	outcome := outcomeOf(err)
	now := w.world.now()
	stale := errors.Is(err, publish.ErrStale)
	overtaken := stale && w.checker.Overtaken(key, version, now)
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
	if network, _ := errors.AsType[*net.OpError](err); network != nil && network.Op == "dial" {
		return Failed
	}
	return Unknown
}
