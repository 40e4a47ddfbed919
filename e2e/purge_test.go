package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// putAll publishes objects concurrently, at most 16 at a time.
func (e *edge) putAll(n int, object func(i int) publish.Object) {
	e.t.Helper()
	failed := make(chan error, 16)
	for worker := range cap(failed) {
		go func() {
			var err error
			for i := worker; i < n && err == nil; i += cap(failed) {
				_, err = e.publisher.Put(e.t.Context(), object(i))
			}
			failed <- err
		}()
	}
	for range cap(failed) {
		require.NoError(e.t, <-failed)
	}
}

// TestPurgePropagation purges a tenth of many objects by tag, again and again, under 1,000 requests/s for each of two
// purged objects, and measures until the end of the last answer with an object. After an answer without the object, no
// answer has the object.
func TestPurgePropagation(t *testing.T) {
	objects, rounds := pickSize(100000, 10000), pickSize(100, 5)
	e := start(t, stack.Options{SidecarArgs: []string{"--memory.objects=200000"}})
	tagged := objects / 10
	body := []byte(strings.Repeat("x", 256))
	at := func(i int) publish.Object {
		o := publish.Object{Key: fmt.Sprint("/v1/products/", i), Body: body, ContentType: "image/png"}
		if i%10 == 0 {
			o.Tags = []string{"season"}
		}
		return o
	}
	e.putAll(objects, at)
	clients := e.workerClients()
	hit := func(a answer) bool { return strings.HasPrefix(a.header.Get("Cache-Status"), "gatehouse; hit") }
	gone := func(a answer) bool { return strings.HasPrefix(a.header.Get("Cache-Status"), "gatehouse; fwd=uri-miss") }
	var took, acked []time.Duration
	for round := range rounds {
		samples := []string{fmt.Sprint("GET /v1/products/", round*10), fmt.Sprint("GET /v1/products/", (tagged-1)*10)}
		for _, sample := range samples {
			await(t, "the objects are there", patience, func() error { return e.sendFromAll(clients, hit, sample) })
		}
		before := e.metric("gatehouse_propagation_seconds_sum")
		acks := make(chan struct{}) // closed when the edge has acknowledged all
		last := make(chan time.Time, len(samples))
		failed := make(chan error, len(samples))
		for i, sample := range samples {
			go func() {
				var hitAt time.Time
				pace := time.NewTicker(time.Millisecond)
				defer pace.Stop()
				for missed := false; ; {
					a, err := e.try(clients[i], sample)
					switch {
					case err != nil, !hit(a) && !gone(a), hit(a) && missed:
						last <- hitAt
						failed <- fmt.Errorf("%s, missed before: %v: got %d %s, %w", sample, missed, a.status, a.header, err)
						return
					case hit(a):
						hitAt = time.Now()
					case !missed:
						missed = true
						last <- hitAt
					}
					select {
					case <-acks:
						failed <- nil
						return
					case <-pace.C:
					}
				}
			}()
		}
		began := time.Now()
		if _, err := e.publisher.Purge(t.Context(), publish.Purge{Tag: "season"}); err != nil {
			t.Fatal(err)
		}
		var longest time.Duration
		for range samples {
			longest = max(longest, (<-last).Sub(began))
		}
		took = append(took, longest)
		await(t, "the acknowledgement is measured", patience, func() error {
			if got := e.metric("gatehouse_propagation_seconds_sum") - before; got > 0 {
				acked = append(acked, time.Duration(got*1e9))
				return nil
			}
			return fmt.Errorf("not yet")
		})
		close(acks)
		for range samples {
			require.NoError(t, <-failed)
		}
		if a := e.send("GET /v1/products/1"); !hit(a) {
			t.Errorf("an object without the tag: %s", a.header.Get("Cache-Status"))
		}
		e.putAll(tagged, func(i int) publish.Object { return at(10 * i) })
	}
	slices.Sort(took)
	slices.Sort(acked)
	t.Logf("%d of %d objects purged by tag, from the call to the end of the last answer with one: p50 %s, p99 %s, max %s "+
		"of %d; to the edge's acknowledgement of all: p50 %s, max %s", tagged, objects, took[rounds/2], took[rounds*99/100-1],
		took[rounds-1], rounds, acked[rounds/2], acked[rounds-1])
	if limit := 20 * time.Millisecond; took[rounds/2] > limit {
		t.Errorf("median: got %s, want at most %s", took[rounds/2], limit)
	}
	if limit := 200 * time.Millisecond; acked[rounds/2] > limit {
		t.Errorf("median until the acknowledgement: got %s, want at most %s", acked[rounds/2], limit)
	}
}

// TestPurgeIsApart purges in one virtual host, by the command and as a soft purge: the second virtual host, requests of
// none, and the second namespace keep their objects.
func TestPurgeIsApart(t *testing.T) {
	t.Parallel()
	e := start(t, stack.Options{Rules: "sidecar: {cluster: gatehouse-sidecar, timeout: 1s}\nstale: serve\n" +
		"virtual_hosts: {shop: {domains: [shop.example], rules: [{match: {prefix: /v1/}, cache: {}}]}," +
		" blog: {domains: [blog.example], rules: [{match: {prefix: /v1/}, cache: {}}]}}\n" +
		"rules: [{match: {prefix: /v1/}, cache: {}}]"})
	other := publish.New(e.redis, publish.Namespace("other"))
	put := func(p *publish.Publisher, key string) {
		t.Helper()
		o := publish.Object{Key: key, Body: []byte(key), ContentType: "text/plain", Tags: []string{"/v1/a/"}}
		if _, err := p.Put(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"/v1/a", "//shop/v1/a", "//blog/v1/a"} {
		put(e.publisher, key)
		put(other, key)
	}
	hosts := []string{"none.example", "shop.example", "blog.example"}
	expect := func(what string, statuses ...string) {
		t.Helper()
		for i, host := range hosts {
			await(t, what+" for "+host, patience, func() error {
				request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.EdgeURL()+"/v1/a", nil)
				if err != nil {
					return err
				}
				request.Host = host
				response, err := shared.Do(request)
				if err != nil {
					return err
				}
				defer func() { _ = response.Body.Close() }()
				if got := response.Header.Get("Cache-Status"); got != statuses[i] {
					return fmt.Errorf("got %q, want %q", got, statuses[i])
				}
				return nil
			})
		}
	}
	const hit, miss = "gatehouse; hit", "gatehouse; fwd=uri-miss"
	expect("all", hit, hit, hit)
	if out := e.ctl("purge", "--tag", "/v1/a/", "--virtual-host", "shop", "--dry-run"); !strings.Contains(out, ": 1\n") {
		t.Errorf("a dry run says %q, want 1 object", out)
	}
	e.ctl("purge", "--tag", "/v1/a/", "--virtual-host", "shop")
	expect("by tag", hit, miss, hit)
	e.ctl("purge", "--prefix", "/v1/", "--soft")
	expect("softly", hit+"; detail=purged", miss, hit)
	e.ctl("purge", "--all")
	expect("all of no virtual host", miss, miss, hit)
	put(e.publisher, "//shop/v1/a")
	expect("published again", miss, hit, hit)
	if out := e.ctl("list"); !strings.Contains(out, "//shop/v1/a ") || !strings.Contains(out, "//blog/v1/a ") ||
		strings.Contains(out, "\n/v1/a") {
		t.Errorf("listed:\n%s", out)
	}
	n := 0
	for _, err := range other.List(t.Context(), "") {
		if n++; err != nil {
			t.Fatal(err)
		}
	}
	if n != 3 {
		t.Errorf("the other namespace has %d objects, want 3", n)
	}
}
