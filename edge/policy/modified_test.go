package policy

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestModifiedSince has an object that was published at 22:13:15, and asks at 22:13:20 (RFC 9110, section 13.1.3).
func TestModifiedSince(t *testing.T) {
	const modified = "Tue, 14 Nov 2023 22:13:17 GMT"
	tests := []struct {
		name   string
		inStep int64 // relative to the time of publishing, ms
		lines  []string
		status int
	}{
		{"its date", 4000, []string{"if-modified-since: " + modified}, 304},
		{"later, which may be the date of another origin", 4000,
			[]string{"if-modified-since: Tue, 14 Nov 2023 22:13:18 GMT"}, 200},
		{"now", 4000, []string{"if-modified-since: Tue, 14 Nov 2023 22:13:20 GMT"}, 200},
		{"before", 4000, []string{"if-modified-since: Tue, 14 Nov 2023 22:13:16 GMT"}, 200},
		{"its date in another form", 4000, []string{"if-modified-since: Tuesday, 14-Nov-23 22:13:17 GMT"}, 200},
		{"empty", 4000, []string{"if-modified-since: "}, 200},
		{"two lines", 4000, []string{"if-modified-since: " + modified, "if-modified-since: " + modified}, 200},
		{"If-None-Match counts, and doesn't match", 4000, []string{"if-modified-since: " + modified,
			`if-none-match: "v0"`}, 200},
		{"If-None-Match counts, be it empty", 4000, []string{"if-modified-since: " + modified, "if-none-match: "}, 200},
		{"If-None-Match counts, and matches", 4000, []string{"if-modified-since: Tue, 14 Nov 2023 22:13:14 GMT",
			`if-none-match: "v1"`}, 304},
		{"another version of that second may be under way", 1999, []string{"if-modified-since: " + modified}, 200},
		{"none is under way, but a Date may be earlier", 2999, []string{"if-modified-since: " + modified}, 200},
		{"empty, without a date", 2999, []string{"if-modified-since: "}, 200},
		{"all have its second", 3000, []string{"if-modified-since: " + modified}, 304},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMemory()
			m.put("/a", 0)
			m.guard = 1 << 8
			m.state.InStepMS = now - 5000 + tt.inStep
			e := newEdge(t, `{"rules": [{"match": {"path": "/a"}, "cache": {}}]}`)
			e.SetState(now, m.state)
			for range 3 { // composed, cached, and answered from the cache
				for _, with := range []bool{false, true} {
					want, lines := 200, []string{"GET /a"}
					if with {
						want, lines = tt.status, append(lines, tt.lines...)
					}
					d := decideRequest(m, read(e, lines...))
					date := ""
					if d.Status == 200 && tt.inStep >= 3000 {
						date = modified
					}
					if got, _ := headerOf(d, "last-modified"); d.Status != want || got != date {
						t.Errorf("%q: got %d with Last-Modified %q; want %d, %q", lines, d.Status, got, want, date)
					}
					if slices.ContainsFunc(e.responder.cache.answers[:],
						func(k cachedAnswer) bool { return k.ifModifiedSince != "" }) {
						t.Error("what is kept refers to the header of a request")
					}
				}
			}
		})
	}
}

func headerOf(d Decision, name string) (value string, ok bool) {
	for _, h := range fieldsOf(d) {
		if h[0] == name {
			value, ok = strings.TrimPrefix(value+", "+h[1], ", "), true
		}
	}
	return value, ok
}

// TestClientsKeepNoLongerThanItLives: a client that stores an answer for max-age, less Age or not, must not have it
// beyond the object's lifetime.
func TestClientsKeepNoLongerThanItLives(t *testing.T) {
	for _, ttl := range []int64{1, 999, 1000, 1500, 60_000} {
		m := newMemory()
		m.put("/a", uint64(ttl))
		for age := int64(-2500); age < min(ttl, 7000); age += 137 {
			m.state.InStepMS = now - 5000 + age - 700
			d := decideAt(t, m, now-5000+age, `{"rules": [{"match": {"path": "/a"}, "cache": {}}]}`, "GET /a")
			control, _ := headerOf(d, "cache-control")
			left, err := strconv.ParseInt(strings.TrimPrefix(control, "max-age="), 10, 64)
			if err != nil || d.Status != 200 || left*1000 > ttl || left*1000 > ttl-age || left*1000 <= min(ttl-age, ttl)-1000 {
				t.Errorf("ttl %d ms after %d ms: got %d with %q, want the whole seconds that are left", ttl, age, d.Status, control)
			}
		}
	}
}

func decideAt(t *testing.T, m *memory, nowMS int64, config string, lines ...string) (d Decision) {
	t.Helper()
	e := newEdge(t, config)
	e.SetState(nowMS, m.state)
	r := read(e, lines...)
	r.Decide(&d, nowMS, m, &Answers{})
	return d
}
