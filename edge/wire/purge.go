package wire

import (
	"encoding/binary"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/objectkey"
)

// MaxPurges is the maximum number of purges in a state.
const MaxPurges = 8

// Purge is a purge that is under way. The sidecar removes or marks the objects that it concerns one by one, which takes
// a while for many; from the first moment no reader may find them.
type Purge struct {
	// Stamp is the greatest one of a body before the purge. Objects that were written later are not concerned.
	Stamp uint64
	// Tags has the bit of the purge's tag, and concerns objects with that bit; 0: with any tags. Tags share bits, so for
	// a moment a purge concerns more objects than it removes: of those with one other tag, one in 32.
	Tags uint32
	// Soft: the objects are stale. Otherwise there are none.
	Soft bool
	// VirtualHost is the name of the objects' virtual host, "" for none.
	VirtualHost string
	// Prefix is how their paths begin.
	Prefix string
}

const (
	purgesAt  = 73 // in the state
	purgeSize = 16
)

// Concerns reports whether p concerns o.
func (p *Purge) Concerns(o *Object) bool {
	if o.variants[0].Stamp > p.Stamp || o.Tags&p.Tags != p.Tags {
		return false
	}
	name, target := objectkey.VirtualHost(o.Key)
	return name == p.VirtualHost && strings.HasPrefix(target, p.Prefix)
}

// Purging reports whether a state has purges.
func Purging(rec []byte) bool { return len(rec) >= stateSize && rec[purgesAt] != 0 }

// ParsePurges reads the purges of a state; nothing in them refers to rec. A record that [ParseState] refuses has none.
func ParsePurges(rec []byte) []Purge {
	if !Purging(rec) {
		return nil
	}
	s, _ := ParseState(rec)
	return s.Purges
}

func appendPurge(dst []byte, p *Purge) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, p.Stamp)
	dst = binary.LittleEndian.AppendUint32(dst, p.Tags)
	var soft byte
	if p.Soft {
		soft = 1
	}
	dst = append(dst, soft, byte(len(p.VirtualHost)))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(p.Prefix)))
	return append(append(dst, p.VirtualHost...), p.Prefix...)
}

func parsePurges(rest []byte, count int) (purges []Purge, err error) {
	if count > MaxPurges {
		return nil, ErrMalformed
	}
	for range count {
		if len(rest) < purgeSize || rest[12] > 1 {
			return nil, ErrMalformed
		}
		name, prefix := int(rest[13]), int(binary.LittleEndian.Uint16(rest[14:]))
		if len(rest) < purgeSize+name+prefix {
			return nil, ErrMalformed
		}
		text := string(rest[purgeSize : purgeSize+name+prefix])
		purges = append(purges, Purge{
			Stamp: binary.LittleEndian.Uint64(rest), Tags: binary.LittleEndian.Uint32(rest[8:]), Soft: rest[12] == 1,
			VirtualHost: text[:name], Prefix: text[name:],
		})
		rest = rest[purgeSize+len(text):]
	}
	return purges, nil
}
