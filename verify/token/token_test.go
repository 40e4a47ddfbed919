package token_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/verify/token"
)

const (
	rotate = time.Hour
	ttl    = 10 * time.Minute
)

var secrets = []string{strings.Repeat("one", 11), strings.Repeat("two", 11)}

func issuer(secrets ...string) *token.Issuer {
	return token.New(token.Config{Secrets: secrets, TTL: ttl, Rotate: rotate, Issuer: "gatehouse"})
}

func issue(t *testing.T, i *token.Issuer) token.Token {
	t.Helper()
	token, err := i.Issue("dev", "7-1", "config.read,telemetry.write", time.Time{})
	require.NoError(t, err)
	return token
}

// jwk is a key as in RFC 8037.
type jwk struct {
	Kty, Crv, X, Kid, Alg, Use, D string
}

func keys(t *testing.T, i *token.Issuer) []jwk {
	t.Helper()
	text, err := i.Keys()
	require.NoError(t, err)
	var set struct{ Keys []jwk }
	require.NoError(t, json.Unmarshal(text, &set))
	return set.Keys
}

// parts returns a token's header and claims, parsed without the library that makes tokens.
func parts(t *testing.T, token string) (header, claims map[string]any) {
	t.Helper()
	for i, part := range strings.Split(token, ".")[:2] {
		text, err := base64.RawURLEncoding.DecodeString(part)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, []*map[string]any{&header, &claims}[i]))
	}
	return header, claims
}

// verifies checks a token's signature with the key named in the token, with Go's own Ed25519.
func verifies(t *testing.T, token string, set []jwk) bool {
	t.Helper()
	header, _ := parts(t, token)
	at := strings.LastIndexByte(token, '.')
	signature, err := base64.RawURLEncoding.DecodeString(token[at+1:])
	require.NoError(t, err)
	for _, key := range set {
		if key.Kid != header["kid"] {
			continue
		}
		public, err := base64.RawURLEncoding.DecodeString(key.X)
		require.NoError(t, err)
		return ed25519.Verify(public, []byte(token[:at]), signature)
	}
	return false
}

func TestToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := issuer(secrets...)
		token := issue(t, i)
		header, claims := parts(t, token.Token)
		if header["alg"] != "EdDSA" || header["typ"] != "JWT" || header["kid"] == "" {
			t.Errorf("got header %v", header)
		}
		now := float64(time.Now().Unix())
		for name, want := range map[string]any{
			"iss": "gatehouse", "sub": "dev", "ver": "7-1", "permissions": "config.read telemetry.write",
			"iat": now, "exp": now + ttl.Seconds(),
		} {
			if claims[name] != want {
				t.Errorf("%s: got %v, want %v", name, claims[name], want)
			}
		}
		if jti, _ := claims["jti"].(string); len(jti) < 26 { // a letter has 5 bits: at least 128 bits
			t.Errorf("got jti %q", jti)
		}
		if token.Type != "Bearer" || token.ExpiresIn != int64(ttl.Seconds()) {
			t.Errorf("got %+v", token)
		}
		if !verifies(t, token.Token, keys(t, i)) {
			t.Error("the published keys don't verify the token")
		}
		if other := issue(t, i); other.Token == token.Token {
			t.Error("two tokens are the same")
		}
		for _, key := range keys(t, i) {
			if key.Kty != "OKP" || key.Crv != "Ed25519" || key.Alg != "EdDSA" || key.Use != "sig" || key.D != "" {
				t.Errorf("got key %+v, want a public one", key)
			}
		}
	})
}

func TestTokenEndsWithItsDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			end  time.Duration // of the device's access, from now
			want time.Duration
		}{{time.Minute, time.Minute}, {ttl, ttl}, {time.Hour, ttl}} {
			token, err := issuer(secrets...).Issue("dev", "7-1", "", time.Now().Add(test.end))
			require.NoError(t, err)
			_, claims := parts(t, token.Token)
			if got := claims["exp"].(float64) - claims["iat"].(float64); got != test.want.Seconds() ||
				token.ExpiresIn != int64(got) {
				t.Errorf("device that ends in %v: got a token of %v s, %d s; want %v", test.end, got, token.ExpiresIn, test.want)
			}
		}
	})
}

// TestRotation checks a token during its lifetime with the key sets that a proxy may have: the newest, the set of a
// minute ago, and the set of a sidecar whose clock is behind or ahead.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := issuer(secrets...)
		kids := map[any]bool{}
		minuteAgo := keys(t, i)
		type held struct {
			token string
			end   time.Time
		}
		var tokens []held
		for range 3 * 60 {
			set := keys(t, i)
			token := issue(t, i)
			header, _ := parts(t, token.Token)
			kids[header["kid"]] = true
			if !verifies(t, token.Token, minuteAgo) {
				t.Fatalf("%v: a new token is not verified by the keys of a minute ago", time.Now())
			}
			tokens = append(tokens, held{token.Token, time.Now().Add(ttl)})
			for _, h := range tokens {
				if time.Now().Before(h.end) && !verifies(t, h.token, set) {
					t.Fatalf("%v: a token that ends at %v is not verified", time.Now(), h.end)
				}
			}
			minuteAgo = set
			time.Sleep(time.Minute)
		}
		if len(kids) < 3 || len(kids) > 4 {
			t.Errorf("got %d keys in three periods, want 3 or 4", len(kids))
		}
		time.Sleep(2 * rotate)
		if verifies(t, tokens[0].token, keys(t, i)) {
			t.Error("a key is published two periods after its own")
		}
	})
}

// TestSecrets checks which sidecars have the same keys, and how to change a secret without a gap.
func TestSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := secrets[0], secrets[1]
		old, both, swapped, gone := issuer(a), issuer(a, b), issuer(b, a), issuer(b)
		fleet := []*token.Issuer{old, both, swapped, gone}
		for step, from := range fleet {
			token := issue(t, from).Token
			for _, at := range fleet[max(step-1, 0):min(step+2, len(fleet))] { // they restart one after the other
				want := !(from == both && at == gone) && !(from == swapped && at == old)
				if got := verifies(t, token, keys(t, at)); got != want {
					t.Errorf("token of %q: verified %t where there is %q, want %t", from.Secrets, got, at.Secrets, want)
				}
			}
		}
		if verifies(t, issue(t, old).Token, keys(t, gone)) {
			t.Error("a token is verified by keys of another secret")
		}
		another := token.New(token.Config{Secrets: []string{a}, TTL: ttl, Rotate: 2 * rotate, Issuer: "gatehouse"})
		if verifies(t, issue(t, old).Token, keys(t, another)) {
			t.Error("a key of one period is one of another length, too")
		}
		if one, other := token.RandomSecret(), token.RandomSecret(); one == other || len(one) < 32 {
			t.Error("random secrets are short, or the same")
		}
	})
}

// TestKeysAreFixed pins the derivation: sidecars of two releases share their tokens.
func TestKeysAreFixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the bubble's clock begins at 2000-01-01
		var got []string
		for _, key := range keys(t, issuer(secrets[0])) {
			got = append(got, key.X)
		}
		want := []string{"9CQOEgOKSWdtktZjRUvyjjXlJcHMT1JkuSCylFauPn4", "Pd5Ys2SWQWyOQWbXxf4qUrhA9JiIOCqW-cCvetuyX8c",
			"w6qcY12GMnZZBruj8zv2KyZ8orx1yjY7aox9l9Ls3pc"}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := issuer(secrets...)
		good := issue(t, i).Token
		head, rest, _ := strings.Cut(good, ".")
		none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + rest
		for _, test := range []struct{ name, text, want string }{
			{"good", good, ""},
			{"another sidecar's", issue(t, issuer(strings.Repeat("three", 7))).Token, "no key"},
			{"changed", head + "." + strings.Replace(rest, "e", "f", 1), "no key"},
			{"unsigned", none, "malformed"},
			{"no token", "x.y.z", "malformed"},
			{"another issuer's", issue(t, token.New(token.Config{Secrets: secrets, TTL: ttl, Rotate: rotate, Issuer: "other"})).
				Token, `its issuer is "other"`},
		} {
			device, record, err := i.ReadToken(test.text)
			if test.want == "" && (err != nil || device != "dev" || record != "7-1") || test.want != "" &&
				(err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%s: got %q, %q, %v", test.name, device, record, err)
			}
		}
		time.Sleep(ttl + 9*time.Second)
		if _, _, err := i.ReadToken(good); err != nil {
			t.Errorf("9 s after its end: %v", err)
		}
		time.Sleep(2 * time.Second)
		if _, _, err := i.ReadToken(good); err == nil || !strings.HasPrefix(err.Error(), "it expired at ") {
			t.Errorf("11 s after its end: got %v", err)
		}
	})
}
