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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/publish"
	"github.com/gatehouse/gatehouse/testbed/stack"
	"github.com/gatehouse/gatehouse/testbed/upstream"
)

const (
	// askedDevices have no record: the authority decides about them. Each is changed about every four seconds.
	askedDevices = 16
	askedWriters = 4
	askedEvery   = time.Second
	askedLogin   = 200 * time.Millisecond
	fleets       = 4
	// recovered is how long after a failure the authority may be asked seldom.
	recovered = 3 * time.Second
	// askedToken is the token of invalidations by HTTP.
	askedToken = "a token of thirty-two bytes or more"
)

// mood is how the authority answers. In each it decides first, then waits.
type mood int32

const (
	well mood = iota
	slow
	hanging
	wrong
	down
	moods
)

// authority is a service that decides about devices, its database, and the checker of what the edge makes of it. The
// database is the history of its changes: a write is in force from its beginning, and is acknowledged once an
// invalidation is.
type authority struct {
	world   *world
	faults  *Checker
	limits  Limits
	report  func(Violation)
	writing *sync.RWMutex // see writer
	address string
	// invalidates is the address of the second sidecar that takes invalidations by HTTP.
	invalidates string

	mood atomic.Int32

	mu         sync.Mutex // protects the rest
	devices    [askedDevices]history
	unverified [askedDevices]int // consecutive answers
	wellSince  time.Duration
	answers    [answers]int
	asked      [moods]int
	written    int
}

func newAuthority(r *run) (a *authority, err error) {
	a = &authority{faults: r.devices, limits: r.devices.limits, report: r.report, writing: &r.writing}
	if a.address, err = stack.FreeAddress(); err != nil {
		return nil, err
	}
	a.invalidates, err = stack.FreeAddress()
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
	a.wellSince = a.world.now()
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
	case rand.IntN(4) == 0:
		delay = time.Duration(rand.IntN(300)) * time.Millisecond
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

// change writes to the database, and invalidates until that is acknowledged or ctx ends.
func (a *authority) change(ctx context.Context, publisher *publish.Publisher, device int) {
	if rand.IntN(2) == 0 { // so that a question is on its way when the change comes
		a.writing.RLock()
		_, _ = publisher.InvalidateDevice(ctx, askedID(device))
		a.writing.RUnlock()
		wait(ctx, time.Duration(rand.IntN(400))*time.Millisecond)
	}
	a.mu.Lock()
	h, kind := &a.devices[device], Put
	if newest, found := h.newest(); found && newest == Put && rand.IntN(2) == 0 {
		kind = Delete
	}
	version := h.begin(kind, a.world.now(), 0)
	a.mu.Unlock()
	for ctx.Err() == nil && !a.invalidate(ctx, publisher, device, version) {
		wait(ctx, 100*time.Millisecond)
	}
}

// invalidate ends what the authority said about a device, in one of the ways, and reports whether that is acknowledged.
func (a *authority) invalidate(ctx context.Context, publisher *publish.Publisher, device int, version uint64) bool {
	a.writing.RLock()
	defer a.writing.RUnlock()
	var err error
	switch rand.IntN(8) {
	case 0:
		_, err = publisher.InvalidateAll(ctx)
	case 1:
		_, err = publisher.InvalidateLabel(ctx, "fleet", fmt.Sprint(device%fleets))
	case 2, 3:
		err = a.post(ctx, device)
	default:
		_, err = publisher.InvalidateDevice(ctx, askedID(device))
	}
	if err != nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.devices[device].end(version, Acked, a.world.now())
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

// unsure makes acknowledgements since then count no more: Redis may have lost them.
func (a *authority) unsure(since time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.devices {
		a.devices[i].unsure(since)
	}
}

// secret returns the newest secret of a device, or the one before, and whether it is in force; 0 if there is none.
func (a *authority) secret(device int, former bool) (version uint64, newest bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	writes := a.devices[device].writes
	for i, w := range slices.Backward(writes) {
		switch {
		case w.kind == Delete:
		case former:
			former = false
		default:
			return uint64(i + 1), i == len(writes)-1
		}
	}
	return 0, false
}

// loginAll has a device send its secrets until ctx ends, as [login] does.
func (a *authority) loginAll(ctx context.Context, device int, urls [places]string) {
	var clients [2]http.Client // by whether the secret is the newest
	for i := range clients {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, byte(8+i), 0, byte(1+device))}}
		clients[i] = http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}, Timeout: requestTimeout}
		defer clients[i].CloseIdleConnections()
	}
	repeat(ctx, askedLogin, func() {
		version, newest := a.secret(device, rand.IntN(3) == 0)
		if version == 0 {
			return
		}
		client := &clients[0]
		if newest {
			client = &clients[1]
		}
		r := Read{Key: device, Version: version, Newest: newest, Place: rand.IntN(places)}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, urls[r.Place]+"/chaos/device/asked", nil)
		if err != nil {
			panic(err) // the URL is ours
		}
		request.Header.Set("x-device-id", askedID(device))
		request.Header.Set("x-device-token", askedSecret(device, version))
		before := a.world.moment()
		response, err := client.Do(request)
		var seen upstream.Seen
		if err == nil {
			if response.StatusCode == http.StatusOK {
				err = json.NewDecoder(response.Body).Decode(&seen)
			}
			_ = response.Body.Close()
		}
		a.world.stamp(&r, before)
		r.Answer = Hit
		switch {
		case ctx.Err() != nil:
			return
		case err != nil || response.StatusCode != http.StatusOK && response.StatusCode != http.StatusUnauthorized &&
			response.StatusCode != http.StatusServiceUnavailable:
			r.Answer = Unavailable // the other devices' answers tell that
		case response.StatusCode == http.StatusUnauthorized:
			r.Answer = Refused
		case response.StatusCode == http.StatusServiceUnavailable:
			r.Answer = Unverified
		case !slices.Equal(seen.Headers["x-gatehouse-device"], []string{askedID(device)}) ||
			!slices.Equal(seen.Headers["x-gatehouse-permissions"], []string{permissionOf(version)}):
			r.Answer, r.Detail = WrongBody, fmt.Sprintf("let in as %q with %q", seen.Headers["x-gatehouse-device"],
				seen.Headers["x-gatehouse-permissions"])
		}
		for _, text := range a.judge(r) {
			a.report(Violation{ofAsked + text[0], device, r.End, text[1]})
		}
	})
}

// judge returns the rules that an answer violates, each with a text. An edge may let a device in by what the authority
// said before a change, until an invalidation after that is acknowledged, and for as long as after any other write.
func (a *authority) judge(r Read) (found [][2]string) {
	quiet := func(from time.Duration) bool {
		a.faults.mu.Lock()
		defer a.faults.mu.Unlock()
		return quiet(a.faults.faults, from, r.End)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers[r.Answer]++
	h := &a.devices[r.Key]
	report := func(rule, format string, args ...any) {
		found = append(found, [2]string{rule, fmt.Sprintf(format, args...)})
	}
	inForce := !h.overtaken(r.Version, r.End)
	if r.Answer != Unverified {
		a.unverified[r.Key] = 0
	}
	switch age := h.age(r.Version, r.Start); r.Answer {
	case WrongBody:
		report("wrong body", "%s", r.Detail)
	case Hit:
		switch {
		case age > a.limits.MaxStaleness+a.limits.Slack:
			report("too old", "version %d was invalidated %.3f s before the request at %.3f s", r.Version, age.Seconds(),
				r.Start.Seconds())
		case age > a.limits.Converge && quiet(r.Start-a.limits.Converge):
			report("late", "version %d was invalidated %.3f s before the request at %.3f s; nothing was broken", r.Version,
				age.Seconds(), r.Start.Seconds())
		}
	case Refused:
		if inForce {
			report("good one refused", "version %d, shown at %.3f s, is in force", r.Version, r.Start.Seconds())
		}
	case Unverified:
		at, acked := h.ackOf(r.Version)
		steady := mood(a.mood.Load()) == well && a.wellSince+recovered < r.Start
		if r.Newest && inForce && acked && at+a.limits.Converge < r.Start && steady && quiet(r.Start-a.limits.Converge) {
			if a.unverified[r.Key]++; a.unverified[r.Key] == 2 {
				report("not verified", "version %d, shown at %.3f s, and once before; nothing was broken, and the authority "+
					"is well since %.3f s", r.Version, r.Start.Seconds(), a.wellSince.Seconds())
			}
		}
	}
	return found
}

// load changes devices until writing ends, and shows their secrets until reading ends.
func (a *authority) load(writing, reading context.Context, publisher *publish.Publisher, urls [places]string, writers,
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
		readers.Go(func() { a.loginAll(reading, device, urls) })
	}
}

// summary describes what was done.
func (a *authority) summary() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprintf("authority: asked %d times, also %d while slow, %d hanging, %d wrong; %d changes whose invalidation "+
		"was acknowledged; devices shown %d let in, %d refused, %d not verified\n", a.asked[well], a.asked[slow],
		a.asked[hanging], a.asked[wrong], a.written, a.answers[Hit], a.answers[Refused], a.answers[Unverified])
}
