package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/publish"
	"github.com/gatehouse/gatehouse/testbed/upstream"
)

// A device's writes are numbered like an object's: version n is its n-th write, a new secret (Put) or a revocation
// (Delete). An accepted secret of version n shows that n was in force; a refused one shows that it was not, or no
// longer.

// deviceID returns the id of a device. Every third one does handshakes and sends a token.
func deviceID(device int) string { return fmt.Sprintf("chaos-%03d", device) }

func showsToken(device int) bool { return device%3 == 0 }

// secretOf returns a device's secret of a version.
func secretOf(device int, version uint64) string {
	return fmt.Sprintf("secret of %d, %d", device, version)
}

// secretCost is the cost of the bcrypt hashes: their duration isn't tested.
const secretCost = 4

// deviceWriter gives devices new secrets, and revokes them.
type deviceWriter struct {
	world     *world
	checker   *Checker
	writing   *sync.RWMutex // locked while Redis is emptied
	publisher *publish.Publisher
	places    []place
	counts    *counts
	report    func(Violation)
	repeats   bool // see writer
}

// place is one of the devices that exist at a time.
type place struct {
	atomic.Int64 // the device that has it
	// order is locked for a revocation, whose version Redis counts; new secrets have versions, and may be written
	// concurrently.
	order sync.RWMutex
}

// generations is how many devices each place may have, one after the other.
const generations = 64

// run has two writers write to one device at every tick until ctx ends.
func (w *deviceWriter) run(ctx context.Context, every time.Duration) {
	repeat(ctx, every, func() {
		place := &w.places[rand.IntN(len(w.places))]
		var writers sync.WaitGroup
		for range writersOfKey {
			writers.Go(func() { w.write(place) })
		}
		writers.Wait()
	})
}

// write makes the next version of a place's device, perhaps concurrently with another writer. Redis counts a
// revocation's version, so a write of unknown outcome could be applied after a later one: then another device takes the
// place.
func (w *deviceWriter) write(place *place) {
	w.writing.RLock()
	defer w.writing.RUnlock()
	kind := Put
	if newest, found := w.checker.Newest(int(place.Load())); found && newest == Put && rand.IntN(2) == 0 {
		kind = Delete
		place.order.Lock()
		defer place.order.Unlock()
	} else {
		place.order.RLock()
		defer place.order.RUnlock()
	}
	device := int(place.Load())
	if _, found := w.checker.Newest(device); !found {
		kind = Put // it has just taken the place
	}
	ctx := context.Background() // it ends by the client's timeouts
	version := w.checker.Begin(device, kind, w.world.now())
	var err error
	if kind == Delete {
		_, err = w.publisher.RevokeDevice(ctx, deviceID(device))
	} else {
		_, err = w.publisher.PutDevice(ctx, publish.Device{ID: deviceID(device), Version: version, Secret: secretOf(device, version), Cost: secretCost})
	}
	outcome := outcomeOf(err)
	now := w.world.now()
	stale := errors.Is(err, publish.ErrStale)
	overtaken := stale && w.checker.Overtaken(device, version, now)
	if stale && !w.repeats {
		outcome = Failed
	}
	w.checker.End(device, version, outcome, now)
	w.counts.devices[outcome].Add(1)
	if next := device + len(w.places); outcome == Unknown && next < len(w.places)*generations {
		place.CompareAndSwap(int64(device), int64(next))
	}
	if stale && !overtaken && !w.repeats {
		w.report(Violation{ofDevices + "write refused", device, now, fmt.Sprintf("%s of version %d: %v", kind, version, err)})
	}
	between := w.world.eras.Load()%2 == 1 // Redis may have lost the device
	if errors.Is(err, publish.ErrInvalid) || errors.Is(err, publish.ErrNotFound) && !between {
		w.report(Violation{ofDevices + "write refused", device, now, fmt.Sprintf("%s of version %d: %v", kind, version, err)})
	}
}

// login sends one device's secrets to any of the edges: the newest one from its own address, so that wrong secrets
// don't count against it, and earlier ones from another address.
type login struct {
	world   *world
	device  int
	urls    [places]string
	clients [2]http.Client // by whether the secret is the newest

	token  string
	issued uint64 // the version of the secret for which it was issued
}

func newLogin(w *world, urls [places]string, device int) *login {
	l := &login{world: w, device: device, urls: urls}
	for i := range l.clients {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, byte(1+i), byte(device>>8), byte(device))}}
		l.clients[i] = http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}, Timeout: requestTimeout}
	}
	return l
}

func (l *login) close() {
	for i := range l.clients {
		l.clients[i].CloseIdleConnections()
	}
}

// show sends the secret of a version, or the token that was issued for it.
func (l *login) show(ctx context.Context, version uint64, newest bool) Read {
	got := Read{Key: l.device, Version: version, Place: rand.IntN(places)}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/chaos/device/%d", l.urls[got.Place], l.device), nil)
	if err != nil {
		panic(err) // the URL is ours
	}
	if token := l.tokenOf(version); newest && token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
		got.Token = true
	} else {
		l.credential(request, version)
	}
	client := &l.clients[0]
	if newest {
		client = &l.clients[1]
	}
	before := l.world.moment()
	response, err := client.Do(request)
	var seen upstream.Seen
	if err == nil {
		if response.StatusCode == http.StatusOK {
			err = json.NewDecoder(response.Body).Decode(&seen)
		}
		_ = response.Body.Close()
	}
	l.world.stamp(&got, before)
	switch {
	case err != nil:
		got.Answer, got.Detail = Unavailable, err.Error()
	case response.StatusCode == http.StatusUnauthorized:
		got.Answer, got.Detail = Refused, "401"
	case response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") != "":
		got.Answer, got.Detail = Unverified, "503 with Retry-After"
	case response.StatusCode != http.StatusOK:
		got.Answer, got.Detail = Unavailable, response.Status
	case len(seen.Headers["x-gatehouse-device"]) != 1 || seen.Headers["x-gatehouse-device"][0] != deviceID(l.device):
		got.Answer, got.Detail = WrongBody, fmt.Sprintf("let in as %q", seen.Headers["x-gatehouse-device"])
	default:
		got.Answer = Hit
		if newest && !got.Token && showsToken(l.device) {
			l.handshake(ctx, client, got.Place, version)
		}
	}
	return got
}

func (l *login) credential(request *http.Request, version uint64) {
	request.Header.Set("x-device-id", deviceID(l.device))
	request.Header.Set("x-device-token", secretOf(l.device, version))
}

// tokenOf returns the token that was issued for a version's secret, "" if there is none. Sometimes it drops the token.
func (l *login) tokenOf(version uint64) string {
	if l.issued != version || rand.IntN(16) == 0 {
		l.token = ""
	}
	return l.token
}

// handshake gets a token; without one the next request sends the secret again.
func (l *login) handshake(ctx context.Context, client *http.Client, place int, version uint64) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.urls[place]+"/chaos/session", nil)
	if err != nil {
		panic(err)
	}
	l.credential(request, version)
	response, err := client.Do(request)
	if err != nil {
		return
	}
	defer func() { _ = response.Body.Close() }()
	var got struct {
		Token string `json:"token"`
	}
	if response.StatusCode == http.StatusOK && json.NewDecoder(response.Body).Decode(&got) == nil {
		l.token, l.issued = got.Token, version
	}
}
