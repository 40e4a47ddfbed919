package publish

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/objectkey"
	"github.com/gatehouse/gatehouse/clients/go/testbed/seed"
)

// TestKeysThatNoEdgeLooksUp: Envoy normalizes these keys; the error names the normalized key.
func TestKeysThatNoEdgeLooksUp(t *testing.T) {
	for key, want := range map[string]string{
		"/a/../b": "/b", "/..": "/", "/a/..": "/", "/a/b/..": "/a/", "/a/./b": "/a/b", "/a/.": "/a/", "/a/%2e%2e/b": "/b",
		"/a//b": "/a/b", "/a//": "/a/", "//shop//a": "//shop/a", "@d//shop:A/%61": "@d//shop:a/a",
		"/%61": "/a", "/%7Eme": "/~me", "/a%2D": "/a-",
		"/a//#DE": "/a/#de", "//shop/b/../a?b&&a#en-GB": "//shop/a?a&b#en-gb",
		"/a%2Fb": "/a/b", "/a%2fb": "/a/b", "/a%5Cb": "/a/b", `/a\b`: "/a/b", "/a/%2F/b": "/a/b",
		"@d/a/../b": "@d/b", "@a%61/x/%61": "@a%61/x/a",
		"/a?": "/a", "/a?b=1&&a=2": "/a?a=2&b=1",
	} {
		_, err := canonicalKey(key)
		if !errors.Is(err, ErrInvalid) ||
			!strings.Contains(fmt.Sprint(err), fmt.Sprintf("key %q: no edge looks it up, want %q", key, want)) {
			t.Errorf("%s: %v, want ErrInvalid with %s", key, err, want)
		}
	}
	for key, want := range map[string]string{
		"/": "/", "/a/": "/a/", "/a..b/.c": "/a..b/.c", "/a%20b": "/a%20b", "/%": "/%", "/%4": "/%4", "/%g1": "/%g1",
		"/%c3%a9": "/%C3%A9", "/%C3%a9?n%c3=%a9": "/%C3%A9?n%C3=%A9", "/a%25": "/a%25", "/a?b=/../&c=%61": "/a?b=/../&c=%61",
		"@d%c3#\\/%c3": "@d%c3#\\/%C3",
		"@d#e/a#DE":    "@d#e/a#de", "/a?a&b#en-GB": "/a?a&b#en-gb", KeyOfLanguage("/a", "pt-BR"): "/a#pt-br",
		"//shop/a": "//shop/a", "//shop:A.Example/%c3": "//shop:a.example/%C3", "@D//:A/A": "@D//:a/A",
	} {
		if got, err := canonicalKey(key); got != want || err != nil {
			t.Errorf("%s: got %s, %v; want %s", key, got, err, want)
		}
	}
}

// TestEscapesAreOneKey: different spellings of an escape are the same key, for writers and readers.
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
		if found, err := s.p.MayExist(t.Context(), "/%c3%a9"); !found || err != nil {
			t.Errorf("found: %v, %v", found, err)
		}
		if got, err := s.p.Delete(t.Context(), "/%c3%a9", 0); err != nil || got.Version != 4 {
			t.Errorf("delete: %+v, %v; want version 4", got, err)
		}
		if found, err := s.p.MayExist(t.Context(), "/%c3%a9"); found || err != nil {
			t.Errorf("found after its deletion: %v, %v", found, err)
		}
		s.Del(t.Context(), keys.ObjectKey("/%C3%A9"))
		if found, err := s.p.MayExist(t.Context(), "/%c3%a9"); !found || err != nil {
			t.Errorf("found, its record evicted: %v, %v", found, err)
		}
	})
}

// TestScriptTakesCanonicalKeys deletes objects at random keys by the script alone: the script accepts exactly the keys
// that objectkey.Canonical doesn't change, as readers do.
func TestScriptTakesCanonicalKeys(t *testing.T) {
	parts := []string{"/", "?", "&", "&", "&", "=", "a", ":", ".", "]", "]/", "a", "A", "a-", "b", "%", "%c3", "%C3",
		"%3f", "9", "~", "#de", "-", "!", "#"}
	onBoth(t, func(t *testing.T, s server) {
		seed := seed.Of(t)
		r := rand.New(rand.NewPCG(seed, 0))
		taken, refused := 0, 0
		check := func(key string) {
			t.Helper()
			fields := map[string]string{contract.FieldDeleted: "1"}
			m := contract.ObjectMember(key)
			got, reader := s.replaceRecord(t, m, fields), readable(m, fields)
			switch canonical := objectkey.Canonical(key) == key && limits.ValidKey(key); {
			case canonical != (got == nil) || canonical != (reader == nil):
				t.Errorf("seed %d, %s: the script says %v, readers %v, canonical is %v", seed, key, got, reader, canonical)
			case canonical:
				taken++
			case !redis.HasErrorPrefix(got, "INVALID") || !strings.Contains(got.Error(), "is not canonical: want") &&
				!strings.Contains(got.Error(), "want [@device][//[virtual-host][:host]]/path") &&
				!strings.Contains(got.Error(), "want a language tag after #"):
				t.Errorf("seed %d, %s: got %v, want INVALID with the form", seed, key, got)
			default:
				refused++
			}
		}
		for range 500 {
			key := []string{"/", "/a?", "/a?a", "@d%c3/", "//", "//a/", "//a:", "//:b/?", "@d//a:[::"}[r.IntN(9)]
			for range r.IntN(10) {
				key += parts[r.IntN(len(parts))]
			}
			if r.IntN(4) == 0 {
				key += []string{"#de", "#DE", "#", "#d", "#en-gb", "#d1", "#de-", "#abcdefghi", "#de-123456789"}[r.IntN(9)]
			}
			check(key)
			check(objectkey.Canonical(key))
		}
		if taken < 200 || refused < 200 {
			t.Errorf("%d keys taken, %d refused: the test shows nothing", taken, refused)
		}
	})
}

// TestScriptRefusesWhatNoEdgeLooksUp: objects at keys that package publish refuses; but not their tombstones.
func TestScriptRefusesWhatNoEdgeLooksUp(t *testing.T) {
	parts := []string{"/", "//", "a", "b/", ".", "..", "/./", "/../", "%", "%2E", "%2F", "%5C", "%41", "4", "1", "%C3",
		"\\", "~", "?a", "?a//b/../%41", "-", "%2D", "%25", "%7E", "%00", "%30"}
	onBoth(t, func(t *testing.T, s server) {
		seed := seed.Of(t)
		r := rand.New(rand.NewPCG(seed, 0))
		taken, refused := 0, 0
		for range 400 {
			key := []string{"/", "/a", "@d/", "//a/", "@d//a:b/"}[r.IntN(5)]
			for range r.IntN(6) {
				key += parts[r.IntN(len(parts))]
			}
			if key = objectkey.Canonical(key); !limits.ValidKey(key) {
				continue
			}
			m := contract.ObjectMember(key)
			_, want := canonicalKey(key)
			got := s.replaceRecord(t, m, map[string]string{"etag": `""`, "content-type": "a", "body": ""})
			switch {
			case (want == nil) != (got == nil):
				t.Errorf("seed %d, %s: the script says %v, the package %v", seed, key, got, want)
			case got == nil:
				taken++
			case !redis.HasErrorPrefix(got, "INVALID") || !strings.Contains(got.Error(), "no edge looks it up"):
				t.Errorf("seed %d, %s: %v", seed, key, got)
			default:
				refused++
			}
			if err := s.replaceRecord(t, m, map[string]string{contract.FieldDeleted: "1"}); err != nil {
				t.Errorf("seed %d, the tombstone of %s: %v", seed, key, err)
			}
		}
		if taken < 50 || refused < 50 {
			t.Errorf("%d keys taken, %d refused: the test shows nothing", taken, refused)
		}
	})
}
