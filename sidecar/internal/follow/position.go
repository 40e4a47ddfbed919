package follow

import (
	"errors"
	"fmt"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// position is the position of Redis at a time.
type position struct {
	dataEpoch string
	seq       uint64
	history   history
	at        time.Time // before Redis was asked
	catchups  uint64    // number of the follower's catch-ups by then
	ours      uint64    // the follower's seq by then
	vitals    vitals    // of the server
	err       error

	chained bool          // Redis permits reading its chain
	head    contract.Link // last link of the server's chain; zero: none
	link    contract.Link // the follower's last link; the digest is "" if unknown
	stored  contract.Link // Redis's link at the number of link; zero: none
	floor   uint64
	needs   string          // see contract.ChainNeeds
	last    uint64          // highest number in the log; 0: the log is empty
	lost    uint64          // the log was lost, and is complete from this number on; 0: not lost
	unsure  []unsureEvent   // events to check with Redis
	links   []contract.Link // Redis's links at the numbers of unsure

	linkDown bool     // the server is a replica without a link to its master
	end      chainEnd // see fetcher.askEnd
}

// digestAtSeq returns the digest of the write at seq, "" if the chain doesn't have the digest.
func (p *position) digestAtSeq() string {
	if p.head.Seq == p.seq {
		return p.head.Digest
	}
	return ""
}

// vitals has a server's memory and clock; zero if the server doesn't report them.
type vitals struct {
	policy    string        // maxmemory-policy
	used, max uint64        // bytes; max 0: no limit
	unsaved   string        // the save that failed last; "": none
	clock     time.Time     // at the time of the reply
	ahead     time.Duration // of clock, see clockAhead
	warned    bool          // ahead was logged
}

// fillRatio returns the used part of the memory limit, 0 without a limit.
func (v vitals) fillRatio() float64 {
	if v.max == 0 {
		return 0
	}
	return float64(v.used) / float64(v.max)
}

// clockAhead returns how far a clock that was read between begin and end is certainly ahead of this machine's; below 0:
// the clock is behind.
func clockAhead(clock, begin, end time.Time) time.Duration {
	switch {
	case clock.IsZero():
		return 0
	case clock.After(end):
		return clock.Sub(end)
	default:
		return min(clock.Sub(begin), 0)
	}
}

// hasOurWrite reports whether Redis has the follower's last write, and so all earlier writes.
func (p *position) hasOurWrite() bool { return p.link.Digest != "" && p.stored == p.link }

// hasOtherWrite reports whether Redis has another write at the number of the follower's last write.
func (p *position) hasOtherWrite() bool {
	return p.link.Digest != "" && p.stored.Seq == p.link.Seq && p.stored.Digest != p.link.Digest
}

// maxHistoryAge is the maximum age of a stored history that a new history may continue. The age must be far less than
// Redis's repl-backlog-ttl, an hour by default, after which a promoted replica no longer reports its former master.
const maxHistoryAge = time.Minute

// history identifies a server's process and its replication history: another process may have lost writes although its
// seq is higher than the follower's. The zero value means unknown.
type history struct {
	runID, replicationID string
	// own: this process began the replication history, and did not continue another server's.
	own bool
}

// isSame reports whether h equals known, however old known is.
func (h history) isSame(known history) bool {
	return h.runID == known.runID && h.replicationID == known.replicationID
}

// continues reports whether h equals known, which is at most maxHistoryAge old, or continues known without a loss.
// Redis starts a new replication ID when a first replica connects, and when the last replica has been disconnected for
// long. A promoted replica starts a new ID, too, but reports the former ID until repl-backlog-ttl has passed.
func (h history) continues(known history) bool {
	return h.isSame(known) || h.own && h.runID == known.runID && h.runID != ""
}

// continuesHistory reports whether p's history is or continues the follower's.
func (t *tracker) continuesHistory(p position) bool {
	return p.history.isSame(t.history) || p.at.Sub(t.historyAt) < maxHistoryAge && p.history.continues(t.history)
}

// setHistory records p's history. historyAt has no monotonic time, which stands still while the machine is suspended.
func (t *tracker) setHistory(p position) {
	t.history, t.historyAt = p.history, p.at.Round(0)
}

// mayLackDeletions reports whether Redis may have forgotten deletions since the follower's position: their entries in
// the log were removed, or their tombstones have expired, and records written since may have lower versions than the
// follower's.
func (t *tracker) mayLackDeletions(p position) bool {
	return t.seq < p.floor || t.synced && p.at.Sub(t.historyAt) > contract.TombstoneLife-time.Hour
}

// hasAllWrites reports whether Redis has all of the follower's writes: by the chain, or with an unknown chain by the
// server.
func (t *tracker) hasAllWrites(p position, reason catchUpReason) bool {
	return p.hasOurWrite() ||
		!p.hasOtherWrite() && (p.history.isSame(t.history) || reason != catchUpConnected && t.continuesHistory(p))
}

// replicaError is the refusal to read from a replica.
type replicaError struct {
	server, role, master string
	linkDown             bool
}

// Error names the server and the fixes.
func (e *replicaError) Error() string {
	return fmt.Sprintf("redis %s is a replica (role %s, of %s), which may be behind: "+
		"point redis.url at the master, or let the sentinels name it, redis+sentinel://host:26379/MASTER",
		e.server, e.role, e.master)
}

// needsOperator reports whether only an operator can fix the cause of err.
func needsOperator(err error) bool {
	_, replica := errors.AsType[*replicaError](err)
	_, shards := errors.AsType[*contract.ShardsError](err)
	_, empty := errors.AsType[emptyError](err)
	_, needs := errors.AsType[*contract.NeedsError](err)
	return replica || shards || empty || needs || errors.Is(err, errNoInfo)
}
