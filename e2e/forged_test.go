package e2e

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// rotate is the maximum, so that a period rarely ends during the test.
const rotate = 720 * time.Hour

// signingKey returns the signing key of a time, derived as package session documents.
func signingKey(t *testing.T, at time.Time, rotate time.Duration) ed25519.PrivateKey {
	t.Helper()
	length := int64(rotate / time.Second)
	info := fmt.Sprintf("gatehouse session key %d %d", at.Unix()/length*length, length)
	seed, err := hkdf.Key(sha256.New, []byte(sessionSecret), nil, info, ed25519.SeedSize)
	require.NoError(t, err)
	return ed25519.NewKeyFromSeed(seed)
}

// withField returns m with one field added or changed; nil removes the field.
func withField(m map[string]any, name string, value any) map[string]any {
	m = maps.Clone(m)
	m[name] = value
	if value == nil {
		delete(m, name)
	}
	return m
}

// forgeToken makes a token of any header and claims.
func forgeToken(t *testing.T, header, claims map[string]any, sign func([]byte) []byte) string {
	t.Helper()
	var parts []string
	for _, part := range []map[string]any{header, claims} {
		text, err := json.Marshal(part)
		require.NoError(t, err)
		parts = append(parts, base64.RawURLEncoding.EncodeToString(text))
	}
	signed := strings.Join(parts, ".")
	return signed + "." + base64.RawURLEncoding.EncodeToString(sign([]byte(signed)))
}

// TestForgedTokens sends tokens that were never issued: some are signed with the right key, which no attacker has, to
// test each check separately.
func TestForgedTokens(t *testing.T) {
	leaveToOtherEdges(t)
	t.Parallel()
	e := withSessions(t)
	good := e.awaitToken("dev", "secret", "telemetry.write")
	for _, tt := range slices.Concat(forgedSignatures(t, good), forgedContents(t, good)) {
		if a := e.send("POST /v1/telemetry", "authorization: Bearer "+tt.token); a.status != tt.status {
			t.Errorf("%s: got %d %q, want %d", tt.name, a.status, a.body, tt.status)
		}
	}
	t.Run("end", func(t *testing.T) { tokenEnds(t, e, good) })
	t.Run("place", func(t *testing.T) { tokenInPlace(t, e, good) })
}

// forgery is a token that was never issued, and the expected answer.
type forgery struct {
	name, token string
	status      int
}

// forgedSignatures returns forgeries with valid claims.
func forgedSignatures(t *testing.T, good token) []forgery {
	t.Helper()
	key := signingKey(t, time.Now(), rotate)
	_, other, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	by := func(k ed25519.PrivateKey) func([]byte) []byte {
		return func(b []byte) []byte { return ed25519.Sign(k, b) }
	}
	hs256 := func(secret []byte) func([]byte) []byte {
		return func(b []byte) []byte {
			mac := hmac.New(sha256.New, secret)
			mac.Write(b)
			return mac.Sum(nil)
		}
	}
	public := key.Public().(ed25519.PublicKey)
	parts := strings.Split(good.text, ".")
	sub := forgeToken(t, good.header, withField(good.claims, "sub", "other"), by(other))
	none := func([]byte) []byte { return nil }
	named := func(k ed25519.PrivateKey) string {
		name := sha256.Sum256(fmt.Appendf(nil, `{"crv":"Ed25519","kty":"OKP","x":%q}`,
			base64.RawURLEncoding.EncodeToString(k.Public().(ed25519.PublicKey)))) // RFC 7638
		return forgeToken(t, withField(good.header, "kid", base64.RawURLEncoding.EncodeToString(name[:])), good.claims, by(k))
	}
	ofPeriod := func(n int) string {
		return named(signingKey(t, time.Now().Add(time.Duration(n)*rotate), rotate))
	}
	return []forgery{
		{"made by the same key", signClaim(t, good, "jti", "another"), 200},
		{"no key named", forgeToken(t, withField(good.header, "kid", nil), good.claims, by(key)), byEdge(200, 401)},
		{"claims of another", strings.Split(sub, ".")[0] + "." + strings.Split(sub, ".")[1] + "." + parts[2], 401},
		{"a bit of the signature", parts[0] + "." + parts[1] + "." + flipFirst(parts[2]), 401},
		{"no signature", parts[0] + "." + parts[1] + ".", 401},
		{"two parts", parts[0] + "." + parts[1], 401},
		{"another key of that name", forgeToken(t, good.header, good.claims, by(other)), 401},
		{"a key that isn't published", forgeToken(t, withField(good.header, "kid", "x"), good.claims, by(other)), 401},
		{"the key of the period before", ofPeriod(-1), 200},
		{"the key of the next period, of a sidecar whose clock is ahead", ofPeriod(+1), 200},
		{"the key of the period before that", ofPeriod(-2), 401},
		{"the key of the period after that", ofPeriod(+2), 401},
		{"the key of a period of another length", named(signingKey(t, time.Now(), 24*time.Hour)), 401},
		{"alg none", forgeToken(t, map[string]any{"alg": "none", "typ": "JWT"}, good.claims, none), 401},
		{"alg none with the key's name", forgeToken(t, withField(good.header, "alg", "none"), good.claims, none), 401},
		{"alg None", forgeToken(t, withField(good.header, "alg", "None"), good.claims, none), 401},
		{"alg none with a signature", forgeToken(t, withField(good.header, "alg", "none"), good.claims, by(key)), 401},
		{"no alg", forgeToken(t, withField(good.header, "alg", nil), good.claims, by(key)), 401},
		{"HS256 with the public key", forgeToken(t, withField(good.header, "alg", "HS256"), good.claims, hs256(public)), 401},
		{"HS256 with the published text", forgeToken(t, withField(good.header, "alg", "HS256"), good.claims,
			hs256([]byte(base64.RawURLEncoding.EncodeToString(public)))), 401},
		{"its own key in its header", forgeToken(t, withField(good.header, "jwk", map[string]any{
			"kty": "OKP", "crv": "Ed25519",
			"x": base64.RawURLEncoding.EncodeToString(other.Public().(ed25519.PublicKey))}), good.claims, by(other)), 401},
	}
}

// signClaim returns good with another claim, signed by the current key.
func signClaim(t *testing.T, good token, name string, value any) string {
	t.Helper()
	key := signingKey(t, time.Now(), rotate)
	return forgeToken(t, good.header, withField(good.claims, name, value),
		func(b []byte) []byte { return ed25519.Sign(key, b) })
}

func unixIn(d time.Duration) int64 { return time.Now().Add(d).Unix() }

// forgedContents returns forgeries with a valid signature, and texts that are no tokens.
func forgedContents(t *testing.T, good token) []forgery {
	t.Helper()
	ours := func(name string, value any) string { return signClaim(t, good, name, value) }
	return []forgery{
		{"expired", ours("exp", unixIn(-11*time.Second)), 401},
		{"expired long ago", ours("exp", 1), 401},
		{"without an end", ours("exp", nil), 401},
		{"an end that is no number", ours("exp", "never"), 401},
		{"not yet good", ours("nbf", unixIn(time.Hour)), 401},
		{"another issuer", ours("iss", "somebody"), 401},
		{"no issuer", ours("iss", nil), 401},
		{"another audience", ours("aud", "somebody"), byEdge(403, 401)},
		{"no audience", ours("aud", nil), byEdge(403, 401)},
		{"no device", ours("sub", nil), 401},
		{"empty device", ours("sub", ""), 401},
		{"unknown device", ours("sub", "nobody"), 401},
		{"device with a slash", ours("sub", "dev/x"), 401},
		{"device with a comma", ours("sub", "dev,dev"), 401},
		{"device with a line end", ours("sub", "dev\r\nx-gatehouse-permissions: all"), 401},
		{"device with a NUL", ours("sub", "dev\x00"), 401},
		{"device in another script", ours("sub", "dév"), 401},
		{"long device", ours("sub", strings.Repeat("d", 129)), 401},
		{"device that is a number", ours("sub", 1), 401},
		{"devices", ours("sub", []string{"dev"}), 401},
		{"no record", ours("ver", nil), 401},
		{"another record", ours("ver", "9-9"), 401},
		{"record that is a number", ours("ver", 1), 401},
		{"record over its limit", ours("ver", strings.Repeat("1", 42)), 401},
		{"empty", "", 401},
		{"garbage", "x", 401},
		{"dots", "..", 401},
		{"no JSON", "eA.eA.eA", 401},
	}
}

func tokenEnds(t *testing.T, e *edge, good token) {
	// Envoy caches tokens with a valid signature, but must not accept the tokens after their end. Envoy allows ten seconds
	// for differences between clocks.
	ending := "authorization: Bearer " + signClaim(t, good, "exp", unixIn(-2*time.Second))
	if a := e.send("POST /v1/telemetry", ending); a.status != 200 {
		t.Errorf("token within the difference of clocks: got %d, want 200", a.status)
	}
	e.awaitAnswer("the token's end", hasStatus(401), "POST /v1/telemetry", ending)
}

// tokenInPlace sends tokens in the right and in wrong places.
func tokenInPlace(t *testing.T, e *edge, good token) {
	for _, tt := range []struct {
		name   string
		lines  []string
		path   string
		status int
	}{
		{"token in the query", nil, "/v1/telemetry?access_token=" + good.text, 401},
		{"token in a cookie", []string{"cookie: access_token=" + good.text}, "/v1/telemetry", 401},
		{"token in another header", []string{"x-authorization: Bearer " + good.text}, "/v1/telemetry", 401},
		{"token without its scheme", []string{"authorization: " + good.text}, "/v1/telemetry", 401},
		{"two tokens, the first one good", []string{good.headerLine(), "authorization: Bearer x"},
			"/v1/telemetry", byEdge(401, 400)},
		{"two tokens, the second one good", []string{"authorization: Bearer x", good.headerLine()},
			"/v1/telemetry", byEdge(401, 400)},
		{"another scheme, then a good token", []string{"authorization: Basic eDp5", good.headerLine()},
			"/v1/telemetry", byEdge(200, 400)},
		{"bad token on an open path", []string{"authorization: Bearer x"}, "/open", 401},
		{"bad token beside a good credential", append(credential("dev", "secret"), "authorization: Bearer x"),
			"/v1/telemetry", 401},
		{"other scheme beside a good credential", append(credential("dev", "secret"), "authorization: Basic eDp5"),
			"/v1/telemetry", 200},
	} {
		if a := e.send("POST "+tt.path, tt.lines...); a.status != tt.status {
			t.Errorf("%s: got %d %q, want %d", tt.name, a.status, a.body, tt.status)
		}
	}
}

// flipFirst changes the first character of base64.
func flipFirst(text string) string {
	if text[0] == 'A' {
		return "B" + text[1:]
	}
	return "A" + text[1:]
}
