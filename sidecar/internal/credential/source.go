package credential

import (
	"hash/maphash"
	"net/netip"
)

// source is where an attempt came from: a keyed hash of the client's IPv4 address, or of
// the /64 of its IPv6 address, within which a client chooses freely. 0 is unknown.
type source uint64

// sources makes sources, by a key of this process.
type sources struct{ seed maphash.Seed }

func newSources() sources { return sources{maphash.MakeSeed()} }

// of is the source of an address as text.
func (s sources) of(text string) source {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return 0
	}
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		prefix, _ := addr.Prefix(64) // 64 bits are always there
		addr = prefix.Addr()
	}
	b := addr.As16()
	return source(max(maphash.Bytes(s.seed, b[:]), 1))
}

// pair is a key for a device and a source together.
func (s sources) pair(id string, from source) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	for shift := 0; shift < 64; shift += 8 {
		h.WriteByte(byte(from >> shift))
	}
	h.WriteString(id)
	return max(h.Sum64(), 1)
}
