package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/wire"
)

const keptRules = `{"credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"}, "rules": [
	{"match": {"prefix": "/me"}, "auth": {}, "cache": {"scope": "device"}},
	{"match": {"path": "/head", "methods": ["HEAD"]}, "auth": {}, "cache": {}},
	{"match": {"prefix": "/private/"}, "auth": {}, "cache": {}},
	{"match": {"prefix": "/q"}, "cache": {"query": []}},
	{"match": {"prefix": "/fetch"}, "cache": {"on_miss": "fetch"}},
	{"match": {"prefix": "/in"}, "cache": {"languages": ["de", "en-GB"]}},
	{"match": {"prefix": "/"}, "cache": {"query": ["lang"]}}]}`

// counted is shared memory that counts the reads of objects, and of the state.
type counted struct {
	*memory
	reads, states int
}

func (c *counted) Record(region wire.Region, index uint32) []byte {
	switch region {
	case wire.RegionObjects:
		c.reads++
	case wire.RegionState:
		c.states++
	}
	return c.memory.Record(region, index)
}

// twins are two edges with the same rules and memory, with and without cached answers. Both get the same requests.
type twins struct {
	*counted
	keeps, composes *Engine
	headers         []byte // of the current request, as in a proxy that reuses memory
}

func newTwins(t *testing.T) *twins {
	t.Helper()
	return &twins{&counted{memory: newMemory()}, newEdge(t, keptRules), newEdge(t, keptRules), nil}
}

// ask returns both decisions as text, and the number of objects that the caching edge has read.
func (w *twins) ask(nowMS int64, lines ...string) (kept, composed string, reads int) {
	for i, e := range []*Engine{w.keeps, w.composes} {
		up := w.guardUp
		w.guardUp = up || e == w.composes
		before := w.reads
		if state := e.State(); state.Epoch != w.state.Epoch || state.InStepMS != w.state.InStepMS {
			e.SetState(nowMS, w.state)
		}
		w.headers = headermap.Append(w.headers[:0], request(lines...))
		fields, _ := headermap.ParseFields(w.headers)
		at := e.Locate(fields)
		r := at.Read(nil)
		var d Decision
		r.Decide(&d, nowMS, w, &Answers{})
		text := fmt.Sprintf("%d %d %q %q %q %q %x %v %v %q %q %q", d.Action, d.Status, fieldsOf(d),
			d.Body, d.Key, d.Device, d.Permissions, d.Refresh, d.ReloadState, d.CacheStatus, d.Auth, d.Cache)
		if w.guardUp = up; i == 1 {
			return kept, text, reads
		}
		kept, reads = text, w.reads-before
	}
	return
}

// publish stores a version of an object like the push listener; without encoded only its identity encoding.
func (w *twins) publish(key string, publishedMS int64, ttlMS uint64, version string, encoded bool) {
	w.guard += 1 << 8
	w.putVersion(key, publishedMS, ttlMS, version, encoded)
}

// TestKeptIsWhatWouldBeComposed sends random requests while objects, time and state change: cached answers must equal
// those that are composed each time.
func TestKeptIsWhatWouldBeComposed(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	w := newTwins(t)
	w.guard = 1 << 8
	for _, device := range []string{"one", "two"} {
		w.verdict(device, "s", wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1<<40})
	}
	clock, saved, asked := now, 0, 0
	rounds := 15_000
	if testing.Short() {
		rounds = 4000
	}
	for i := range rounds {
		switch random.IntN(30) {
		case 0, 7, 8, 9:
			key := pick("/a", "/a?lang=de", "/b", "/private/a", "/private/b", "/head", "@one/me", "@two/me", "/a?lang=",
				"/q", "/in", "/in#de", "/in#en-gb")
			w.guard += 1 << 8
			o := wire.Object{Key: key, Version: 1, PublishedMS: clock - random.Int64N(4000),
				TTLMS: uint64(random.IntN(2) * random.IntN(6000)), ETag: fmt.Sprintf(`"v%d"`, random.IntN(3)),
				ContentType: "application/json"}
			if random.IntN(3) == 0 {
				o.Headers = pick("x-a: 1", "cache-control: s-maxage=9\nlast-modified: now", "x-a: "+strings.Repeat("a", 4000))
			} else if random.IntN(5) == 0 {
				o.Status, o.Headers = 307, "location: /b"
			}
			w.putObject(o, random.IntN(2) == 0)
		case 1:
			clock += random.Int64N(3000)
		case 2:
			clock -= random.Int64N(1500)
		case 3:
			w.state.InStepMS = clock - random.Int64N(32_000) // in step for 30 s
		case 4:
			if random.IntN(20) == 0 { // another sidecar with other places
				w.state.Epoch++
				w.state.Keys.Placement[0]++
				clear(w.records)
				w.verdict("one", "s", wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1<<40})
			}
		case 5:
			w.drop()
			w.bodyGone = random.IntN(4) == 0
		case 10:
			w.guardUp = random.IntN(4) == 0
		case 6:
			w.keeps.DropCachedAnswers()
		}
		lines := []string{pick("GET", "GET", "HEAD", "POST") + " " +
			pick("/a", "/a?lang=de", "/a?x=1", "/a?x=2&lang=de", "/b", "/private/a", "/private/b", "/head",
				"/me", "/none", "/in", "/in", "/%61", "/q?x", "/q?y", "/q?"+strings.Repeat("&", limits.MaxPairs))}
		lines = append(lines, "x-device-id: "+pick("one", "two"), "x-device-token: "+pick("s", "s", "s", "wrong"))
		for range random.IntN(3) {
			lines = append(lines, pick(`if-none-match: "v0"`, `if-none-match: "v1"`, `if-none-match: W/"v1"`,
				"if-none-match: *", "if-none-match: ",
				"accept-encoding: gzip", "accept-encoding: ", "accept-encoding: identity;q=0",
				"range: bytes=2-", "range: bytes=99-", `if-range: "v1"`, "accept-language: de, en;q=0.5",
				"accept-language: en-GB", "accept-language: fr",
				"accept-encoding: br", `if-match: "v1"`,
				"content-type: application/json", "if-modified-since: "+
					time.UnixMilli(clock-random.Int64N(9000)).UTC().Format(imfFixdate)))
		}
		for range 5 {
			kept, composed, reads := w.ask(clock, lines...)
			if kept != composed {
				t.Fatalf("request %d, %q at %d, in step at %d, guard %x:\ngot  %s\nwant %s", i, lines, clock,
					w.state.InStepMS, w.guard, kept, composed)
			}
			if strings.Contains(kept, "gatehouse; hit") {
				if asked++; reads == 0 {
					saved++
				}
			}
			clock += random.Int64N(2) * random.Int64N(400)
		}
	}
	if saved < rounds/8 {
		t.Errorf("%d of %d answers were given without reading an object: too few to tell anything", saved, asked)
	}
}

// written is shared memory with a write of an object during a read.
type written struct {
	*memory
	write func()
}

func (w *written) Record(region wire.Region, index uint32) []byte {
	record := w.memory.Record(region, index)
	if region == wire.RegionObjects && w.write != nil {
		w.write()
	}
	return record
}

// TestGuardIsReadFirst: an answer read before a change must not be cached as if it had been read after it.
func TestGuardIsReadFirst(t *testing.T) {
	e, m := newEdge(t, keptRules), &written{memory: newMemory()}
	m.guard = 1 << 8
	e.SetState(now, m.state)
	m.putVersion("/a", now, 0, `"v1"`, false)
	ask := func() string {
		return fmt.Sprint(fieldsOf(decideRequest(m, read(e, "GET /a"))))
	}
	ask()
	m.write = func() {
		m.guard += 1 << 8
		m.putVersion("/a", now, 0, `"v2"`, false)
		m.write = nil
	}
	if got := ask(); !strings.Contains(got, "v1") {
		t.Fatalf("got %s, want what was read", got)
	}
	if got := ask(); !strings.Contains(got, "v2") {
		t.Errorf("got %s, want the version that was written since", got)
	}
}

// TestKeptByTheMillisecond sends a request every millisecond: age, lifetime, expiry and the end of being in step change
// exactly when they would without cached answers.
func TestKeptByTheMillisecond(t *testing.T) {
	w := newTwins(t)
	w.guard = 1 << 8
	w.state.InStepMS = now - 30_000 + 2500 // in step until 2500 from now
	w.publish("/forever", now-5123, 0, `"v1"`, true)
	w.publish("/ttl", now-1234, 3210, `"v1"`, true)
	w.publish("/ahead", now+1500, 3000, `"v1"`, true) // by a clock that is ahead
	saved := 0
	for at := now; at < now+4000; at++ {
		if at%100 == 0 { // the clock is set back
			for _, key := range []string{"/forever", "/ttl", "/ahead"} {
				if kept, composed, _ := w.ask(at-1700, "GET "+key); kept != composed {
					t.Fatalf("%s, set back to %d ms:\ngot  %s\nwant %s", key, at-1700-now, kept, composed)
				}
			}
		}
		for _, key := range []string{"/forever", "/ttl", "/ahead"} {
			kept, composed, reads := w.ask(at, "GET "+key)
			if kept != composed {
				t.Fatalf("%s after %d ms:\ngot  %s\nwant %s", key, at-now, kept, composed)
			}
			if reads == 0 {
				saved++
			}
		}
	}
	if saved < 10_000 {
		t.Errorf("%d of 12000 answers were given without reading an object: too few to tell anything", saved)
	}
}

// TestKeptIsOfOneDevice: a device doesn't get another one's answer, even if the ends of their ids are equal.
func TestKeptIsOfOneDevice(t *testing.T) {
	w := newTwins(t)
	w.guard = 1 << 8
	devices := []string{"one-12345678", "two-12345678"}
	for i, device := range devices {
		w.verdict(device, "s", wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1000})
		w.publish("@"+device+"/me", now, 0, fmt.Sprintf(`"v%d"`, i), false)
	}
	saved := 0
	for i := range 12 {
		kept, composed, reads := w.ask(now, "GET /me", "x-device-id: "+devices[i/3%2], "x-device-token: s")
		if kept != composed || !strings.Contains(kept, devices[i/3%2]) {
			t.Errorf("request %d: got %s, want %s", i, kept, composed)
		}
		saved += 1 - reads
	}
	if saved < 5 {
		t.Errorf("%d of 12 answers were given without reading an object: too few to tell anything", saved)
	}
}

// TestKeptWithoutItsBody: a cached answer is not used when its body was dropped.
func TestKeptWithoutItsBody(t *testing.T) {
	w := newTwins(t)
	w.guard = 1 << 8
	w.publish("/a", now, 0, `"v1"`, false)
	for i, want := range []int{1, 1, 0, 1, 0} {
		if i == 3 {
			w.drop()
		}
		if kept, composed, reads := w.ask(now, "GET /a"); kept != composed || reads != want {
			t.Errorf("request %d: got %d reads, want %d; and %s, want %s", i, reads, want, kept, composed)
		}
	}
}

// TestKeptIsOfOneState: cached answers end with the state, even if the epoch stays.
func TestKeptIsOfOneState(t *testing.T) {
	for name, change := range map[string]func(s *wire.State){
		"in step longer ago": func(s *wire.State) { s.InStepMS -= 60_000 },
		"another epoch":      func(s *wire.State) { s.Epoch++ },
	} {
		w := newTwins(t)
		w.guard = 1 << 8
		w.publish("/a", now, 0, `"v1"`, false)
		for range 3 {
			w.ask(now, "GET /a")
		}
		change(&w.state)
		if kept, composed, _ := w.ask(now, "GET /a"); kept != composed || strings.Contains(kept, "v1") {
			t.Errorf("%s: got %s, want %s", name, kept, composed)
		}
	}
}

// TestKeptIsOfOneRule: methods may have different rules.
func TestKeptIsOfOneRule(t *testing.T) {
	w := newTwins(t)
	w.guard = 1 << 8
	w.verdict("dev", "s", wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1000})
	w.publish("/head", now, 0, `"v1"`, false)
	for range 3 {
		for method, want := range map[string]string{"GET": `"no-cache"`, "HEAD": `"private, no-cache"`} {
			kept, composed, _ := w.ask(now, method+" /head", "x-device-id: dev", "x-device-token: s")
			if kept != composed || !strings.Contains(kept, want) {
				t.Errorf("%s: got %s, want %s with %s", method, kept, composed, want)
			}
		}
	}
}

// TestKeptWithoutItsQuery: if no parameter counts, all valid queries share one answer.
func TestKeptWithoutItsQuery(t *testing.T) {
	w := newTwins(t)
	w.guard = 1 << 8
	w.publish("/q", now, 0, `"v1"`, false)
	for i, query := range []string{"a", "b", "c", strings.Repeat("&", limits.MaxPairs),
		strings.Repeat("x", 2*limits.MaxKey)} {
		kept, composed, reads := w.ask(now, "GET /q?"+query)
		if want := []int{1, 1, 0, 0, 0}[i]; kept != composed || reads != want {
			t.Errorf("request %d: got %d reads, want %d; and %s, want %s", i, reads, want, kept, composed)
		}
		if bypassed := strings.Contains(kept, statusBypass); bypassed != (i > 2) {
			t.Errorf("request %d: got %s; want the last two to be left to the upstream", i, kept)
		}
	}
}

// TestHashSpreads: questions with one different part, even in the middle, have different entries as often as random
// numbers.
func TestHashSpreads(t *testing.T) {
	for name, ask := range map[string]func(i int) question{
		"rule":              func(i int) question { return question{rule: i, target: "/v1/products/1"} },
		"end of the target": func(i int) question { return question{target: fmt.Sprint("/v1/products/", i)} },
		"middle":            func(i int) question { return question{target: fmt.Sprintf("/v1/devices/%d/config", i)} },
		"before a query":    func(i int) question { return question{target: fmt.Sprintf("/v1/products/%d?lang=en-US", i)} },
		"device":            func(i int) question { return question{target: "/me", device: fmt.Sprint("device-", i)} },
		"if-none-match":     func(i int) question { return question{target: "/a", ifNoneMatch: fmt.Sprintf(`"%d"`, i)} },
		"accept-encoding": func(i int) question {
			return question{target: "/a", acceptEncoding: fmt.Sprintf("br;q=0.%d", i)}
		},
		"which part it is in": func(i int) question {
			return [2]question{{device: fmt.Sprint(i)}, {ifNoneMatch: fmt.Sprint(i)}}[i%2]
		},
	} {
		var cache answerCache
		entries := map[*cachedAnswer]bool{}
		for i := range maxCachedAnswers {
			q := ask(i)
			q.hash = q.computeHash()
			entries[cache.findEntry(&q)] = true
		}
		if len(entries) < maxCachedAnswers/2 { // 63 % for random numbers
			t.Errorf("%s: %d questions have %d entries", name, maxCachedAnswers, len(entries))
		}
	}
}

// TestFetchedIsNotKept: no guard shows a write of an object that the sidecar fetched.
func TestFetchedIsNotKept(t *testing.T) {
	w := newTwins(t)
	w.guard = 1 << 8
	object := wire.Object{Key: "/fetch", Version: 1, ETag: `"v1"`, ContentType: "text/plain"}
	object.AddVariant(wire.Variant{Encoding: wire.Identity, Length: 4, Stamp: 1})
	fetched, err := wire.ParseFetchResponse(wire.AppendFetchResponse(nil, epoch, &object, [][]byte{[]byte("body")}))
	if err != nil {
		t.Fatal(err)
	}
	w.keeps.SetState(now, w.state)
	for range 3 {
		for _, answers := range []Answers{{}, {Fetch: &fetched}} {
			r := read(w.keeps, "GET /fetch")
			var d Decision
			r.Decide(&d, now, w, &answers)
			if want := [...]Action{Fetch, Reply}; d.Action != want[0] && answers.Fetch == nil || d.Action != want[1] &&
				answers.Fetch != nil {
				t.Errorf("fetched %v: got action %d, want %v in turn", answers.Fetch != nil, d.Action, want)
			}
		}
	}
}

// TestKeptIsBounded: long requests are not cached.
func TestKeptIsBounded(t *testing.T) {
	for _, tt := range []struct {
		list  int
		reads int // of the third equal request
	}{{maxCachedBytes / 2, 0}, {maxCachedBytes - 100, 1}, {maxCachedBytes, 1}} { // too long with the answer's headers
		w := newTwins(t)
		w.guard = 1 << 8
		w.publish("/a", now, 0, `"v1"`, false)
		list := `if-none-match: "` + strings.Repeat("x", tt.list) + `"`
		for i, want := range []int{1, 1, tt.reads} {
			if kept, composed, reads := w.ask(now, "GET /a", list); kept != composed || reads != want {
				t.Errorf("If-None-Match of %d bytes, request %d: got %d reads, want %d; and %s, want %s",
					tt.list, i, reads, want, kept, composed)
			}
		}
	}
}

// TestKeptInOneEntry: questions that share an entry have their own answers.
func TestKeptInOneEntry(t *testing.T) {
	w := newTwins(t)
	w.guard = 1 << 8
	paths := []string{"/0"}
	entry := func(target string) *cachedAnswer {
		q := question{rule: 6, target: target}
		q.hash = q.computeHash()
		return w.keeps.responder.cache.findEntry(&q)
	}
	for i := 1; len(paths) < 2; i++ {
		if path := fmt.Sprint("/", i); entry(path) == entry(paths[0]) {
			paths = append(paths, path)
		}
	}
	for i, path := range paths {
		w.publish(path, now, 0, fmt.Sprintf(`"v%d"`, i), false)
	}
	var read []int
	for _, path := range []int{0, 0, 0, 1, 0, 1, 1, 1, 0} {
		kept, composed, reads := w.ask(now, "GET "+paths[path])
		if kept != composed {
			t.Fatalf("%s: got %s, want %s", paths[path], kept, composed)
		}
		read = append(read, reads)
	}
	// The cached answer stays until a second request for the other object.
	if want := []int{1, 1, 0, 1, 0, 1, 0, 0, 1}; !slices.Equal(read, want) {
		t.Errorf("got reads %v, want %v", read, want)
	}
}
