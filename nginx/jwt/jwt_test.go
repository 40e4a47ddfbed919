package jwt

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

var key = ed25519.NewKeyFromSeed([]byte("a seed for the tokens of tests !"))

func keySet(name string) string {
	x := base64.RawURLEncoding.EncodeToString(key[ed25519.SeedSize:])
	return fmt.Sprintf(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":%q,"x":%q}]}`, name, x)
}

// sign returns a token with a header and claims, JSON each.
func sign(header, claims string) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." +
		base64.RawURLEncoding.EncodeToString([]byte(claims))
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(text)))
}

func TestSetKeys(t *testing.T) {
	for set, want := range map[string]bool{
		"": false, "1": false, "{}": false, `{"keys":1}`: false, `{"keys":[]}`: false, `{"keys":[{"kty":"OKP"}]}`: false,
		`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"AA"}]}`: false,
		strings.Replace(keySet("a"), "OKP", "EC", 1):                  false,
		strings.Replace(keySet("a"), "Ed25519", "Ed448", 1):           false,
		strings.Replace(keySet("a"), "[", `[{"kty":"RSA"},`, 1):       true,
		keySet("a"): true,
	} {
		if got := New("gatehouse").SetKeys([]byte(set)); got != want {
			t.Errorf("%s: got %v, want %v", set, got, want)
		}
	}
}

func TestValidate(t *testing.T) {
	const header = `{"alg":"EdDSA","kid":"a"}`
	now := time.Unix(1_700_000_000, 0)
	claims := func(name string, value any) string {
		c := map[string]any{"iss": "gatehouse", "aud": "gatehouse-edge", "sub": "dev", "ver": "1-2", "exp": now.Unix() + 60}
		if name != "" {
			c[name] = value
		}
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	good := sign(header, claims("", nil))
	for name, tt := range map[string]struct {
		token string
		want  bool
	}{
		"good":               {good, true},
		"no key named":       {sign(`{"alg":"EdDSA"}`, claims("", nil)), false},
		"several audiences":  {sign(header, claims("aud", []string{"a", "gatehouse-edge"})), true},
		"ended just now":     {sign(header, claims("exp", now.Unix()-10)), true},
		"begins soon":        {sign(header, claims("nbf", now.Unix()+10)), true},
		"another signature":  {good[:len(good)-8] + "AAAAAAAA", false},
		"short signature":    {good[:len(good)-8], false},
		"no signature":       {good[:strings.LastIndex(good, ".")], false},
		"more parts":         {good + ".x", false},
		"empty":              {"", false},
		"no JSON":            {"AAAA.AAAA.AAAA", false},
		"no object":          {sign(header, `["gatehouse"]`), false},
		"another algorithm":  {sign(`{"alg":"none"}`, claims("", nil)), false},
		"critical extension": {sign(`{"alg":"EdDSA","crit":["x"]}`, claims("", nil)), false},
		"another key":        {sign(`{"alg":"EdDSA","kid":"b"}`, claims("", nil)), false},
		"another issuer":     {sign(header, claims("iss", "other")), false},
		"another audience":   {sign(header, claims("aud", "other")), false},
		"other audiences":    {sign(header, claims("aud", []string{"a", "b"})), false},
		"no audience":        {sign(header, claims("aud", nil)), false},
		"no end":             {sign(header, claims("exp", "never")), false},
		"end missing":        {sign(header, claims("exp", nil)), false},
		"ended":              {sign(header, claims("exp", now.Unix()-11)), false},
		"not yet":            {sign(header, claims("nbf", now.Unix()+11)), false},
		"too long":           {sign(header, claims("x", strings.Repeat("x", maxToken))), false},
	} {
		v := New("gatehouse")
		if _, ok := v.Validate(tt.token, now); ok {
			t.Errorf("%s: valid without keys", name)
		}
		v.SetKeys([]byte(keySet("a")))
		for range 2 { // the second time its signature isn't checked
			got, ok := v.Validate(tt.token, now)
			if ok != tt.want || ok && got != (Claims{"dev", "1-2"}) {
				t.Errorf("%s: got %+v, %v", name, got, ok)
			}
		}
		if _, ok := v.Validate(tt.token, now.Add(time.Hour)); ok {
			t.Errorf("%s: still valid after an hour", name)
		}
		v.SetKeys([]byte(strings.Replace(keySet("b"), "x\":\"", "x\":\"A", 1))) // no key
		if v.SetKeys([]byte(keySet("b"))); name == "good" {
			if _, ok := v.Validate(tt.token, now); ok {
				t.Error("valid after the change of keys")
			}
		}
	}
}

func TestValidTokensAreBounded(t *testing.T) {
	v := New("gatehouse")
	v.SetKeys([]byte(keySet("a")))
	now := time.Now()
	for i := range maxValid + 1 {
		claims := fmt.Sprintf(`{"iss":"gatehouse","aud":"gatehouse-edge","sub":"d%d","ver":"1","exp":%d}`, i, now.Unix()+60)
		if _, ok := v.Validate(sign(`{"alg":"EdDSA","kid":"a"}`, claims), now); !ok {
			t.Fatal("not valid")
		}
	}
	if len(v.valid) != 1 {
		t.Errorf("got %d tokens, want 1", len(v.valid))
	}
}

func TestText(t *testing.T) {
	for line, want := range map[string]string{
		"Bearer a": "a", "bearer a": "a", "BEARER   a b": "a b", "Bearer ": "", "Bearer gh": "gh",
		"Bearer gh_a": "none",
		"Bearer":      "none", "Basic a": "none", "": "none", "Bearera": "none",
	} {
		got, ok := BearerToken(line)
		if !ok {
			got = "none"
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
}
