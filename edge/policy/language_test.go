package policy

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/wire/limits"
)

func TestLookup(t *testing.T) {
	languages := []string{"de", "en-gb", "en", "zh-hant", "sr-latn-rs", "fr-x-a", "pt-br"}
	for accept, want := range map[string]string{
		"": "", "de": "de", "DE": "de", "de-CH": "de", "de-Latn-CH-1996": "de", "d": "", "des": "", "de-": "de", "-de": "",
		"en-GB": "en-gb", "en-GB-oed": "en-gb", "en-US": "en", "EN-us, de": "en", "xx, yy-ZZ, de": "de",
		"pt": "", "pt-PT": "", "pt, pt-BR;q=0.1": "pt-br", "zh-Hant-TW": "zh-hant", "zh-Hans": "", "zh": "",
		// Each range is looked up whole before the next one.
		"fr-CA, de;q=0.9": "de", "en-US, en-GB": "en", "en-GB;q=0.8, en-US;q=0.9": "en", "sr-Latn-RS-x-y": "sr-latn-rs",
		"sr-Latn": "", "de;q=0.5, en;q=0.5": "de", "en;q=0.5, de;q=0.5": "en", "de;q=0.1,en;q=0.2,en-GB;q=0.3": "en-gb",
		// A subtag of one character is removed with the next.
		"de-x-y": "de", "de-a": "de", "fr-x-a": "fr-x-a", "fr-x-a-b": "", "fr-x": "",
		// A wildcard tells nothing.
		"*": "", "*, de": "de", "*;q=0.9, de;q=0.1": "de", "de;q=0.1, *": "de", "de-*": "de", "*-CH": "", "*;q=0": "",
		"*;q=0, de": "de",
		// q=0 refuses.
		"de;q=0": "", "de;q=0.0": "", "de;q=0, en": "en", "en-GB;q=0, en": "en", "en;q=0, en-GB": "en-gb",
		"en-US, en;q=0": "", "en-GB-oed, en;q=0": "", "en-GB-oed, en-GB;q=0": "en", "en-US, en-GB;q=0": "en",
		"de-CH, de;q=0, en;q=0.1": "en", "en;q=0, en-GB;q=0.1, de;q=0.05": "en-gb",
		"en-GB-oed, en-GB;q=0, en;q=0": "",
		// Malformed.
		"de;q=2": "", "de;q=x": "", "de;q": "", "de;level=1": "", "de;q=-1": "", "de;q=1.0000": "", "de;q=x, en": "en",
		"de;q=1.000": "de", "de;q=0.001": "de", "de ; q=0.5": "de", "de;Q=0.5": "de", " de\t": "de", ",,de,,": "de", ",": "", ";": "",
		";q=1": "", "de;": "de", "de_DE": "", "dé": "", "de\x00": "", "de en": "", "\xff": "", "DE\u0130": "",
		strings.Repeat("x,", 254) + "de":  "de",
		strings.Repeat("x,", 255) + "de,": "",
	} {
		got := ""
		if i := lookup(languages, accept); i >= 0 {
			got = languages[i]
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", accept, got, want)
		}
		slices.Reverse(languages) // their order doesn't matter
	}
}

// lookupByRFC is the lookup of RFC 4647, section 3.4, step by step, with the weights of RFC 9110, section 12.4.2.
func lookupByRFC(languages []string, acceptLanguage string) string {
	type weighted struct {
		tag    string
		weight float64
	}
	var all, refused []weighted
	for item := range strings.SplitSeq(acceptLanguage, ",") {
		tag, params, has := strings.Cut(item, ";")
		w := weighted{strings.ToLower(strings.Trim(tag, " \t")), 1}
		if params = strings.ToLower(strings.Trim(params, " \t")); has && params != "" {
			w.weight = -1
			digits, found := strings.CutPrefix(params, "q=")
			if q, err := strconv.ParseFloat(digits, 64); found && err == nil && qvalue(digits) {
				w.weight = q
			}
		}
		if w.weight > 0 {
			all = append(all, w)
		} else {
			refused = append(refused, w)
		}
	}
	slices.SortStableFunc(all, func(a, b weighted) int {
		switch {
		case a.weight > b.weight:
			return -1
		case a.weight < b.weight:
			return 1
		}
		return 0
	})
	// matched returns how long the longest of ranges is that matches language by basic filtering (section 3.3.1).
	matched := func(ranges []weighted, language string) (longest int) {
		for _, r := range ranges {
			if r.tag != "" && (r.tag == language || strings.HasPrefix(language, r.tag+"-")) {
				longest = max(longest, len(r.tag))
			}
		}
		return longest
	}
	for _, r := range all {
		for tag := r.tag; tag != ""; {
			if slices.Contains(languages, tag) && (matched(refused, tag) == 0 || matched(all, tag) > matched(refused, tag)) {
				return tag
			}
			subtags := strings.Split(tag, "-")
			subtags = subtags[:len(subtags)-1]
			if n := len(subtags); n > 0 && len(subtags[n-1]) == 1 {
				subtags = subtags[:n-1]
			}
			tag = strings.Join(subtags, "-")
		}
	}
	return ""
}

// qvalue reports whether s is a qvalue.
func qvalue(s string) bool {
	whole, rest, dot := strings.Cut(s, ".")
	if whole == "1" {
		return strings.Trim(rest, "0") == "" && len(rest) <= 3
	}
	return whole == "0" && (!dot || strings.Trim(rest, "0123456789") == "" && len(rest) <= 3)
}

func FuzzLookup(f *testing.F) {
	for _, accept := range []string{"de-CH, en;q=0.5, *;q=0.1", "en-GB-oed, en;q=0", "sr-Latn-RS-x-y", "de-a-b", "*", "de;q=0.3,fr"} {
		f.Add("de en-gb en sr-latn", accept)
	}
	f.Fuzz(func(t *testing.T, list, accept string) {
		var languages []string
		for language := range strings.FieldsSeq(list) {
			if limits.ValidLanguage(language) && !slices.Contains(languages, language) {
				languages = append(languages, language)
			}
		}
		got := ""
		if i := lookup(languages, accept); i >= 0 {
			got = languages[i]
		}
		if len(accept) > maxAcceptLanguage {
			accept = ""
		}
		for _, c := range accept {
			if c >= 0x80 {
				return // strings.ToLower changes more than ASCII
			}
		}
		if want := lookupByRFC(languages, accept); got != want {
			t.Errorf("%q among %q: got %q, want %q", accept, languages, got, want)
		}
	})
}
