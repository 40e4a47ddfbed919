package objectkey

import (
	"slices"
	"testing"
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
		"//shop": "//shop", "@d//shop//X": "@d//shop//X", "/A:B/C": "/A:B/C", "//": "//",
	} {
		if got := Canonical(key); got != want || Canonical(got) != want {
			t.Errorf("%s: got %s, want %s", key, got, want)
		}
	}
}
