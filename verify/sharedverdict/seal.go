package sharedverdict

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"hash"
	"time"

	"github.com/gatehouse/gatehouse/verify/credential"
)

// Domains of the HMACs, so that no name is also a seal.
const (
	nameDomain      = "gatehouse shared verdict, name, 1"
	valueDomain     = "gatehouse shared verdict, value, 1"
	authorityDomain = "gatehouse shared verdict, name of an authority's, 1"
)

// A value is 41 bytes: the index of the matching hash in the record, one byte; the end of the validity, 8 bytes, unix
// milliseconds, big endian; and the HMAC of domain, name and the first 9 bytes. The value of an authority's verdict has
// byAuthority as the index, and before the HMAC the rest of the answer, JSON.
const (
	untilAt     = 1
	sealAt      = untilAt + 8
	valueSize   = sealAt + sha256.Size
	byAuthority = 255
)

// authorityAnswer is the rest of an authority's answer.
type authorityAnswer struct {
	Permissions []string          `json:"permissions,omitempty"`
	EndsMS      int64             `json:"ends"`
	NotAfterMS  int64             `json:"not_after,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
}

// sealer makes names and values with the fleet's secret. Without the secret nobody can find the device of a name, test
// secrets against a name, or make a valid value.
type sealer []byte

// verdictName returns the name of the verdict on c. A length precedes each part, so that no two questions share a name.
func (s sealer) verdictName(c *credential.Question) [sha256.Size]byte {
	mac := hmac.New(sha256.New, s)
	if c.Authority {
		writePart(mac, authorityDomain)
		writePart(mac, c.Device)
		writePart(mac, c.Secret)
		for _, number := range []uint64{c.Version, uint64(c.PublishedMS), c.Invalidations} {
			mac.Write(binary.BigEndian.AppendUint64(nil, number))
		}
		return [sha256.Size]byte(mac.Sum(nil))
	}
	writePart(mac, nameDomain)
	writePart(mac, c.Device)
	writePart(mac, c.Secret)
	mac.Write(binary.BigEndian.AppendUint64(nil, c.Version))
	for _, h := range c.Hashes {
		writePart(mac, h)
	}
	return [sha256.Size]byte(mac.Sum(nil))
}

func writePart(mac hash.Hash, part string) {
	mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
	mac.Write([]byte(part))
}

// sealMatch returns the value for the named question: the secret matches the record's hash at index. The value is valid
// until until.
func (s sealer) sealMatch(name [sha256.Size]byte, index int, until time.Time) []byte {
	return s.sealValue(name, index, until, nil)
}

// sealAnswer returns the value for the named question that an authority answered.
func (s sealer) sealAnswer(name [sha256.Size]byte, m *credential.Match) []byte {
	rest := authorityAnswer{Permissions: m.Authority.Permissions, EndsMS: m.Authority.Ends.UnixMilli(),
		Labels: m.Authority.Labels}
	if !m.Authority.NotAfter.IsZero() {
		rest.NotAfterMS = m.Authority.NotAfter.UnixMilli()
	}
	text, _ := json.Marshal(rest) // can't fail: names, numbers and labels
	return s.sealValue(name, byAuthority, m.Until, text)
}

func (s sealer) sealValue(name [sha256.Size]byte, index int, until time.Time, rest []byte) []byte {
	b := append(make([]byte, 0, valueSize+len(rest)), byte(index))
	b = append(binary.BigEndian.AppendUint64(b, uint64(until.UnixMilli())), rest...)
	return append(b, s.computeSeal(name, b)...)
}

func (s sealer) computeSeal(name [sha256.Size]byte, content []byte) []byte {
	mac := hmac.New(sha256.New, s)
	writePart(mac, valueDomain)
	mac.Write(name[:])
	mac.Write(content)
	return mac.Sum(nil)
}

// openValue returns the match in value. ok: the value was sealed for this question, and is still valid.
func (s sealer) openValue(c *credential.Question, name [sha256.Size]byte, value string,
	now time.Time) (m *credential.Match, ok bool) {
	b := []byte(value)
	end := len(b) - sha256.Size
	if end < sealAt || end > sealAt && !c.Authority || !hmac.Equal(b[end:], s.computeSeal(name, b[:end])) {
		return nil, false
	}
	until := time.UnixMilli(int64(binary.BigEndian.Uint64(b[untilAt:])))
	switch {
	case !now.Before(until):
		return nil, false
	case c.Authority:
		return openAnswer(b[0], until, b[sealAt:end], now)
	case int(b[0]) >= len(c.Hashes):
		return nil, false
	}
	return &credential.Match{Hash: c.Hashes[b[0]], Until: until}, true
}

// openAnswer returns an authority's answer.
func openAnswer(index byte, until time.Time, text []byte, now time.Time) (*credential.Match, bool) {
	var rest authorityAnswer
	if index != byAuthority || json.Unmarshal(text, &rest) != nil {
		return nil, false
	}
	m := &credential.Match{Until: until, Authority: &credential.AuthorityAllow{
		Permissions: rest.Permissions, Ends: time.UnixMilli(rest.EndsMS), Labels: rest.Labels,
	}}
	if rest.NotAfterMS != 0 {
		m.Authority.NotAfter = time.UnixMilli(rest.NotAfterMS)
	}
	return m, now.Before(m.Authority.Ends)
}
