package apikey

import (
	"fmt"
	"hash/crc32"
	"regexp"
	"strings"
	"testing"
)

// random is the golden random part: the checksum is Python's, zlib.crc32(b"gh_" + random).
const random = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

func TestSplit(t *testing.T) {
	secret := Secret(random)
	tail := secret[len(Prefix):]
	for _, tt := range []struct{ name, key, id string }{
		{"a key", "gh_dev_" + tail, "dev"},
		{"an id with _", "gh__a_b__" + tail, "_a_b_"},
		{"an id that ends like a secret", "gh_x_" + tail + "_" + tail, "x_" + tail},
		{"an id that begins like a key", "gh_gh_dev_" + tail, "gh_dev"},
		{"the longest id", "gh_" + strings.Repeat("d", 128) + "_" + tail, strings.Repeat("d", 128)},
		{"a secret alone", secret, ""},
		{"no id", "gh__" + tail, ""},
		{"an id that is too long", "gh_" + strings.Repeat("d", 129) + "_" + tail, ""},
		{"an id with a slash", "gh_a/b_" + tail, ""},
		{"an id with a blank", "gh_a b_" + tail, ""},
		{"two keys", "gh_a_" + tail + ",gh_b_" + tail, ""},
		{"another prefix", "GH_dev_" + tail, ""},
		{"a byte less", "gh_dev_" + tail[1:], ""},
		{"a byte more", "gh_dev_" + tail + "0", ""},
		{"another sign before the random part", "gh_dev-" + tail, ""},
		{"another sign before the checksum", "gh_dev_" + strings.Replace(tail, "_", "-", 1), ""},
		{"nothing", "", ""},
	} {
		id, got, ok := Split(tt.key)
		if ok != (tt.id != "") || id != tt.id || ok && got != tail {
			t.Errorf("%s: got %q %q %t, want the id %q", tt.name, id, got, ok, tt.id)
		}
	}
}

func TestSecret(t *testing.T) {
	secret := Secret(random)
	if want := "gh_ABCDEFGHIJKLMNOPQRSTUVWXYZ_e797b453"; secret != want {
		t.Errorf("got %s, want %s", secret, want)
	}
	if key, ok := Of("a_b", secret); !ok || key != "gh_a_b_"+secret[3:] {
		t.Errorf("got %q, want the key of a_b", key)
	}
	for _, id := range []string{"", "a/b"} {
		if key, ok := Of(id, secret); ok {
			t.Errorf("got key %q for id %q, want none", key, id)
		}
	}
	for i := range secret { // one wrong character
		wrong := secret[:i] + string('A'+(secret[i]+1)%26) + secret[i+1:]
		if wrong != secret && IsSecret(wrong) {
			t.Errorf("%s: has a right checksum", wrong)
		}
	}
	for _, wrong := range []string{"", "secret", strings.ToUpper(secret), secret + "0", secret[1:]} {
		if _, ok := Of("dev", wrong); ok || IsSecret(wrong) {
			t.Errorf("%q: taken for a generated secret", wrong)
		}
	}
}

var key = regexp.MustCompile(`^gh_([!-~]{1,128})_(.{26}_.{8})$`)

// FuzzSplit compares the parser with a regular expression, and the checksum with fmt's.
func FuzzSplit(f *testing.F) {
	tail := Secret(random)[len(Prefix):]
	for _, seed := range []string{"gh_dev_" + tail, "gh__" + tail, "gh_a_b_" + tail, "gh_a,b_" + tail, "gh_" + tail,
		"gh_dev_" + strings.ToLower(tail)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var id, rest string
		if parts := key.FindStringSubmatch(latin(text)); parts != nil && !strings.ContainsAny(parts[1], `/?,"`) {
			id, rest = text[3:3+len(parts[1])], text[len(text)-35:]
		}
		gotID, got, ok := Split(text)
		if ok != (id != "") || gotID != id || got != rest {
			t.Fatalf("%q: got %q %q %t, want %q %q", text, gotID, got, ok, id, rest)
		}
		if !ok {
			return
		}
		secret := "gh_" + rest
		right := regexp.MustCompile(`^gh_[A-Z2-7]{26}_`).MatchString(secret) &&
			secret[30:] == fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(secret[:29])))
		if IsSecret(secret) != right {
			t.Fatalf("%q: got %t, want %t", secret, !right, right)
		}
		if whole, found := Of(id, secret); found != right || right && whole != text {
			t.Fatalf("%q: got the key %q, %t", text, whole, found)
		}
	})
}

// latin maps bytes to characters, so that a regular expression counts bytes.
func latin(text string) string {
	var b strings.Builder
	for i := range len(text) {
		c := rune(text[i])
		if c == '\n' {
			c = 0x100
		}
		b.WriteRune(c)
	}
	return b.String()
}
