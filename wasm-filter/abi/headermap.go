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

// LengthBit is the bit of a name's length among those that [ParseHeaders] takes.
func LengthBit(name string) uint64 { return 1 << min(len(name), 63) }

// AllLengths takes every name.
const AllLengths = ^uint64(0)

// ParseHeaders appends the fields of raw to dst, names and values, which refer to raw; false if
// raw is shorter than what it says it holds. Fields whose names' lengths are not among
// lengths are left out.
func ParseHeaders(dst [][2]string, raw []byte, lengths uint64) ([][2]string, bool) {
	if len(raw) < 4 {
		return dst, false
	}
	count := binary.LittleEndian.Uint32(raw)
	if uint64(count)*8 > uint64(len(raw)-4) {
		return dst, false
	}
	end := 4 + int(count)*8
	for sizes := raw[4:end]; len(sizes) >= 8; sizes = sizes[8:] {
		both := binary.LittleEndian.Uint64(sizes)
		name, start := int(uint32(both)), end
		if end += name + int(both>>32) + 2; end > len(raw) {
			return dst, false
		}
		if lengths>>min(name, 63)&1 != 0 {
			dst = append(dst, [2]string{text(raw[start : start+name]), text(raw[start+name+1 : end-1])})
		}
	}
	return dst, true
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
