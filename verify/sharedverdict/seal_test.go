package sharedverdict

import (
	"bytes"
	"encoding/hex"
	"slices"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/verify/credential"
)

var (
	secret = sealer("0123456789abcdef0123456789abcdef")
	claim  = credential.Question{Device: "d", Secret: "s", Version: 7, Hashes: []string{"h1", "h2"}}
	until  = time.UnixMilli(1735689600000)
)

// TestNames: each question, and each fleet, has different names.
func TestNames(t *testing.T) {
	claims := []credential.Question{
		claim,
		{Device: "e", Secret: "s", Version: 7, Hashes: []string{"h1", "h2"}},
		{Device: "d", Secret: "t", Version: 7, Hashes: []string{"h1", "h2"}},
		{Device: "d", Secret: "s", Version: 8, Hashes: []string{"h1", "h2"}},
		{Device: "d", Secret: "s", Version: 7, Hashes: []string{"h1"}},
		{Device: "d", Secret: "s", Version: 7, Hashes: []string{"h1", "h3"}},
		{Device: "d", Secret: "s", Version: 7, Hashes: []string{"h2", "h1"}},
		{Device: "d", Secret: "s", Version: 7, Hashes: []string{"h1h2"}},
		{Device: "ds", Secret: "", Version: 7, Hashes: []string{"h1", "h2"}},
		{Device: "", Secret: "ds", Version: 7, Hashes: []string{"h1", "h2"}},
	}
	seen := map[[32]byte]int{}
	for i := range claims {
		for j, s := range []sealer{secret, sealer("another secret that is long enough")} {
			name := s.verdictName(&claims[i])
			if before, found := seen[name]; found {
				t.Errorf("claims %d and %d have the same name", before, i*10+j)
			}
			seen[name] = i*10 + j
		}
	}
}

// TestOpen accepts the seal's value for the question, and nothing else.
func TestOpen(t *testing.T) {
	name := secret.verdictName(&claim)
	good := secret.sealMatch(name, 1, until)
	changed := claim
	changed.Version = 8
	now := until.Add(-time.Millisecond)
	m, ok := secret.openValue(&claim, name, string(good), now)
	if !ok || m.Hash != "h2" || !m.Until.Equal(until) {
		t.Fatalf("what was sealed: %+v, %v", m, ok)
	}
	for _, test := range []struct {
		what  string
		by    sealer
		claim *credential.Question
		value []byte
		now   time.Time
	}{
		{"over", secret, &claim, good, until},
		{"another record's", secret, &changed, good, now},
		{"another fleet's", sealer("another secret that is long enough"), &claim, good, now},
		{"a hash that the record has not", secret, &claim, secret.sealMatch(name, 2, until), now},
		{"empty", secret, &claim, nil, now},
		{"short", secret, &claim, good[:40], now},
		{"long", secret, &claim, append(slices.Clone(good), 0), now},
		{"all zero", secret, &claim, make([]byte, len(good)), now},
		{"its own name", secret, &claim, append(bytes.Clone(good[:sealAt]), name[:]...), now},
	} {
		if m, ok := test.by.openValue(test.claim, test.by.verdictName(test.claim), string(test.value), test.now); ok {
			t.Errorf("%s: believed, %+v", test.what, m)
		}
	}
	for bit := range len(good) * 8 {
		forged := slices.Clone(good)
		forged[bit/8] ^= 1 << (bit % 8)
		if m, ok := secret.openValue(&claim, name, string(forged), now); ok {
			t.Fatalf("bit %d changed: believed, %+v", bit, m)
		}
	}
}

// TestGolden pins the values that sidecars of different releases share, computed by Python's hmac.
func TestGolden(t *testing.T) {
	name := secret.verdictName(&claim)
	if got, want := hex.EncodeToString(name[:]), goldenName; got != want {
		t.Errorf("name %s, want %s", got, want)
	}
	if got, want := hex.EncodeToString(secret.sealMatch(name, 1, until)), goldenValue; got != want {
		t.Errorf("value %s, want %s", got, want)
	}
}

const (
	goldenName  = "3951fecb092790e36e039db6d69746fb4865207792eeb2db65092a55443d891a"
	goldenValue = "01000001941f297c00" +
		"2d24e3482d5d0f3cf95a1f6d212b68a6157502bb8d0be2179f4f841bd1ed3e55"
)
