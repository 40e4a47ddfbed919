package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/publish"
)

const (
	published = "Sun, 06 Nov 1994 08:49:37 GMT"
	targeted  = "max-age=600"
)

// answers are about objects with a status or headers of their own.
var answers = []testCase{
	{"9110 15.4.2", "a 301", "GET /p/301", 301, "hit",
		"location: /p/42\ncontent: moved to /p/42\ncontent-type: text/plain"},
	{"9110 15.4.3", "a 302 without content", "GET /p/302", 302, "hit", "location: //example.com/a?b=c#d\ncontent: "},
	{"9110 15.4.8", "a 307", "GET /p/307", 307, "hit", "location: ../q/s\ncontent: "},
	{"9110 15.4.9", "a 308", "GET /p/308", 308, "hit", "location: https://example.com/\ncontent: moved for ever"},
	{"9110 15.5.5", "a 404", "GET /p/404", 404, "hit", "content: no such product\ncontent-type: text/plain"},
	{"9110 15.5.11", "a 410 without content", "GET /p/410", 410, "hit", "content: \n!location"},
	{"9110 8.3", "a coded 404", "GET /p/404coded\naccept-encoding: gzip", 404, "hit", "content-encoding: gzip"},
	{"9110 13.2.1", "a precondition of a 404 doesn't count", "GET /p/404\nif-none-match: *", 404, "hit",
		"content: no such product"},
	{"9110 13.2.1", "nor does its tag", "GET /p/404\nif-none-match: \"-p-404\"", 404, "hit", ""},
	{"9110 13.2.1", "a date of a 301 doesn't count", "GET /p/301\nif-modified-since: " + published, 301, "hit", ""},
	{"9110 14.2", "a range of a 404 doesn't count", "GET /p/404\nrange: bytes=0-1", 404, "hit",
		"content: no such product\n!content-range"},
	{"9110 9.3.1", "POST of a 301 goes upstream", "POST /p/301\n\nx", 200, "fwd=method", "content: POST /p/301 x"},
	{"9111 4.2.2", "without a lifetime, a 404 is revalidated, too", "GET /p/404", 404, "hit", "cache-control: no-cache"},
	{"9110 15.4.2", "a 301, fetched", "GET /f/301", 301, "hit", "location: /f/doc\nx-fetched: yes"},

	{"9111 5.2.2.1", "the publisher's max-age", "GET /p/own", 200, "hit",
		"cache-control: public, max-age=5, s-maxage=9\ncdn-cache-control: " + targeted},
	{"9111 5.2.2.10", "only its s-maxage", "GET /p/shared", 200, "hit", "cache-control: s-maxage=9, max-age=0"},
	{"9111 5.2.2.7", "what needs a credential is private, whatever its publisher says",
		"GET /a/own\nx-device-id: dev\nx-device-token: secret", 200, "hit", "cache-control: private, max-age=5"},
	{"9213 2.1", "for all caches", "GET /a/own\nx-device-id: dev\nx-device-token: secret", 200, "hit",
		"!cdn-cache-control\nlink: </a>; rel=up, </b>"},
	{"9110 5.3", "a field on two lines", "GET /p/own", 200, "hit", "link: </a>; rel=up, </b>"},
	{"9110 8.8.2", "the publisher's date", "GET /p/own", 200, "hit", "last-modified: " + published},
	{"9110 13.1.3", "since the publisher's date", "GET /p/own\nif-modified-since: " + published, 304, "hit",
		"cache-control: public, max-age=5, s-maxage=9\ncontent-location: /p/own.en\n!link\n!content-language"},
	{"9110 13.1.3", "since a later date, which isn't the publisher's", "GET /p/own\nif-modified-since: " +
		"Mon, 07 Nov 1994 08:49:37 GMT", 200, "hit", ""},
	{"9110 15.4.5", "a 304 repeats what is about the answer", "GET /p/own\nif-none-match: \"-p-own\"", 304, "hit",
		"content-location: /p/own.en\nexpires: " + published + "\n!link\n!content-language\n!x-frame-options"},
	{"9110 5.4", "as many and as long headers as there may be", "GET /p/long", 200, "hit",
		"x-00: " + longValue + "\nx-30: " + longValue},
}

var longValue = strings.Repeat("v", 120)

func (s *server) publishAnswers(t *testing.T) {
	t.Helper()
	location := func(uri string) []publish.Header { return []publish.Header{{Name: "Location", Value: uri}} }
	own := []publish.Header{{Name: "cache-control", Value: "public, max-age=5, s-maxage=9"},
		{Name: "link", Value: "</a>; rel=up"}, {Name: "content-language", Value: "en"}, {Name: "link", Value: "</b>"},
		{Name: "content-location", Value: "/p/own.en"}, {Name: "expires", Value: published},
		{Name: "last-modified", Value: published}, {Name: "x-frame-options", Value: "DENY"},
		{Name: "cdn-cache-control", Value: targeted}}
	var long []publish.Header
	for i := range 32 {
		long = append(long, publish.Header{Name: fmt.Sprintf("x-%02d", i), Value: longValue})
	}
	for _, o := range []publish.Object{
		{Key: "/p/301", Status: 301, Headers: append(location("/p/42"),
			publish.Header{Name: "last-modified", Value: published}), Body: []byte("moved to /p/42")},
		{Key: "/p/302", Status: 302, Headers: location("//example.com/a?b=c#d")},
		{Key: "/p/307", Status: 307, Headers: location("../q/s")},
		{Key: "/p/308", Status: 308, Headers: location("https://example.com/"), Body: []byte("moved for ever")},
		{Key: "/p/404", Status: 404, Body: []byte("no such product")},
		{Key: "/p/404coded", Status: 404, Body: []byte(strings.Repeat("no such product\n", 20))},
		{Key: "/p/410", Status: 410},
		{Key: "/f/301", Status: 301, Headers: append(location("/f/doc"), publish.Header{Name: "x-fetched", Value: "yes"})},
		{Key: "/p/own", Headers: own, Body: []byte("own")},
		{Key: "/a/own", Headers: own, Body: []byte("own")},
		{Key: "/p/shared", Headers: []publish.Header{{Name: "cache-control", Value: "s-maxage=9"}}, Body: []byte("own")},
		{Key: "/p/long", Headers: long, Body: []byte("long")},
	} {
		o.ContentType = "text/plain"
		o.ETag = `"` + strings.ReplaceAll(o.Key, "/", "-") + `"`
		s.put(t, object{Object: o, private: strings.HasPrefix(o.Key, "/a/"), coded: strings.HasSuffix(o.Key, "coded")})
	}
}
