package credential

import (
	"hash/maphash"

	"github.com/gatehouse/gatehouse/wire"
)

// source is where an attempt came from: a keyed hash of the client's [wire.Network]. 0 is unknown.
type source uint64

// sources makes sources, by a key of this process.
type sources struct{ seed maphash.Seed }

func newSources() sources { return sources{maphash.MakeSeed()} }

// of is the source of an address as text.
func (s sources) of(text string) source {
	network, ok := wire.Network(text)
	if !ok {
		return 0
	}
	b := network.As16()
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
