package credential

import (
	"crypto/rand"
	"encoding/binary"
	"hash/maphash"

	"github.com/dchest/siphash"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// Known stores across restarts the sources from which devices authenticated, as keyed hashes of ids and networks. Its
// methods are safe for concurrent use and don't block.
type Known interface {
	Key() [16]byte
	// Of returns the stored sources of a device at start, oldest first; there are few.
	Of(device uint64) []uint64
	// Restored must be called when Of is not needed any more.
	Restored()
	Add(device, source uint64)
}

// source identifies the origin of an attempt: a keyed hash of the client's [wire.Network]. 0 is unknown.
type source uint64

// sources computes sources with a key that may outlive this process.
type sources struct {
	k0, k1 uint64
	seed   maphash.Seed // for pairs
}

func newSources(key [16]byte) sources {
	return sources{binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:]), maphash.MakeSeed()}
}

// of returns the source of an address in text form.
func (s *sources) of(text string) source {
	network, ok := wire.Network(text)
	if !ok {
		return 0
	}
	b := network.As16()
	return source(max(siphash.Hash(s.k0, s.k1, b[:]), 1))
}

// device returns a hash of a device's id. No network is as long as its input.
func (s *sources) device(id string) uint64 {
	b := append(make([]byte, 32, 32+limits.MaxDeviceID), id...)
	return siphash.Hash(s.k0, s.k1, b)
}

// pair returns a key for a device and a source together.
func (s *sources) pair(id string, from source) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	for shift := 0; shift < 64; shift += 8 {
		h.WriteByte(byte(from >> shift))
	}
	h.WriteString(id)
	return max(h.Sum64(), 1)
}

// forgetful is the Known of a process that stores nothing.
type forgetful struct{}

func (forgetful) Key() (key [16]byte) {
	rand.Read(key[:]) // never fails
	return key
}
func (forgetful) Of(uint64) []uint64 { return nil }
func (forgetful) Restored()          {}
func (forgetful) Add(_, _ uint64)    {}

// meet stores that a device authenticated from a source; mu is held.
func (v *Verifier) meet(r *record, id string, from source) {
	if r.meet(from) && from != 0 {
		v.Known.Add(v.sources.device(id), uint64(from))
		v.named.drop(v.sources.pair(id, from)) // no limit applies any more
	}
}

// restore returns the stored sources of a device that was not known yet; mu is held.
func (v *Verifier) restore(id string) (of []source) {
	if v.restored {
		return nil
	}
	for _, from := range v.Known.Of(v.sources.device(id)) {
		of = remember(of, source(from), maxSources)
	}
	return of
}
