// Package wire defines the binary formats between the sidecar and the edge: the records in the proxy's shared memory,
// the batches that write them, and the calls from the edge to the sidecar. It is independent of a particular proxy.
//
// # Records
//
// Shared memory is a set of records. A record has a place, its region and index, which form the store's key of five
// bytes (see [AppendPlace]). All integers are little-endian. Every record begins with the same sixteen bytes and has at
// least [MinRecord] bytes, padded with zeroes, so that blanking never stores an empty value:
//
//	0  u8   layout version, [Layout]
//	1  u8   region
//	2  u16  count of entries (objects, verdicts), else 0
//	4  u32  object buckets (state), body length (bodies), devices (verdicts), else 0
//	8  u64  epoch: random, never 0, drawn by the sidecar at each full push
//
// Readers treat a record of another epoch as absent: its place was not rewritten yet.
//
// State, one record at index 0, written by every heartbeat:
//
//	16  i64  in step: unix ms at which the edge was known to be in step with Redis
//	24  u32  verdict buckets
//	28  u32  body slots: how many were ever written in this memory, by any epoch
//	32  16   placement key (SipHash-2-4, see [Keys])
//	48  16   digest key (SipHash-2-4-128)
//	64  i64  heartbeat: unix ms at which the sidecar sent this record
//	72  u8   flags: 1 devices complete: every device that may authenticate is listed
//	73  u8   purges that are under way, at most [MaxPurges]
//	74  6    zero
//	80  purges × (u32 tags, u8 1 soft, u8 stamps, u8 length of the virtual host's name,
//	    u16 length of the prefix, stamps × u64 stamp, name, prefix), see [Purge]
//
// Objects, one bucket a record, count entries:
//
//	 0  u32  size of the entry, this field included
//	 4  u32  tag, see [Keys.Place]
//	 8  u64  version, 1 to [limits.MaxVersion]
//	16  i64  published, unix ms, at most when the sidecar first got it
//	24  u64  ttl: freshness lifetime counted from published, ms; 0: fresh until changed
//	32  u16  length of the key
//	34  u8   length of the entity-tag
//	35  u8   length of the content type
//	36  u8   variants, 1 to 4, and 128 if it was purged softly
//	37  u8   status code less 200, one of [limits.ValidStatus]
//	38  u16  length of the headers
//	40  u32  tags: a bit for each, some of which share one
//	44  variants × (u8 encoding, 3 zero, u32 body slot, u32 length, u64 stamp)
//	    key, entity-tag, content type, headers: lines "name: value", joined by LF
//
// Bodies, one encoding of one version of an object a record:
//
//	16  u64  stamp, see [Stamp]: greater than all before it, 0 for none, repeated by the entry that names the slot
//	24       the bytes
//
// Verdicts, one bucket a record, with everything about the devices that [Keys.Device] places there: count entries of 44
// bytes, then devices of 8 bytes each, then the permission names of each entry. An entry:
//
//	 0  16   digest of device id and secret, see [Keys.Digest], or session, see [Keys.SessionDigest]
//	16  i64  expires, unix ms
//	24  i64  refresh after, unix ms; 0: never
//	32  u8   outcome: 1 allow, 2 deny
//	33  1    zero
//	34  u48  not after: unix ms from which the device is refused in any case; 0: never
//	40  u32  length of its permission names: in byte order, joined by commas
//
// A device entry means that the device is registered, so that a secret without a verdict may be right.
//
//	0  u64  bits 2 to 63: the device's tag, see [Keys.Device]; bit 0, closed: the record
//	        has the verdict of the device's only right secret, so that no other is right;
//	        bit 1, new: the device never authenticated. At most one of the two is set
//
// The layout version changes whenever the meaning of a byte above changes; programs with different layouts refuse each
// other's records and batches.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"
)

// Layout is the version of all formats in this package.
const Layout = 5

// MinRecord is the minimum length of a record in bytes.
const MinRecord = 32

const headerSize = 16

// Region is the kind of record at a place.
type Region uint8

// The regions of shared memory.
const (
	RegionState Region = iota
	RegionObjects
	RegionBodies
	RegionVerdicts
	regions
)

// String returns the region's name for logs.
func (r Region) String() string {
	names := [...]string{"state", "objects", "bodies", "verdicts"}
	if int(r) < len(names) {
		return names[r]
	}
	return fmt.Sprintf("region(%d)", uint8(r))
}

// Errors for unusable records and messages, as plain values: a failed lookup allocates nothing.
var (
	// ErrNotFound means that the record lacks the entry.
	ErrNotFound = errors.New("not found")
	// ErrEpoch means a record of another epoch.
	ErrEpoch = errors.New("another epoch")
	// ErrLayout means bytes of another layout version.
	ErrLayout = errors.New("another layout version")
	// ErrMalformed means truncated or inconsistent bytes.
	ErrMalformed = errors.New("malformed")
)

// PlaceSize is the length of a store key in bytes.
const PlaceSize = 5

// AppendPlace appends the store's key of a record to dst: u8 region, u32 index.
func AppendPlace(dst []byte, region Region, index uint32) []byte {
	return binary.LittleEndian.AppendUint32(append(dst, byte(region)), index)
}

// RecordEpoch returns the epoch of any record, or an error if rec is not a record of region in this layout.
func RecordEpoch(rec []byte, region Region) (uint64, error) {
	if len(rec) < MinRecord {
		return 0, ErrMalformed
	}
	if rec[0] != Layout {
		return 0, ErrLayout
	}
	if rec[1] != byte(region) {
		return 0, ErrMalformed
	}
	return binary.LittleEndian.Uint64(rec[8:]), nil
}

// checkEpoch is RecordEpoch with a comparison, the first step of every lookup.
func checkEpoch(rec []byte, region Region, epoch uint64) error {
	got, err := RecordEpoch(rec, region)
	if err != nil {
		return err
	}
	if got != epoch {
		return ErrEpoch
	}
	return nil
}

// appendHeader appends a record's first sixteen bytes.
func appendHeader(dst []byte, region Region, count int, extra uint32, epoch uint64) []byte {
	dst = append(dst, Layout, byte(region))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(count))
	dst = binary.LittleEndian.AppendUint32(dst, extra)
	return binary.LittleEndian.AppendUint64(dst, epoch)
}

// pad lengthens the record from start on to at least MinRecord bytes.
func pad(dst []byte, start int) []byte {
	for len(dst)-start < MinRecord {
		dst = append(dst, 0)
	}
	return dst
}

// alias returns b as a string without a copy: the string lives and changes with b.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// bytesOf returns s as bytes, which must not be written.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
