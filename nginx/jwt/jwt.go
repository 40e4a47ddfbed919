// Package jwt validates the sidecar's tokens: JWTs (RFC 7519) signed with Ed25519 (RFC 8037). In Envoy, the JWT filter
// validates tokens.
package jwt

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/apikey"
)

const (
	audience = "gatehouse-edge" // of the sidecar's tokens
	// maxToken bounds a token in bytes; the sidecar's tokens have some 700.
	maxToken = 4096
	// maxValid bounds the tokens with a cached signature check.
	maxValid = 4096
	// clockSkew is the greatest difference between the clocks of the issuing sidecar and this host.
	clockSkew = 10 * time.Second
)

// Claims are a token's claims that identify a device.
type Claims struct {
	Subject, Record string
}

// Validator validates tokens. Without keys, all tokens are bad.
type Validator struct {
	issuer string
	keys   map[string]ed25519.PublicKey // by name
	valid  map[string]*claims           // by token
}

// New returns a validator of tokens of an issuer.
func New(issuer string) *Validator {
	return &Validator{issuer: issuer, valid: map[string]*claims{}}
}

// SetKeys sets the keys: a JSON Web Key Set (RFC 7517). It returns false, and changes nothing, for a set without keys.
func (v *Validator) SetKeys(set []byte) bool {
	var read struct {
		Keys []struct{ Kty, Crv, Kid, X string }
	}
	if json.Unmarshal(set, &read) != nil {
		return false
	}
	keys := map[string]ed25519.PublicKey{}
	for _, k := range read.Keys {
		x, err := base64.RawURLEncoding.DecodeString(k.X)
		if err == nil && len(x) == ed25519.PublicKeySize && k.Kty == "OKP" && k.Crv == "Ed25519" {
			keys[k.Kid] = x
		}
	}
	if len(keys) == 0 {
		return false
	}
	v.keys = keys
	clear(v.valid)
	return true
}

// HasKeys reports whether keys were set. Without keys nobody can tell a good token from a bad token.
func (v *Validator) HasKeys() bool { return v.keys != nil }

// BearerToken returns the token in a line of Authorization; false for another scheme (RFC 9110, section 11.4), or an
// API key.
func BearerToken(line string) (token string, ok bool) {
	const scheme = "bearer "
	if len(line) < len(scheme) || !strings.EqualFold(line[:len(scheme)], scheme) {
		return "", false
	}
	token = strings.TrimLeft(line[len(scheme):], " ")
	return token, !strings.HasPrefix(token, apikey.Prefix)
}

// claims are the claims in use. A claim of another type than the sidecar's makes a token bad.
type claims struct {
	Iss string   `json:"iss"`
	Aud names    `json:"aud"`
	Exp *float64 `json:"exp"`
	Nbf float64  `json:"nbf"`
	Sub string   `json:"sub"`
	Ver string   `json:"ver"`
}

// names are a name or an array of names.
type names []string

// UnmarshalJSON implements json.Unmarshaler.
func (n *names) UnmarshalJSON(text []byte) error {
	if text[0] == '[' {
		return json.Unmarshal(text, (*[]string)(n))
	}
	*n = names{""}
	return json.Unmarshal(text, &(*n)[0])
}

// Validate returns the claims of a token; false unless the token is valid now.
func (v *Validator) Validate(token string, now time.Time) (Claims, bool) {
	c := v.valid[token]
	if c == nil {
		if c = v.parseToken(token); c == nil {
			return Claims{}, false
		}
		if len(v.valid) >= maxValid {
			clear(v.valid)
		}
		v.valid[strings.Clone(token)] = c
	}
	if s := float64(now.Unix()); s > *c.Exp+clockSkew.Seconds() || s < c.Nbf-clockSkew.Seconds() {
		return Claims{}, false
	}
	return Claims{c.Sub, c.Ver}, true
}

// parseToken returns the claims of a token, valid at some time, or nil for a bad token.
func (v *Validator) parseToken(token string) *claims {
	if len(token) > maxToken {
		return nil
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil
	}
	var header struct {
		Alg, Kid string
		Crit     any
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil || !decodePart(parts[0], &header) || header.Alg != "EdDSA" || header.Crit != nil {
		return nil
	}
	key := v.keys[header.Kid] // the sidecar's tokens name the key: trying a key takes a millisecond
	c := new(claims)
	if key == nil || !ed25519.Verify(key, []byte(token[:len(parts[0])+1+len(parts[1])]), signature) ||
		!decodePart(parts[1], c) || c.Iss != v.issuer || !slices.Contains(c.Aud, audience) || c.Exp == nil {
		return nil
	}
	return c
}

// decodePart reads a part of a token, a JSON object.
func decodePart(part string, to any) bool {
	text, err := base64.RawURLEncoding.DecodeString(part)
	return err == nil && len(text) > 0 && text[0] == '{' && json.Unmarshal(text, to) == nil
}
