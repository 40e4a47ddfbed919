package contract

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
)

// Schemes of hashes. All but GH1 are slow on purpose, and take any secret.
const (
	Bcrypt       = "bcrypt"
	Argon2id     = "argon2id"
	Scrypt       = "scrypt"
	PBKDF2SHA256 = "pbkdf2-sha256"
	PBKDF2SHA512 = "pbkdf2-sha512"
	GH1          = "gh1" // HMAC-SHA-256 under a [Pepper], for generated secrets only
)

// Bounds of the costs, also listed in docs/redis-contract.md.
const (
	// MinCost and MaxCost bound a hash's bcrypt cost. Each step doubles the time of a run; 15 takes some seconds, and a
	// hash of cost 31 would occupy a worker for a day.
	MinCost = 4
	// MaxCost is the upper bound, see MinCost.
	MaxCost = 15
	// MaxRunMemory bounds the memory of a run in KiB: argon2id's m, and 2^ln·r/8 of scrypt.
	MaxRunMemory = 1 << 17
	// MaxPasses bounds argon2id's t and p, and scrypt's p.
	MaxPasses = 16
	maxScrypt = 17 // of ln
	maxBlock  = 8  // scrypt's r
	// MinIterations and MaxIterations bound PBKDF2.
	MinIterations = 1000
	// MaxIterations is the upper bound, see MinIterations.
	MaxIterations = 9_999_999

	bcryptSize = 60  // "$2b$12$", 22 characters of salt, 31 of digest
	maxHash    = 192 // bytes of the longest hash, rounded up
	// Characters of base64: salts have 6 to 47 bytes, keys 15 to 65.
	minSalt, maxSalt = 8, 63
	minKey, maxKey   = 20, 87
)

// Hash is a parsed hash of a secret.
type Hash struct {
	// Scheme is a constant from above.
	Scheme string
	// Cost is bcrypt's cost, argon2id's passes (t), scrypt's ln, or PBKDF2's iterations.
	Cost int
	// Memory is argon2id's m, in KiB, or scrypt's r.
	Memory int
	// Parallel is p of argon2id and scrypt.
	Parallel int
	// Salt and Key are empty for bcrypt.
	Salt, Key []byte
	// Pepper is the ID of gh1's pepper.
	Pepper string
}

// String returns scheme and cost, for operators: bcrypt 12, argon2id m=19456,t=2,p=1, gh1 and the pepper's ID.
func (h Hash) String() string {
	switch h.Scheme {
	case Argon2id:
		return fmt.Sprintf("%s m=%d,t=%d,p=%d", h.Scheme, h.Memory, h.Cost, h.Parallel)
	case Scrypt:
		return fmt.Sprintf("%s ln=%d,r=%d,p=%d", h.Scheme, h.Cost, h.Memory, h.Parallel)
	case GH1:
		return h.Scheme + " " + h.Pepper
	}
	return fmt.Sprint(h.Scheme, " ", h.Cost)
}

// CheckHash returns the error of [ParseHash].
func CheckHash(text string) error {
	_, err := ParseHash(text)
	return err
}

// ParseHash parses a hash: one of bcrypt, or a PHC string of the other schemes with their parameters in this order. Its
// error doesn't quote the hash.
//
//	$2b$12$SALTKEY                       or $2a$, $2y$
//	$argon2id$v=19$m=19456,t=2,p=1$SALT$KEY
//	$scrypt$ln=16,r=8,p=1$SALT$KEY
//	$pbkdf2-sha256$i=600000$SALT$KEY     or ,l=32 after i (not read), or passlib's form without i=
//	$gh1$PEPPER$SALT$KEY                 see [Pepper]
//
// SALT and KEY are base64 without padding; passlib's "." counts as "+".
func ParseHash(text string) (Hash, error) {
	if strings.HasPrefix(text, "$2") {
		return parseBcrypt(text)
	}
	parts := strings.Split(text[:min(len(text), maxHash)], "$")
	if len(text) > maxHash || len(parts) < 5 || parts[0] != "" {
		return Hash{}, refuse(ReasonMalformed, "%d bytes that are no hash of a known scheme", len(text))
	}
	h := Hash{Scheme: parts[1]}
	parameters := parts[2 : len(parts)-2]
	if h.Scheme == Argon2id && parameters[0] == "v=19" {
		parameters = parameters[1:]
	} else if h.Scheme == Argon2id {
		return Hash{}, refuse(ReasonMalformed, "argon2id without v=19")
	}
	if len(parameters) != 1 {
		return Hash{}, refuse(ReasonMalformed, "%d parts between $, or an unknown scheme", len(parts))
	}
	if err := h.parseParameters(parameters[0]); err != nil {
		return Hash{}, err
	}
	var err error
	if h.Salt, err = decodeBase64("salt", parts[len(parts)-2], minSalt, maxSalt); err == nil {
		h.Key, err = decodeBase64("hash", parts[len(parts)-1], minKey, maxKey)
	}
	if err == nil && h.Scheme == GH1 && (len(h.Salt) != saltSize || len(h.Key) != keySize) {
		err = refuse(ReasonMalformed, "gh1: a salt of %d bytes and a hash of %d, want %d and %d", len(h.Salt), len(h.Key),
			saltSize, keySize)
	}
	return h, err
}

// parseParameters reads the part between scheme and salt.
func (h *Hash) parseParameters(text string) error {
	switch h.Scheme {
	case Argon2id:
		return parseParameterNumbers(text, parameter{"m=", 1, MaxRunMemory, &h.Memory},
			parameter{",t=", 1, MaxPasses, &h.Cost}, parameter{",p=", 1, MaxPasses, &h.Parallel})
	case Scrypt:
		return parseParameterNumbers(text, parameter{"ln=", 1, maxScrypt, &h.Cost}, parameter{",r=", 1, maxBlock, &h.Memory},
			parameter{",p=", 1, MaxPasses, &h.Parallel})
	case PBKDF2SHA256, PBKDF2SHA512:
		text = strings.TrimPrefix(text, "i=")
		iterations, length, found := strings.Cut(text, ",l=")
		if found && (len(length) != 2 || length[0] < '1' || length[0] > '9' || length[1] < '0' || length[1] > '9') {
			return refuse(ReasonMalformed, "%s: l is not a number of two digits", h.Scheme)
		}
		return parseParameterNumbers(iterations, parameter{"", MinIterations, MaxIterations, &h.Cost})
	case GH1:
		if len(text) != pepperIDSize || strings.Trim(text, "0123456789abcdef") != "" {
			return refuse(ReasonMalformed, "gh1: the pepper's id has not %d hex digits", pepperIDSize)
		}
		h.Pepper = strings.Clone(text)
		return nil
	}
	return refuse(ReasonMalformed, "an unknown scheme: want bcrypt, argon2id, scrypt, pbkdf2-sha256, -sha512 or gh1")
}

// parameter is a parameter of a PHC string. before is the text before the number.
type parameter struct {
	before      string
	least, most int
	value       *int
}

// parseParameterNumbers parses parameters.
func parseParameterNumbers(text string, all ...parameter) error {
	for i, n := range all {
		rest, found := strings.CutPrefix(text, n.before)
		end := len(rest)
		if i+1 < len(all) {
			end = max(strings.Index(rest, ","), 0)
		}
		digits := rest[:end]
		text = rest[end:]
		value, err := strconv.Atoi(digits)
		if !found || err != nil || strconv.Itoa(value) != digits || value < 0 {
			return refuse(ReasonMalformed, "parameter %q is not a number", strings.Trim(n.before, ",="))
		}
		if value < n.least || value > n.most {
			return refuse(ReasonLimit, "parameter %q is %d, out of %d to %d", strings.Trim(n.before, ",="), value, n.least,
				n.most)
		}
		*n.value = value
	}
	return nil
}

// decodeBase64 decodes base64 of least to most characters.
func decodeBase64(what, text string, least, most int) ([]byte, error) {
	if len(text) < least || len(text) > most {
		return nil, refuse(ReasonMalformed, "%s: %d characters, want %d to %d", what, len(text), least, most)
	}
	b, err := base64.RawStdEncoding.DecodeString(strings.ReplaceAll(text, ".", "+"))
	if err != nil || strings.ContainsAny(text, "\r\n") { // the decoder skips line ends
		return nil, refuse(ReasonMalformed, "%s: is not base64 without padding", what)
	}
	return b, nil
}

func parseBcrypt(hash string) (Hash, error) {
	if len(hash) != bcryptSize || !strings.Contains("aby", hash[2:3]) || hash[3] != '$' || hash[6] != '$' {
		return Hash{}, refuse(ReasonMalformed, "%d bytes that are not a bcrypt hash ($2b$<cost>$…, %d bytes)", len(hash),
			bcryptSize)
	}
	for i := 7; i < bcryptSize; i++ {
		c := hash[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '/') {
			return Hash{}, refuse(ReasonMalformed, "byte %d is not of the bcrypt alphabet ./A-Za-z0-9", i)
		}
	}
	tens, ones := hash[4]-'0', hash[5]-'0'
	if tens > 9 || ones > 9 {
		return Hash{}, refuse(ReasonMalformed, "cost %q is not a number of two digits", hash[4:6])
	}
	cost := int(10*tens + ones)
	if cost < MinCost || cost > MaxCost {
		return Hash{}, refuse(ReasonLimit, "cost %d is out of %d to %d", cost, MinCost, MaxCost)
	}
	return Hash{Scheme: Bcrypt, Cost: cost}, nil
}
