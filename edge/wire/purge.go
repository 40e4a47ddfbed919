package wire

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/objectkey"
)

// MaxPurges is the maximum number of purges in a state.
const MaxPurges = 8

// Purge is a purge under way. The sidecar removes or marks the affected objects one by one, which takes a while for
// many objects; from the first moment no reader may find them.
type Purge struct {
	// Stamps has, for each shard of the purge, the greatest stamp of a body before the purge, see [Stamp]. Objects of
	// other shards, or with a greater stamp, are not affected.
	Stamps []uint64
	// Tags has the bit of the purge's tag, and affects objects with this bit; 0: with any tags. Tags share bits: for a
	// moment a purge affects more objects than are removed, of objects with one other tag, one in 32.
	Tags uint32
	// Soft: the objects are stale; otherwise removed.
	Soft bool
	// VirtualHost is the name of the objects' virtual host, "" for none.
	VirtualHost string
	// Prefix is how their paths begin.
	Prefix string
}

const (
	purgesAt  = 73 // in the state
	purgeSize = 9  // without stamps and texts
)

// Stamp returns the stamp of body number n of an object of this shard.
func Stamp(n uint64, shard int) uint64 { return n*limits.MaxShards + uint64(shard) }

// Concerns reports whether p concerns o.
func (p *Purge) Concerns(o *Object) bool {
	stamp := o.variants[0].Stamp
	if o.Tags&p.Tags != p.Tags || !slices.ContainsFunc(p.Stamps, func(last uint64) bool {
		return stamp <= last && stamp%limits.MaxShards == last%limits.MaxShards
	}) {
		return false
	}
	name, target := objectkey.VirtualHost(o.Key)
	return name == p.VirtualHost && strings.HasPrefix(target, p.Prefix)
}

// Purging reports whether a state has purges.
func Purging(rec []byte) bool { return len(rec) >= stateSize && rec[purgesAt] != 0 }

// ParsePurges reads the purges of a state, without references to rec; none for a record that [ParseState] refuses.
func ParsePurges(rec []byte) []Purge {
	if !Purging(rec) {
		return nil
	}
	s, _ := ParseState(rec)
	return s.Purges
}

func appendPurge(dst []byte, p *Purge) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, p.Tags)
	var soft byte
	if p.Soft {
		soft = 1
	}
	dst = append(dst, soft, byte(len(p.Stamps)), byte(len(p.VirtualHost)))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(p.Prefix)))
	for _, stamp := range p.Stamps {
		dst = binary.LittleEndian.AppendUint64(dst, stamp)
	}
	return append(append(dst, p.VirtualHost...), p.Prefix...)
}

func parsePurges(rest []byte, count int) (purges []Purge, err error) {
	if count > MaxPurges {
		return nil, ErrMalformed
	}
	for range count {
		if len(rest) < purgeSize || rest[4] > 1 {
			return nil, ErrMalformed
		}
		stamps, name, prefix := int(rest[5]), int(rest[6]), int(binary.LittleEndian.Uint16(rest[7:]))
		if stamps > limits.MaxShards || len(rest) < purgeSize+8*stamps+name+prefix {
			return nil, ErrMalformed
		}
		p := Purge{Stamps: make([]uint64, stamps), Tags: binary.LittleEndian.Uint32(rest), Soft: rest[4] == 1}
		rest = rest[purgeSize:]
		for i := range p.Stamps {
			p.Stamps[i] = binary.LittleEndian.Uint64(rest[8*i:])
		}
		rest = rest[8*stamps:]
		text := string(rest[:name+prefix])
		p.VirtualHost, p.Prefix = text[:name], text[name:]
		purges, rest = append(purges, p), rest[len(text):]
	}
	return purges, nil
}
