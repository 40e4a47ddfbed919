package conformance

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// bigBody returns the body of /p/big, 1 MiB of which no part repeats.
func bigBody() string {
	b := make([]byte, 1<<20)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

// ranges are requests with Range (RFC 9110, section 14). /p/plain has 5 bytes, /p/42 1,361.
var ranges = []testCase{
	{"9110 14.2", "the first bytes", "GET /p/42\nrange: bytes=0-9", 206, "hit",
		"content: {\"text\":\"t\ncontent-range: bytes 0-9/1361\ncontent-length: 10\netag: \"42\"\nvary: accept-encoding\n" +
			"content-type: application/json\ncache-control: no-cache\n!content-encoding"},
	{"9110 14.1.2", "the first byte", "GET /p/plain\nrange: bytes=0-0", 206, "hit",
		"content: p\ncontent-range: bytes 0-0/5"},
	{"9110 14.1.2", "the last byte", "GET /p/plain\nrange: bytes=4-4", 206, "hit",
		"content: n\ncontent-range: bytes 4-4/5"},
	{"9110 14.1.2", "the last byte, as a suffix", "GET /p/plain\nrange: bytes=-1", 206, "hit",
		"content: n\ncontent-range: bytes 4-4/5"},
	{"9110 14.1.2", "a suffix", "GET /p/plain\nrange: bytes=-3", 206, "hit", "content: ain\ncontent-range: bytes 2-4/5"},
	{"9110 14.1.2", "a suffix of all", "GET /p/plain\nrange: bytes=-5", 206, "hit",
		"content: plain\ncontent-range: bytes 0-4/5"},
	{"9110 14.1.2", "a suffix that is longer than the object", "GET /p/plain\nrange: bytes=-6", 206, "hit",
		"content: plain\ncontent-range: bytes 0-4/5"},
	{"9110 14.1.2", "a huge suffix", "GET /p/plain\nrange: bytes=-99999999999999999999", 206, "hit",
		"content-range: bytes 0-4/5"},
	{"9110 14.1.2", "an open range", "GET /p/plain\nrange: bytes=2-", 206, "hit",
		"content: ain\ncontent-range: bytes 2-4/5"},
	{"9110 14.1.2", "an open range of all", "GET /p/plain\nrange: bytes=0-", 206, "hit",
		"content: plain\ncontent-range: bytes 0-4/5"},
	{"9110 14.1.2", "a last byte beyond the end", "GET /p/plain\nrange: bytes=3-5", 206, "hit",
		"content: in\ncontent-range: bytes 3-4/5"},
	{"9110 14.1.2", "a last byte far beyond the end", "GET /p/plain\nrange: bytes=3-18446744073709551616", 206, "hit",
		"content: in\ncontent-range: bytes 3-4/5"},
	{"9110 15.5.17", "a first byte beyond the end", "GET /p/plain\nrange: bytes=5-", 416, "hit",
		"content: \ncontent-range: bytes */5"},
	{"9110 15.5.17", "a first byte far beyond the end", "GET /p/plain\nrange: bytes=18446744073709551616-", 416, "hit",
		"content-range: bytes */5"},
	{"9110 14.1.2", "a suffix of nothing", "GET /p/plain\nrange: bytes=-0", 416, "hit", "content-range: bytes */5"},
	{"9110 14.2", "a range of what is empty may be ignored", "GET /p/empty\nrange: bytes=0-0", 200, "hit",
		"content: \n!content-range"},
	{"9110 14.2", "a suffix of what is empty", "GET /p/empty\nrange: bytes=-5", 200, "hit", "content: \n!content-range"},
	{"9110 14.2", "all of a MiB", "GET /p/big\nrange: bytes=0-", 206, "hit",
		"content-range: bytes 0-1048575/1048576\ncontent-length: 1048576"},
	{"9110 14.2", "the middle of a MiB", "GET /p/big\nrange: bytes=262144-786431", 206, "hit",
		"content-range: bytes 262144-786431/1048576\ncontent-length: 524288"},
	{"9110 14.2", "the last byte of a MiB", "GET /p/big\nrange: bytes=1048575-", 206, "hit",
		"content-range: bytes 1048575-1048575/1048576\ncontent-length: 1"},
	{"9110 15.5.17", "beyond a MiB", "GET /p/big\nrange: bytes=1048576-", 416, "hit", "content-range: bytes */1048576"},
	{"9110 14.1", "units are case-insensitive", "GET /p/plain\nrange: BYTES=0-1", 206, "hit", "content: pl"},
	{"9110 5.6.1.2", "empty elements of a set", "GET /p/plain\nrange: bytes=, 0-1 ,", 206, "hit", "content: pl"},
	{"9110 14.2", "several ranges may be ignored", "GET /p/42\nrange: bytes=0-1, 4-5", 200, "hit",
		"content-type: application/json\n!content-range"},
	{"9110 14.2", "a range twice", "GET /p/plain\nrange: bytes=0-1, 0-1", 200, "hit", "content: plain\n!content-range"},
	{"9110 14.2", "one that can be satisfied, and one that can't", "GET /p/plain\nrange: bytes=0-1, 9-", 200, "hit",
		"content: plain"},
	{"9110 14.2", "a range of an unknown unit", "GET /p/42\nrange: items=0-5", 200, "hit", "!content-range"},
	{"9110 14.1.1", "a last byte before the first", "GET /p/plain\nrange: bytes=3-2", 200, "hit", "!content-range"},
	{"9110 14.1.1", "a last byte before the first, beyond the end", "GET /p/plain\nrange: bytes=30-20", 200, "hit",
		"!content-range"},
	{"9110 14.2", "a malformed range", "GET /p/42\nrange: bytes=5-2,x", 200, "hit", "!content-range"},
	{"9110 14.1.1", "a range without a dash", "GET /p/plain\nrange: bytes=1", 200, "hit", "!content-range"},
	{"9110 14.1.1", "only a dash", "GET /p/plain\nrange: bytes=-", 200, "hit", "!content-range"},
	{"9110 14.1.1", "a sign", "GET /p/plain\nrange: bytes=+1-2", 200, "hit", "!content-range"},
	{"9110 14.1.1", "a negative last byte", "GET /p/plain\nrange: bytes=1--2", 200, "hit", "!content-range"},
	{"9110 14.1.1", "no range", "GET /p/plain\nrange: bytes=", 200, "hit", "!content-range"},
	{"9110 14.1.1", "no unit", "GET /p/plain\nrange: 0-1", 200, "hit", "!content-range"},
	{"9110 5.5", "an empty Range", "GET /p/plain\nrange:", 200, "hit", "!content-range"},
	{"9110 5.3", "two lines of Range", "GET /p/plain\nrange: bytes=0-1\nrange: bytes=2-3", 200, "hit", "!content-range"},
	{"9110 14.2", "a range is of the identity encoding", "GET /p/42\nrange: bytes=0-9\naccept-encoding: gzip", 206, "hit",
		"content: {\"text\":\"t\n!content-encoding\netag: \"42\""},
	{"9110 14.2", "unless that isn't acceptable", "GET /p/42\nrange: bytes=0-9\naccept-encoding: gzip, identity;q=0",
		200, "hit", "content-encoding: gzip\netag: W/\"42\"\n!content-range"},
	{"9110 14.2", "another method", "POST /p/42\nrange: bytes=0-9\n\nx", 200, "fwd=method", ""},
	{"9110 14.2", "a range needs the credential", "GET /a/doc\nrange: bytes=0-9", 401, "edge", "!content-range"},
	{"9110 14.2", "a range with a credential",
		"GET /a/doc\nrange: bytes=0-9\nx-device-id: dev\nx-device-token: secret", 206, "hit",
		"content: {\"text\":\"t\ncache-control ~ private.*"},

	{"9110 13.2.2", "If-None-Match comes before Range", "GET /p/42\nrange: bytes=0-9\nif-none-match: \"42\"", 304, "hit",
		""},
	{"9110 13.2.2", "and before one that can't be satisfied", "GET /p/42\nrange: bytes=9999-\nif-none-match: \"42\"",
		304, "hit", ""},
	{"9110 13.2.2", "If-None-Match that holds lets Range count", "GET /p/plain\nrange: bytes=0-1\nif-none-match: \"43\"",
		206, "hit", "content: pl"},
	{"9110 13.2.2", "If-Match is the origin's, Range or not", "GET /p/42\nrange: bytes=0-9\nif-match: \"42\"", 200,
		"fwd=bypass", ""},
	{"9110 13.1.5", "If-Range with its tag", "GET /p/plain\nrange: bytes=0-1\nif-range: \"plain\"", 206, "hit",
		"content: pl\netag: \"plain\""},
	{"9110 13.1.5", "If-Range with its tag, of what is stored in codings",
		"GET /p/42\nrange: bytes=0-9\nif-range: \"42\"\naccept-encoding: br", 206, "hit", "content-range: bytes 0-9/1361"},
	{"9110 13.1.5", "If-Range with another tag", "GET /p/42\nrange: bytes=0-9\nif-range: \"43\"", 200, "hit",
		"!content-range"},
	{"9110 13.1.5", "If-Range with another tag, and no such range", "GET /p/plain\nrange: bytes=9-\nif-range: \"43\"",
		200, "hit", "content: plain\n!content-range"},
	{"9110 13.1.5", "If-Range with a weak tag", "GET /p/42\nrange: bytes=0-9\nif-range: W/\"42\"", 200, "hit",
		"!content-range"},
	{"9110 13.1.5", "If-Range with a list", "GET /p/42\nrange: bytes=0-9\nif-range: \"43\", \"42\"", 200, "hit",
		"!content-range"},
	{"9110 13.1.5", "If-Range with a star", "GET /p/42\nrange: bytes=0-9\nif-range: *", 200, "hit", "!content-range"},
	{"9110 13.1.5", "If-Range with another date",
		"GET /p/42\nrange: bytes=0-9\nif-range: Fri, 01 Jan 2100 00:00:00 GMT", 200, "hit", "!content-range"},
	{"9110 13.1.5", "If-Range without Range", "GET /p/42\nif-range: \"43\"", 200, "hit", "!content-range"},
	{"9110 13.1.5", "a miss with the upstream's tag", "GET /p/file\nrange: bytes=2-4\nif-range: \"upstream\"", 206,
		"fwd=uri-miss", "content: 234"},
	{"9110 13.1.5", "on a miss a date may be the cache's: the upstream doesn't get the range",
		"GET /p/file\nrange: bytes=2-4\nif-range: Wed, 01 Jan 2025 00:00:00 GMT", 200, "fwd=uri-miss", "content: 0123456789"},
}

// isPart reports whether an answer from the cache is about a range; RFC 9110 defines Range only for GET.
func isPart(r *response) bool { return r.source() == "hit" && (r.status == 206 || r.status == 416) }

// checkPart compares a 206 with what was published.
func (s *server) checkPart(failed func(section, format string, args ...any), o *object, r *response) {
	var first, last, size int
	text := r.get("content-range")
	if n, err := fmt.Sscanf(text, "bytes %d-%d/%d", &first, &last, &size); n != 3 || err != nil ||
		text != fmt.Sprintf("bytes %d-%d/%d", first, last, size) {
		failed("9110 14.4", "content-range: %q", text)
		return
	}
	if size != len(o.Body) || first > last || last >= size || string(r.content) != string(o.Body[first:last+1]) {
		failed("9110 15.3.7", "%s of %d bytes: the content isn't that part", text, len(o.Body))
	}
	if n := r.get("content-length"); n != strconv.Itoa(last-first+1) {
		failed("9110 8.6", "content-length: %q of %s", n, text)
	}
	if strings.HasPrefix(r.get("etag"), "W/") || r.get("content-encoding") != "" {
		failed("9110 15.3.7", "parts of %s can't be combined", r.get("etag"))
	}
}

// spoken are requests with Accept-Language (RFC 9110, section 12.5.4) under a rule with the languages de, en-GB and
// sr-Latn, by the lookup of RFC 4647. /l/doc is stored in German, British English and without a language.
var spoken = []testCase{
	{"9110 12.5.4", "no Accept-Language", "GET /l/doc", 200, "hit",
		"content: any language\nvary: accept-language\n!content-language"},
	{"9110 12.5.4", "a language", "GET /l/doc\naccept-language: de", 200, "hit",
		"content: Deutsch\nvary: accept-language\ncontent-language: de\netag: \"l-de\""},
	{"9110 8.5.1", "languages are case-insensitive", "GET /l/doc\naccept-language: EN-gb", 200, "hit",
		"content: British\ncontent-language: en-gb"},
	{"4647 3.4", "a longer range", "GET /l/doc\naccept-language: de-Latn-AT-1996", 200, "hit", "content: Deutsch"},
	{"4647 3.4", "a subtag of one character is removed with the next", "GET /l/doc\naccept-language: de-x-mine", 200,
		"hit", "content: Deutsch"},
	{"4647 3.4", "a shorter range", "GET /l/doc\naccept-language: en", 200, "hit", "content: any language"},
	{"4647 3.4", "a range that only begins alike", "GET /l/doc\naccept-language: deu", 200, "hit",
		"content: any language"},
	{"4647 3.4", "the first of equals", "GET /l/doc\naccept-language: en-GB, de", 200, "hit", "content: British"},
	{"4647 3.4", "each range whole before the next", "GET /l/doc\naccept-language: de-AT, en-GB", 200, "hit",
		"content: Deutsch"},
	{"4647 3.4", "unknown ones first", "GET /l/doc\naccept-language: fr-CA, fr, de;q=0.1", 200, "hit", "content: Deutsch"},
	{"4647 3.4", "a star first", "GET /l/doc\naccept-language: *, de;q=0.1", 200, "hit", "content: Deutsch"},
	{"4647 3.4", "only a star", "GET /l/doc\naccept-language: *", 200, "hit", "content: any language"},
	{"4647 3.4", "a star in a range is malformed here", "GET /l/doc\naccept-language: *-DE", 200, "hit",
		"content: any language"},
	{"9110 12.4.2", "the higher weight", "GET /l/doc\naccept-language: de;q=0.5, en-GB;q=0.501", 200, "hit",
		"content: British"},
	{"9110 12.4.2", "a browser's", "GET /l/doc\naccept-language: en-US,en;q=0.9,de;q=0.8", 200, "hit", "content: Deutsch"},
	{"9110 12.4.2", "weight 0 refuses", "GET /l/doc\naccept-language: de;q=0", 200, "hit", "content: any language"},
	{"9110 12.4.2", "weight 0 refuses what a longer range becomes", "GET /l/doc\naccept-language: de-AT, de;q=0", 200,
		"hit", "content: any language"},
	{"9110 12.4.2", "weight 0 of a star", "GET /l/doc\naccept-language: de, *;q=0", 200, "hit", "content: Deutsch"},
	{"9110 12.4.2", "a malformed weight", "GET /l/doc\naccept-language: de;q=x, en-GB;q=0.1", 200, "hit",
		"content: British"},
	{"9110 5.6.1.2", "empty elements", "GET /l/doc\naccept-language: , ,de,", 200, "hit", "content: Deutsch"},
	{"9110 5.3", "two lines", "GET /l/doc\naccept-language: fr\naccept-language: de", 200, "hit", "content: Deutsch"},
	{"9110 5.5", "an empty Accept-Language", "GET /l/doc\naccept-language:", 200, "hit", "content: any language"},
	{"4647 2.1", "malformed ranges", "GET /l/doc\naccept-language: de_AT, d\xe9, -, ;q=1", 200, "hit",
		"content: any language"},
	{"9110 12.5.4", "a very long one counts as none", "GET /l/doc\naccept-language: " + strings.Repeat("fr, ",
		128) + "de", 200, "hit", "content: any language"},
	{"9110 12.5.4", "there is none in that language", "GET /l/doc\naccept-language: sr-Latn", 200, "hit",
		"content: any language\n!content-language"},
	{"9110 12.5.4", "with a query", "GET /l/doc?a=1\naccept-language: sr-Latn-RS", 200, "hit",
		"content: srpski\ncontent-language: sr-latn"},
	{"9110 12.5.4", "only in German", "GET /l/german\naccept-language: de", 200, "hit", "content: nur Deutsch"},
	{"9110 12.5.4", "only in German, for others: a miss", "GET /l/german\naccept-language: en-GB", 200, "fwd=uri-miss",
		""},
	{"9110 12.5.4", "a rule without languages", "GET /p/plain\naccept-language: de", 200, "hit",
		"!vary\n!content-language"},
	{"9110 13.1.2", "its tag", "GET /l/doc\naccept-language: de\nif-none-match: \"l-de\"", 304, "hit",
		"etag: \"l-de\"\nvary: accept-language"},
	{"9110 13.1.2", "the tag of another language", "GET /l/doc\naccept-language: de\nif-none-match: \"l-gb\"", 200, "hit",
		"content: Deutsch"},
	{"9110 14.2", "a range in a language", "GET /l/doc\naccept-language: de\nrange: bytes=0-3", 206, "hit",
		"content: Deut\ncontent-language: de\nvary: accept-language"},
	{"9110 13.1.5", "If-Range of another language",
		"GET /l/doc\naccept-language: de\nrange: bytes=0-3\nif-range: \"l-gb\"", 200, "hit", "content: Deutsch"},
}
