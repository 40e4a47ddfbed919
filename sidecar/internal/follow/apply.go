package follow

import (
	"errors"
	"strconv"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

var errWrongType = errors.New("not a hash")

// applyRecord passes a record to its sink. It removes an unreadable record: anything may have changed, so the old
// record may neither be served nor authenticate a device.
func (f *Follower) applyRecord(m contract.Member, fields map[string]string) {
	switch m.Kind {
	case contract.KindObject:
		o, err := contract.ParseObject(fields)
		if err != nil {
			f.reportUnreadable("object", m.ID, err)
			f.Objects.Remove(m.ID)
			return
		}
		o.Key = m.ID
		f.Objects.Apply(o)
	case contract.KindCredential:
		c, err := contract.ParseCredential(fields)
		if err != nil {
			f.reportUnreadable("credential", m.ID, err)
			f.Credentials.ApplyMalformed(m.ID)
			return
		}
		c.ID = m.ID
		f.Credentials.Apply(c)
	case contract.KindPurge:
		p, err := contract.ParsePurge(fields)
		if err != nil { // the known purge still counts
			f.reportUnreadable("purge", m.ID, err)
			return
		}
		p.ID = m.ID
		f.Purges.Apply(p)
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
func (f *Follower) applyLive(fields map[string]string, apply func()) {
	published, err := strconv.ParseInt(fields[contract.FieldPublished], 10, 64)
	if err != nil {
		apply() // a malformed or missing record
		return
	}
	f.Clock.ApplyLive(time.UnixMilli(published), apply)
}

func (f *Follower) removeRecord(m contract.Member) {
	switch m.Kind {
	case contract.KindObject:
		f.Objects.Remove(m.ID)
	case contract.KindCredential:
		f.Credentials.Remove(m.ID)
	} // a purge counts until another record of the purge, or a full resync
}

// removeMalformed removes an unreadable record. A device stays known: an authority would decide about an unknown
// device.
func (f *Follower) removeMalformed(m contract.Member) {
	if m.Kind == contract.KindCredential {
		f.Credentials.ApplyMalformed(m.ID)
		return
	}
	f.removeRecord(m)
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
func (f *Follower) reportUnreadable(kind, id string, err error) {
	reason := contract.ReasonOf(err)
	switch {
	case err == errEvicted:
		reason = contract.ReasonMissing
	case reason == "":
		reason = contract.ReasonMalformed
	}
	f.metrics.Corrupt.WithLabelValues(kind, string(reason)).Inc()
	f.board.refusedLog.Do(func() {
		f.log.Warn("malformed record from redis skipped", "kind", kind, "id", id, "error", err)
	})
}
