package wire

import "encoding/binary"

// Outcome is what a verification says of a credential.
type Outcome uint8

// The outcomes. Only Allow and Deny are stored; Unavailable is an answer to a call.
const (
	Allow       Outcome = 1
	Deny        Outcome = 2
	Unavailable Outcome = 3
)

// String is the outcome as logs and metrics show it.
func (o Outcome) String() string {
	switch o {
	case Allow:
		return "allow"
	case Deny:
		return "deny"
	default:
		return "unavailable"
	}
}

// Verdict is what is known of one credential.
type Verdict struct {
	Digest         Digest
	Permissions    uint64 // a bit per name of State.Permissions
	ExpiresMS      int64  // unix ms; from then on the verdict is worth nothing
	RefreshAfterMS int64  // unix ms; from then on one verification runs behind; 0 never
	Outcome        Outcome
}

const verdictSize = 48

// AppendVerdicts appends a bucket of verdicts to dst; none is a tombstone.
func AppendVerdicts(dst []byte, epoch uint64, verdicts []Verdict) []byte {
	start := len(dst)
	dst = appendHeader(dst, RegionVerdicts, len(verdicts), 0, epoch)
	for i := range verdicts {
		v := &verdicts[i]
		dst = append(dst, v.Digest[:]...)
		dst = binary.LittleEndian.AppendUint64(dst, v.Permissions)
		dst = binary.LittleEndian.AppendUint64(dst, uint64(v.ExpiresMS))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(v.RefreshAfterMS))
		dst = append(dst, byte(v.Outcome), 0, 0, 0, 0, 0, 0, 0)
	}
	return pad(dst, start)
}

// FindVerdict looks a credential up in a bucket; the caller checks its expiry. It
// allocates nothing. Digests are compared as they come: they are outputs of a keyed
// function of the secret, so the time that a comparison takes tells nothing of one.
func FindVerdict(rec []byte, epoch uint64, d *Digest) (Verdict, error) {
	if rec == nil {
		return Verdict{}, ErrNotFound
	}
	if err := checkEpoch(rec, RegionVerdicts, epoch); err != nil {
		return Verdict{}, err
	}
	count := int(binary.LittleEndian.Uint16(rec[2:]))
	if len(rec)-headerSize < count*verdictSize {
		return Verdict{}, ErrMalformed
	}
	for i := range count {
		b := rec[headerSize+i*verdictSize:][:verdictSize]
		if Digest(b[:16]) != *d {
			continue
		}
		v := Verdict{
			Digest:         *d,
			Permissions:    binary.LittleEndian.Uint64(b[16:]),
			ExpiresMS:      int64(binary.LittleEndian.Uint64(b[24:])),
			RefreshAfterMS: int64(binary.LittleEndian.Uint64(b[32:])),
			Outcome:        Outcome(b[40]),
		}
		if v.Outcome != Allow && v.Outcome != Deny {
			return Verdict{}, ErrMalformed
		}
		return v, nil
	}
	return Verdict{}, ErrNotFound
}
