package passhash

import (
	"bufio"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// TestGoldens compares with hashes of other programs, listed in testdata/hashes.txt.
func TestGoldens(t *testing.T) {
	file, err := os.Open("testdata/hashes.txt")
	require.NoError(t, err)
	defer file.Close()
	count := 0
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		made, rest, _ := strings.Cut(lines.Text(), "|")
		secret, hash, _ := strings.Cut(rest, "|")
		if err := Compare(hash, secret); err != nil {
			t.Errorf("%s: %s: %v", made, hash, err)
		}
		if err := Compare(hash, secret+"x"); !errors.Is(err, ErrMismatch) {
			t.Errorf("%s: %s: another secret: got %v, want a mismatch", made, hash, err)
		}
		count++
	}
	if count != 12 {
		t.Errorf("%d goldens", count)
	}
}

func TestNoComparison(t *testing.T) {
	pepper, err := contract.NewPepper([]byte(strings.Repeat("p", 32)))
	require.NoError(t, err)
	secret := contract.NewSecret()
	gh1, err := pepper.Hash(secret)
	require.NoError(t, err)
	for _, hash := range []string{gh1, "", "x"} {
		if err := Compare(hash, secret); err == nil || errors.Is(err, ErrMismatch) || Time(hash) != 0 {
			t.Errorf("%q: got %v, %v", hash, err, Time(hash))
		}
	}
}

func TestCost(t *testing.T) {
	rest := "$" + strings.Repeat("s", 22) + "$" + strings.Repeat("k", 43)
	for hash, want := range map[string]time.Duration{
		"$2b$12$" + strings.Repeat("a", 53):     Unit,
		"$2b$15$" + strings.Repeat("a", 53):     8 * Unit,
		"$argon2id$v=19$m=19456,t=2,p=1" + rest: 38912 * time.Microsecond,
		"$scrypt$ln=17,r=8,p=2" + rest:          838_860_800 * time.Nanosecond,
		"$scrypt$ln=17,r=8,p=16" + rest:         6_710_886_400 * time.Nanosecond,
		"$pbkdf2-sha256$i=9999999" + rest:       2_999_999_700 * time.Nanosecond,
		"$pbkdf2-sha512$i=210000" + rest:        126 * time.Millisecond,
	} {
		if got := Time(hash); got != want {
			t.Errorf("%s: got %v, want %v", hash, got, want)
		}
		h, err := contract.ParseHash(hash)
		require.NoError(t, err)
		if err := CheckCost(h, 14); (err == nil) != (want <= 4*Unit) {
			t.Errorf("%s: %v with cost 14", hash, err)
		}
	}
	longer := "$pbkdf2-sha256$i=1000$" + strings.Repeat("s", 22) + "$" + strings.Repeat("k", 86)
	if Time(longer) != 600*time.Microsecond {
		t.Errorf("two blocks: got %v", Time(longer))
	}
}
