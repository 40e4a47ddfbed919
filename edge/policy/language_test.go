package policy

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
)

func TestLookup(t *testing.T) {
	languages := []string{"de", "en-gb", "en", "zh-hant", "sr-latn-rs", "fr-x-a", "pt-br"}
	for accept, want := range map[string]string{
		"": "", "de": "de", "DE": "de", "de-CH": "de", "de-Latn-CH-1996": "de", "d": "", "des": "", "de-": "de", "-de": "",
		"en-GB": "en-gb", "en-GB-oed": "en-gb", "en-US": "en", "EN-us, de": "en", "xx, yy-ZZ, de": "de",
		"pt": "pt-br", "pt-PT": "pt-br", "pt, pt-BR;q=0.1": "pt-br", "zh-Hant-TW": "zh-hant", "zh-Hans": "", "zh": "",
		// Each range is looked up whole before the next one.
		"fr-CA, de;q=0.9": "de", "en-US, en-GB": "en", "en-GB;q=0.8, en-US;q=0.9": "en", "sr-Latn-RS-x-y": "sr-latn-rs",
		"sr-Latn":            "sr-latn-rs",
		"de;q=0.5, en;q=0.5": "de", "en;q=0.5, de;q=0.5": "en", "de;q=0.1,en;q=0.2,en-GB;q=0.3": "en-gb",
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
		"de;q=1.000": "de", "de;q=0.001": "de", "de ; q=0.5": "de", "de;Q=0.5": "de", " de\t": "de", ",,de,,": "de", ",": "",
		";": "", ";q=1": "", "de;": "de", "de_DE": "", "dé": "", "de\x00": "", "de en": "", "\xff": "", "DE\u0130": "",
		strings.Repeat("x,", 254) + "de":  "de",
		strings.Repeat("x,", 255) + "de,": "",
	} {
		got := ""
		if i := lookupLanguage(languages, findLanguageRanges(languages), accept); i >= 0 {
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
	for _, accept := range []string{"de-CH, en;q=0.5, *;q=0.1", "en-GB-oed, en;q=0", "sr-Latn-RS-x-y", "de-a-b", "*",
		"de;q=0.3,fr"} {
		f.Add("de en-gb en sr-latn", accept)
	}
	f.Fuzz(func(t *testing.T, list, accept string) {
		var languages []string
		for language := range strings.FieldsSeq(list) {
			if limits.ValidLanguage(language) && !slices.Contains(languages, language) {
				languages = append(languages, language)
			}
		}
		got, own := "", []languageRange(nil)
		for i, language := range languages {
			own = append(own, languageRange{language, i})
		}
		if i := lookupLanguage(languages, own, accept); i >= 0 {
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

// TestLanguages has objects in some languages, and none in English.
func TestLanguages(t *testing.T) {
	const credentials = `"credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"}, `
	rules := func(cache string) string {
		return `{` + credentials + `"rules": [{"match": {"prefix": "/"}, ` + cache + `}]}`
	}
	const german, languages = "accept-language: de-CH, en;q=0.5", `"languages": ["de", "EN-gb", "fr"]`
	plain := rules(`"cache": {` + languages + `}`)
	device := []string{"x-device-id: dev", "x-device-token: s"}
	for _, tt := range []struct {
		name, rules, target string
		lines               []string
		key                 string // of the object that answers; "" for a miss
		language            string
	}{
		{"German", plain, "/a", []string{german}, "/a#de", "de"},
		{"English", plain, "/a", []string{"accept-language: en-GB"}, "/a", ""},
		{"none of them", plain, "/a", []string{"accept-language: it"}, "/a", ""},
		{"any", plain, "/a", nil, "/a", ""},
		{"two lines", plain, "/a", []string{"accept-language: it", "accept-language: de"}, "/a#de", "de"},
		{"German only", plain, "/german", []string{german}, "/german#de", "de"},
		{"German only, for others", plain, "/german", []string{"accept-language: fr"}, "", ""},
		{"with a query", plain, "/a?x=1", []string{german}, "/a?x=1#de", "de"},
		{"which comes unsorted", plain, "/a?y=%c3&x=1", []string{german}, "/a?x=1&y=%C3#de", "de"},
		{"the publisher names it", plain, "/named", []string{german}, "/named#de", "de-DE"},
		{"a fragment", plain, "/a#de", nil, "", ""},
		{"a fragment in a query", plain, "/a?x=1#de", nil, "", ""},
		{"a fragment without languages", rules(`"cache": {}`), "/a#de", nil, "", ""},
		{"no languages", rules(`"cache": {}`), "/a", []string{german}, "/a", ""},
		{"a device", rules(`"auth": {}, "cache": {"scope": "device", ` + languages + `}`), "/me", append(device, german),
			"@dev/me#de", "de"},
		{"a device's, in no language", rules(`"auth": {}, "cache": {"scope": "device", ` + languages + `}`), "/me", device,
			"@dev/me", ""},
		{"a host", rules(`"cache": {"scope": "host", ` + languages + `}`), "/h", []string{german}, "//:edge/h#de", "de"},
	} {
		m := newMemory()
		m.guard = 1 << 8
		for _, key := range []string{"/a", "/a#de", "/german#de", "/a?x=1", "/a?x=1#de", "/a?x=1&y=%C3#de", "@dev/me",
			"@dev/me#de", "//:edge/h", "//:edge/h#de", "/named#de"} {
			o := wire.Object{Key: key, Version: 1, ETag: `"v1"`, ContentType: "text/plain"}
			if strings.HasPrefix(key, "/named") {
				o.Headers = "content-language: de-DE"
			}
			m.putObject(o, false)
		}
		m.verdict("dev", "s", wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1<<40})
		e := newEdge(t, tt.rules)
		e.SetState(now, m.state)
		for i := range 4 {
			for _, other := range []bool{true, false} { // which may be kept
				r := read(e, append([]string{"GET " + tt.target}, tt.lines...)...)
				if other {
					r = read(e, append([]string{"GET " + tt.target, "accept-language: fr"}, device...)...)
				}
				d := decideRequest(m, r)
				if other {
					continue
				}
				language, _ := headerOf(d, "content-language")
				vary, _ := headerOf(d, "vary")
				body := ""
				if tt.key != "" {
					body = `{"key":"` + tt.key + `"}`
				}
				if string(d.Body) != body || d.Key != tt.key || language != tt.language {
					t.Errorf("%s, request %d: got %q of %s, Content-Language %q; want %q, %q", tt.name, i, d.Body, d.Key, language,
						body, tt.language)
				}
				if varies := strings.Contains(vary, "accept-language"); tt.key != "" &&
					varies != strings.Contains(tt.rules, "languages") {
					t.Errorf("%s: Vary is %q", tt.name, vary)
				}
			}
		}
	}
}

// TestVaryOfLanguages: Vary names everything an answer depends on, in any language.
func TestVaryOfLanguages(t *testing.T) {
	m := newMemory()
	m.put("/a", 0)
	m.put("/private", 0)
	m.putVersion("/short", now, 0, `"v1"`, false)
	m.verdict("dev", "s", wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1<<40})
	const rules = `{"credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"}, "rules": [
		{"match": {"path": "/private"}, "auth": {}, "cache": {"languages": ["de"]}},
		{"match": {"prefix": "/"}, "cache": {"languages": ["de"]}}]}`
	for target, want := range map[string]string{"/a": "accept-language, accept-encoding", "/short": "accept-language",
		"/private": "accept-language, accept-encoding, x-device-id, x-device-token"} {
		for _, more := range []string{"x: y", `if-none-match: "v1"`} {
			d := decideAt(t, m, now, rules, "GET "+target, "x-device-id: dev", "x-device-token: s", more)
			if got, _ := headerOf(d, "vary"); got != want {
				t.Errorf("%s: %d with Vary %q, want %q", target, d.Status, got, want)
			}
		}
	}
}

// TestFetchLanguage: the sidecar is asked for the object in the client's language, and answers with the one without a
// language if there is none.
func TestFetchLanguage(t *testing.T) {
	const rules = `{"rules": [{"match": {"prefix": "/"}, "cache": {"on_miss": "fetch", "languages": ["de"]}}]}`
	m := newMemory()
	m.put("/a", 0)
	ask := func(answers Answers) Decision {
		t.Helper()
		return decide(t, m, rules, answers, "GET /a", "accept-language: de")
	}
	if d := ask(Answers{}); d.Action != Fetch || d.Key != "/a#de" {
		t.Errorf("got action %d, key %s; want a fetch of the language", d.Action, d.Key)
	}
	answer := func(key string) Answers {
		o := wire.Object{Key: key, Version: 1, ETag: `"f"`, ContentType: "text/plain"}
		o.AddVariant(wire.Variant{Encoding: wire.Identity, Length: 3})
		fetched, err := wire.ParseFetchResponse(wire.AppendFetchResponse(nil, epoch, &o, [][]byte{[]byte("abc")}))
		if err != nil {
			t.Fatal(err)
		}
		return Answers{Fetch: &fetched}
	}
	for _, key := range []string{"/a#de", "/a"} {
		d := ask(answer(key))
		language, _ := headerOf(d, "content-language")
		if d.Status != 200 || d.Key != key || string(d.Body) != "abc" || (language == "de") != (key == "/a#de") {
			t.Errorf("fetched %s: got %d %q of %s in %q", key, d.Status, d.Body, d.Key, language)
		}
	}
	for name, fetched := range map[string]wire.FetchResponse{"neither exists": {Epoch: epoch}, "no answer": {}} {
		if d := ask(Answers{Fetch: &fetched}); d.Action != Pass {
			t.Errorf("%s: got action %d, %d of %s; want upstream", name, d.Action, d.Status, d.Key)
		}
	}
	m.put("/a#de", 0)
	if d := ask(Answers{}); d.Status != 200 || d.Key != "/a#de" {
		t.Errorf("in memory: got %d of %s", d.Status, d.Key)
	}
}

// TestLongKeyHasNoLanguage: if the key with the language is too long, the key without the language is looked up.
func TestLongKeyHasNoLanguage(t *testing.T) {
	m := newMemory()
	for _, size := range []int{limits.MaxKey, limits.MaxKey - 2, limits.MaxKey - 3} {
		key := "/" + strings.Repeat("k", size-1)
		m.put(key, 0)
		d := decide(t, m, `{"rules": [{"match": {"prefix": "/"}, "cache": {"on_miss": "fetch", "languages": ["de"]}}]}`, Answers{},
			"GET "+key, "accept-language: de")
		if fetches := d.Action == Fetch; fetches != (size+3 <= limits.MaxKey) {
			t.Errorf("key of %d bytes: got action %d, key %.10s of %d bytes", size, d.Action, d.Key, len(d.Key))
		}
	}
}
