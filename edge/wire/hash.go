package wire

import (
	"encoding/binary"
	"math"

	"github.com/dchest/siphash"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

// Keys are an epoch's two secrets, known to the sidecar and in shared memory only.
type Keys struct {
	// Placement seeds the hash that places objects: nobody can fill one bucket by the choice of keys.
	Placement [16]byte
	// Credential is the key of the digests of verdicts.
	Credential [16]byte
}

// Place returns an object's bucket, for the cache key, among buckets buckets, and the tag of the object's entry, which
// readers compare before the keys.
func (k *Keys) Place(key string, buckets uint32) (bucket, tag uint32) {
	h := siphash.Hash(half(k.Placement, 0), half(k.Placement, 8), bytesOf(key))
	return reduce(uint32(h), buckets), uint32(h >> 32)
}

// Digest is a keyed digest of a device id and a secret or session.
type Digest [16]byte

// Digest returns SipHash-2-4-128 of u32 length of id, id, secret, under the epoch's random credential key: a
// pseudo-random function. Without the key nobody can find two credentials with the same digest, or learn anything from
// a digest. Digest panics if id or secret exceeds the limit; callers check the limits when they read both.
func (k *Keys) Digest(id, secret string) Digest {
	if len(secret) > limits.MaxSecret {
		panic("wire: credential over its limits")
	}
	return k.digest(uint32(len(id)), id, secret)
}

// sessionMark is set in the length of the id, which is far shorter, if a session follows: no secret, with any bytes,
// has the digest of a session.
const sessionMark = 1 << 31

// SessionDigest returns the digest of a device id and a token's session; see [VerifyRequest].
func (k *Keys) SessionDigest(id, session string) Digest {
	if len(session) > limits.MaxSession {
		panic("wire: session over its limits")
	}
	return k.digest(sessionMark|uint32(len(id)), id, session)
}

func (k *Keys) digest(length uint32, id, shown string) Digest {
	if len(id) > limits.MaxDeviceID {
		panic("wire: device id over its limits")
	}
	var buf [4 + limits.MaxDeviceID + max(limits.MaxSecret, limits.MaxSession)]byte
	b := binary.LittleEndian.AppendUint32(buf[:0], length)
	b = append(append(b, id...), shown...)
	lo, hi := siphash.Hash128(half(k.Credential, 0), half(k.Credential, 8), b)
	var d Digest
	binary.LittleEndian.PutUint64(d[:8], lo)
	binary.LittleEndian.PutUint64(d[8:], hi)
	return d
}

// Device returns a device's bucket among buckets buckets, and the tag of the device's entry. Both are SipHash-2-4-128
// of u32 2^32-1, id, under the credential key: no id has this length, so bucket and tag reveal nothing about a
// credential's digest. The bucket is derived from the second half; the tag is the first half without the two lowest
// bits. Device panics if id exceeds the limit; callers check the limit when they read id.
func (k *Keys) Device(id string, buckets uint32) (bucket uint32, tag uint64) {
	if len(id) > limits.MaxDeviceID {
		panic("wire: device id over its limit")
	}
	var buf [4 + limits.MaxDeviceID]byte
	b := append(binary.LittleEndian.AppendUint32(buf[:0], math.MaxUint32), id...)
	lo, hi := siphash.Hash128(half(k.Credential, 0), half(k.Credential, 8), b)
	return reduce(uint32(hi), buckets), lo &^ (closedBit | newBit)
}

// reduce maps a uniform h to [0, n) without a division (Lemire, "Fast random integer generation in an interval", 2019);
// for n = 0 it returns 0.
func reduce(h, n uint32) uint32 { return uint32(uint64(h) * uint64(n) >> 32) }

func half(key [16]byte, at int) uint64 { return binary.LittleEndian.Uint64(key[at:]) }
