package abi

import (
	"encoding/binary"
	"unsafe"
)

// A header map travels as
//
//	0  u32  count
//	4  count × (u32 length of the name, u32 length of the value)
//	   count × (name, 0, value, 0)

// Headers reads a header map field by field, in place.
type Headers struct {
	// Name and Value are the field that Next has moved to. They refer to the map.
	Name, Value string
	// Malformed says that Next has ended before the last field.
	Malformed bool

	raw          []byte
	sizes, bytes int // where the next field's lengths and its name are
	left         uint32
	lengths      uint64
}

// LengthBit is the bit of a name's length among those that [ReadHeaders] takes.
func LengthBit(name string) uint64 { return 1 << min(len(name), 63) }

// AllLengths takes every name.
const AllLengths = ^uint64(0)

// ReadHeaders begins to read raw; false if it is too short for what it says it holds. Fields
// whose names' lengths are not among lengths are passed over, which costs next to nothing.
func ReadHeaders(raw []byte, lengths uint64) (Headers, bool) {
	if len(raw) < 4 {
		return Headers{}, false
	}
	count := binary.LittleEndian.Uint32(raw)
	if uint64(count)*8 > uint64(len(raw)-4) {
		return Headers{}, false
	}
	return Headers{raw: raw, sizes: 4, bytes: 4 + int(count)*8, left: count, lengths: lengths}, true
}

// Next moves to the next field; false if there is none, or it reaches beyond the map.
func (h *Headers) Next() bool {
	for h.left > 0 {
		lengths := binary.LittleEndian.Uint64(h.raw[h.sizes:])
		name, value := int(uint32(lengths)), int(lengths>>32)
		field := h.bytes
		h.sizes += 8
		h.bytes += name + value + 2
		h.left--
		if h.bytes > len(h.raw) {
			h.left, h.Malformed = 0, true
			return false
		}
		if h.lengths>>min(name, 63)&1 != 0 {
			h.Name, h.Value = text(h.raw[field:field+name]), text(h.raw[field+name+1:h.bytes-1])
			return true
		}
	}
	return false
}

// AppendHeaders appends headers as a header map.
func AppendHeaders(dst []byte, headers [][2]string) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(headers)))
	for i := range headers {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(headers[i][0])))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(headers[i][1])))
	}
	for i := range headers {
		dst = append(append(dst, headers[i][0]...), 0)
		dst = append(append(dst, headers[i][1]...), 0)
	}
	return dst
}

// text views b as a string without copying: it lives and changes with b.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
