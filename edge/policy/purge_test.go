package policy

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// TestPurgesUnderWay: from the first read on after the guard has changed, no answer is of an object that is being
// purged, cached answers included; those of other objects stay.
func TestPurgesUnderWay(t *testing.T) {
	const pass, serve = `{"rules": [{"match": {"prefix": "/"}, "cache": {}}]}`,
		`{"stale": "serve", "rules": [{"match": {"prefix": "/"}, "cache": {}}]}`
	last := []uint64{wire.Stamp(1000, 0)}
	hard, soft := wire.Purge{Stamps: last, Prefix: "/"}, wire.Purge{Stamps: last, Soft: true, Prefix: "/"}
	const hit, miss, expired, stale = "gatehouse; hit", "gatehouse; fwd=uri-miss", "gatehouse; fwd=stale; detail=expired",
		"gatehouse; hit; detail=purged"
	tests := []struct {
		name, rules string
		purges      []wire.Purge
		want        string
	}{
		{"none", pass, nil, hit},
		{"hard", pass, []wire.Purge{hard}, miss},
		{"hard, stale answers", serve, []wire.Purge{hard}, miss},
		{"soft", pass, []wire.Purge{soft}, expired},
		{"soft, stale answers", serve, []wire.Purge{soft}, stale},
		{"soft and hard", serve, []wire.Purge{soft, hard}, miss},
		{"of other objects", pass, []wire.Purge{{Stamps: last, Prefix: "/b/"}}, hit},
		{"of earlier objects", pass, []wire.Purge{{Stamps: []uint64{0}, Prefix: "/"}}, hit},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMemory()
			m.guard = 1 << 8
			m.put("/a", 0)
			e := newEdge(t, tt.rules)
			e.SetState(now, m.state)
			ask := func() (status string, d Decision) {
				d = decideRequest(m, read(e, "GET /a"))
				if status = d.CacheStatus; status == "" {
					status, _ = headerOf(d, "cache-status")
				}
				return status, d
			}
			expect := func(when, want string) {
				t.Helper()
				for range 3 { // the second answer is cached
					if got, d := ask(); got != want {
						t.Fatalf("%s: got %q %+v, want %q", when, got, d, want)
					}
				}
			}
			write := func(epoch uint64, purges []wire.Purge) {
				m.records[[2]uint32{uint32(wire.RegionState), 0}] = wire.AppendState(nil,
					&wire.State{Epoch: epoch, Purges: purges})
				m.guard += 1 << 8
			}
			expect("before", hit)
			write(epoch, tt.purges)
			expect("during", tt.want)
			m.guardUp = true
			expect("while objects are written", tt.want)
			write(epoch, nil)
			expect("after, while objects are written", hit)
			m.guardUp = false
			write(epoch+1, tt.purges)
			expect("of another epoch", miss)
			if _, d := ask(); !d.ReloadState {
				t.Error("of another epoch: the state isn't read again")
			}
			write(epoch, tt.purges)
			expect("again", tt.want)
			m.records[[2]uint32{uint32(wire.RegionState), 0}] = nil
			m.guard += 1 << 8
			expect("without a state", tt.want)
			e.SetState(now, m.state) // a tick
			expect("after a tick", hit)
		})
	}
}

// TestPurgesAreReadOnce: the state is read once for each value of the guard, and not at all for cached answers.
func TestPurgesAreReadOnce(t *testing.T) {
	m := &counted{memory: newMemory()}
	m.guard = 1 << 8
	for i := range 8 {
		m.put(fmt.Sprintf("/%d", i), 0)
	}
	e := newEdge(t, `{"rules": [{"match": {"prefix": "/"}, "cache": {}}]}`)
	e.SetState(now, m.state)
	for range 3 {
		for i := range 8 {
			decideRequest(m, read(e, fmt.Sprintf("GET /%d", i)))
		}
	}
	if m.states != 1 {
		t.Errorf("the state was read %d times, want once", m.states)
	}
	m.guard += 1 << 8
	for range 2 {
		decideRequest(m, read(e, "GET /1"))
	}
	if m.states != 2 {
		t.Errorf("with another guard: the state was read %d times, want twice", m.states)
	}
}

// TestFetchedDuringPurge: purges under way don't affect the sidecar's answers, which are newer.
func TestFetchedDuringPurge(t *testing.T) {
	m := newMemory()
	m.guard = 1 << 8
	m.records[[2]uint32{uint32(wire.RegionState), 0}] = wire.AppendState(nil,
		&wire.State{Epoch: epoch, Purges: []wire.Purge{{Stamps: []uint64{wire.Stamp(1000, 0)}, Prefix: "/"}}})
	o := wire.Object{Key: "/a", Version: 2, PublishedMS: now, ETag: `"a"`, ContentType: "text/plain"}
	o.AddVariant(wire.Variant{Length: 1, Stamp: 1})
	fetched, err := wire.ParseFetchResponse(wire.AppendFetchResponse(nil, epoch, &o, [][]byte{[]byte("x")}))
	if err != nil {
		t.Fatal(err)
	}
	d := decide(t, m, `{"rules": [{"match": {"prefix": "/"}, "cache": {"on_miss": "fetch"}}]}`, Answers{Fetch: &fetched},
		"GET /a")
	if d.Action != Reply || !slices.Equal(d.Body, []byte("x")) {
		t.Errorf("got %+v, want the fetched object", d)
	}
}
