package contract

import (
	"crypto/sha1" // the one hash that scripts of Redis have
	"encoding/hex"
	"strconv"
	"strings"
)

const (
	// ChainHead is the field of a shard's chain that has the [Link] of the last write in format 2.
	ChainHead = "head"
	// ChainFloor is the field that has the sequence number up to which entries of the log whose
	// records are gone may have been trimmed; absent: none was.
	ChainFloor = "floor"
	// ChainRing is how many of the last links a chain keeps, each in the field that [ChainField] names.
	ChainRing = 1 << 16
	// digestSize is the size of a digest: a SHA-1 in hex.
	digestSize = 2 * sha1.Size
)

// ChainField is the field that keeps the link of the write with this sequence number, until
// [ChainRing] writes later.
func ChainField(seq uint64) string { return strconv.FormatUint(seq%ChainRing, 10) }

// Link is a write's place in a shard's chain. Two histories that have a link in common
// have all writes before it in common, back to where the chain began.
type Link struct {
	// Seq is the write's sequence number.
	Seq uint64
	// Digest is the event's.
	Digest string
}

// String is the link as the fields of a chain have it.
func (l Link) String() string { return strconv.FormatUint(l.Seq, 10) + " " + l.Digest }

// ParseLink reads what [Link.String] writes.
func ParseLink(s string) (Link, error) {
	number, digest, found := strings.Cut(s, " ")
	if !found || !ValidDigest(digest) {
		return Link{}, refuse(ReasonMalformed, "chain: %s: want a sequence number, a space and %d hex digits", quote(s), digestSize)
	}
	seq, err := parseNumber("chain: seq", number, 1)
	if err != nil {
		return Link{}, err
	}
	return Link{seq, strings.Clone(digest)}, nil
}

// ValidDigest reports whether s can be the digest of an event: 40 lowercase hex digits.
func ValidDigest(s string) bool { return len(s) == digestSize && lowercaseHex(s) }

// Follows reports whether payload, an event of format 2, has the digest that it must have after
// the event with the digest previous, which is empty where a chain begins.
func Follows(previous, payload string) bool {
	stated, want, err := digests(previous, payload)
	return err == nil &&
		stated == want //mutant:TestFollows true
}

// Digest is the digest of payload, an event of format 2, after the event with the digest previous,
// whatever digest payload states.
func Digest(previous, payload string) (string, error) {
	_, digest, err := digests(previous, payload)
	return digest, err
}

// digests are the one that payload states, and the right one: the SHA-1 of previous and of all that
// follows the stated one, but of each body its length only. Hashing megabytes would hold Redis up.
func digests(previous, payload string) (stated, digest string, err error) {
	r := netstrings{rest: payload, size: len(payload)}
	if format, err := r.next("format"); err != nil || format != chainedFormat {
		return "", "", refuse(ReasonFormat, "event: format %s has no digest", quote(format))
	}
	if stated, err = r.next("digest"); err != nil {
		return "", "", err
	}
	const known = 512 // bytes, room for all but long keys
	chained := appendNetstring(make([]byte, 0, known), previous)
	for _, what := range []string{"epoch", "seq", "member", "traceparent"} {
		part, err := r.next(what)
		if err != nil {
			return "", "", err
		}
		chained = appendNetstring(chained, part)
	}
	for r.rest != "" {
		name, value, err := r.field()
		if err != nil {
			return "", "", err
		}
		if chained = appendNetstring(chained, name); isBody(name) {
			value = strconv.Itoa(len(value))
		}
		chained = appendNetstring(chained, value)
	}
	sum := sha1.Sum(chained)
	return stated, hex.EncodeToString(sum[:]), nil
}

// isBody reports whether the field holds an object in some encoding.
func isBody(field string) bool { return field == FieldBody || strings.HasPrefix(field, FieldBody+".") }
