package contract

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

const (
	salt22 = "AAECAwQFBgcICQoLDA0ODw"
	key43  = "k6lIBczu9u2RPdUnNGWKsw9YKqDARM+VQdxxzhLuAb4"
	rest   = "$" + salt22 + "$" + key43
)

func TestParseHash(t *testing.T) {
	for hash, want := range map[string]string{
		"$2y$04$" + strings.Repeat("a", 53):                                               "bcrypt 4",
		"$argon2id$v=19$m=19456,t=2,p=1" + rest:                                           "argon2id m=19456,t=2,p=1",
		"$argon2id$v=19$m=131072,t=16,p=16" + rest:                                        "argon2id m=131072,t=16,p=16",
		"$scrypt$ln=17,r=8,p=16" + rest:                                                   "scrypt ln=17,r=8,p=16",
		"$scrypt$ln=1,r=1,p=1" + rest:                                                     "scrypt ln=1,r=1,p=1",
		"$pbkdf2-sha256$i=600000" + rest:                                                  "pbkdf2-sha256 600000",
		"$pbkdf2-sha512$i=9999999,l=32" + rest:                                            "pbkdf2-sha512 9999999",
		"$pbkdf2-sha512$29000$" + strings.Repeat(".", 63) + "$" + strings.Repeat("/", 87): "pbkdf2-sha512 29000",
		"$pbkdf2-sha512$1000$" + strings.Repeat(".", 8) + "$" + strings.Repeat("/", 20):   "pbkdf2-sha512 1000",
		"$gh1$0123456789abcdef" + rest:                                                    "gh1 0123456789abcdef",
	} {
		if h, err := ParseHash(hash); err != nil || h.String() != want {
			t.Errorf("%s: got %v, %v, want %s", hash, h, err, want)
		}
	}
}

func TestParseHashRefuses(t *testing.T) {
	for hash, want := range map[string]Reason{
		"":                                   ReasonMalformed,
		"$":                                  ReasonMalformed,
		"$$$$":                               ReasonMalformed,
		"$2":                                 ReasonMalformed,
		"$argon2i$v=19$m=8,t=1,p=1" + rest:   ReasonMalformed,
		"$argon2id$m=8,t=1,p=1" + rest:       ReasonMalformed,
		"$argon2id$v=16$m=8,t=1,p=1" + rest:  ReasonMalformed,
		"$argon2id$v=19" + rest:              ReasonMalformed,
		"$argon2id$v=19$t=1,m=8,p=1" + rest:  ReasonMalformed,
		"$argon2id$v=19$m=8,t=1" + rest:      ReasonMalformed,
		"$argon2id$v=19$m=8,t=1,p=1," + rest: ReasonMalformed,
		"$argon2id$v=19$m=08,t=1,p=1" + rest: ReasonMalformed,
		"$argon2id$v=19$m=+8,t=1,p=1" + rest: ReasonMalformed,
		"$argon2id$v=19$m=8,t=1,p=1,keyid=a" + rest:               ReasonMalformed,
		"$argon2id$v=19$m=8,t=99999999999999999999,p=1" + rest:    ReasonMalformed,
		"$argon2id$v=19$m=131073,t=1,p=1" + rest:                  ReasonLimit,
		"$argon2id$v=19$m=8,t=17,p=1" + rest:                      ReasonLimit,
		"$argon2id$v=19$m=8,t=0,p=1" + rest:                       ReasonLimit,
		"$argon2id$v=19$m=8,t=1,p=17" + rest:                      ReasonLimit,
		"$scrypt$ln=18,r=8,p=1" + rest:                            ReasonLimit,
		"$scrypt$ln=17,r=9,p=1" + rest:                            ReasonLimit,
		"$scrypt$ln=17,r=8,p=17" + rest:                           ReasonLimit,
		"$scrypt$16384,8,1" + rest:                                ReasonMalformed,
		"$pbkdf2-sha256$i=999" + rest:                             ReasonLimit,
		"$pbkdf2-sha256$i=10000000" + rest:                        ReasonLimit,
		"$pbkdf2-sha256$i=1000,l=032" + rest:                      ReasonMalformed,
		"$pbkdf2-sha256$i=1000,l=02" + rest:                       ReasonMalformed,
		"$pbkdf2$1000" + rest:                                     ReasonMalformed,
		"$pbkdf2-sha256$1000$" + salt22 + "$" + key43[:19]:        ReasonMalformed,
		"$pbkdf2-sha256$1000$" + salt22[:7] + "$" + key43:         ReasonMalformed,
		"$pbkdf2-sha256$1000$" + salt22[:9] + "$" + key43:         ReasonMalformed,
		"$pbkdf2-sha256$1000$" + salt22 + "$" + key43 + "==":      ReasonMalformed,
		"$pbkdf2-sha256$1000$" + salt22 + "$" + key43[:42] + "-":  ReasonMalformed,
		"$pbkdf2-sha256$1000$" + salt22 + "$" + key43[:42] + "\n": ReasonMalformed,
		"$pbkdf2-sha256$1000$" + salt22 + "\n\n$" + key43:         ReasonMalformed,
		"$gh1$0123456789abcde" + rest:                             ReasonMalformed,
		"$gh1$0123456789abcdeF" + rest:                            ReasonMalformed,
		"$gh1$0123456789abcdef$" + salt22 + "$" + key43[:42]:      ReasonMalformed,
		"$gh1$0123456789abcdef$" + salt22[:20] + "$" + key43:      ReasonMalformed,
	} {
		h, err := ParseHash(hash)
		if ReasonOf(err) != want {
			t.Errorf("%s: got %v, %v, want reason %s", hash, h, err, want)
		}
	}
}

// FuzzParseHash: what is accepted is within the bounds, and no error has a part of salt or key.
func FuzzParseHash(f *testing.F) {
	for _, seed := range []string{"$2b$12$" + strings.Repeat("a", 53), "$argon2id$v=19$m=19456,t=2,p=1" + rest,
		"$scrypt$ln=16,r=8,p=1" + rest, "$pbkdf2-sha256$i=600000,l=32" + rest, "$pbkdf2-sha512$1000" + rest,
		"$gh1$0123456789abcdef" + rest} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h, err := ParseHash(text)
		if err != nil {
			if len(err.Error()) > 200 || strings.Contains(err.Error(), key43[:20]) {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		memory := 0
		switch h.Scheme {
		case Argon2id:
			memory = h.Memory
		case Scrypt:
			memory = h.Memory << h.Cost / 8
		}
		if len(text) > maxHash || memory > MaxRunMemory || h.Parallel > MaxPasses || h.Scheme != Bcrypt &&
			(len(h.Salt) < 6 || len(h.Salt) > 47 || len(h.Key) < 15 || len(h.Key) > 65) {
			t.Errorf("%q: got %+v", text, h)
		}
	})
}

func TestGH1(t *testing.T) {
	one, err := NewPepper([]byte(" 0123456789abcdef0123456789abcdef\n"))
	require.NoError(t, err)
	other, err := NewPepper([]byte(strings.Repeat("p", 64)))
	require.NoError(t, err)
	// By Python: hmac.new(b'0123456789abcdef' * 2, b'gatehouse gh1, hash\0' + bytes(range(16)) + secret, 'sha256').
	const (
		secret = "gh_ABCDEFGHIJKLMNOPQRSTUVWXYZ_e797b453"
		golden = "$gh1$8fa67d0dbc7e6710$AAECAwQFBgcICQoLDA0ODw$DegOZ1sgbqrdg38R/9RKy6xu+QelBKp1IwjlnryFsR4"
	)
	if !one.Matches(golden, secret) {
		t.Error("the golden does not match")
	}
	hash, err := one.Hash(secret)
	if err != nil || !one.Matches(hash, secret) || CheckHash(hash) != nil {
		t.Errorf("got %s, %v", hash, err)
	}
	if again, _ := one.Hash(secret); again == hash {
		t.Error("two hashes have the same salt")
	}
	renamed := strings.Replace(hash, one.ID, other.ID, 1)
	if one.Matches(hash, NewSecret()) || other.Matches(hash, secret) || other.Matches(renamed, secret) ||
		one.Matches(strings.Replace(golden, "AAEC", "AAED", 1), secret) || one.Matches(renamed, secret) {
		t.Error("matches what it must not")
	}
	for _, chosen := range []string{"", "secret", secret[:len(secret)-1] + "0", secret + "0"} {
		if hash, err := one.Hash(chosen); err == nil {
			t.Errorf("a secret of %d bytes that is not generated: %s", len(chosen), hash)
		}
	}
	for _, size := range []int{0, 31, MaxPepper + 1} {
		if p, err := NewPepper([]byte(strings.Repeat("p", size) + "\n")); err == nil {
			t.Errorf("a pepper of %d bytes: %s", size, p.ID)
		}
	}
}

func TestGenerated(t *testing.T) {
	secret := NewSecret()
	for text, want := range map[string]struct{ generated, mistyped, refused bool }{
		secret:                          {generated: true},
		secret[:10] + "1" + secret[11:]: {refused: true}, // 1 is not of base32: another form
		secret[:37] + "x":               {refused: true},
		secret[:30] + strings.Map(func(r rune) rune { return 'a' + (r+1)%6 }, secret[30:]): {mistyped: true, refused: true},
		"gh_chosen":  {refused: true},
		"ghp_chosen": {},
		"chosen":     {},
	} {
		err := CheckSecret(text)
		if Generated(text) != want.generated || Mistyped(text) != want.mistyped || (err != nil) != want.refused {
			t.Errorf("%s: got %v, %v, %v, want %v", text, Generated(text), Mistyped(text), err, want)
		}
	}
}

// TestEqualTime measures right and wrong secrets in turn, by Welch's t-test on the faster nine tenths of each, as
// dudect does (Reparaz, Balasch and Verbauwhede, 2017): the times of gh1 don't reveal whether a secret is right. The
// standard error is about 1 ns on an idle machine, so that 10 ns would show. The same test must find a comparison that
// leaves out wrong secrets' MACs.
func TestEqualTime(t *testing.T) {
	const samples, rounds, leak, leakNS = 20_000, 3, 5, 10
	pepper, err := NewPepper(bytes.Repeat([]byte("p"), 32))
	require.NoError(t, err)
	right := NewSecret()
	hash, err := pepper.Hash(right)
	require.NoError(t, err)
	secrets := [2]string{right, NewSecret()}
	// compare returns the t of the two, and by how many ns the means differ.
	compare := func(matches func(hash, secret string) bool) (score, difference float64) {
		var times [2][]float64
		for range 2 * samples {
			class := rand.IntN(2)
			begin := time.Now()
			got := matches(hash, secrets[class])
			times[class] = append(times[class], float64(time.Since(begin)))
			if got != (class == 0) {
				t.Fatalf("class %d: got %v", class, got)
			}
		}
		var mean, variance [2]float64 // of the mean
		for class, all := range times {
			slices.Sort(all)
			all = all[:len(all)*9/10]
			for _, ns := range all {
				mean[class] += ns / float64(len(all))
			}
			for _, ns := range all {
				variance[class] += (ns - mean[class]) * (ns - mean[class]) / float64(len(all)) / float64(len(all))
			}
		}
		difference = mean[0] - mean[1]
		return difference / math.Sqrt(variance[0]+variance[1]), difference
	}
	found, said := 0, ""
	for range rounds { // other load of the machine may disturb one
		score, difference := compare(pepper.Matches)
		said += fmt.Sprintf(" %.1f (%.0f ns)", score, difference)
		if math.Abs(score) > leak && math.Abs(difference) > leakNS {
			found++
		}
	}
	early, difference := compare(func(hash, secret string) bool {
		return secret == right && pepper.Matches(hash, secret)
	})
	t.Logf("t of right against wrong:%s; of one that ends early: %.0f (%.0f ns)", said, early, difference)
	if found == rounds {
		t.Errorf("right and wrong secrets take different times: t%s", said)
	}
	if early < leak {
		t.Errorf("the test doesn't find a comparison that ends early: t %.1f", early)
	}
}

// TestConstantTime: what is compared with a MAC is compared in constant time.
func TestConstantTime(t *testing.T) {
	for file, function := range map[string]string{"pepper.go": "Matches", "../passhash/passhash.go": "Compare"} {
		source, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		equal := 0
		ast.Inspect(source, func(n ast.Node) bool {
			if f, ok := n.(*ast.FuncDecl); ok && f.Name.Name != function {
				return false
			}
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Equal" {
				if x, ok := s.X.(*ast.Ident); !ok || x.Name != "hmac" {
					t.Errorf("%s: compares by another function than hmac.Equal", file)
				}
				equal++
			}
			return true
		})
		if equal != 1 {
			t.Errorf("%s: %s calls hmac.Equal %d times, want once", file, function, equal)
		}
	}
}
