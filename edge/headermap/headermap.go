// Package headermap is the form in which Proxy-Wasm, ABI 0.2, exchanges header maps. The code is short: the cost of
// code on the request path grows with its length. Integers are read in the byte order of little-endian machines.
package headermap

import (
	"encoding/binary"
	"unsafe"
)

// A header map travels as
//
//	0  u32  count
//	4  count × (u32 length of the name, u32 length of the value)
//	   count × (name, 0, value, 0)

// NameBit returns the bit of a name, of at least six bytes, in a set of names. The bit depends on the third to the
// sixth byte, which distinguish the few relevant names from common names. Lengths don't: x-original-url is as long as
// content-length.
func NameBit(name string) uint64 { return nameBit(unsafe.Pointer(unsafe.StringData(name))) }

func nameBit(name unsafe.Pointer) uint64 {
	// With this factor no common name shares a bit with a relevant name, see TestMarks in package policy.
	return 1 << (*(*uint32)(unsafe.Add(name, 2)) * 0x3c5dcc5f >> 26)
}

// nameBitBytes is the length of the prefix of a name that NameBit reads.
const nameBitBytes = 6

// Fields are the remaining fields of a header map, which must not change after ParseFields.
type Fields struct {
	// NameBits has the bits of all names, see [NameBit], and some others: shorter names are read beyond their end.
	NameBits uint64

	base        unsafe.Pointer
	next, count uint32 // of fields
	at          uint32 // offset of the next field's name, from base
}

// ParseFields returns all fields of raw, without a copy; false if raw is shorter than the header tells. ParseFields
// checks the sum of all lengths, so that Next, which runs for each header of each request, needs no check.
func ParseFields(raw []byte) (Fields, bool) {
	if len(raw) < 4 {
		return Fields{}, false
	}
	count := binary.LittleEndian.Uint32(raw)
	size := 4 + 8*uint64(count)
	if size > uint64(len(raw)) {
		return Fields{}, false
	}
	f := Fields{base: unsafe.Pointer(unsafe.SliceData(raw)), count: count, at: uint32(size)}
	for i := range count {
		if size+nameBitBytes <= uint64(len(raw)) {
			f.NameBits |= nameBit(unsafe.Add(f.base, size))
		}
		both := *(*uint64)(unsafe.Add(f.base, 4+8*i))
		size += uint64(uint32(both)) + both>>32 + 2
	}
	if size > uint64(len(raw)) {
		return Fields{}, false
	}
	return f, true
}

// HasMore reports whether a field remains.
func (f *Fields) HasMore() bool { return f.next < f.count }

// Next returns the next field, whose name and value refer to the header map. A field must remain, see HasMore.
func (f *Fields) Next() (name, value string) {
	both := *(*uint64)(unsafe.Add(f.base, 4+8*f.next))
	nameLength, valueLength := uint32(both), uint32(both>>32)
	name = unsafe.String((*byte)(unsafe.Add(f.base, f.at)), nameLength)
	f.at += nameLength + 1
	value = unsafe.String((*byte)(unsafe.Add(f.base, f.at)), valueLength)
	f.at += valueLength + 1
	f.next++
	return name, value
}

// Parse returns all fields of raw, names and values, without a copy; false if raw is shorter than the header tells.
func Parse(raw []byte) (headers [][2]string, ok bool) {
	fields, ok := ParseFields(raw)
	for ok && fields.HasMore() {
		name, value := fields.Next()
		headers = append(headers, [2]string{name, value})
	}
	return headers, ok
}

// Append appends headers as a header map.
func Append(dst []byte, headers [][2]string) []byte {
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

// JoinedValues returns the values of a name in serialized headers, joined by commas (RFC 9110, section 5.3); "" without
// the name.
func JoinedValues(headers []byte, name string) (values string) {
	fields, _ := ParseFields(headers)
	for found := false; fields.HasMore(); {
		if n, value := fields.Next(); n != name {
			continue
		} else if found {
			values += "," + value
		} else {
			values, found = value, true
		}
	}
	return values
}
