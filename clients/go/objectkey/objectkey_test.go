package objectkey

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/testbed/seed"
)

func TestCanonicalQuery(t *testing.T) {
	tests := []struct {
		name, query string
		only        []string
		want        string
	}{
		{"none", "", nil, ""},
		{"none, some names", "", []string{"a"}, ""},
		{"one", "lang=de", nil, "lang=de"},
		{"sorted", "b=2&a=1&c=3", nil, "a=1&b=2&c=3"},
		{"sorted bytewise", "b=1&a=10&B=0&ab=1&a-b=1", nil, "B=0&a=10&a-b=1&ab=1&b=1"},
		{"empty pairs", "&&a=1&&b=2&", nil, "a=1&b=2"},
		{"only empty pairs", "&&&", nil, ""},
		{"no value", "b&a", nil, "a&b"},
		{"no name", "=1&a=2", nil, "=1&a=2"},
		{"one name keeps its order", "a=9&b=1&a=10&a&a=9", nil, "a=9&a=10&a&a=9&b=1"},
		{"second equals sign", "a=b=c", nil, "a=b=c"},
		{"not decoded", "%61=1&a=1&a=+", nil, "%61=1&a=1&a=+"},
		{"semicolons separate nothing", "b=1;a=2", nil, "b=1;a=2"},
		{"some names", "utm=x&lang=de&page=2", []string{"page", "lang"}, "lang=de&page=2"},
		{"some names, repeated", "a=2&b=1&a=1", []string{"a"}, "a=2&a=1"},
		{"some names, encoded otherwise", "%6cang=de&LANG=en&l%61n%67&lan=x&lang%20=x&la%zzng=x&%6=x",
			[]string{"lang"}, "%6cang=de&l%61n%67"},
		{"some names, with signs", "page%5Bnumber%5d=2&page[number]=3&a+b=1&a%20b=2&a%2Bb=3", []string{"page[number]", "a b"},
			"a%20b=2&a+b=1&page%5Bnumber%5d=2&page[number]=3"},
		{"a name that begins another", "lang=de&language=x", []string{"lang"}, "lang=de"},
		{"a name without a value", "lang&x", []string{"lang"}, "lang"},
		{"the empty name", "=1&a=2&&", []string{""}, "=1"},
		{"no names", "a=1&b=2", []string{}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			only := slices.Clone(tt.only)
			if got := CanonicalQuery(tt.query, only); got != tt.want || !slices.Equal(only, tt.only) {
				t.Errorf("got %q (names %q), want %q (names %q)", got, only, tt.want, tt.only)
			}
		})
	}
}

func TestCanonicalKey(t *testing.T) {
	for key, want := range map[string]string{
		"/a": "/a", "/%c3%a9": "/%C3%A9", "/%C3%A9": "/%C3%A9", "/%": "/%", "/%a": "/%a",
		"/%ag%ab": "/%ag%AB", "/%%ab": "/%%AB",
		"/a?b=%ab&%aa=1": "/a?%AA=1&b=%AB", "/a?b&a": "/a?a&b", "/a?": "/a",
		"@d%aa/%ab": "@d%aa/%AB", "@%aa": "@%aa", "/abcdef%": "/abcdef%",
		"//shop:A.Example/%ab?b&a": "//shop:a.example/%AB?a&b", "@D:A//:A/A": "@D:A//:a/A", "//Shop/x": "//Shop/x",
		"/a?b&a#EN-gb": "/a?a&b#en-gb", "/%ab#DE": "/%AB#de", "/a?#de": "/a#de", "@D#E/a#DE": "@D#E/a#de", "/a#": "/a#",
		"//shop:A/?b&a#%ab": "//shop:a/?a&b#%ab",
		"//shop":            "//shop", "@d//shop//X": "@d//shop//X", "/A:B/C": "/A:B/C", "//": "//",
	} {
		if got := Canonical(key); got != want || Canonical(got) != want {
			t.Errorf("%s: got %s, want %s", key, got, want)
		}
	}
}

// TestKeysAreApart: a key has device, virtual host, host and path, so different combinations have different keys.
func TestKeysAreApart(t *testing.T) {
	form := regexp.MustCompile(`^(?:@([^/]+))?(?://([a-z0-9_-]*)(?::([^/]+))?(/.*)|(/(?:[^/].*)?))$`)
	seed := seed.Of(t)
	r := rand.New(rand.NewPCG(seed, 0))
	text := func(from string, least int) string {
		b := make([]byte, least+r.IntN(4))
		for i := range b {
			b[i] = from[r.IntN(len(from))]
		}
		return string(b)
	}
	for range 100_000 {
		want := [4]string{text("@:a-[]", 0), text("a-_9", 0), "", "/" + text("//:@a.?", 0)}
		if host := text("a:.", 0); r.IntN(2) == 0 && limits.ValidHost(host) {
			want[2] = host
		} else if host = "[" + host + "]"; limits.ValidHost(host) && r.IntN(2) == 0 {
			want[2] = host
		}
		key := want[3]
		switch {
		case want[1]+want[2] != "":
			key = OfVirtualHost(want[1], want[2], key)
		case len(key) > 1 && key[1] == '/':
			continue // it has none
		}
		if want[0] != "" {
			key = OfDevice(want[0], key)
		}
		parts := form.FindStringSubmatch(key)
		if parts == nil || [4]string{parts[1], parts[2], parts[3], parts[4] + parts[5]} != want {
			t.Fatalf("seed %d: %q has the key %s, which is read as %q", seed, want, key, parts)
		}
		space, target := Split(key)
		if target != want[3] || space+target != key || !limits.ValidKey(key) {
			t.Fatalf("seed %d: %q has the key %s, which is split into %s and %s, valid %v", seed, want, key, space, target,
				limits.ValidKey(key))
		}
	}
}
