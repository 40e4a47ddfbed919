package credential

import (
	"crypto/rand"
	"encoding/binary"
	"hash/maphash"

	"github.com/dchest/siphash"

	"github.com/gatehouse/gatehouse/wire"
)

// Known remembers from where devices were let in, across restarts: numbers that stand for
// devices and sources, which are made of ids and networks by its key. Its methods are safe for
// concurrent use and wait for nothing.
type Known interface {
	Key() [16]byte
	// Of is the sources of a device that were known at start, oldest first, few.
	Of(device uint64) []uint64
	// Restored says that Of will not be called any more.
	Restored()
	Add(device, source uint64)
}

// source is where an attempt came from: a keyed hash of the client's [wire.Network]. 0 is unknown.
type source uint64

// sources makes sources, by a key that may outlive this process.
type sources struct {
	k0, k1 uint64
	seed   maphash.Seed // of pairs
}

func newSources(key [16]byte) sources {
	return sources{binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:]), maphash.MakeSeed()}
}

// of is the source of an address as text.
func (s *sources) of(text string) source {
	network, ok := wire.Network(text)
	if !ok {
		return 0
	}
	b := network.As16()
	return source(max(siphash.Hash(s.k0, s.k1, b[:]), 1))
}

// device is a number for a device. No network is as long as what is hashed here.
func (s *sources) device(id string) uint64 {
	b := append(make([]byte, 32, 32+wire.MaxDeviceID), id...)
	return siphash.Hash(s.k0, s.k1, b)
}

// pair is a key for a device and a source together.
func (s *sources) pair(id string, from source) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	for shift := 0; shift < 64; shift += 8 {
		h.WriteByte(byte(from >> shift))
	}
	h.WriteString(id)
	return max(h.Sum64(), 1)
}

// forgetful is the Known of a process that leaves nothing behind.
type forgetful struct{}

func (forgetful) Key() (key [16]byte) {
	rand.Read(key[:]) // never fails
	return key
}
func (forgetful) Of(uint64) []uint64 { return nil }
func (forgetful) Restored()          {}
func (forgetful) Add(_, _ uint64)    {}

// meet remembers that a device was let in from a source; mu is held.
func (v *Verifier) meet(r *record, id string, from source) {
	if r.meet(from) && from != 0 {
		v.Known.Add(v.sources.device(id), uint64(from))
	}
}

// restore is the sources of a device that was not known yet; mu is held.
func (v *Verifier) restore(id string) (of []source) {
	if v.restored {
		return nil
	}
	for _, from := range v.Known.Of(v.sources.device(id)) {
		of = remember(of, source(from), maxSources)
	}
	return of
}
