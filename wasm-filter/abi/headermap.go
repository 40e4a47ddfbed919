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

// Fields are those of a header map that were not taken yet.
type Fields struct {
	lengths []byte // of names and values
	bytes   []byte // names and values
}

// ParseFields is all fields of raw; false if raw is too short for their lengths.
func ParseFields(raw []byte) (Fields, bool) {
	if len(raw) < 4 {
		return Fields{}, false
	}
	count, rest := binary.LittleEndian.Uint32(raw), raw[4:]
	if uint64(count)*8 > uint64(len(rest)) {
		return Fields{}, false
	}
	return Fields{rest[:count*8], rest[count*8:]}, true
}

// More reports whether there is another field.
func (f *Fields) More() bool { return len(f.lengths) > 0 }

// Next takes the next field, whose name and value refer to the header map; false if that is
// shorter than it says.
func (f *Fields) Next() (name, value string, ok bool) {
	both := binary.LittleEndian.Uint64(f.lengths)
	end := int(uint32(both))
	size := end + int(both>>32) + 2
	if size > len(f.bytes) {
		return "", "", false
	}
	name, value = text(f.bytes[:end]), text(f.bytes[end+1:size-1])
	f.lengths, f.bytes = f.lengths[8:], f.bytes[size:]
	return name, value, true
}

// ParseHeaders appends the fields of raw to dst, names and values, which refer to raw; false if
// raw is shorter than what it says it holds. Fields whose names' lengths are not among
// lengths are left out.
func ParseHeaders(dst [][2]string, raw []byte, lengths uint64) ([][2]string, bool) {
	fields, ok := ParseFields(raw)
	for ok && fields.More() {
		var name, value string
		if name, value, ok = fields.Next(); ok && lengths&LengthBit(name) != 0 {
			dst = append(dst, [2]string{name, value})
		}
	}
	return dst, ok
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
