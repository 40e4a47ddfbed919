package contract

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/apikey"
)

// Sizes of gh1, in bytes; a pepper's ID in hex digits.
const (
	saltSize     = 16
	keySize      = sha256.Size
	pepperIDSize = 16
	minPepper    = 32
	// MaxPepper bounds a pepper, in bytes.
	MaxPepper = 4096
)

// Pepper is a key of gh1. A pepper is never in Redis: readers of Redis alone can't even test a secret.
type Pepper struct {
	// ID distinguishes peppers, and reveals nothing about a random pepper.
	ID  string
	key []byte
}

// NewPepper returns the pepper in a file's content: 32 random bytes or more, at most [MaxPepper]. White space at both
// ends is ignored. Errors quote nothing.
func NewPepper(content []byte) (Pepper, error) {
	key := bytes.TrimSpace(content)
	if len(key) < minPepper || len(key) > MaxPepper {
		return Pepper{}, fmt.Errorf("a pepper of %d bytes, want %d to %d: openssl rand -hex 32 makes one", len(key),
			minPepper, MaxPepper)
	}
	p := Pepper{key: bytes.Clone(key)}
	p.ID = hex.EncodeToString(p.computeMAC("gatehouse gh1, id", nil, "")[:pepperIDSize/2])
	return p, nil
}

// computeMAC returns the HMAC-SHA-256 of purpose, a zero byte, salt and secret.
func (p *Pepper) computeMAC(purpose string, salt []byte, secret string) []byte {
	mac := hmac.New(sha256.New, p.key)
	mac.Write(append([]byte(purpose), 0))
	mac.Write(salt)
	mac.Write([]byte(secret))
	return mac.Sum(nil)
}

// Hash returns a new gh1 hash of a generated secret: $gh1$, the pepper's ID, $, a random salt of 16 bytes, $, and
// HMAC-SHA-256 under the pepper of "gatehouse gh1, hash", a zero byte, salt and secret; both in base64 without padding.
// Other secrets get an error, since gh1 doesn't slow down guesses of whoever has the pepper.
func (p *Pepper) Hash(secret string) (string, error) {
	if !Generated(secret) {
		return "", refuse(ReasonMalformed, "only generated secrets can be stored as gh1: gh_, 26 of A-Z and 2-7, _, CRC-32")
	}
	salt := make([]byte, saltSize)
	rand.Read(salt) // never fails
	text := base64.RawStdEncoding.EncodeToString
	return "$" + GH1 + "$" + p.ID + "$" + text(salt) + "$" + text(p.computeMAC("gatehouse gh1, hash", salt, secret)), nil
}

// Matches reports whether hash is a gh1 hash of secret under this pepper. A comparison takes a microsecond, and the
// same time whether or not a part of the hash is right.
func (p *Pepper) Matches(hash, secret string) bool {
	h, err := ParseHash(hash)
	return err == nil && h.Scheme == GH1 && h.Pepper == p.ID && Generated(secret) &&
		hmac.Equal(h.Key, p.computeMAC("gatehouse gh1, hash", h.Salt, secret))
}

// NewSecret returns a new secret with at least 128 random bits: gh_, 26 characters of base32, _, and the CRC-32 (IEEE)
// of all before the last _ in 8 hex digits. The prefix lets scanners find leaked secrets; the checksum tells a typing
// error.
func NewSecret() string { return apikey.Secret(rand.Text()) }

// Generated reports whether a secret has the form of [NewSecret] and the right checksum.
func Generated(secret string) bool { return apikey.IsSecret(secret) }

// Mistyped reports whether a secret has the form of [NewSecret] with a wrong checksum. No device has a mistyped secret:
// writers refuse secrets that begin with gh_ and are not [Generated].
func Mistyped(secret string) bool { return apikey.HasForm(secret) && !apikey.IsSecret(secret) }

// CheckSecret returns an error, without the secret, if a secret begins with gh_ but is not [Generated].
func CheckSecret(secret string) error {
	if strings.HasPrefix(secret, apikey.Prefix) && !Generated(secret) {
		return refuse(ReasonMalformed, "begins with gh_, but its checksum is wrong: mistyped, or choose one that begins "+
			"otherwise")
	}
	return nil
}
