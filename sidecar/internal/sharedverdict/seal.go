package sharedverdict

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/internal/credential"
)

// Domains of the HMACs, so that no name is also a seal.
const (
	nameDomain  = "gatehouse shared verdict, name, 1"
	valueDomain = "gatehouse shared verdict, value, 1"
)

// A value is 41 bytes: the index of the matching hash in the record, one byte; the end of its validity, 8 bytes, unix
// milliseconds, big endian; and the HMAC of domain, name and these.
const (
	untilAt   = 1
	sealAt    = untilAt + 8
	valueSize = sealAt + sha256.Size
)

// sealer makes names and values with the fleet's secret. Without it nobody can find the device of a name, test secrets
// with it, or make a valid value.
type sealer []byte

// name returns the name of the verdict on c. Each part is preceded by its length, so that no two questions share a
// name.
func (s sealer) name(c *credential.Question) [sha256.Size]byte {
	mac := hmac.New(sha256.New, s)
	write(mac, nameDomain)
	write(mac, c.Device)
	write(mac, c.Secret)
	mac.Write(binary.BigEndian.AppendUint64(nil, c.Version))
	for _, h := range c.Hashes {
		write(mac, h)
	}
	return [sha256.Size]byte(mac.Sum(nil))
}

func write(mac hash.Hash, part string) {
	mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
	mac.Write([]byte(part))
}

// seal returns the value for the question with this name: its secret matches the record's hash at index. It is valid
// until until.
func (s sealer) seal(name [sha256.Size]byte, index int, until time.Time) []byte {
	b := append(make([]byte, 0, valueSize), byte(index))
	b = binary.BigEndian.AppendUint64(b, uint64(until.UnixMilli()))
	return append(b, s.sign(name, b)...)
}

func (s sealer) sign(name [sha256.Size]byte, said []byte) []byte {
	mac := hmac.New(sha256.New, s)
	write(mac, valueDomain)
	mac.Write(name[:])
	mac.Write(said)
	return mac.Sum(nil)
}

// open returns the match in value. ok: seal made value for this question, and it is still valid.
func (s sealer) open(c *credential.Question, name [sha256.Size]byte, value string,
	now time.Time) (m *credential.Match, ok bool) {
	b := []byte(value)
	if len(b) != valueSize || !hmac.Equal(b[sealAt:], s.sign(name, b[:sealAt])) {
		return nil, false
	}
	until := time.UnixMilli(int64(binary.BigEndian.Uint64(b[untilAt:])))
	if int(b[0]) >= len(c.Hashes) || !now.Before(until) {
		return nil, false
	}
	return &credential.Match{Hash: c.Hashes[b[0]], Until: until}, true
}
