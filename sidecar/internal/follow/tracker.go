package follow

import (
	"sync/atomic"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// resyncReason is the reason for a full resync, a label of metrics.
type resyncReason string

const (
	resyncStart     resyncReason = "start"     // the first resync, also of the first data in an empty Redis
	resyncLost      resyncReason = "lost"      // Redis lost writes
	resyncRestarted resyncReason = "restarted" // Redis may have lost writes, in a restart or failover
	resyncTrimmed   resyncReason = "trimmed"   // log or tombstones don't go back to the follower's position
	resyncUnsure    resyncReason = "unsure"    // too many devices must be read again to list them
	resyncDemand    resyncReason = "demand"    // of an operator
)

// tracker tracks which part of Redis's history was applied, and judges events and servers by it. Only the goroutine of
// the Follower may use it, except for applied and firstSync.
type tracker struct {
	*shard
	firstSync chan struct{}                 // closed by endFirstSync
	applied   atomic.Pointer[contract.Link] // last applied write; in a full resync, the last write to read

	dataEpoch  string    // data epoch of seq; "" before the first write
	seq        uint64    // number of the last applied write
	chain      chain     // up to seq
	history    history   // of the server that reported seq
	historyAt  time.Time // time of the server's report
	synced     bool      // everything up to seq was applied
	logLost    bool      // the log was lost since, see confirmNotLost
	emptySince time.Time // first of consecutive looks at an empty shard; zero: not empty
	emptyAt    time.Time // last look at the empty shard
	catchups   uint64    // number of catch-ups
	resync     resyncState
	// fromSnapshot is what the first catch-up from a snapshot's position reads besides the changes; nil: nothing.
	fromSnapshot *snapshotReads
}

// resyncState is the state of full resyncs.
type resyncState struct {
	pending resyncReason         // of the running or required resync; "": unknown yet, or none
	tried   bool                 // a resync was begun, so the next resync may find known records
	endedAt time.Time            // end of the last resync
	demands chan chan<- struct{} // of operators, see [Group.Resync]
	done    chan<- struct{}      // receives at the end of an operator's resync; nil: none
}

// caughtUp reports whether everything in Redis has been applied once.
func (t *tracker) caughtUp() bool {
	select {
	case <-t.firstSync:
		return true
	default:
		return false
	}
}

// endFirstSync records that everything in Redis has been applied once. A replica may lack what the edge has of an
// earlier sidecar, so there the end of the chain at the master counts.
func (t *tracker) endFirstSync() {
	if !t.caughtUp() {
		close(t.firstSync)
	}
}

// setLast sets the number and the digest of the last applied write, and updates the metric, the sum over all shards.
func (t *tracker) setLast(seq uint64, digest string) {
	if t.follows(contract.KindObject) {
		t.metrics.Seq.Add(float64(seq) - float64(t.seq))
	}
	t.seq = seq
	t.chain.addLink(seq, digest)
	last := contract.Link{Seq: seq}
	if t.chain.readable {
		last.Digest = t.chain.digest
	}
	if t.fromSnapshot == nil || seq > t.applied.Load().Seq {
		t.applied.Store(&last)
	}
}

// requireResync has the next catch-up read everything.
func (t *tracker) requireResync(reason resyncReason) { t.synced, t.resync.pending = false, reason }

// beginResync begins a full resync for Redis's position p, and logs the reason, which a failed attempt keeps.
func (t *tracker) beginResync(p position) {
	switch {
	case t.dataEpoch != "" &&
		(p.dataEpoch != t.dataEpoch || p.seq < t.seq || p.hasOtherWrite() || t.nameLostKeys(p) != ""):
		if t.resync.pending != resyncLost { // not logged yet
			t.logLoss(p)
		}
		t.resync.pending = resyncLost
	case t.resync.pending != "":
	case !t.synced || t.dataEpoch == "": // Redis was empty, and has its first data now
		t.resync.pending = resyncStart
	case t.mayLackDeletions(p):
		t.resync.pending = resyncTrimmed
		t.log.Info("deletions since our position may have left no trace: everything is read again",
			"seq", t.seq, "floor", p.floor)
	default:
		t.resync.pending = resyncRestarted
		t.log.Info("redis was restarted, or another server has taken over: everything is read again",
			"seq", t.seq, "redis_seq", p.seq)
	}
	t.applied.Store(&contract.Link{Seq: p.seq, Digest: p.digestAtSeq()})
	t.metrics.Resyncs.WithLabelValues(string(t.resync.pending)).Inc()
	t.synced, t.fromSnapshot = false, nil // until all was read
	t.Purges.BeginResync()
	t.Objects.BeginResync()
	t.Credentials.BeginResync()
}

// endResync ends a full resync that has read count records.
func (t *tracker) endResync(count int) {
	t.Objects.EndResync()
	t.Credentials.EndResync()
	if count > 0 { // an empty resync costs nothing
		t.resync.endedAt = time.Now()
	}
	t.chain, t.resync.pending = chain{}, ""
	if t.resync.done != nil {
		t.resync.done <- struct{}{} // has room
		t.resync.done = nil
	}
}

func (t *tracker) logLoss(p position) {
	t.log.Warn("redis has lost data: the edge drops it, too", "data_epoch", t.dataEpoch, "seq", t.seq,
		"redis_data_epoch", p.dataEpoch, "redis_seq", p.seq)
}
