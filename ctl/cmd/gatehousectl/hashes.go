package main

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"regexp"
	"strconv"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// newSecrets is the advice if sidecars can't verify a hash.
const newSecrets = "leave the hash empty and --generate new secrets, or let the service that knows the secrets " +
	"decide (docs/authority.md)"

// prefixedHash matches hashes after another program's prefix: Django's, or a name in braces from Dovecot, LDAP or
// Spring.
var prefixedHash = regexp.MustCompile(`^(?:argon2|bcrypt\$|` +
	`\{(?i:(?:[a-z0-9]+-)?(?:crypt|bcrypt|argon2(?:id?)?)(?:@[a-z0-9_]+)?)\})(\$.*)$`)

// otherHashes lists other programs' notations of algorithms that sidecars verify. translate gets the groups of form.
var otherHashes = []struct {
	form      *regexp.Regexp
	translate func(groups []string) (string, error)
}{
	{regexp.MustCompile(`^pbkdf2:(sha256|sha512):(\d+)\$([^$]+)\$([0-9a-f]+)$`), // Werkzeug
		func(g []string) (string, error) {
			return formatPBKDF2(g[1], g[2], []byte(g[3]), g[4], hex.DecodeString)
		}},
	{regexp.MustCompile(`^pbkdf2_(sha256)\$(\d+)\$([^$]+)\$([^$]+)$`), // Django
		func(g []string) (string, error) {
			return formatPBKDF2(g[1], g[2], []byte(g[3]), g[4], base64.StdEncoding.DecodeString)
		}},
	{regexp.MustCompile(`^\$7\$(\d+)\$([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+)$`), // Mosquitto
		func(g []string) (string, error) {
			salt, err := base64.StdEncoding.DecodeString(g[2])
			if err != nil {
				return "", errors.New("hash: PBKDF2: its salt is damaged")
			}
			return formatPBKDF2("sha512", g[1], salt, g[3], base64.StdEncoding.DecodeString)
		}},
	{regexp.MustCompile(`(?i)^\{PBKDF2[-_](SHA256|SHA512)\}(\d+\$[^$]+\$[^$]+)$`), // OpenLDAP, passlib
		func(g []string) (string, error) { return "$pbkdf2-" + strings.ToLower(g[1]) + "$" + g[2], nil }},
	{regexp.MustCompile(`^scrypt:(\d+):(\d+):(\d+)\$([^$]+)\$([0-9a-f]+)$`), // Werkzeug
		func(g []string) (string, error) { return formatScrypt(g[1], g[2], g[3], g[4], g[5], hex.DecodeString) }},
	{regexp.MustCompile(`^scrypt\$(\d+)\$([^$]+)\$(\d+)\$(\d+)\$([^$]+)$`), // Django
		func(g []string) (string, error) {
			return formatScrypt(g[1], g[3], g[4], g[2], g[5], base64.StdEncoding.DecodeString)
		}},
}

// refusedHashes lists forms of hashes that sidecars can't verify.
var refusedHashes = []struct {
	form *regexp.Regexp
	why  string
}{
	{regexp.MustCompile(`(?i)^\{(PLAIN|CLEAR|CLEARTEXT|NOOP)\}`),
		"is the secret itself: put the text after } into the column secret"},
	{regexp.MustCompile(`^!`), "is an unusable password of Django: " + newSecrets},
	{regexp.MustCompile(`^\$?argon2(i|d)\$`),
		"argon2i and argon2d are not verified, only argon2id: " + newSecrets},
	{regexp.MustCompile(`^\$?bcrypt[-_]sha256\$`), "bcrypt of a SHA-256 is not verified, only bcrypt: " + newSecrets},
	{regexp.MustCompile(`(?i)sha-?1\b|^pbkdf2_sha1\$|^\$pbkdf2\$|^\{PBKDF2\}|^\{PKCS5S2\}`),
		"this form of PBKDF2, or a digest with SHA-1, is not verified: " + newSecrets},
	{regexp.MustCompile(`^\$[56]\$|^\$y\$|^\$gy\$|^\$7\$`),
		"crypt's and Mosquitto's $5$, $6$, $7$ and $y$ are not verified, except Mosquitto's PBKDF2: " + newSecrets},
	{regexp.MustCompile(`(?i)^\$1\$|^\$apr1\$|^\{(S?SHA|S?MD5|SHA|SMD5)[-0-9]*\}|^\{[A-Z0-9]*MD5[A-Z0-9-]*\}|` +
		`^(md5|sha1|unsalted_[a-z0-9]+)\$|^[0-9a-f]{32}([0-9a-f]{8})?$|^[0-9a-f]{64}$|^[0-9a-f]{128}$`),
		"a fast digest is not verified, since secrets can be guessed from it: " + newSecrets},
}

// translateHash translates a hash of another program to the form of contract.ParseHash, with the same salt, costs and
// key. Errors give advice, and quote no hash.
func translateHash(text string) (string, error) {
	if groups := prefixedHash.FindStringSubmatch(text); groups != nil {
		text = groups[1]
	}
	if contract.CheckHash(text) == nil {
		return text, nil
	}
	for _, other := range otherHashes {
		groups := other.form.FindStringSubmatch(text)
		if groups == nil {
			continue
		}
		hash, err := other.translate(groups)
		if err != nil {
			return "", err
		}
		return hash, checkHash(hash)
	}
	for _, refused := range refusedHashes {
		if refused.form.MatchString(text) {
			return "", fmt.Errorf("hash: %s", refused.why)
		}
	}
	return "", checkHash(text)
}

// checkHash is contract.CheckHash with advice in the error.
func checkHash(text string) error {
	if err := contract.CheckHash(text); err != nil {
		return fmt.Errorf("hash: %w: %s", err, newSecrets)
	}
	return nil
}

// formatPBKDF2 returns a hash of PBKDF2. decode is the encoding of key.
func formatPBKDF2(digest, iterations string, salt []byte, key string,
	decode func(string) ([]byte, error)) (string, error) {
	raw, err := decode(key)
	if err != nil {
		return "", errors.New("hash: PBKDF2: its last part is cut off or damaged")
	}
	return fmt.Sprintf("$pbkdf2-%s$i=%s$%s$%s", digest, iterations, base64.RawStdEncoding.EncodeToString(salt),
		base64.RawStdEncoding.EncodeToString(raw)), nil
}

// formatScrypt returns a hash of scrypt. decode is the encoding of key.
func formatScrypt(n, r, p, salt, key string, decode func(string) ([]byte, error)) (string, error) {
	raw, err := decode(key)
	if err != nil {
		return "", errors.New("hash: scrypt: its last part is cut off or damaged")
	}
	cost, err := strconv.ParseUint(n, 10, 32)
	if err != nil || bits.OnesCount64(cost) != 1 {
		return "", errors.New("hash: scrypt: the cost N is no power of two")
	}
	return fmt.Sprintf("$scrypt$ln=%d,r=%s,p=%s$%s$%s", bits.TrailingZeros64(cost), r, p,
		base64.RawStdEncoding.EncodeToString([]byte(salt)), base64.RawStdEncoding.EncodeToString(raw)), nil
}
