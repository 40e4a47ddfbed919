package credential

import (
	"crypto/rand"
	"encoding/binary"
	"hash/maphash"

	"github.com/dchest/siphash"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// Known stores the sources from which devices authenticated across restarts, as keyed hashes of ids and networks. Its
// methods are safe for concurrent use and don't block.
type Known interface {
	Key() [16]byte
	// Of returns the stored sources of a device at start, oldest first; a few at most.
	Of(device uint64) []uint64
	// Restored must be called when Of is not needed any more.
	Restored()
	Add(device, source uint64)
}

// source identifies the origin of an attempt: a keyed hash of the client's [wire.Network]. 0 is unknown.
type source uint64

// sources computes sources, the same at all edges, with a key that may outlive this process.
type sources struct {
	k0, k1 uint64
	seed   maphash.Seed // for pairs
}

func newSources(key [16]byte) *sources {
	return &sources{binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:]), maphash.MakeSeed()}
}

// sourceOf returns the source of an address in text form.
func (s *sources) sourceOf(text string) source {
	network, ok := wire.Network(text)
	if !ok {
		return 0
	}
	b := network.As16()
	return source(max(siphash.Hash(s.k0, s.k1, b[:]), 1))
}

// hashDevice returns a hash of a device's id. The input is longer than a network's, so a device never hashes like a
// network.
func (s *sources) hashDevice(id string) uint64 {
	b := append(make([]byte, 32, 32+limits.MaxDeviceID), id...)
	return siphash.Hash(s.k0, s.k1, b)
}

// pairKey returns a key for a device and a source together.
func (s *sources) pairKey(id string, from source) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	for shift := 0; shift < 64; shift += 8 {
		h.WriteByte(byte(from >> shift))
	}
	h.WriteString(id)
	return max(h.Sum64(), 1)
}

// noKnown is the Known of a process that stores nothing.
type noKnown struct{}

func (noKnown) Key() (key [16]byte) {
	rand.Read(key[:]) // never fails
	return key
}
func (noKnown) Of(uint64) []uint64 { return nil }
func (noKnown) Restored()          {}
func (noKnown) Add(_, _ uint64)    {}

// recordSource stores that a device authenticated from a source. The source counts at all edges, since a load balancer
// may spread the device's requests over them.
// +checklocks:v.Devices.mu
func (v *Verifier) recordSource(r *record, id string, from source) {
	if r.addSource(from) && from != 0 {
		v.Known.Add(v.sources.hashDevice(id), uint64(from))
		v.names.dropName(v.sources.pairKey(id, from)) // no limit applies any more
	}
}

// restoreSources returns the stored sources of a device that was not known yet.
// +checklocks:d.mu
func (d *Devices) restoreSources(id string) (of []source) {
	if d.allSynced() {
		return nil
	}
	for _, from := range d.config.Known.Of(d.sources.hashDevice(id)) {
		of = appendRecent(of, source(from), maxSources)
	}
	return of
}
