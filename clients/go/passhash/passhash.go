// Package passhash compares secrets with hashes of deliberately slow schemes, and estimates the costs.
package passhash

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"hash"
	"time"

	"golang.org/x/crypto/argon2"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/crypto/scrypt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// ErrMismatch is the error of a wrong secret.
var ErrMismatch = bcrypt.ErrMismatchedHashAndPassword

// Compare returns nil if text is a hash of secret, [ErrMismatch] if not, and a different error for gh1 or a hash that
// [contract.ParseHash] refuses. The time of a comparison doesn't depend on how much of the hash is right.
func Compare(text, secret string) error {
	h, err := contract.ParseHash(text)
	if err != nil {
		return err
	}
	if h.Scheme == contract.Bcrypt {
		return bcrypt.CompareHashAndPassword([]byte(text), []byte(secret))
	}
	key, err := deriveKey(h, secret)
	if err != nil {
		return err
	}
	if !hmac.Equal(h.Key, key) {
		return ErrMismatch
	}
	return nil
}

func deriveKey(h contract.Hash, secret string) ([]byte, error) {
	size := len(h.Key)
	switch h.Scheme {
	case contract.Argon2id:
		return argon2.IDKey([]byte(secret), h.Salt, uint32(h.Cost), uint32(h.Memory), uint8(h.Parallel), uint32(size)), nil
	case contract.Scrypt:
		return scrypt.Key([]byte(secret), h.Salt, 1<<h.Cost, h.Memory, h.Parallel, size)
	case contract.PBKDF2SHA256:
		return pbkdf2.Key(sha256.New, secret, h.Salt, h.Cost, size)
	case contract.PBKDF2SHA512:
		return pbkdf2.Key(func() hash.Hash { return sha512.New() }, secret, h.Salt, h.Cost, size)
	}
	return nil, fmt.Errorf("%s: %w", h.Scheme, errors.ErrUnsupported)
}

// Unit is the estimated time of bcrypt at cost 12, on an idle core of the machine of docs/benchmarks.md.
const Unit = 250 * time.Millisecond

// Time returns the estimated time of a run of [Compare] on an idle core: double for each step of bcrypt's cost; 0 for
// gh1 and hashes that Compare refuses at once.
func Time(text string) time.Duration {
	h, err := contract.ParseHash(text)
	if err != nil {
		return 0
	}
	return timeOf(h)
}

func timeOf(h contract.Hash) time.Duration {
	switch h.Scheme {
	case contract.Bcrypt:
		return bcryptTime(h.Cost)
	case contract.Argon2id:
		return time.Duration(h.Memory*h.Cost) * time.Microsecond
	case contract.Scrypt:
		return time.Duration(h.Memory*h.Parallel<<h.Cost) * 400 * time.Nanosecond
	case contract.PBKDF2SHA256:
		return time.Duration(h.Cost*countBlocks(h, sha256.Size)) * 300 * time.Nanosecond
	case contract.PBKDF2SHA512:
		return time.Duration(h.Cost*countBlocks(h, sha512.Size)) * 600 * time.Nanosecond
	}
	return 0
}

func bcryptTime(cost int) time.Duration { return Unit << cost >> 12 }

// countBlocks returns how often PBKDF2 runs all iterations.
func countBlocks(h contract.Hash, size int) int { return (len(h.Key) + size - 1) / size }

// Memory returns the memory of a run of [Compare] in bytes, without some kilobytes; at most 128 MiB.
func Memory(text string) int64 {
	h, err := contract.ParseHash(text)
	switch {
	case err == nil && h.Scheme == contract.Argon2id:
		return int64(h.Memory) << 10
	case err == nil && h.Scheme == contract.Scrypt:
		return int64(128*h.Memory) << h.Cost // RFC 7914, section 2: 128 * N * r
	}
	return 0
}

// CheckCost returns an error if a run takes longer than a run of bcrypt at cost most, as estimated; most is
// contract.MinCost to contract.MaxCost.
func CheckCost(h contract.Hash, most int) error {
	if timeOf(h) > bcryptTime(most) {
		return fmt.Errorf("%v takes longer than bcrypt at cost %d: raise --bcrypt.max-cost, or hash the secret again", h,
			most)
	}
	return nil
}
