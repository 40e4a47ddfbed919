package follow

import (
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// applier passes records to their sinks.
type applier struct{ *shard }

var errWrongType = errors.New("not a hash")

// applyRecord passes a record to its sink. It removes an unreadable record: anything may have changed, so the old
// record may neither be served nor authenticate a device.
func (a *applier) applyRecord(m contract.Member, fields map[string]string) {
	switch m.Kind {
	case contract.KindObject:
		o, err := contract.ParseObject(fields)
		if err != nil {
			a.reportUnreadable("object", m.ID, err)
			a.Objects.Remove(m.ID)
			return
		}
		o.Key = m.ID
		a.Objects.Apply(o)
	case contract.KindCredential:
		c, err := contract.ParseCredential(fields)
		if err != nil {
			a.reportUnreadable("credential", m.ID, err)
			a.Credentials.ApplyMalformed(m.ID)
			return
		}
		c.ID = m.ID
		a.Credentials.Apply(c)
	case contract.KindPurge:
		p, err := contract.ParsePurge(fields)
		if err != nil { // the known purge still counts
			a.reportUnreadable("purge", m.ID, err)
			return
		}
		p.ID = m.ID
		a.Purges.Apply(p)
	}
}

var errOtherSeq = errors.New("a purge that isn't up to its own write")

// isForgedPurge reports whether an event has a purge that is not up to the event's own write, as only a forged event
// does.
func isForgedPurge(e *contract.Event) bool {
	if e.Member.Kind != contract.KindPurge {
		return false
	}
	p, err := contract.ParsePurge(e.Fields)
	return err == nil && !p.Deleted && p.Last() != e.Seq
}

// applyLive calls apply, which applies the record of an announced write, as part of the measurement of the write's
// propagation.
func (a *applier) applyLive(fields map[string]string, apply func()) {
	published, err := strconv.ParseInt(fields[contract.FieldPublished], 10, 64)
	if err != nil {
		apply() // a malformed or missing record
		return
	}
	a.Clock.ApplyLive(time.UnixMilli(published), apply)
}

func (a *applier) removeRecord(m contract.Member) {
	switch m.Kind {
	case contract.KindObject:
		a.Objects.Remove(m.ID)
	case contract.KindCredential:
		a.Credentials.Remove(m.ID)
	} // a purge counts until another record of the purge, or a full resync
}

// removeMalformed removes an unreadable record. A device stays known: an authority would decide about an unknown
// device.
func (a *applier) removeMalformed(m contract.Member) {
	if m.Kind == contract.KindCredential {
		a.Credentials.ApplyMalformed(m.ID)
		return
	}
	a.removeRecord(m)
}

func kindName(m contract.Member) string {
	switch m.Kind {
	case contract.KindCredential:
		return "credential"
	case contract.KindPurge:
		return "purge"
	}
	return "object"
}

// reportUnreadable counts an unreadable item and logs it, at a bounded rate.
func (a *applier) reportUnreadable(kind, id string, err error) {
	reason := contract.ReasonOf(err)
	switch {
	case err == errEvicted:
		reason = contract.ReasonMissing
	case reason == "":
		reason = contract.ReasonMalformed
	}
	a.metrics.Corrupt.WithLabelValues(kind, string(reason)).Inc()
	a.board.refusedLog.Do(func() {
		a.log.Warn("malformed record from redis skipped", "kind", kind, "id", id, "error", err)
	})
}

// applyReply applies a record as read from Redis.
func (a *applier) applyReply(m contract.Member, reply *redis.MapStringStringCmd) error {
	fields, err := reply.Result()
	switch {
	case err == nil && len(fields) == 0:
		a.removeRecord(m) // the tombstone has expired
	case err == nil:
		a.applyRecord(m, fields)
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		a.reportUnreadable(kindName(m), m.ID, errWrongType)
		a.removeMalformed(m)
	case contract.ReasonOf(err) != "":
		a.reportUnreadable(kindName(m), m.ID, err)
		a.removeMalformed(m)
	default:
		return err
	}
	return nil
}
