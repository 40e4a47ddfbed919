package publish

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"

	"github.com/gatehouse/gatehouse/clients/go/coding"
	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

func TestPutGet(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		body := []byte(strings.Repeat(`{"product":42}`, 100))
		before := time.Now().UnixMilli()
		if _, err := s.p.Put(t.Context(), Object{Key: "/p?a=1", Body: body, ContentType: "application/json",
			TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		got, err := s.p.Get(t.Context(), "/p?a=1")
		require.NoError(t, err)
		if got.Key != "/p?a=1" || got.Version != 1 || got.ContentType != "application/json" || got.TTLMS != 60000 ||
			got.ETag != ETag("application/json", body) {
			t.Errorf("got %+v", got)
		}
		if got.PublishedMS < before-1 || got.PublishedMS > time.Now().UnixMilli()+1 {
			t.Errorf("published %d, want now", got.PublishedMS)
		}
		if len(got.Bodies) != 4 {
			t.Fatalf("%d encodings, want 4", len(got.Bodies))
		}
		for i, b := range got.Bodies {
			if decoded := decode(t, b); b.Encoding != coding.Encoding(i) || !bytes.Equal(decoded, body) {
				t.Errorf("%v decodes to %d bytes, want the body of %d", b.Encoding, len(decoded), len(body))
			}
			if i > 0 && len(b.Bytes) >= len(body) {
				t.Errorf("%v has %d bytes, not less than %d", b.Encoding, len(b.Bytes), len(body))
			}
		}
		if _, err := s.p.Delete(t.Context(), "/p?a=1", 0); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"/p?a=1", "/never"} {
			if _, err := s.p.Get(t.Context(), key); !errors.Is(err, ErrNotFound) {
				t.Errorf("get %q: %v, want ErrNotFound", key, err)
			}
		}
	})
}

func decode(t *testing.T, b contract.Body) []byte {
	t.Helper()
	var r io.Reader = bytes.NewReader(b.Bytes)
	var err error
	switch b.Encoding {
	case coding.Gzip:
		r, err = gzip.NewReader(r)
	case coding.Brotli:
		r = brotli.NewReader(r)
	case coding.Zstd:
		r, err = zstd.NewReader(r)
	}
	require.NoError(t, err)
	decoded, err := io.ReadAll(r)
	require.NoError(t, err)
	return decoded
}

func TestETag(t *testing.T) {
	// The goldens come from Python's hashlib.
	for _, test := range []struct{ contentType, body, want string }{
		{"text/plain", "", `"51a74e08056080b9d9bfc8b433479530"`},
		{"text/plain", "hi\n", `"8f502701311f4189f32f2c1b4dd8d622"`},
		{"text/html", "hi\n", `"91bc95f5c388d1803c37f597f5c6b76f"`}, // a 304 doesn't repeat the content type
	} {
		if got := ETag(test.contentType, []byte(test.body)); got != test.want {
			t.Errorf("%s, %q: got %s, want %s", test.contentType, test.body, got, test.want)
		}
	}
}

func header(name, value string) Header { return Header{Name: name, Value: value} }

// TestEntityTag: the default covers status and headers; the goldens come from Python's hashlib.
func TestEntityTag(t *testing.T) {
	link := []Header{header("Cache-Control", "public"), header("link", "</a>")}
	for _, test := range []struct {
		o    Object
		want string
	}{
		{Object{Body: []byte("hi\n")}, `"8f502701311f4189f32f2c1b4dd8d622"`},
		{Object{Body: []byte("hi\n"), Status: 200}, `"8f502701311f4189f32f2c1b4dd8d622"`},
		{Object{Status: 410}, `"2654dc609b90046a013f8893811608f4"`},
		{Object{Body: []byte("hi\n"), Headers: link}, `"e1146559be1ceabe94860af663d69fac"`},
		{Object{Body: []byte("hi\n"), Headers: link, Status: 200}, `"e1146559be1ceabe94860af663d69fac"`},
		{Object{Status: 410, ETag: `"mine"`}, `"mine"`},
	} {
		test.o.ContentType = "text/plain"
		if got := test.o.EntityTag(); got != test.want {
			t.Errorf("%+v: got %s, want %s", test.o, got, test.want)
		}
	}
	if link[0].Name != "Cache-Control" {
		t.Error("the caller's headers were changed")
	}
}

// TestPutAnswer: a record has status and headers as the contract says, and readers get them back.
func TestPutAnswer(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		moved := Object{Key: "/old", ContentType: "text/plain", Status: 301,
			Headers: []Header{header("Location", "/new"), header("link", "</a>"), header("link", "</b>")}}
		if _, err := s.p.Put(t.Context(), moved); err != nil {
			t.Fatal(err)
		}
		stored := s.hash(t, contract.ObjectMember("/old"))
		const lines = "location: /new\nlink: </a>\nlink: </b>"
		if stored["status"] != "301" || stored["headers"] != lines || stored["etag"] != moved.EntityTag() {
			t.Errorf("stored %q", stored)
		}
		if got, err := s.p.Get(t.Context(), "/old"); err != nil || got.Status != 301 || got.Headers != lines {
			t.Errorf("got %+v, %v", got, err)
		}
		for e, err := range s.p.List(t.Context(), "/old") {
			if err != nil || e.Status != 301 {
				t.Errorf("entry %+v, %v", e, err)
			}
		}
		if _, err := s.p.Put(t.Context(), Object{Key: "/old", ContentType: "text/plain", Status: 200}); err != nil {
			t.Fatal(err)
		}
		stored = s.hash(t, contract.ObjectMember("/old"))
		if len(stored) != 6 { // version, published, seq, etag, content-type, body
			t.Errorf("stored %q, want neither status nor headers", stored)
		}
	})
}

// TestPutAnswerRefuses: an error names the field and what is allowed.
func TestPutAnswerRefuses(t *testing.T) {
	s := serverAt(t, "redis://127.0.0.1:1") // nothing is asked of it
	many := make([]Header, limits.MaxHeaderLines+1)
	for i := range many {
		many[i] = header("link", "</a>")
	}
	for _, test := range []struct {
		status  int
		headers []Header
		want    string
	}{
		{303, nil, "status: 303: want 200, 301, 302, 307, 308, 404 or 410"},
		{302, nil, "headers: location is missing, which status 302 needs"},
		{0, []Header{header("location", "/b")}, "headers: location is only for status 301, 302, 307 and 308"},
		{0, []Header{header("a b", "c")}, `headers: name "a b": want 1 to 64 of a-z, 0-9 and -`},
		{0, []Header{header("a", "")}, `headers: a: value "": want printable ASCII, not empty, without a blank at an end`},
		{0, []Header{header("a", "b\nset-cookie: c")}, `headers: a: value "b\nset-cookie: c": want printable ASCII`},
		{0, []Header{header("Set-Cookie", "a=b")}, "headers: set-cookie is not allowed: "},
		{0, []Header{header("a", "b"), header("A", "c")}, "headers: a comes twice"},
		{0, []Header{header("last-modified", "now")}, `headers: last-modified: "now": want the form of Sun, 06 Nov 1994 `},
		{0, []Header{header("a", strings.Repeat("b", limits.MaxHeaders-2))}, "headers: 4097 bytes, at most 4096 are allowed"},
		{0, many, "headers: 33 lines, at most 32 are allowed"},
	} {
		_, err := s.p.Put(t.Context(), Object{Key: "/a", ContentType: "text/plain", Status: test.status,
			Headers: test.headers})
		if want := `object "/a": ` + test.want; !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestEncode(t *testing.T) {
	text := bytes.Repeat([]byte("text "), 1000)
	random := make([]byte, 10000)
	rand.Read(random)
	tests := []struct {
		name, contentType string
		body              []byte
		want              string
	}{
		{"text", "text/html; charset=utf-8", text, "identity gzip br zstd"},
		{"svg", "image/svg+xml", text, "identity gzip br zstd"},
		{"type that cannot be parsed", ";;", text, "identity gzip br zstd"},
		{"the largest", "text/plain", bytes.Repeat([]byte("0123456789abcdef"), limits.MaxBody/16), "identity gzip br zstd"},
		{"empty", "text/plain", nil, "identity"},
		{"one byte", "text/plain", []byte("x"), "identity"},
		{"random", "application/octet-stream", random, "identity"},
		{"jpeg", "image/jpeg", text, "identity"},
		{"upper case", "IMAGE/PNG", text, "identity"},
		{"video", "video/mp4; codecs=avc1", text, "identity"},
		{"zip", "application/zip", text, "identity"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bodies, err := encodeBody(test.body, test.contentType)
			require.NoError(t, err)
			var got []string
			for _, b := range bodies {
				got = append(got, b.Encoding.String())
				if !bytes.Equal(decode(t, b), test.body) {
					t.Errorf("%v does not decode to the body", b.Encoding)
				}
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("got %v, want %s", got, test.want)
			}
		})
	}
}

func TestPutRefuses(t *testing.T) {
	good := Object{Key: "/a", ContentType: "text/plain"}
	tests := []struct {
		name  string
		spoil func(*Object)
		want  string
	}{
		{"no key", func(o *Object) { o.Key = "" }, `key ""`},
		{"key without slash", func(o *Object) { o.Key = "a" }, `key "a"`},
		{"key with space", func(o *Object) { o.Key = "/a b" }, `key "/a b"`},
		{"long key", func(o *Object) { o.Key = "/" + strings.Repeat("a", limits.MaxKey) }, "key of 2049 bytes, at most 2048"},
		{"query not sorted", func(o *Object) { o.Key = "/a?b=1&&a=2" }, `want "/a?a=2&b=1"`},
		{"query empty", func(o *Object) { o.Key = "/a?" }, `want "/a"`},
		{"large body", func(o *Object) {
			o.Body = make([]byte, limits.MaxBody+1)
		}, `body of "/a": 1048577 bytes, at most 1048576`},
		{"no content type", func(o *Object) { o.ContentType = "" }, `content type ""`},
		{"weak etag", func(o *Object) { o.ETag = `W/"a"` }, `etag "W/\"a\""`},
		{"negative ttl", func(o *Object) { o.TTL = -1 }, "ttl -1ns"},
		{"fraction of a millisecond", func(o *Object) { o.TTL = 1500 * time.Microsecond }, "ttl 1.5ms"},
		{"large version", func(o *Object) { o.Version = 1 << 53 }, "version 9007199254740992: at most 4503599627370496"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := good
			test.spoil(&o)
			_, err := New(nil).Put(t.Context(), o) // refused before the client is used
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want ErrInvalid with %q", err, test.want)
			}
		})
	}
}

func TestGetCorrupt(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		require.NoError(t, s.HSet(t.Context(), keys.ObjectKey("/a"), "version", "1").Err())
		_, err := s.p.Get(t.Context(), "/a")
		if !errors.Is(err, ErrCorrupt) || contract.ReasonOf(err) != contract.ReasonMissing {
			t.Errorf("got %v, want ErrCorrupt", err)
		}
	})
}

func TestList(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		ctx := t.Context()
		const n = 600 // several pages
		pipe := s.Pipeline()
		for i := range n {
			o := contract.Object{Version: 1, PublishedMS: 5, ETag: `"e"`, ContentType: "a",
				Bodies: []contract.Body{{Bytes: []byte("abc")}}}
			key := fmt.Sprintf("/many/%d", i)
			pipe.HSet(ctx, keys.ObjectKey(key), o.Fields())
			pipe.Do(ctx, "ZADD", keys.LogKey(), i-n, "o:"+key)
		}
		pipe.Do(ctx, "ZADD", keys.LogKey(), -n-1, "not a member")
		pipe.Set(ctx, keys.ObjectKey("/of another type"), "a string", 0)
		pipe.Do(ctx, "ZADD", keys.LogKey(), -n-2, "o:/of another type")
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
		for _, o := range []Object{{Key: "/other", ContentType: "a"},
			{Key: "/x*", Body: []byte("12"), ContentType: "b", TTL: time.Second, Version: 9}, {Key: "/xy", ContentType: "a"}} {
			if _, err := s.p.Put(ctx, o); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.p.Delete(ctx, "/other?b=1&a=2", 0); err == nil ||
			!strings.Contains(err.Error(), `want "/other?a=2&b=1"`) {
			t.Errorf("a key that no edge looks up was deleted: %v", err)
		}
		if _, err := s.p.Get(ctx, "/other?b=1&a=2"); err == nil || !strings.Contains(err.Error(), `want "/other?a=2&b=1"`) {
			t.Errorf("a key that no edge looks up was read: %v", err)
		}
		if _, err := s.p.Delete(ctx, "/other", 0); err != nil {
			t.Fatal(err)
		}
		if _, err := s.p.PutDevice(ctx, Device{ID: "d", Secret: "s", Cost: 4}); err != nil {
			t.Fatal(err)
		}
		for prefix, want := range map[string]int{"": n + 2, "/many/": n, "/many/59": 11, "/other": 0, "/x*": 1} {
			got := 0
			for e, err := range s.p.List(ctx, prefix) {
				require.NoError(t, err)
				got++
				if e.Key == "/x*" && (e.Version != 9 || e.TTLMS != 1000 || e.Size != 2 || e.ContentType != "b" ||
					e.ETag != ETag("b", []byte("12")) || e.PublishedMS == 0) {
					t.Errorf("entry %+v", e)
				}
			}
			if got != want {
				t.Errorf("prefix %q: %d objects, want %d", prefix, got, want)
			}
		}
		for range s.p.List(ctx, "") {
			break // must end the list
		}
	})
}

func TestListFails(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		s.Set(t.Context(), keys.LogKey(), "x", 0)
		errs := 0
		for _, err := range s.p.List(t.Context(), "") {
			if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
				t.Errorf("error %v, want WRONGTYPE", err)
			}
			errs++
		}
		if errs != 1 {
			t.Errorf("%d errors, want 1", errs)
		}
	})
}
