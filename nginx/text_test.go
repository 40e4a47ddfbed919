package nginx_test

import (
	"encoding/base64"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/wire"
	"github.com/gatehouse/gatehouse/wire/limits"
	"github.com/gatehouse/gatehouse/wire/objectkey"
)

// The tests of texts and paths give the same random input to the plugin and to the Go code that it mirrors.

// textSeed is the seed of their inputs, and textBatch how many cases one call has.
const (
	textSeed  = 7
	textBatch = 2000
)

// textCases returns how many cases a test has.
func textCases(t testing.TB, usual int) int {
	n, _ := caseCount(t, usual)
	return n
}

// packTexts returns texts as text_cases.lua reads them.
func packTexts(texts ...string) string {
	var all []byte
	for _, text := range texts {
		all = append(binary.LittleEndian.AppendUint32(all, uint32(len(text))), text...)
	}
	return base64.StdEncoding.EncodeToString(all)
}

// unpackTexts returns the texts of a result of text_cases.lua.
func unpackTexts(t testing.TB, packed string) (texts []string) {
	t.Helper()
	all, err := base64.StdEncoding.DecodeString(packed)
	if err != nil {
		t.Fatal(err)
	}
	for len(all) >= 4 {
		n := binary.LittleEndian.Uint32(all)
		texts, all = append(texts, string(all[4:4+n])), all[4+n:]
	}
	return texts
}

// inLua returns the texts that a function of text_cases.lua returns for texts.
func inLua(t testing.TB, function string, args ...any) []string {
	t.Helper()
	var result []string
	call(t, &result, "text_cases", function, args...)
	return unpackTexts(t, result[0])
}

// textPicker makes up texts.
type textPicker struct{ *rand.Rand }

func newTextPicker(of uint64) textPicker { return textPicker{rand.New(rand.NewPCG(textSeed, of))} }

func (p textPicker) of(texts ...string) string { return texts[p.IntN(len(texts))] }

// some returns up to most of these texts, joined.
func (p textPicker) some(most int, texts ...string) string {
	var s strings.Builder
	for range p.IntN(most + 1) {
		s.WriteString(p.of(texts...))
	}
	return s.String()
}

// bytes returns up to most bytes of any kind.
func (p textPicker) bytes(most int) string {
	b := make([]byte, p.IntN(most+1))
	for i := range b {
		b[i] = byte(p.IntN(256))
	}
	return string(b)
}

// spoil changes some bytes of a text, or cuts it.
func (p textPicker) spoil(s string, with ...string) string {
	for range p.IntN(3) {
		at := p.IntN(len(s) + 1)
		switch p.IntN(4) {
		case 0:
			s = s[:at] + p.of(with...) + s[at:]
		case 1:
			if at < len(s) {
				s = s[:at] + p.of(with...) + s[at+1:]
			}
		case 2:
			if at < len(s) {
				s = s[:at] + s[at+1:]
			}
		case 3:
			if p.IntN(4) == 0 {
				s = s[:at]
			}
		}
	}
	return s
}

// escaped is what texts with escapes are made of.
var escaped = []string{"%", "%%", "%4", "%41", "%6c", "%6C", "%c3%a9", "%C3%a9", "%0", "%0a", "%00", "%gg", "%2", "%25", "%2541", "%aF", "a", "b", "/", "?", "&",
	"=", "+", ".", ";", "é", "\xff", "\x00", "@", "lang", "page", "[", "%5B", "%5bx%5D", "zz", "%2b", "%20", " "}

func TestPercentDecode(t *testing.T) {
	p := newTextPicker(1)
	for left := textCases(t, 5000); left > 0; left -= textBatch {
		var cases []string
		for range min(left, textBatch) {
			cases = append(cases, p.some(12, escaped...)+p.bytes(p.IntN(3)))
		}
		decoded, upper := inLua(t, "each_text", "percent_decode", packTexts(cases...)), inLua(t, "each_text", "upper_escapes", packTexts(cases...))
		for i, s := range cases {
			if want := objectkey.PercentDecode(s); decoded[i] != want {
				t.Fatalf("%q: got %q decoded, want %q", s, decoded[i], want)
			}
			if want := string(objectkey.AppendUpperEscapes(nil, s)); upper[i] != want {
				t.Fatalf("%q: got %q in upper case, want %q", s, upper[i], want)
			}
		}
	}
}

func TestValidKey(t *testing.T) {
	p := newTextPicker(2)
	for left := textCases(t, 5000); left > 0; left -= textBatch {
		var cases []string
		for range min(left, textBatch) {
			s := p.of("", "@", "@dev/", "/", "/a?", "@d?e/", "x") + p.some(6, "a", "/", "?", "&", "@", "é", "\x7f", " ", ",", `"`, "~", "!", "\x00", "%41")
			switch p.IntN(8) {
			case 0:
				s += strings.Repeat("&", limits.MaxPairs-3+p.IntN(5))
			case 1:
				s += strings.Repeat("x", limits.MaxKey-6+p.IntN(9))
			case 2:
				s += strings.Repeat("x", limits.MaxDeviceID-6+p.IntN(9))
			case 3:
				s = string(rune(p.IntN(256))) + s
			case 4:
				s = "@" + strings.Repeat("x", limits.MaxDeviceID-2+p.IntN(4)) + "/a"
			}
			cases = append(cases, s)
		}
		keys, ids := inLua(t, "each_text", "valid_key", packTexts(cases...)), inLua(t, "each_text", "valid_device_id", packTexts(cases...))
		for i, s := range cases {
			if got, want := keys[i] == "1", limits.ValidKey(s); got != want {
				t.Fatalf("key %q: got %v, want %v", s, got, want)
			}
			if got, want := ids[i] == "1", limits.ValidDeviceID(s); got != want {
				t.Fatalf("id %q: got %v, want %v", s, got, want)
			}
		}
	}
	for c := range 256 {
		s := string([]byte{byte(c)})
		if got, want := inLua(t, "each_text", "valid_device_id", packTexts(s))[0] == "1", limits.ValidDeviceID(s); got != want {
			t.Errorf("id %q: got %v, want %v", s, got, want)
		}
	}
}

// names are sets of the parameters that count; nil: all.
var names = [][]string{nil, {}, {""}, {"lang"}, {"page", "lang"}, {"page[x]", "a b", "é"}, {"%41", "a+b", "b"}}

// query returns a query.
func (p textPicker) query() string {
	switch p.IntN(12) {
	case 0: // around the maximum
		var pairs []string
		for range limits.MaxPairs - 3 + p.IntN(6) {
			pairs = append(pairs, p.of("", "a", "b=1", "lang=x", "c=2", strconv.Itoa(p.IntN(100))))
		}
		return strings.Join(pairs, "&")
	case 1:
		return strings.Repeat("a=b&", p.IntN(900)) + p.some(3, escaped...)
	}
	var pairs []string
	for range p.IntN(8) {
		pairs = append(pairs, p.of("", "a", "b", "ab", "lang", "l%61ng", "%6cang", "page", "page%5Bx%5d", "page[x]", "a+b", "a%20b", "a%2Bb", "%C3%a9", "é", "%41", "A",
			"\xff", "\x00", p.some(2, escaped...))+p.of("", "=", "=1", "=2", "==", "=é", "="+p.some(2, escaped...)))
	}
	return strings.Join(pairs, "&")
}

func TestCanonicalQuery(t *testing.T) {
	p := newTextPicker(3)
	const batch = textBatch / 4 // so that a few are of each set of names
	for left, round := textCases(t, 10_000), 0; left > 0; left, round = left-batch, round+1 {
		var cases []string
		for range min(left, batch) {
			cases = append(cases, p.query())
		}
		only := names[round%len(names)]
		var packed any
		if only != nil {
			packed = packTexts(only...)
		}
		got := inLua(t, "canonical_query", packTexts(cases...), packed)
		for i, s := range cases {
			if want := objectkey.CanonicalQuery(s, only); got[i] != want {
				t.Fatalf("%q of %q: got %q, want %q", s, only, got[i], want)
			}
		}
	}
}

// textNow is the time of decisions, unix ms.
const textNow = 1_700_000_000_000

// oneObject is shared memory with one object. It remembers the place of the last one that was looked for.
type oneObject struct {
	record []byte
	place  uint32
	looked bool
}

func (m *oneObject) Record(region wire.Region, index uint32) []byte {
	if region == wire.RegionObjects {
		m.place, m.looked = index, true
	}
	return m.record
}

// Body returns the slot of a variant.
func (m *oneObject) Body(_ uint64, v wire.Variant) *policy.Body {
	return &policy.Body{Bytes: []byte{byte(v.Slot)}}
}

func (m *oneObject) Guard() uint64 { return 0 }

// textEdge is an edge with one rule, a state, and shared memory.
type textEdge struct {
	*policy.Engine
	state  wire.State
	memory oneObject
}

func newTextEdge(t testing.TB, cache map[string]any) *textEdge {
	t.Helper()
	rule := map[string]any{"match": map[string]any{"prefix": "/"}, "cache": cache}
	tree := map[string]any{"rules": []any{rule}, "stale": "serve"}
	if cache["scope"] != nil {
		rule["auth"] = map[string]any{}
		tree["credentials"] = map[string]any{"id_header": "x-id", "secret_header": "x-secret"}
	}
	c, err := policy.Parse(tree)
	if err != nil {
		t.Fatal(err)
	}
	return &textEdge{Engine: policy.NewEngine(c), state: wire.State{Epoch: 1, ObjectBuckets: 1, VerdictBuckets: 1}}
}

// put makes o the only object, under the key "/".
func (e *textEdge) put(nowMS int64, o wire.Object) {
	o.Key = "/"
	_, tag := e.state.Keys.Place(o.Key, e.state.ObjectBuckets)
	e.memory.record = wire.FinishRecord(wire.AppendObject(wire.AppendObjectsHeader(e.memory.record[:0], 1, 1), tag, &o), 0)
	e.state.InStepMS = o.PublishedMS + 10_000 // long enough ago for Last-Modified
	e.SetState(nowMS, e.state)
}

// get returns the decision on a GET of a target with headers, names and values in turn.
func (e *textEdge) get(t testing.TB, nowMS int64, target string, headers ...string) (d policy.Decision) {
	t.Helper()
	all := [][2]string{{":method", "GET"}, {":path", target}}
	for i := 0; i < len(headers); i += 2 {
		all = append(all, [2]string{headers[i], headers[i+1]})
	}
	fields, ok := headermap.ParseFields(headermap.Append(nil, all))
	if !ok {
		t.Fatal("malformed headers")
	}
	at, r := e.Locate(fields), e.Read(fields, nil)
	e.Govern(&r, &at)
	e.memory.looked = false
	e.Decide(&d, nowMS, &r, &e.memory, &policy.Answers{Verify: &wire.VerifyResponse{Outcome: wire.Allow, Epoch: e.state.Epoch}})
	return d
}

// TestKey compares keys by the places at which an edge looks for them.
func TestKey(t *testing.T) {
	p := newTextPicker(4)
	found := 0
	for left, round := textCases(t, 20_000), 0; left > 0; left, round = left-textBatch, round+1 {
		only, perDevice := names[round%len(names)], p.IntN(2) == 0
		if slices.Contains(only, "") {
			only = nil // not in a configuration
		}
		cache := map[string]any{}
		var query any
		if only != nil {
			query = packTexts(only...)
			list := []any{}
			for _, name := range only {
				list = append(list, name)
			}
			cache["query"] = list
		}
		if perDevice {
			cache["scope"] = "device"
		}
		e := newTextEdge(t, cache)
		e.state.ObjectBuckets = 1<<32 - 1 // a place is a hash of the key
		e.SetState(textNow, e.state)
		var cases []string
		for range min(left, textBatch) {
			target := "/" + p.some(5, "a", "b", "c/", "%41", "%c3%a9", "%Aa", "%", "%a", "x", "@")
			if p.IntN(8) == 0 {
				unit := p.of("x", "%ab", "%61", "y")
				target += strings.Repeat(unit, max(0, limits.MaxKey*(1+p.IntN(2))+p.IntN(8)-4-len(target))/len(unit))
			}
			if p.IntN(4) > 0 {
				target += "?" + p.query()
			}
			cases = append(cases, target, "d"+p.some(2, "%aa", "1", "@", "x"))
		}
		got := inLua(t, "keys", packTexts(cases...), query, perDevice)
		for i := 0; i < len(cases); i += 2 {
			target, id := cases[i], cases[i+1]
			d := e.get(t, textNow, target, "x-id", id, "x-secret", "s")
			if d.Status == 403 { // an ambiguous path
				continue
			}
			if !strings.HasPrefix(got[i], "+") {
				if e.memory.looked {
					t.Fatalf("%q of %q: got no key", target, only)
				}
				continue
			}
			found++
			place, _ := e.state.Keys.Place(got[i][1:], e.state.ObjectBuckets)
			if !e.memory.looked || place != e.memory.place {
				t.Fatalf("%q of %q, by device: %v: got key %q; looked for: %v", target, only, perDevice, got[i], e.memory.looked)
			}
			if !perDevice && only == nil && objectkey.Canonical(target) != got[i][1:] {
				t.Fatalf("%q: got key %q", target, got[i])
			}
			path, query, _ := strings.Cut(target, "?")
			want := target
			if len(only) == 0 && limits.ValidQuery(query) && len(target) <= 2*limits.MaxKey {
				want = path
			}
			if got[i+1] != want {
				t.Fatalf("%q of %q: got %q as what counts, want %q", target, only, got[i+1], want)
			}
		}
	}
	if found < textCases(t, 20_000)/4 {
		t.Errorf("only %d targets have a key", found)
	}
}

func TestNoneMatch(t *testing.T) {
	p := newTextPicker(5)
	e := newTextEdge(t, map[string]any{})
	tags := []string{`"v1"`, `"v2"`, `""`, `"a,b"`, `"é"`, `"` + strings.Repeat("x", 126) + `"`}
	matched := 0
	for left := textCases(t, 20_000); left > 0; left -= textBatch {
		tag := p.of(tags...)
		o := wire.Object{Version: 1, PublishedMS: textNow - 5000, ETag: tag, ContentType: "text/plain"}
		o.AddVariant(wire.Variant{Length: 1, Stamp: 1})
		e.put(textNow, o)
		var cases []string
		for range min(left, textBatch) {
			var list string
			switch p.IntN(10) {
			case 0:
				list = p.some(3, " ", "\t", "*", ",", "W/")
			case 1:
				list = p.bytes(6) + tag
			case 2: // many tags
				list = strings.Repeat(p.of(`"x",`, `"x"`, `W/"x", `), p.IntN(400)) + tag
			case 3: // and separators
				list = strings.Repeat(p.of(",", " ", "\t"), p.IntN(400)) + tag
			case 4:
				list = `"x"` + strings.Repeat(p.of(",", " ", ", "), 30+p.IntN(36)) + p.of("", "W/") + tag
			default:
				list = p.some(6, `"v1"`, `"v2"`, `""`, `W/`, `W/"v1"`, ",", ", ", " ", "\t", `"`, `"a,b"`, "x", "*", "w/", "W", "\x00", "\xff", `"é"`, "/")
			}
			cases = append(cases, list, tag)
		}
		var got []string
		call(t, &got, "text_cases", "none_match", packTexts(cases...))
		for i := 0; i < len(cases); i += 2 {
			d := e.get(t, textNow, "/", "if-none-match", cases[i])
			if want := d.Status == 304; want != (got[0][i/2] == '1') || !want && d.Status != 200 {
				t.Fatalf("%q of %q: got %c, want %v", tag, cases[i], got[0][i/2], want)
			} else if want {
				matched++
			}
		}
	}
	if matched == 0 {
		t.Error("nothing matched")
	}
}

func TestChoose(t *testing.T) {
	p := newTextPicker(6)
	e := newTextEdge(t, map[string]any{})
	chosen := [wire.Encodings + 1]int{}
	for left := textCases(t, 20_000); left > 0; left -= textBatch {
		var cases []string
		for range min(left, textBatch) {
			var items []string
			for range p.IntN(6) {
				name := p.of("gzip", "x-gzip", "br", "zstd", "identity", "*", "GZIP", "Br", "z\u017ftd", "Z\u017fTD", "\u017f", "gz\u0131p", "\u0130dentity", "b\xff", "", "deflate", "z\u0073td", "brs", "gzip br")
				quality := p.of("", "", ";q=1", ";q=0", ";q=0.5", ";q=0.501", ";q=0.5011", ";q=1.000", ";q=1.5", ";q=0.", "; q=0.3", ";\tQ=0.4 ", ";q", ";q=", ";q=2", ";q=x", ";q=0.0x1",
					";q=0.3;q=0.9", ";", "; ", ";q =1", ";q= 1", ";q=00", ";q=1.", ";q=0,5", ";q=0.1"+p.bytes(1))
				items = append(items, p.some(1, " ", "\t", "\v")+name+p.some(1, " ", "\t")+quality+p.some(1, " ", "\t"))
			}
			var variants string
			for range 1 + p.IntN(4) {
				variants += string([]byte{byte(p.IntN(int(wire.Encodings))), byte(p.IntN(4))})
			}
			list := p.spoil(strings.Join(items, ","), ",", ";", "q", "=", " ", "\x00", "\xc5", "\xbf")
			cases = append(cases, list, variants)
		}
		var got [][]int
		call(t, &got, "text_cases", "choose", packTexts(cases...))
		for i := 0; i < len(cases); i += 2 {
			o := wire.Object{Version: 1, PublishedMS: textNow - 5000, ETag: `"v1"`, ContentType: "text/plain"}
			for at := 0; at < len(cases[i+1]); at += 2 {
				o.AddVariant(wire.Variant{Encoding: wire.Encoding(cases[i+1][at]), Length: uint32(cases[i+1][at+1]), Slot: uint32(at/2 + 1), Stamp: 1})
			}
			e.put(textNow, o)
			d := e.get(t, textNow, "/", "accept-encoding", cases[i])
			want := 0
			if d.Action == policy.Reply {
				want = int(d.Body[0])
			}
			if got[0][i/2] != want {
				t.Fatalf("%q of %q: got %d, want %d", cases[i], cases[i+1], got[0][i/2], want)
			}
			chosen[want]++
		}
	}
	if slices.Contains(chosen[:], 0) {
		t.Errorf("chosen were %v, want each", chosen)
	}
}
