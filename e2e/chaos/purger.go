package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
)

const (
	// purgeEvery is the interval between purges, each of a part of the objects.
	purgeEvery = 500 * time.Millisecond
	// groups is the number of tags; each object has one tag.
	groups = 8
)

// tagOf returns the tag of a key's objects.
func tagOf(key int) string { return fmt.Sprint("group-", key%groups) }

const (
	// besidePurge is how many affected objects are published beside a purge.
	besidePurge = 8
	// redisPause is how long Redis collects these writes before it does all within a few milliseconds.
	redisPause = 20 * time.Millisecond
)

// purger purges while no other write is under way: otherwise the order of purge and write would be unknown.
type purger struct {
	*writer
	redis  redis.UniversalClient
	shards contract.Shards
	purges [2]atomic.Int64 // hard, soft
}

// run purges at every tick until ctx ends.
func (p *purger) run(ctx context.Context) { repeat(ctx, purgeEvery, p.purgeRandom) }

// purgeRandom purges a tag, a path or all.
func (p *purger) purgeRandom() {
	key := p.keys[rand.IntN(len(p.keys))]
	u := publish.Purge{Soft: rand.IntN(4) == 0}
	switch rand.IntN(16) {
	case 0:
		u.Prefix = "/"
	case 1:
		u.Prefix = pathOf(key)[:strings.LastIndex(pathOf(key), "/")+1]
	default:
		u.Tag = tagOf(key)
	}
	p.applyPurge(u, func(key int) bool {
		return u.Tag == tagOf(key) || u.Prefix != "" && strings.HasPrefix(pathOf(key), u.Prefix)
	})
}

// applyPurge applies u, which affects the keys that match of, and publishes some of these keys at the same time. The
// receipts tell the order, so for each published key two purges begin: before its write and after it.
func (p *purger) applyPurge(u publish.Purge, of func(key int) bool) {
	keys := slices.DeleteFunc(slices.Clone(p.keys), func(key int) bool { return !of(key) })
	rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	keys = keys[:min(len(keys), besidePurge)]
	p.writing.Lock()
	defer p.writing.Unlock()
	begin := func(of func(key int) bool) map[int]uint64 { return p.checker.BeginPurge(of, u.Soft, p.world.now()) }
	before := begin(of)
	objects, results := make([]publish.Object, len(keys)), make([]publish.Result, len(keys))
	for i, key := range keys {
		objects[i] = p.beginPut(key)
	}
	after := begin(func(key int) bool { return slices.Contains(keys, key) })
	ctx := context.Background()
	var puts sync.WaitGroup
	put := func(i int) {
		puts.Go(func() { results[i].Receipt, results[i].Err = p.publisher.Put(ctx, objects[i]) })
	}
	_ = p.redis.Do(ctx, "CLIENT", "PAUSE", redisPause.Milliseconds(), "WRITE") // without it they are further apart
	for i := range keys[:len(keys)/2] {
		put(i)
	}
	<-time.After(redisPause / 2) // they have come to Redis
	for i := len(keys) / 2; i < len(keys); i++ {
		put(i)
	}
	receipts, err := p.publisher.Purge(ctx, u)
	puts.Wait()

	outcome := Unknown // after an error some shards may have it
	if err == nil {
		outcome = Acked
		p.purges[map[bool]int{true: 1}[u.Soft]].Add(1)
	}
	p.checker.EndPurge(before, outcome, p.world.now())
	notAfter := map[int]uint64{}
	for i, key := range keys {
		r := results[i]
		p.endWrite(key, Put, objects[i].Version, r.Err)
		shard := contract.Keyspace{Shards: p.shards}.KeysOf(storedKey(key)).Shard
		if err == nil && r.Err == nil && r.Seq > receipts[shard].Seq {
			notAfter[key] = after[key]
			delete(after, key)
		}
	}
	p.checker.EndPurge(notAfter, Failed, p.world.now())
	p.checker.EndPurge(after, outcome, p.world.now())
}
