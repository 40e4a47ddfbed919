package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
)

const (
	// askedDevices is the number of devices without a record, about which the authority decides. Each device changes
	// about every eight seconds: a sooner invalidation would repair what went wrong with the last.
	askedDevices = 32
	askedWriters = 4
	askedEvery   = time.Second
	askedLogin   = 250 * time.Millisecond
	fleets       = 4
	// recovered is how long after a failure the authority may be asked seldom.
	recovered = 3 * time.Second
	// askedToken is the token of invalidations by HTTP.
	askedToken = "a token of thirty-two bytes or more"
)

// mood is how the authority answers. In every mood the authority decides first, then waits.
type mood int32

const (
	well mood = iota
	slow
	hanging
	wrong
	down
	moods
)

// authority is a service that decides about devices. Its database is the history of its changes: a write is in force
// from its beginning, and is acknowledged once its invalidation is.
type authority struct {
	*ledger
	writing *sync.RWMutex // see writer
	address string
	// invalidates is the address at which the second sidecar accepts invalidations by HTTP.
	invalidates string

	mood atomic.Int32

	// The ledger's lock protects the rest.
	wellSince time.Duration
	asked     [moods]int
	written   int
}

func newAuthority(r *run) (a *authority, err error) {
	a = &authority{writing: &r.writing}
	a.ledger = newLedger(r, ofAsked, askedDevices, askedID, askedSecret, permissionOf)
	a.good = func(h *history, read *Read) bool { return !h.overtaken(read.Version, read.End) }
	a.steady = func(since time.Duration) bool {
		return mood(a.mood.Load()) == well && a.wellSince+recovered < since
	}
	if a.address, err = freeport.FindAddress(); err != nil {
		return nil, err
	}
	a.invalidates, err = freeport.FindAddress()
	return a, err
}

// ofAsked begins the names of the rules about devices of the authority.
const ofAsked = "asked: "

func askedID(device int) string { return fmt.Sprintf("asked-%03d", device) }

func askedSecret(device int, version uint64) string {
	return fmt.Sprintf("asked %d, %d", device, version)
}

// serve answers until ctx ends, in changing moods after the first seconds.
func (a *authority) serve(ctx context.Context) {
	for ctx.Err() == nil {
		var server *http.Server
		if listener, err := net.Listen("tcp", a.address); err == nil {
			server = &http.Server{Handler: http.HandlerFunc(a.answer), ReadHeaderTimeout: requestTimeout}
			go func() { _ = server.Serve(listener) }()
		}
		for up := true; up && ctx.Err() == nil; {
			a.feel(well)
			wait(ctx, recovered+time.Duration(rand.IntN(5000))*time.Millisecond)
			next := slow + mood(rand.IntN(int(moods-slow)))
			a.feel(next)
			if up = next != down; up {
				wait(ctx, time.Duration(500+rand.IntN(2500))*time.Millisecond)
			}
		}
		if server != nil {
			_ = server.Close()
		}
		wait(ctx, time.Duration(rand.IntN(1500))*time.Millisecond)
	}
}

func (a *authority) feel(next mood) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mood.Store(int32(next))
	a.wellSince = a.run.world.now()
}

// answer decides by the database, and answers later.
func (a *authority) answer(w http.ResponseWriter, r *http.Request) {
	var question struct{ ID, Secret string }
	if err := json.NewDecoder(r.Body).Decode(&question); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	now := mood(a.mood.Load())
	said := a.decide(question.ID, question.Secret, now)
	delay := time.Duration(0)
	switch {
	case now == slow:
		delay = time.Duration(100+rand.IntN(700)) * time.Millisecond
	case now == hanging:
		delay = time.Minute
	case rand.IntN(2) == 0:
		delay = time.Duration(rand.IntN(400)) * time.Millisecond
	}
	if !wait(r.Context(), delay) {
		return
	}
	if now == wrong {
		said = [][]byte{[]byte(`{"allow": "yes"}`), []byte(`{"allow": true`), nil}[rand.IntN(3)]
	}
	if said == nil {
		w.WriteHeader(http.StatusInternalServerError)
	}
	_, _ = w.Write(said)
}

func (a *authority) decide(id, secret string, now mood) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked[now]++
	var device int
	if _, err := fmt.Sscanf(id, "asked-%d", &device); err != nil || device >= askedDevices {
		return []byte(`{"allow": false}`)
	}
	h := &a.devices[device]
	version := uint64(len(h.writes))
	if version == 0 || h.writes[version-1].kind == Delete || secret != askedSecret(device, version) {
		return []byte(`{"allow": false}`)
	}
	return fmt.Appendf(nil, `{"allow": true, "permissions": [%q], "labels": {"fleet": "%d"}}`, permissionOf(version),
		device%fleets)
}

// change writes to the database, then invalidates until the invalidation is acknowledged or ctx ends.
func (a *authority) change(ctx context.Context, publisher *publish.Publisher, device int) {
	// A question should be on its way when the change comes:
	a.writing.RLock()
	_, _ = publisher.InvalidateDevice(ctx, askedID(device))
	a.writing.RUnlock()
	wait(ctx, time.Duration(rand.IntN(400))*time.Millisecond)
	a.mu.Lock()
	h, kind := &a.devices[device], Put
	if newest, found := h.newest(); found && newest == Put && rand.IntN(2) == 0 {
		kind = Delete
	}
	version := h.begin(kind, a.run.world.now(), 0)
	a.mu.Unlock()
	for ctx.Err() == nil && !a.invalidate(ctx, publisher, device, version) {
		wait(ctx, 100*time.Millisecond)
	}
}

// invalidate revokes the authority's answers about a device, in a random way, and reports whether the invalidation is
// acknowledged.
func (a *authority) invalidate(ctx context.Context, publisher *publish.Publisher, device int, version uint64) bool {
	a.writing.RLock()
	defer a.writing.RUnlock()
	var err error
	switch way := rand.IntN(40); {
	case way == 0:
		_, err = publisher.InvalidateAll(ctx)
	case way < 5:
		_, err = publisher.InvalidateLabel(ctx, "fleet", fmt.Sprint(device%fleets))
	case way < 15:
		err = a.post(ctx, device)
	default:
		_, err = publisher.InvalidateDevice(ctx, askedID(device))
	}
	if err != nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.devices[device].end(version, Acked, a.run.world.now())
	a.written++
	return true
}

// post sends an invalidation to the second sidecar.
func (a *authority) post(ctx context.Context, device int) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+a.invalidates+"/v1/invalidate",
		bytes.NewReader(fmt.Appendf(nil, `{"device": %q}`, askedID(device))))
	if err != nil {
		panic(err) // the URL is ours
	}
	request.Header.Set("Authorization", "Bearer "+askedToken)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("invalidate: %w", err)
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		return fmt.Errorf("invalidate: %s", response.Status)
	}
	return nil
}

// unsure forgets acknowledgements from since on: Redis may have lost the writes.
func (a *authority) unsure(since time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.devices {
		a.devices[i].unsure(since)
	}
}

// load changes devices until writing ends, and shows their secrets until reading ends.
func (a *authority) load(writing, reading context.Context, publisher *publish.Publisher, writers,
	readers *sync.WaitGroup) {
	readers.Go(func() { a.serve(reading) })
	for i := range askedWriters {
		writers.Go(func() {
			repeat(writing, askedEvery, func() {
				a.change(writing, publisher, i+askedWriters*rand.IntN(askedDevices/askedWriters))
			})
		})
	}
	for device := range askedDevices {
		readers.Go(func() { a.loginAll(reading, device, askedLogin) })
	}
}

// summary describes the run's questions and changes.
func (a *authority) summary() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprintf("authority: asked %d times, also %d while slow, %d hanging, %d wrong; %d changes whose "+
		"invalidation was acknowledged; devices shown %d let in, %d refused, %d not verified\n", a.asked[well], a.asked[slow],
		a.asked[hanging], a.asked[wrong], a.written, a.answers[Hit], a.answers[Refused], a.answers[Unverified])
}
