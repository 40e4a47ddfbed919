package conformance

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
)

// checkRepresentations publishes one body as several types, with entity-tags from Gatehouse's writers. A 304 doesn't
// repeat the type (RFC 9110, section 15.4.5), so no two representations have the same tag (section 8.8.3): a client
// with an old tag gets the new type, and so does a cache that revalidates.
func (s *server) checkRepresentations(t *testing.T) {
	const target = "GET /p/represented"
	kinds := []string{"text/plain", "text/plain; charset=utf-8", "text/plain;charset=utf-8", "application/json"}
	cache := s.behindNginx(t,
		`proxy_cache cache; proxy_cache_valid 200 1s; proxy_cache_revalidate on; proxy_ignore_headers Cache-Control Vary;
		add_header X-Cache $upstream_cache_status;`)
	tags := map[string]string{} // the type of each tag
	for _, kind := range kinds {
		o := publish.Object{Key: "/p/represented", Body: []byte(strings.Repeat("the same ", 200)), ContentType: kind}
		if _, err := s.publisher.Put(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		r := s.await(t, target, func(r *response) bool { return r.source() == "hit" && r.get("content-type") == kind })
		tag := r.get("etag")
		if other, found := tags[tag]; found {
			t.Errorf("RFC 9110 8.8.3: %q and %q have the entity-tag %s", other, kind, tag)
		}
		for old := range tags {
			for _, coding := range []string{"", "\naccept-encoding: gzip", "\naccept-encoding: br"} {
				testCase{"9110 15.4.5", "the tag of another type", target + "\nif-none-match: " + old + coding,
					200, "hit", "content-type: " + kind}.
					checkAnswer(t, "HTTP/1.1", request{method: "GET"}, s.await(t, target+"\nif-none-match: "+old+coding,
						func(*response) bool { return true }))
			}
		}
		tags[tag] = kind
		// The cache keeps the object for a second and then revalidates, as long as requests arrive.
		cache.await(t, target, func(r *response) bool {
			return r.get("content-type") == kind && r.get("x-cache") == "REVALIDATED"
		})
	}
}

// checkLifetime requests an object until the object has expired: no answer allows a client a longer use (RFC 9111,
// section 4.2).
func (s *server) checkLifetime(t *testing.T) {
	const life = 3500 * time.Millisecond
	o := publish.Object{Key: "/p/short", ETag: `"short"`, Body: []byte("short"), ContentType: "text/plain", TTL: life}
	if _, err := s.publisher.Put(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	stored, err := s.publisher.Get(t.Context(), o.Key)
	if err != nil {
		t.Fatal(err)
	}
	end := time.UnixMilli(stored.PublishedMS).Add(life)
	hits, least := 0, 99
	asked := time.Now()
	s.await(t, "GET /p/short", func(r *response) bool {
		before := asked
		asked = time.Now()
		if r.source() != "hit" {
			return hits > 0 && strings.HasPrefix(r.source(), "fwd=")
		}
		hits++
		text, _ := strings.CutPrefix(maxAge.FindString(r.get("cache-control")), "max-age=")
		seconds, err := strconv.Atoi(text)
		least = min(least, seconds)
		if kept := before.Add(time.Duration(seconds) * time.Second); err != nil || kept.After(end) {
			t.Fatalf("RFC 9111 4.2: %q %v: kept %s beyond its end", r.get("cache-control"), err, kept.Sub(end))
		}
		if before.After(end) {
			t.Fatalf("RFC 9111 4.2.4: a hit %s after its end", before.Sub(end))
		}
		return false
	})
	if hits < 10 || least > 0 {
		t.Errorf("got %d hits, the last with max-age=%d; want some in its last second", hits, least)
	}
}
