package routers

import (
	"fmt"
	"strings"
	"testing"
)

func TestSpellingIsRepeatable(t *testing.T) {
	for number := range systematicCount + 2000 {
		if a, b := newSpelling(7, number), newSpelling(7, number); a.String() != b.String() || a.number != number {
			t.Fatalf("spelling %d: got %s, then %s", number, a, b)
		}
	}
	if a, b := newSpelling(7, systematicCount), newSpelling(8, systematicCount); a.String() == b.String() {
		t.Errorf("seeds 7 and 8 both give %s", a)
	}
}

// TestSystematic expects each byte after each protected path, by both versions of HTTP.
func TestSystematic(t *testing.T) {
	seen := map[string]bool{}
	for number := range systematicCount {
		s := newSpelling(1, number)
		seen[fmt.Sprint(s.protocol, " ", s.method, " ", s.path)] = true
	}
	for _, p := range protected {
		for b := range 256 {
			for _, version := range []protocol{http11, http2} {
				want := fmt.Sprintf("%s %s %s%%%02x", version, p.method, p.path, b)
				if !seen[want] {
					t.Errorf("no %s", want)
				}
			}
		}
	}
}

// TestRandomIsWide counts the kinds of random spellings: distinct, of all protocols and identities, and with each kind
// of change.
func TestRandomIsWide(t *testing.T) {
	const n = 20000
	distinct, count := map[string]bool{}, map[string]int{}
	for number := range uint64(n) {
		s := newSpelling(3, systematicCount+number)
		distinct[s.String()] = true
		count[string(s.protocol)]++
		count["as "+s.who.name]++
		for name, has := range map[string]bool{
			"dots": strings.Contains(s.path, ".."), "escaped dots": strings.Contains(strings.ToLower(s.path), "%2e"),
			"parameters":    strings.Contains(s.path, ";"),
			"escaped slash": strings.Contains(strings.ToLower(s.path), "%2f"), "backslash": strings.Contains(s.path, `\`),
			"twice":    strings.Contains(s.path, "%25"),
			"overlong": strings.Contains(s.path, "%c0%"), "control": strings.Contains(s.path, "%0"),
			"absolute": strings.Contains(s.path, "http:"), "raw byte": strings.ContainsFunc(s.path, func(c rune) bool {
				return c > '~' || c < ' '
			}),
			"lower-case method": s.method != strings.ToUpper(s.method), "capitals": strings.Contains(s.path, "V1"),
			"overridden method": hasHeader(s, "override"), "overridden path": hasHeader(s, "original-url"),
			"prefix":        hasHeader(s, "x-forwarded-prefix"),
			"forged device": hasHeader(s, "x-gatehouse-device"), "authority": s.authority != "edge.example",
		} {
			if has {
				count[name]++
			}
		}
	}
	if len(distinct) < n*9/10 {
		t.Errorf("got %d distinct spellings of %d, want nine in ten", len(distinct), n)
	}
	for _, name := range []string{
		"HTTP/1.0", "HTTP/1.1", "HTTP/2", "as nobody", "as half", "as wrong", "as reader", "as writer", "as root",
		"dots", "escaped dots", "parameters", "escaped slash", "backslash", "twice", "overlong", "control",
		"absolute", "raw byte",
		"lower-case method", "capitals", "overridden method", "overridden path", "prefix", "forged device", "authority",
	} {
		if count[name] < 20 {
			t.Errorf("%s: got %d in %d, want 20 at least", name, count[name], n)
		}
	}
}

func hasHeader(s spelling, part string) bool {
	for _, h := range s.headers {
		if strings.Contains(strings.ToLower(h.name), part) {
			return true
		}
	}
	return false
}
