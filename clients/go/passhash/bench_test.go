package passhash

import (
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// BenchmarkVerify measures a verification of each scheme, on one core: go test -cpu 1 -bench Verify
func BenchmarkVerify(b *testing.B) {
	secret := contract.NewSecret()
	twelve, err := bcrypt.GenerateFromPassword([]byte(secret), 12)
	require.NoError(b, err)
	pepper, err := contract.NewPepper([]byte(strings.Repeat("p", 64)))
	require.NoError(b, err)
	gh1, err := pepper.Hash(secret)
	require.NoError(b, err)
	rest := "$" + strings.Repeat("s", 22) + "$" + strings.Repeat("k", 43)
	for name, hash := range map[string]string{
		"bcrypt 12": string(twelve), "argon2id m=19456,t=2,p=1": "$argon2id$v=19$m=19456,t=2,p=1" + rest,
		"argon2id m=65536,t=3,p=4": "$argon2id$v=19$m=65536,t=3,p=4" + rest,
		"scrypt ln=16,r=8,p=1":     "$scrypt$ln=16,r=8,p=1" + rest, "scrypt ln=17,r=8,p=1": "$scrypt$ln=17,r=8,p=1" + rest,
		"pbkdf2-sha256 600000": "$pbkdf2-sha256$i=600000" + rest, "pbkdf2-sha512 210000": "$pbkdf2-sha512$i=210000" + rest,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				_ = Compare(hash, secret)
			}
		})
	}
	b.Run("gh1", func(b *testing.B) {
		for b.Loop() {
			if !pepper.Matches(gh1, secret) {
				b.Fatal("does not match")
			}
		}
	})
}
