package follow

import (
	"errors"
	"fmt"
	"time"
)

// emptyInARow is how long nobody may have looked at a shard that counts as empty since then: Redis may be away.
const emptyInARow = 10 * time.Second

// emptyError means that a shard of Redis has neither data epoch nor sequence number: it was never written to, or lost
// everything.
type emptyError struct{}

// Error names the ways out.
func (emptyError) Error() string {
	return "redis is empty: it was never written to, or has lost everything; " +
		"restore its data, publish it again, or accept the loss by gatehousectl accept-loss"
}

// errOtherDataEpoch: Redis was emptied while it was read.
var errOtherDataEpoch = errors.New("redis has another data epoch than when its log was read: everything is read again")

// empty reports whether the shard has neither data epoch nor sequence number.
func (p *position) empty() bool { return p.dataEpoch == "" && p.seq == 0 }

// believe returns an error if the shard is empty, until it has been so for AcceptLossAfter. All records of such a shard
// seem deleted, so it counts as unreachable: one server that comes back without its data would have all devices of the
// fleet refused at once.
func (f *Follower) believe(p position) error {
	if !p.empty() {
		f.compared.emptySince, f.compared.emptyAt = time.Time{}, time.Time{}
		f.board.setEmpty(f.Shard, false)
		return nil
	}
	if p.at.Sub(f.compared.emptyAt) > emptyInARow {
		f.compared.emptySince = p.at
	}
	f.compared.emptyAt = p.at
	believed := f.AcceptLossAfter > 0 && p.at.Sub(f.compared.emptySince) >= f.AcceptLossAfter
	f.board.setEmpty(f.Shard, !believed)
	if !believed {
		return emptyError{}
	}
	return nil
}

// setEmpty records whether the shard is empty and not believed.
func (b *board) setEmpty(shard int, empty bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.empty[shard] = empty
	count := 0
	for _, empty := range b.empty {
		if empty {
			count++
		}
	}
	b.metrics.RedisEmpty.Set(float64(count))
}

// isEmpty reports whether the shard is empty and not believed.
func (b *board) isEmpty(shard int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.empty[shard]
}

// Ready returns an error if nothing was read yet because shards of Redis are empty.
func (g *Group) Ready() error {
	select {
	case <-g.synced:
		return nil
	default:
	}
	for i := range g.followers {
		if g.board.isEmpty(i) {
			return fmt.Errorf("shard %d: %w", i, emptyError{})
		}
	}
	return nil
}
