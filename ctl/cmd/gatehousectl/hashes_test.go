package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/passhash"
)

// TestHashesOfOthers imports hashes of other programs (testdata/hashes.py). Accepted hashes match their secret only;
// refusals give advice.
func TestHashesOfOthers(t *testing.T) {
	refused := map[string]string{ // what the error says
		"werkzeug pbkdf2:sha1:1000":         "SHA-1",
		"django PBKDF2SHA1PasswordHasher":   "SHA-1",
		"django BCryptSHA256PasswordHasher": "only bcrypt",
		"django MD5PasswordHasher":          "fast digest",
		"django unusable":                   "unusable password",
		"passlib pbkdf2_sha1":               "SHA-1",
		"passlib bcrypt_sha256":             "only bcrypt",
		"passlib ldap_salted_sha1":          "fast digest",
		"passlib ldap_salted_sha256":        "fast digest",
		"passlib ldap_md5":                  "fast digest",
		"passlib sha512_crypt":              "$6$",
		"passlib sha256_crypt":              "$5$",
		"passlib md5_crypt":                 "fast digest",
		"passlib apr_md5_crypt":             "fast digest",
		"passlib ldap_plaintext":            "no hash of a known scheme",
		"passlib hex_sha256":                "fast digest",
		"passlib grub_pbkdf2_sha512":        "no hash of a known scheme",
		"passlib atlassian_pbkdf2_sha1":     "SHA-1",
		"argon2-cffi I":                     "only argon2id",
		"argon2-cffi D":                     "only argon2id",
		"mosquitto_passwd ":                 "is 101, out of 1000",
		"mosquitto_passwd -H sha512":        "$6$",
		"htpasswd -nbm":                     "fast digest",
		"htpasswd -nbs":                     "fast digest",
		"htpasswd -nb2":                     "$5$",
		"htpasswd -nb5":                     "$6$",
		"htpasswd -nbd":                     "no hash of a known scheme",
		"doveadm ARGON2ID":                  `"m" is 1048576, out of 1 to 131072`,
		"doveadm ARGON2I":                   "only argon2id",
		"doveadm PBKDF2":                    "SHA-1",
		"doveadm SSHA512":                   "fast digest",
		"doveadm SHA512-CRYPT":              "$6$",
		"doveadm PLAIN":                     "column secret",
		"emqx sha256":                       "fast digest",
	}
	text, err := os.ReadFile("testdata/hashes.tsv")
	if err != nil {
		t.Fatal(err)
	}
	made := strings.Split(strings.TrimSpace(string(text)), "\n")
	file := "id\thash\n"
	for n, line := range made {
		file += fmt.Sprint(n, "\t", line[strings.LastIndex(line, "\t")+1:], "\n")
	}
	s := newShell(t)
	r := s.run(file, "device", "import", "-")
	accepted := 0
	for n, line := range made {
		parts := strings.Split(line, "\t")
		maker, secret, other := parts[0], parts[1], parts[2]
		_, rest, failed := strings.Cut(r.stderr, fmt.Sprintf("-:%d: ", n+2))
		message, _, _ := strings.Cut(rest, "\n")
		if want, found := refused[maker]; found || failed {
			delete(refused, maker)
			if !failed || !strings.Contains(message, cmp.Or(want, "no refusal")) ||
				strings.Contains(message, other[len(other)-8:]) ||
				maker != "doveadm PLAIN" && !strings.Contains(message, "--generate new secrets") {
				t.Errorf("%s: got %q, want a refusal with %q", maker, message, want)
			}
			continue
		}
		accepted++
		stored := hash(s, fmt.Sprint(n))["hash"]
		if err := passhash.Compare(stored, secret); err != nil {
			t.Errorf("%s: %s: %v", maker, stored, err)
		}
		if err := passhash.Compare(stored, secret+"x"); !errors.Is(err, passhash.ErrMismatch) {
			t.Errorf("%s: another secret: %v", maker, err)
		}
	}
	if accepted != 19 || len(refused) > 0 {
		t.Errorf("%d were accepted; not in the file: %v", accepted, refused)
	}
}

// TestTranslateHash: forms of prefixes, and hashes that are cut off.
func TestTranslateHash(t *testing.T) {
	argon2 := "$argon2id$v=19$m=64,t=1,p=1$2QkFRP6mVYu6vTyO14EB6Q$hQBpnk5Zki39GOGTgUYqVyq8nFVILsNxQPxXHhCoDlE"
	for text, want := range map[string]string{
		"{crypt}" + readyHash: readyHash, "{bcrypt}" + readyHash: readyHash, "{BCRYPT}" + readyHash: readyHash,
		"{BLF-CRYPT}" + readyHash: readyHash, "bcrypt$" + readyHash: readyHash, "{ARGON2}" + argon2: argon2,
		"{argon2@SpringSecurity_v5_8}" + argon2: argon2, "argon2" + argon2: argon2,
		"{CRYPT}{CRYPT}" + readyHash: "no hash", "{pbkdf2}abcd": "this form of PBKDF2", "{CRYPT}$6$salt$key": "$6$",
		"pbkdf2:sha256$salt0000$00":                                     "no hash", // of an unknown number of iterations
		"pbkdf2:sha256:1000$salt0000$000":                               "damaged",
		"pbkdf2:sha256:1000$salt0000$00":                                "characters",
		"pbkdf2_sha256$1000$salt0000$AA":                                "damaged",
		"scrypt:1000:8:1$salt0000$00":                                   "power of two",
		"scrypt:0:8:1$salt0000$00":                                      "power of two",
		"scrypt:99999999999:8:1$salt0000$00":                            "power of two",
		"scrypt$16384$salt0000$8$1$=":                                   "damaged",
		"scrypt:262144:8:1$salt0000$" + strings.Repeat("00", 32):        `"ln" is 18, out of 1 to 17`,
		"$argon2id$m=64,t=1,p=1$AAAAAAAAAAA$" + strings.Repeat("A", 43): "argon2id without v=19",
	} {
		got, err := translateHash(text)
		if got != want && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %q, %v, want %q", text, got, err, want)
		}
	}
}
