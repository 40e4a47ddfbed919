package publisher

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/publish"
)

// TestIdempotencyKey: a repetition of a request with its key gets the first answer and writes nothing, whatever was
// written meanwhile. A different request with the same key is refused; with a different key, the request is a write of
// its own.
func TestIdempotencyKey(t *testing.T) {
	s := start(t)
	etag := `"` + strings.Repeat("0", 32) + `"`
	own := text.with(headers{"Gatehouse-ETag": etag, "Gatehouse-Tags": "sale"})
	ndjson := headers{"Content-Type": "application/x-ndjson"}
	with := func(name, value string) headers { return text.with(headers{name: value}) }
	const path, object = "/v1/products/1", "/v1/objects/v1/products/1"
	line := func(body, more string) string {
		return fmt.Sprintf(`{"op": "put", "key": %q, "content_type": "text/plain", "body": %q%s}`+"\n", path, body, more)
	}
	removal := fmt.Sprintf(`{"op": "delete", "key": %q}`+"\n", path)
	for name, test := range map[string]struct {
		empty          bool // there is no object at first
		method, target string
		h              headers
		body, other    string // of another request, if it isn't another path
		want           int
	}{
		"put":           {method: "PUT", target: object, h: text, body: "a", other: "b", want: 200},
		"first put":     {empty: true, method: "PUT", target: object, h: text, body: "a", other: "b", want: 201},
		"put, If-Match": {method: "PUT", target: object, h: with("If-Match", etag), body: "a", other: "b", want: 200},
		"put, if absent": {empty: true, method: "PUT", target: object, h: with("If-None-Match", "*"),
			body: "a", other: "b", want: 201},
		"put, version": {method: "PUT", target: object, h: with("Gatehouse-Version", "9"), body: "a",
			other: "b", want: 200},
		"delete":           {method: "DELETE", target: object, want: 200},
		"delete, If-Match": {method: "DELETE", target: object, h: headers{"If-Match": etag}, want: 200},
		"purge of one":     {method: "PURGE", target: object, want: 200},
		"purge": {method: "POST", target: "/v1/purge", body: `{"tag": "sale"}`,
			other: `{"tag": "sale", "soft": true}`, want: 200},
		"batch": {method: "POST", target: "/v1/batch", h: ndjson,
			body: line("a", "") + removal + line("a", ""), want: 200},
		"batch, if absent": {empty: true, method: "POST", target: "/v1/batch", h: ndjson,
			body: line("a", `, "if_absent": true`), want: 200},
		"batch, version": {method: "POST", target: "/v1/batch", h: ndjson,
			body: line("a", `, "if_version": 1`), want: 200},
	} {
		for between, write := range map[string]func(t *testing.T){
			"put":    func(t *testing.T) { t.Helper(); s.do(t, "PUT", object, shop.with(own), "meanwhile") },
			"delete": func(t *testing.T) { t.Helper(); s.do(t, "DELETE", object, shop, "") },
			"purge":  func(t *testing.T) { t.Helper(); s.do(t, "POST", "/v1/purge", shop, `{"prefix": "/v1/products/"}`) },
		} {
			t.Run(name+", "+between, func(t *testing.T) {
				if err := s.client.FlushDB(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
				s.p = publish.New(s.client)
				if !test.empty {
					s.do(t, "PUT", object, shop.with(own), "before")
				}
				send := func(key, body string) answer {
					h := shop.with(test.h)
					if key != "" {
						h["Idempotency-Key"] = key
					}
					return s.do(t, test.method, test.target, h, body)
				}
				first := send("k", test.body)
				if first.status != test.want {
					t.Fatalf("%d %s, want %d", first.status, first.body, test.want)
				}
				write(t)
				chain := func() string { return s.client.HGet(t.Context(), "{gatehouse:0}:chain", "head").Val() }
				before := chain()
				again := send("k", test.body)
				if again.status != first.status || again.body != first.body ||
					again.header.Get("ETag") != first.header.Get("ETag") {
					t.Errorf("repeated: %d %s %s, want %d %s %s", again.status, again.header, again.body, first.status,
						first.header, first.body)
				}
				if test.other != "" {
					if got := send("k", test.other); got.status != 422 {
						t.Errorf("another request: %d %s", got.status, got.body)
					}
				}
				if after := chain(); after != before {
					t.Errorf("the last write is %s, want %s", after, before)
				}
				if strings.Contains(name, ",") { // a condition
					return
				}
				for _, key := range []string{"another", ""} {
					before = chain()
					if got := send(key, test.body); got.status >= 300 || chain() == before {
						t.Errorf("with the key %q: %d %s", key, got.status, got.body)
					}
				}
			})
		}
	}
	for _, key := range []string{"", strings.Repeat("k", 256)} {
		for _, target := range []string{object, "/v1/purge", "/v1/batch"} {
			method := map[bool]string{true: "PUT", false: "POST"}[target == object]
			body := map[string]string{"/v1/purge": `{"tag": "sale"}`}[target]
			got := s.do(t, method, target, shop.with(text).with(map[string]headers{"/v1/batch": ndjson}[target]).
				with(headers{"Idempotency-Key": key}), body)
			if got.status != 400 || !strings.Contains(got.body, "Idempotency-Key") {
				t.Errorf("%s with a key of %d bytes: %d %s", target, len(key), got.status, got.body)
			}
		}
	}
	got := s.do(t, "POST", "/v1/batch", shop.with(ndjson).with(headers{"Idempotency-Key": "b"}), line("a", "")+removal)
	if got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	got = s.do(t, "POST", "/v1/batch", shop.with(ndjson).with(headers{"Idempotency-Key": "b"}),
		line("a", "")+line("b", ""))
	if got.status != 207 || !strings.Contains(got.body, `"status":422`) {
		t.Errorf("another line: %d %s", got.status, got.body)
	}
	other := hosts.with(headers{"Gatehouse-Virtual-Host": "fleet", "Idempotency-Key": "b"})
	if got := s.do(t, "PUT", object, other.with(text), "a"); got.status != 201 {
		t.Errorf("the key of another team: %d %s", got.status, got.body)
	}
}
