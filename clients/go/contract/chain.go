package contract

import (
	"crypto/sha1" // the only hash in Redis scripts
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

const (
	// ChainHead is the chain's field with the [Link] of the last write in format 2.
	ChainHead = "head"
	// ChainFloor is the chain's field with the sequence number up to which log entries without a record may have been
	// trimmed; absent: none.
	ChainFloor = "floor"
	// ChainLost is the chain's field with the sequence number from which the log is complete, after a loss of the log;
	// absent: never lost.
	ChainLost = "lost"
	// ChainNeeds is the chain's field with the [Version] that the shard's writers and readers need; absent: 1.
	ChainNeeds = "needs"
	// Version is this module's version of the contract. A release raises Version if earlier releases misunderstand its
	// records, events or keys; the first write of such a record, event or key sets [ChainNeeds].
	Version = 1
	// ChainRing is the number of recent links in a chain, each in the field [ChainField].
	ChainRing = 1 << 16
	// digestSize is the size of a digest: a SHA-1 in hex.
	digestSize = 2 * sha1.Size
)

// RequestField returns the name of the chain's field that remembers a request, of 32 hex digits or more.
func RequestField(request string) string { return "r" + request[28:32] }

// ChainField returns the name of the field with the link of write seq. Write seq + [ChainRing] overwrites the field.
func ChainField(seq uint64) string { return strconv.FormatUint(seq%ChainRing, 10) }

// NeedsError means that a shard needs a later release.
type NeedsError struct {
	// Key is the shard's chain.
	Key string
	// Needs is the contract's version that the shard needs.
	Needs uint64
}

// Error names both versions and the fix.
func (e *NeedsError) Error() string {
	return fmt.Sprintf("%s needs version %d of the contract, this program has %d: update the program",
		e.Key, e.Needs, Version)
}

// CheckNeeds returns a [NeedsError] if needs, the value of [ChainNeeds] in the chain with this key, is later than
// [Version]. A malformed value counts as absent, as in writers.
func CheckNeeds(key, needs string) error {
	if n, err := parseNumber(ChainNeeds, needs, 1); err == nil && n > Version {
		return &NeedsError{key, n}
	}
	return nil
}

// Link is a write's position in a shard's chain. Two histories with a common link have all earlier writes in common,
// back to the start of the chain.
type Link struct {
	// Seq is the write's sequence number.
	Seq uint64
	// Digest is the digest of the write's event.
	Digest string
}

// String returns the link as stored in a chain.
func (l Link) String() string { return strconv.FormatUint(l.Seq, 10) + " " + l.Digest }

// ParseLink parses the result of [Link.String].
func ParseLink(s string) (Link, error) {
	number, digest, found := strings.Cut(s, " ")
	if !found || !ValidDigest(digest) {
		return Link{}, refuse(ReasonMalformed, "chain: %s: want a sequence number, a space and %d hex digits",
			quote(s), digestSize)
	}
	seq, err := parseNumber("chain: seq", number, 1)
	if err != nil {
		return Link{}, err
	}
	return Link{seq, strings.Clone(digest)}, nil
}

// ValidDigest reports whether s can be the digest of an event: 40 lowercase hex digits.
func ValidDigest(s string) bool { return len(s) == digestSize && isLowercaseHex(s) }

// Follows reports whether payload, an event of format 2, has the right digest for an event after the event with the
// digest previous. previous is empty at the start of a chain.
func Follows(previous, payload string) bool {
	stated, want, err := computeDigests(previous, payload)
	return err == nil && stated == want
}

// Digest returns the digest for payload, an event after the event with the digest previous. The digest in payload is
// ignored.
func Digest(previous, payload string) (string, error) {
	_, digest, err := computeDigests(previous, payload)
	return digest, err
}

// computeDigests returns the digest stated in payload, and the right digest: the SHA-1 of previous and of everything
// after the stated digest, with the length of each body instead of its bytes. Hashing megabytes would block Redis.
func computeDigests(previous, payload string) (stated, digest string, err error) {
	r := netstringReader{rest: payload, size: len(payload)}
	if format, err := r.readNext("format"); err != nil || format != eventFormat {
		return "", "", refuse(ReasonFormat, "event: format %s has no digest", quote(format))
	}
	if stated, err = r.readNext("digest"); err != nil {
		return "", "", err
	}
	const known = 512 // bytes; enough unless a key is long
	chained := appendNetstring(make([]byte, 0, known), previous)
	for _, what := range []string{"epoch", "seq", "member", "traceparent"} {
		part, err := r.readNext(what)
		if err != nil {
			return "", "", err
		}
		chained = appendNetstring(chained, part)
	}
	for r.rest != "" {
		name, value, err := r.readField()
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

// isBody reports whether the field has an object's body in some encoding.
func isBody(field string) bool { return field == FieldBody || strings.HasPrefix(field, FieldBody+".") }
