// Package token issues the tokens that devices use for a while instead of their secrets, and publishes the keys with
// which the proxy validates tokens.
//
// A token is a JWT (RFC 7519) signed with Ed25519 (RFC 8037). Keys are derived from a secret and the time: each period
// of [Config.Rotate] has its own key, and the published set has the keys of the last, the current and the next period.
// So a token remains valid after the end of its period, a proxy that fetched the set a while ago knows the current key,
// and clocks may differ. Sidecars with the same secret have the same keys, also after a restart.
package token

import (
	"crypto"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Config configures tokens.
type Config struct {
	// Secrets has at least one element, see [ReadSecrets] and [RandomSecret]. Keys derived from the first secret sign;
	// keys derived from all secrets are published.
	Secrets []string
	TTL     time.Duration // lifetime of a token, at most Rotate
	Rotate  time.Duration // how long a key signs, whole seconds
	Issuer  string
}

// Issuer is safe for concurrent use.
type Issuer struct{ Config }

// New returns an Issuer.
func New(c Config) *Issuer { return &Issuer{c} }

// RandomSecret returns a secret for a single sidecar; its tokens become invalid when the sidecar stops.
func RandomSecret() string { return rand.Text() + rand.Text() }

// Token is the answer to a device.
type Token struct {
	Token     string `json:"token"`
	Type      string `json:"token_type"`
	ExpiresIn int64  `json:"expires_in"` // seconds
}

// audience of tokens: edges, and no other program with the keys.
const audience = "gatehouse-edge"

type claims struct {
	Issuer      string `json:"iss"`
	Audience    string `json:"aud"`
	Device      string `json:"sub"`
	Permissions string `json:"permissions"` // names, separated by spaces
	Record      string `json:"ver"`
	IssuedAt    int64  `json:"iat"` // unix seconds, like Expires
	Expires     int64  `json:"exp"`
	ID          string `json:"jti"`
}

// Issue returns a token for device. record identifies the device's current record. permissions, names joined by
// commas, are for programs that read the token; Gatehouse itself uses the record's. notAfter is when the device's
// access ends, zero for never.
func (i *Issuer) Issue(device, record, permissions string, notAfter time.Time) (Token, error) {
	now := time.Now()
	expires := now.Add(i.TTL)
	if !notAfter.IsZero() && notAfter.Before(expires) {
		expires = notAfter
	}
	key, err := i.deriveKey(i.Secrets[0], i.periodStart(now))
	if err != nil {
		return Token{}, err
	}
	options := (&jose.SignerOptions{}).WithType("JWT")
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: key}, options)
	if err != nil {
		return Token{}, fmt.Errorf("sign a token: %w", err)
	}
	text, err := jwt.Signed(signer).Claims(claims{
		Issuer: i.Issuer, Audience: audience, Device: device, Permissions: strings.ReplaceAll(permissions, ",", " "),
		Record: record, IssuedAt: now.Unix(), Expires: expires.Unix(), ID: rand.Text(),
	}).Serialize()
	if err != nil {
		return Token{}, fmt.Errorf("sign a token: %w", err)
	}
	return Token{Token: text, Type: "Bearer", ExpiresIn: expires.Unix() - now.Unix()}, nil
}

// clockSkew is the tolerance of [Issuer.ReadToken], as in envoy.yaml.
const clockSkew = 10 * time.Second

// ReadToken returns the device and the record of a valid token, as the proxy would read them; otherwise the error says
// why the token is invalid.
func (i *Issuer) ReadToken(text string) (device, record string, err error) {
	parsed, err := jwt.ParseSigned(text, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		return "", "", errors.New("it is malformed")
	}
	keys, err := i.keySet()
	if err != nil {
		return "", "", err
	}
	var c claims
	if err := parsed.Claims(keys, &c); err != nil {
		return "", "", errors.New("no key that this sidecar publishes has signed it")
	}
	switch now := time.Now(); {
	case c.Issuer != i.Issuer:
		return "", "", fmt.Errorf("its issuer is %q, want %q", c.Issuer, i.Issuer)
	case c.Audience != audience:
		return "", "", fmt.Errorf("its audience is %q, want %q", c.Audience, audience)
	case now.After(time.Unix(c.Expires, 0).Add(clockSkew)):
		return "", "", fmt.Errorf("it expired at %s", time.Unix(c.Expires, 0).UTC().Format(time.RFC3339))
	}
	return c.Device, c.Record, nil
}

// Keys returns the set of public keys (RFC 7517) as JSON.
func (i *Issuer) Keys() ([]byte, error) {
	set, err := i.keySet()
	if err != nil {
		return nil, err
	}
	return json.Marshal(set)
}

func (i *Issuer) keySet() (set jose.JSONWebKeySet, err error) {
	now := i.periodStart(time.Now())
	rotate := int64(i.Rotate / time.Second)
	for _, secret := range i.Secrets {
		for _, start := range []int64{now - rotate, now, now + rotate} {
			key, err := i.deriveKey(secret, start)
			if err != nil {
				return set, err
			}
			set.Keys = append(set.Keys, key.Public())
		}
	}
	return set, nil
}

// periodStart returns the start of the period that contains t, in unix seconds.
func (i *Issuer) periodStart(t time.Time) int64 {
	rotate := int64(i.Rotate / time.Second)
	return t.Unix() / rotate * rotate
}

// deriveKey returns the key of the period that begins at start, unix seconds. The key depends only on the secret, start
// and the length of the period, so sidecars with different lengths share no keys.
func (i *Issuer) deriveKey(secret string, start int64) (jose.JSONWebKey, error) {
	info := fmt.Sprintf("gatehouse session key %d %d", start, int64(i.Rotate/time.Second))
	seed, err := hkdf.Key(sha256.New, []byte(secret), nil, info, ed25519.SeedSize)
	if err != nil {
		return jose.JSONWebKey{}, fmt.Errorf("derive a session key: %w", err)
	}
	key := jose.JSONWebKey{Key: ed25519.NewKeyFromSeed(seed), Algorithm: string(jose.EdDSA), Use: "sig"}
	public := key.Public()
	thumbprint, err := public.Thumbprint(crypto.SHA256)
	if err != nil {
		return jose.JSONWebKey{}, fmt.Errorf("name a session key: %w", err)
	}
	key.KeyID = base64.RawURLEncoding.EncodeToString(thumbprint)
	return key, nil
}
