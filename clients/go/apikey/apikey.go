// Package apikey has the form of an API key, which is a device's id and generated secret in a single text:
// "gh_<id>_<random>_<checksum>" for the secret "gh_<random>_<checksum>". The id may contain "_"; the parts after the id
// have a fixed length.
package apikey

import (
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

// Prefix begins each API key and each generated secret.
const Prefix = "gh_"

const (
	randomLength   = 26 // of base32 (RFC 4648): 130 bits
	checksumLength = 8  // of lowercase hex digits
	tailLength     = randomLength + 1 + checksumLength
	namedLength    = len(Prefix) + randomLength // size of the checksum's input
	// SecretLength is the length of a generated secret in bytes.
	SecretLength = len(Prefix) + tailLength
)

// Secret returns the generated secret with the given random characters: the checksum is the CRC-32 (IEEE) of everything
// before its "_".
func Secret(random string) string {
	secret := Prefix + random
	return fmt.Sprintf("%s_%08x", secret, crc32.ChecksumIEEE([]byte(secret)))
}

// IsSecret reports whether secret has the form and the checksum of a generated secret.
func IsSecret(secret string) bool {
	if !HasForm(secret) {
		return false
	}
	sum := crc32.ChecksumIEEE([]byte(secret[:namedLength]))
	for i := range checksumLength {
		if secret[namedLength+1+i] != "0123456789abcdef"[sum>>(28-4*i)&15] {
			return false
		}
	}
	return true
}

// HasForm reports whether text has the form of a generated secret. The checksum may be wrong.
func HasForm(text string) bool {
	if len(text) != SecretLength || text[:len(Prefix)] != Prefix || text[namedLength] != '_' {
		return false
	}
	for i := len(Prefix); i < namedLength; i++ {
		if c := text[i]; (c < 'A' || 'Z' < c) && (c < '2' || '7' < c) {
			return false
		}
	}
	for i := namedLength + 1; i < len(text); i++ {
		if c := text[i]; (c < '0' || '9' < c) && (c < 'a' || 'f' < c) {
			return false
		}
	}
	return true
}

// Of returns the API key of a device. ok is false if the id is invalid or the secret is not a generated secret.
func Of(id, secret string) (key string, ok bool) {
	if !limits.ValidDeviceID(id) || !IsSecret(secret) {
		return "", false
	}
	return Prefix + id + "_" + secret[len(Prefix):], true
}

// Split returns the id of an API key, and the secret without [Prefix]. ok is false if the text has no API key's form.
// Random characters and checksum are not checked: see [IsSecret].
func Split(key string) (id, tail string, ok bool) {
	end := len(key) - tailLength - 1 // of the id
	if end <= len(Prefix) || !strings.HasPrefix(key, Prefix) || key[end] != '_' ||
		key[len(key)-checksumLength-1] != '_' || !limits.ValidDeviceID(key[len(Prefix):end]) {
		return "", "", false
	}
	return key[len(Prefix):end], key[end+1:], true
}
