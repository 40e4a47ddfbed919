package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
)

const (
	// purgeEvery is the interval between purges, each of a part of the objects.
	purgeEvery = 500 * time.Millisecond
	// groups is the number of tags, of which each object has one.
	groups = 8
)

// tagOf returns the tag of a key's objects.
func tagOf(key int) string { return fmt.Sprint("group-", key%groups) }

// purger purges while no write is under way: otherwise nobody could tell which of the two came first.
type purger struct {
	*writer
	purges [2]atomic.Int64 // hard, soft
}

// run purges at every tick until ctx ends.
func (p *purger) run(ctx context.Context) { repeat(ctx, purgeEvery, p.purge) }

// purge publishes an object and at once purges it, with others, by its tag or path, and publishes it again.
func (p *purger) purge() {
	key := p.keys[rand.IntN(len(p.keys))]
	p.writeKind(key, Put)
	u := publish.Purge{Soft: rand.IntN(4) == 0}
	of := func(other int) bool { return tagOf(other) == u.Tag }
	switch rand.IntN(16) {
	case 0:
		u.Prefix = "/"
	case 1:
		u.Prefix = path(key)[:strings.LastIndex(path(key), "/")+1]
	default:
		u.Tag = tagOf(key)
	}
	if u.Prefix != "" {
		of = func(other int) bool { return strings.HasPrefix(path(other), u.Prefix) }
	}
	p.apply(u, of)
	if rand.IntN(2) == 0 {
		p.writeKind(key, Put)
	}
}

func (p *purger) apply(u publish.Purge, of func(key int) bool) {
	p.writing.Lock()
	defer p.writing.Unlock()
	versions := p.checker.BeginPurge(of, u.Soft, p.world.now())
	_, err := p.publisher.Purge(context.Background(), u)
	outcome := Unknown // after an error some shards may have it
	if err == nil {
		outcome = Acked
		p.purges[map[bool]int{true: 1}[u.Soft]].Add(1)
	}
	p.checker.EndPurge(versions, outcome, p.world.now())
}
