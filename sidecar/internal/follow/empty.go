package follow

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

// If the last two looks at an empty shard are further apart than maxEmptyGap, AcceptLossAfter starts again: Redis may
// have been away.
const maxEmptyGap = 10 * time.Second

// emptyError means that a shard of Redis has neither data epoch nor sequence number: the shard was never written to, or
// lost everything. If keys isn't "", the shard lost only these keys, and still has some.
type emptyError struct {
	keys     string
	followed bool // nonetheless, because this follower has read everything
}

// isFollowedAnyway reports whether a shard is followed despite its loss err.
func isFollowedAnyway(err error) bool {
	lost, is := errors.AsType[emptyError](err)
	return is && lost.followed
}

// Error names the ways out.
func (e emptyError) Error() string {
	if e.keys != "" {
		return "redis has lost " + e.keys + ", but not all keys of the shard: somebody deleted it, or redis evicts keys; " +
			"restore the data of redis, or delete all keys of the shard and publish its records again"
	}
	return "redis is empty: it was never written to, or has lost everything; " +
		"restore its data, publish it again, or accept the loss by gatehousectl accept-loss"
}

// errOtherDataEpoch: Redis was emptied, or lost its log, during a read.
var errOtherDataEpoch = errors.New(
	"redis has another data epoch, or no log any more, than when its log was read: everything is read again")

// hasWrites reports whether a key of the shard shows that the shard was written to. accept-loss leaves only a data
// epoch in an empty shard.
func (p *position) hasWrites() bool { return p.seq != 0 || p.last != 0 || p.head.Seq != 0 }

// nameLostKeys returns the names of the keys that the shard has lost; "": none. The shard must have the keys because it
// has other keys, or because the follower has read them. Without these keys, records that Redis still has look deleted.
// A lost log counts as lost even after further writes; so does seq, if the log has a higher number that a script may
// have counted.
func (t *tracker) nameLostKeys(p position) string {
	if !p.hasWrites() && (t.seq == 0 || p.dataEpoch == "" || p.dataEpoch != t.dataEpoch) {
		return ""
	}
	var names []string
	if p.dataEpoch == "" {
		names = append(names, t.keys.DataEpochKey())
	}
	if p.seq == 0 || p.seq < p.last && p.last <= limits.MaxOwnVersion {
		names = append(names, t.keys.SeqKey())
	}
	if p.lost != 0 {
		names = append(names, t.keys.LogKey())
	}
	return strings.Join(names, ", ")
}

// lacksOnlyLog reports whether only the log was lost, and the follower has read everything that the lost log had.
func (t *tracker) lacksOnlyLog(p position) bool {
	return t.nameLostKeys(p) == t.keys.LogKey() && t.seq+1 >= p.lost
}

// confirmNotLost returns an error if the shard is empty or lacks keys, until the loss has lasted for AcceptLossAfter.
// The records of a lost shard seem deleted, so the shard counts as unreachable: otherwise a single server that comes
// back without its data would have all devices of the fleet refused at once. A follower that has read the lost log, and
// needn't read everything again, goes on.
func (t *tracker) confirmNotLost(p position, full bool) error {
	lost := emptyError{t.nameLostKeys(p), !full && t.lacksOnlyLog(p)}
	t.board.setChainless(t.slot, p.chained && p.hasWrites() && p.head.Seq == 0, t.keys.ChainKey(), t.log)
	if lost.keys == "" && (p.dataEpoch != "" || p.hasWrites()) {
		t.emptySince, t.emptyAt = time.Time{}, time.Time{}
		t.board.setEmpty(t.slot, nil)
		return nil
	}
	if p.at.Sub(t.emptyAt) > maxEmptyGap {
		t.emptySince = p.at
	}
	t.emptyAt = p.at
	accepted := t.AcceptLossAfter > 0 && p.at.Sub(t.emptySince) >= t.AcceptLossAfter
	if accepted {
		t.board.setEmpty(t.slot, nil)
		return nil
	}
	t.board.setEmpty(t.slot, lost)
	if !lost.followed {
		return lost
	}
	if !t.logLost {
		t.log.Error("this sidecar goes on, because it has read everything before; a sidecar that starts can't", "error", lost)
	}
	t.logLost = true
	return nil
}

// noticeLogBack requires a full resync once the loss of the log was accepted, or the log is back: the follower must
// have the same records as a sidecar that starts.
func (t *tracker) noticeLogBack(p position) {
	if t.logLost && p.lost == 0 {
		t.logLost = false
		t.requireResync(resyncLost)
	}
}

// setEmpty records the shard's loss that was not accepted; nil: none.
func (b *board) setEmpty(shard int, why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.empty[shard] = why
	count := 0
	for _, why := range b.empty {
		if why != nil {
			count++
		}
	}
	b.metrics.RedisEmpty.Set(float64(count))
}

// emptyReason returns the shard's loss that was not accepted; nil: none.
func (b *board) emptyReason(shard int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.empty[shard]
}

// setChainless records whether the shard has lost its chain. Nothing else depends on the chain, and the next write
// begins a new chain.
func (b *board) setChainless(shard int, lost bool, key string, log *slog.Logger) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if lost && b.chainless[shard] == "" {
		log.Warn("redis has lost the chain of the shard: somebody deleted it, or redis evicts keys; lost writes may go "+
			"unnoticed until the next write begins a new one", "key", key)
	}
	if !lost {
		key = ""
	}
	b.chainless[shard] = key
}

// Ready returns an error if not everything was read yet, because shards of Redis are empty or lack keys, or can't be
// read.
func (g *Group) Ready() error {
	select {
	case <-g.synced:
		return nil
	default:
	}
	for i, f := range g.followers {
		if err := g.board.emptyReason(i); err != nil {
			return fmt.Errorf("%s: %w", f.describe(), err)
		}
	}
	if failure := g.Failure(); failure != "" {
		return errors.New(failure)
	}
	return nil
}
