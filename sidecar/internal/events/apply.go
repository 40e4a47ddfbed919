package events

import (
	"errors"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

var errWrongType = errors.New("not a hash")

// apply gives a record to its sink. One that can't be read is taken for gone: what it
// was to change is not known, so neither may the old one be served or let anyone in.
func (s *Subscriber) apply(m contract.Member, fields map[string]string) {
	switch m.Kind {
	case contract.KindObject:
		o, err := contract.ParseObject(fields)
		if err != nil {
			s.refuse("object", m.ID, err)
			s.Objects.Remove(m.ID)
			return
		}
		o.Key = m.ID
		s.Objects.Apply(o)
	case contract.KindCredential:
		c, err := contract.ParseCredential(fields)
		if err != nil {
			s.refuse("credential", m.ID, err)
			s.Credentials.Remove(m.ID)
			return
		}
		c.ID = m.ID
		s.Credentials.Apply(c)
	}
}

func (s *Subscriber) remove(m contract.Member) {
	switch m.Kind {
	case contract.KindObject:
		s.Objects.Remove(m.ID)
	case contract.KindCredential:
		s.Credentials.Remove(m.ID)
	}
}

func kind(m contract.Member) string {
	if m.Kind == contract.KindCredential {
		return "credential"
	}
	return "object"
}

// refuse counts what can't be read, and logs it as long as it isn't many; the rest goes on.
func (s *Subscriber) refuse(kind, id string, err error) {
	reason := contract.ReasonOf(err)
	if reason == "" {
		reason = contract.ReasonMalformed
	}
	s.metrics.Corrupt.WithLabelValues(kind, string(reason)).Inc()
	s.board.refused.Do(func() {
		s.log.Warn("malformed record from redis skipped", "kind", kind, "id", id, "error", err)
	})
}
