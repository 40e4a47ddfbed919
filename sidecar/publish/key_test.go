package publish

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/wire/objectkey"
	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// TestKeysThatNoEdgeLooksUp: Envoy normalizes these keys to others, which the error names.
func TestKeysThatNoEdgeLooksUp(t *testing.T) {
	for key, want := range map[string]string{
		"/a/../b": "/b", "/..": "/", "/a/..": "/", "/a/b/..": "/a/", "/a/./b": "/a/b", "/a/.": "/a/", "/a/%2e%2e/b": "/b",
		"//a": "/a", "/a//b": "/a/b", "/a//": "/a/",
		"/%61": "/a", "/%7Eme": "/~me", "/a%2D": "/a-",
		"/a#b": "/a", "/a?b#c": "/a?b", "/a#?b": "/a",
		"/a%2Fb": "/a/b", "/a%2fb": "/a/b", "/a%5Cb": "/a/b", `/a\b`: "/a/b", "/a/%2F/b": "/a/b",
		"@d/a/../b": "@d/b", "@d//": "@d/", "@a%61/x/%61": "@a%61/x/a",
		"/a?": "/a", "/a?b=1&&a=2": "/a?a=2&b=1",
	} {
		_, err := canonical(key)
		if !errors.Is(err, ErrInvalid) ||
			!strings.Contains(fmt.Sprint(err), fmt.Sprintf("key %q: no edge looks it up, want %q", key, want)) {
			t.Errorf("%s: %v, want ErrInvalid with %s", key, err, want)
		}
	}
	for key, want := range map[string]string{
		"/": "/", "/a/": "/a/", "/a..b/.c": "/a..b/.c", "/a%20b": "/a%20b", "/%": "/%", "/%4": "/%4", "/%g1": "/%g1",
		"/%c3%a9": "/%C3%A9", "/%C3%a9?n%c3=%a9": "/%C3%A9?n%C3=%A9", "/a%25": "/a%25", "/a?b=/../&c=%61": "/a?b=/../&c=%61",
		"@d%c3#\\/%c3": "@d%c3#\\/%C3",
	} {
		if got, err := canonical(key); got != want || err != nil {
			t.Errorf("%s: got %s, %v; want %s", key, got, err, want)
		}
	}
}

// TestEscapesAreOneKey: spellings of one escape are one key, for writers and readers.
func TestEscapesAreOneKey(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		for i, key := range []string{"/%c3%a9", "/%C3%A9", "/%C3%a9"} {
			if got, err := s.p.Put(t.Context(), Object{Key: key, ContentType: "a"}); err != nil || got.Version != uint64(i+1) {
				t.Errorf("put %s: %+v, %v; want version %d", key, got, err, i+1)
			}
		}
		if o, err := s.p.Get(t.Context(), "/%c3%A9"); err != nil || o.Key != "/%C3%A9" || o.Version != 3 {
			t.Errorf("get: %+v, %v", o, err)
		}
		if known, err := s.p.Known(t.Context(), "/%c3%a9"); !known || err != nil {
			t.Errorf("known: %v, %v", known, err)
		}
		if got, err := s.p.Delete(t.Context(), "/%c3%a9", 0); err != nil || got.Version != 4 {
			t.Errorf("delete: %+v, %v; want version 4", got, err)
		}
		if known, err := s.p.Known(t.Context(), "/%c3%a9"); known || err != nil {
			t.Errorf("known after its deletion: %v, %v", known, err)
		}
		s.Del(t.Context(), keys.ObjectKey("/%C3%A9"))
		if known, err := s.p.Known(t.Context(), "/%c3%a9"); !known || err != nil {
			t.Errorf("known, its record evicted: %v, %v", known, err)
		}
	})
}

// TestKeysOfOtherWriters: a record that another writer has stored under a key that isn't canonical can be read and
// deleted by exactly that key.
func TestKeysOfOtherWriters(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		for _, key := range []string{"/%c3%a9", "/a?b=2&a=1"} {
			member := contract.ObjectMember(key)
			foreign := contract.Object{ETag: `"x"`, ContentType: "a", Bodies: []contract.Body{{}}}
			if _, err := s.p.write(t.Context(), replace, member, foreign.Fields()); err != nil {
				t.Fatal(err)
			}
			if o, err := s.p.Get(t.Context(), key); err != nil || o.Key != key {
				t.Errorf("get %s: %+v, %v", key, o, err)
			}
			if known, err := s.p.Known(t.Context(), key); !known || err != nil {
				t.Errorf("%s is known: %v, %v", key, known, err)
			}
			if _, err := s.p.Get(t.Context(), objectkey.Canonical(key)); !errors.Is(err, ErrNotFound) {
				t.Errorf("get of its canonical key: %v, want ErrNotFound", err)
			}
			if got, err := s.p.Delete(t.Context(), key, 0); err != nil || got.Version != 2 {
				t.Errorf("delete %s: %+v, %v; want version 2", key, got, err)
			}
			if known, err := s.p.Known(t.Context(), key); known {
				t.Errorf("%s is known after its deletion: %v, %v", key, known, err)
			}
		}
	})
}
