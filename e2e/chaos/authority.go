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
	authorityDevices  = 32
	authorityWriters  = 4
	authorityInterval = time.Second
	authorityLogin    = 250 * time.Millisecond
	fleets            = 4
	// authorityRecovery is how long after a failure the sidecar may ask the authority seldom.
	authorityRecovery = 3 * time.Second
	// invalidationToken is the token of invalidations by HTTP.
	invalidationToken = "a token of thirty-two bytes or more"
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
	invalidationAddress string

	mood atomic.Int32

	// The ledger's lock protects the rest.
	wellSince    time.Duration
	questions    [moods]int
	acknowledged int
}

func newAuthority(r *run) (a *authority, err error) {
	a = &authority{writing: &r.writing}
	a.ledger = newLedger(r, authorityRulePrefix, authorityDevices, authorityDeviceID, authoritySecret, permissionOf)
	a.good = func(h *history, read *Read) bool { return !h.mayBeOvertaken(read.Version, read.End) }
	a.steady = func(since time.Duration) bool {
		return mood(a.mood.Load()) == well && a.wellSince+authorityRecovery < since
	}
	if a.address, err = freeport.FindAddress(); err != nil {
		return nil, err
	}
	a.invalidationAddress, err = freeport.FindAddress()
	return a, err
}

// authorityRulePrefix begins the names of the rules about devices of the authority.
const authorityRulePrefix = "asked: "

func authorityDeviceID(device int) string { return fmt.Sprintf("asked-%03d", device) }

func authoritySecret(device int, version uint64) string {
	return fmt.Sprintf("asked %d, %d", device, version)
}

// serveQuestions answers until ctx ends, in changing moods after the first seconds.
func (a *authority) serveQuestions(ctx context.Context) {
	for ctx.Err() == nil {
		var server *http.Server
		if listener, err := net.Listen("tcp", a.address); err == nil {
			server = &http.Server{Handler: http.HandlerFunc(a.answerQuestion), ReadHeaderTimeout: requestTimeout}
			go func() { _ = server.Serve(listener) }()
		}
		for up := true; up && ctx.Err() == nil; {
			a.setMood(well)
			wait(ctx, authorityRecovery+time.Duration(rand.IntN(5000))*time.Millisecond)
			next := slow + mood(rand.IntN(int(moods-slow)))
			a.setMood(next)
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

func (a *authority) setMood(next mood) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mood.Store(int32(next))
	a.wellSince = a.run.world.now()
}

// answerQuestion decides by the database, and answers later.
func (a *authority) answerQuestion(w http.ResponseWriter, r *http.Request) {
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
	a.questions[now]++
	var device int
	if _, err := fmt.Sscanf(id, "asked-%d", &device); err != nil || device >= authorityDevices {
		return []byte(`{"allow": false}`)
	}
	h := &a.devices[device]
	version := uint64(len(h.writes))
	if version == 0 || h.writes[version-1].kind == Delete || secret != authoritySecret(device, version) {
		return []byte(`{"allow": false}`)
	}
	return fmt.Appendf(nil, `{"allow": true, "permissions": [%q], "labels": {"fleet": "%d"}}`, permissionOf(version),
		device%fleets)
}

// changeDevice writes to the database, then invalidates until the invalidation is acknowledged or ctx ends.
func (a *authority) changeDevice(ctx context.Context, publisher *publish.Publisher, device int) {
	// A question should be on its way when the change comes:
	a.writing.RLock()
	_, _ = publisher.InvalidateDevice(ctx, authorityDeviceID(device))
	a.writing.RUnlock()
	wait(ctx, time.Duration(rand.IntN(400))*time.Millisecond)
	a.mu.Lock()
	h, kind := &a.devices[device], Put
	if newest, found := h.newestKind(); found && newest == Put && rand.IntN(2) == 0 {
		kind = Delete
	}
	version := h.beginWrite(kind, a.run.world.now(), 0)
	a.mu.Unlock()
	for ctx.Err() == nil && !a.invalidateDevice(ctx, publisher, device, version) {
		wait(ctx, 100*time.Millisecond)
	}
}

// invalidateDevice revokes the authority's answers about a device, in a random way, and reports whether the
// invalidation is acknowledged.
func (a *authority) invalidateDevice(ctx context.Context, publisher *publish.Publisher, device int,
	version uint64) bool {
	a.writing.RLock()
	defer a.writing.RUnlock()
	var err error
	switch way := rand.IntN(40); {
	case way == 0:
		_, err = publisher.InvalidateAll(ctx)
	case way < 5:
		_, err = publisher.InvalidateLabel(ctx, "fleet", fmt.Sprint(device%fleets))
	case way < 15:
		err = a.postInvalidation(ctx, device)
	default:
		_, err = publisher.InvalidateDevice(ctx, authorityDeviceID(device))
	}
	if err != nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.devices[device].endWrite(version, Acked, a.run.world.now())
	a.acknowledged++
	return true
}

// postInvalidation sends an invalidation to the second sidecar.
func (a *authority) postInvalidation(ctx context.Context, device int) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+a.invalidationAddress+"/v1/invalidate",
		bytes.NewReader(fmt.Appendf(nil, `{"device": %q}`, authorityDeviceID(device))))
	if err != nil {
		panic(err) // the URL is ours
	}
	request.Header.Set("Authorization", "Bearer "+invalidationToken)
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

// forgetAcks forgets acknowledgements from since on: Redis may have lost the writes.
func (a *authority) forgetAcks(since time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.devices {
		a.devices[i].forgetAcks(since)
	}
}

// startLoad changes devices until writing ends, and shows their secrets until reading ends.
func (a *authority) startLoad(writing, reading context.Context, publisher *publish.Publisher, writers,
	readers *sync.WaitGroup) {
	readers.Go(func() { a.serveQuestions(reading) })
	for i := range authorityWriters {
		writers.Go(func() {
			repeat(writing, authorityInterval, func() {
				a.changeDevice(writing, publisher, i+authorityWriters*rand.IntN(authorityDevices/authorityWriters))
			})
		})
	}
	for device := range authorityDevices {
		readers.Go(func() { a.loginAll(reading, device, authorityLogin) })
	}
}

// summary describes the run's questions and changes.
func (a *authority) summary() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprintf("authority: asked %d times, also %d while slow, %d hanging, %d wrong; %d changes whose "+
		"invalidation was acknowledged; devices shown %d let in, %d refused, %d not verified\n", a.questions[well],
		a.questions[slow], a.questions[hanging], a.questions[wrong], a.acknowledged, a.answers[Hit],
		a.answers[Refused], a.answers[Unverified])
}
