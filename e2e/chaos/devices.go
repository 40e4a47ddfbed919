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

	"github.com/redis/go-redis/v9"
	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/testbed/upstream"
)

// A device's writes are numbered like an object's: version n is the n-th write, a new secret (Put) or a revocation
// (Delete). An accepted secret of version n shows that n was in force; a refused secret shows that n was not in force,
// or no longer.

// deviceID returns the id of a device. Every third device does handshakes and sends a token.
func deviceID(device int) string { return fmt.Sprintf("chaos-%03d", device) }

func showsToken(device int) bool { return device%3 == 0 }

// class is a kind of device. Each slot has devices of one class.
type class uint8

const (
	// changing devices get new secrets and are revoked, often.
	changing class = iota
	// steady devices keep their secrets. They get other permissions, are revoked, deleted and registered again, so seldom
	// that the last write stands for seconds.
	steady
	// racing devices are revoked while bcrypt runs for them.
	racing
	// mortal devices get new secrets that are valid until a not-after.
	mortal
	// rotating devices get new secrets; the former secret stays valid for an overlap.
	rotating
)

// Number of slots of each class except changing.
const (
	steadySlots   = 24
	racingSlots   = 3
	mortalSlots   = 4
	rotatingSlots = 4
	otherSlots    = steadySlots + racingSlots + mortalSlots + rotatingSlots
)

// classOf returns the class of a slot, given the number of slots, and of the slot's devices.
func classOf(slot, slots int) class {
	switch n := slots - slot; {
	case n <= mortalSlots:
		return mortal
	case n <= mortalSlots+racingSlots:
		return racing
	case n <= mortalSlots+racingSlots+rotatingSlots:
		return rotating
	case n <= otherSlots:
		return steady
	}
	return changing
}

// permissionNames is the number of permissions of steady devices. Each version has the next permission, so that an
// answer shows the version in force.
const permissionNames = 8

func permissionOf(version uint64) string { return fmt.Sprintf("chaos.%d", version%permissionNames) }

const (
	// lifeOf is how long secrets of mortal devices are valid.
	lifeOf = 2 * time.Second
	// overlapOf is how long a rotating device's former secret stays valid: longer than changes take to settle.
	overlapOf = 4 * time.Second
)

// The secrets of steady devices, and the hashes; only every second device has both secrets. bcrypt takes long for the
// secret of racing devices, so that a revocation can come meanwhile.
var (
	steadySecrets = [2]string{"a steady secret", "another steady secret"}
	steadyHashes  = sync.OnceValue(func() []string { return hashesOf(secretCost, steadySecrets[:]...) })
	racingHashes  = sync.OnceValue(func() []string { return hashesOf(racingCost, racingSecret) })
)

const (
	racingSecret = "a secret that takes long"
	racingCost   = 10
)

func hashesOf(cost int, secrets ...string) (hashes []string) {
	for _, secret := range secrets {
		hash, err := bcrypt.GenerateFromPassword([]byte(secret), cost)
		if err != nil {
			panic(err) // the cost and the secrets are ours
		}
		hashes = append(hashes, string(hash))
	}
	return hashes
}

// secretOf returns a device's secret of a version.
func secretOf(device int, version uint64) string {
	return fmt.Sprintf("secret of %d, %d", device, version)
}

// secretCost is the cost of the bcrypt hashes: bcrypt's duration isn't tested.
const secretCost = 4

// deviceWriter gives devices new secrets, and revokes devices.
type deviceWriter struct {
	world     *world
	checker   *Checker
	writing   *sync.RWMutex // locked while Redis is emptied
	publisher *publish.Publisher
	client    redis.UniversalClient // deletes records
	shards    contract.Shards
	slots     []deviceSlot
	counts    *counts
	report    func(Violation)
	repeats   bool // see writer
}

// deviceSlot is one of the devices that exist at a time: when a device ends, the next device takes the slot.
type deviceSlot struct {
	atomic.Int64 // the device that has it
	// order is locked for a revocation, whose version Redis counts. New secrets have versions, and may be written
	// concurrently.
	order sync.RWMutex
}

// generations is how many devices each slot may have, one after the other.
const generations = 128

// deviceClass returns the class of a device.
func (w *deviceWriter) deviceClass(device int) class {
	return classOf(device%len(w.slots), len(w.slots))
}

// pickSlot returns a random slot of the class.
func (w *deviceWriter) pickSlot(of class) *deviceSlot {
	for {
		if i := rand.IntN(len(w.slots)); w.deviceClass(i) == of {
			return &w.slots[i]
		}
	}
}

// run has two writers write to one device at every tick until ctx ends.
func (w *deviceWriter) run(ctx context.Context, every time.Duration) {
	repeat(ctx, every, func() {
		slot := w.pickSlot(changing)
		var writers sync.WaitGroup
		for range writersOfKey {
			writers.Go(func() { w.writeNext(slot) })
		}
		writers.Wait()
	})
}

// writeNext makes the next version of a slot's device, of the kind if one is given, perhaps concurrently with another
// writer. Redis counts the version of a revocation, so Redis could apply a write of unknown outcome after a later
// write: after a write of unknown outcome another device takes the slot.
func (w *deviceWriter) writeNext(slot *deviceSlot, kinds ...Kind) {
	w.writing.RLock()
	defer w.writing.RUnlock()
	kind, alone := Put, w.deviceClass(int(slot.Load())) != changing
	if newest, found := w.checker.NewestKind(int(slot.Load())); found && newest == Put && rand.IntN(2) == 0 &&
		w.deviceClass(int(slot.Load())) < mortal {
		kind = Delete
	}
	if len(kinds) > 0 {
		kind = kinds[0]
	}
	if alone || kind == Delete {
		slot.order.Lock()
		defer slot.order.Unlock()
	} else {
		slot.order.RLock()
		defer slot.order.RUnlock()
	}
	device := int(slot.Load())
	switch newest, found := w.checker.NewestKind(device); {
	case !found:
		kind = Put // it has just taken the slot
	case len(kinds) > 0 && kind == Delete && newest == Delete:
		return // Redis was emptied, or all devices were revoked
	}
	version, err := w.sendWrite(device, kind)
	outcome := outcomeOf(err)
	now := w.world.now()
	stale := errors.Is(err, publish.ErrStale)
	overtaken := stale && w.checker.MayBeOvertaken(device, version, now)
	if stale && !w.repeats {
		outcome = Failed
	}
	w.checker.End(device, version, outcome, now)
	w.counts.devices[outcome].Add(1)
	if next := device + len(w.slots); outcome == Unknown && next < len(w.slots)*generations {
		slot.CompareAndSwap(int64(device), int64(next))
	}
	if stale && !overtaken && !w.repeats && !alone {
		w.report(Violation{deviceRulePrefix + "write refused", device, now,
			fmt.Sprintf("%s of version %d: %v", kind, version, err)})
	}
	between := w.world.eras.Load()%2 == 1 // Redis may have lost the device
	missing := errors.Is(err, publish.ErrNotFound) && !between && w.checker.WasRegistered(device, version)
	if errors.Is(err, publish.ErrInvalid) || missing {
		w.report(Violation{deviceRulePrefix + "write refused", device, now,
			fmt.Sprintf("%s of version %d: %v", kind, version, err)})
	}
}

// keepOwners registers the owners of objects, again whenever a fault has removed or revoked an owner, until ctx ends.
func (w *deviceWriter) keepOwners(ctx context.Context) {
	for wait(ctx, keepEvery) {
		w.writing.RLock()
		_ = w.registerOwners(context.Background()) // the next one comes soon
		w.writing.RUnlock()
	}
}

// registerOwners registers the owners that are not registered.
func (w *deviceWriter) registerOwners(ctx context.Context) error {
	for owner := range owners {
		id := ownerID(owner)
		got, err := w.client.HMGet(ctx, contract.Keyspace{Shards: w.shards}.KeysOf(id).CredentialKey(id), contract.FieldHash,
			contract.FieldDisabled).Result()
		if err == nil && (got[0] == nil || got[1] != nil) {
			_, err = w.publisher.PutDevice(ctx, publish.Device{ID: id, Hashes: steadyHashes()[:1]})
		}
		if err != nil {
			return fmt.Errorf("register %s: %w", id, err)
		}
	}
	return nil
}

// keepEvery is how long an owner may be missing after a fault.
const keepEvery = 500 * time.Millisecond

// raceRevocations registers new devices of a slot and revokes each during its first verification, until ctx ends. Then
// it shows the secret for some time: the verification must not let the device in.
func (w *deviceWriter) raceRevocations(ctx context.Context, slot *deviceSlot, newLogin func(device int) *login,
	show func(l *login, version uint64, newest bool)) {
	for wait(ctx, 50*time.Millisecond) {
		device := int(slot.Load())
		w.writeNext(slot, Put)
		if _, found := w.checker.NewestKind(device); !found {
			continue // it was refused
		}
		version, _ := w.checker.SecretVersion(device, false)
		login := newLogin(device)
		wait(ctx, 20*time.Millisecond) // the sidecars have it
		var showing sync.WaitGroup
		showing.Go(func() { show(login, version, true) })
		wait(ctx, time.Duration(rand.IntN(60))*time.Millisecond)
		if device == int(slot.Load()) {
			w.writeNext(slot, Delete)
		}
		showing.Wait()
		for range 24 {
			if wait(ctx, 200*time.Millisecond) {
				show(login, version, false)
			}
		}
		login.close()
		next := device + len(w.slots)
		if next >= len(w.slots)*generations {
			return
		}
		slot.CompareAndSwap(int64(device), int64(next))
	}
}

// sendWrite sends the next version of a device. Only changing devices have concurrent writers, and give the version;
// for other devices Redis counts, and goes on from a tombstone.
func (w *deviceWriter) sendWrite(device int, kind Kind) (version uint64, err error) {
	ctx := context.Background() // it ends by the client's timeouts
	d, life := publish.Device{ID: deviceID(device)}, time.Duration(0)
	of := w.deviceClass(device)
	if kind == Put && of == mortal {
		life = lifeOf
	}
	// The not-after comes before the acknowledgement: the secret ends at most life after the acknowledgement.
	d.NotAfter = time.Now().Add(life)
	if life == 0 {
		d.NotAfter = time.Time{}
	}
	if newest, found := w.checker.NewestKind(device); of == rotating && kind == Put && found && newest == Put {
		version = w.checker.BeginRotation(device, w.world.now(), overlapOf)
		_, err = w.publisher.RotateDevice(ctx, publish.Rotation{ID: d.ID, Secret: secretOf(device, version),
			Overlap: overlapOf, Cost: secretCost})
		return version, err
	}
	version = w.checker.BeginFor(device, kind, w.world.now(), life)
	switch of {
	case changing:
		d.Version, d.Secret, d.Cost = version, secretOf(device, version), secretCost
	case mortal, rotating:
		d.Secret, d.Cost = secretOf(device, version), secretCost
	case racing:
		d.Hashes = racingHashes()
	case steady:
		d.Hashes, d.Permissions = steadyHashes()[:1+device%2], []string{permissionOf(version)}
	}
	switch {
	case kind == Put:
		_, err = w.publisher.PutDevice(ctx, d)
	case of == steady && rand.IntN(2) == 0:
		// As an eviction or a writer in another language does: a tombstone revokes a device whose record is gone.
		if err = w.client.Del(ctx, contract.Keyspace{Shards: w.shards}.KeysOf(d.ID).CredentialKey(d.ID)).Err(); err != nil {
			break
		}
		if _, err = w.publisher.RevokeDevice(ctx, d.ID); err != nil {
			err = fmt.Errorf("the record is gone, but not its device: %v", err) // so its outcome is unknown
		}
	default:
		_, err = w.publisher.RevokeDevice(ctx, d.ID)
	}
	return version, err
}

// login sends one device's secrets to any of the edges. The newest secret comes from its own address, so that wrong
// secrets don't count against it; earlier secrets come from another address. A newest secret that is refused, because
// it isn't in force yet, counts as wrong: the next secret has another address.
type login struct {
	world   *world
	checker *Checker
	class   class
	device  int
	urls    []string
	clients [2]http.Client // by whether the secret is the newest
	moves   int            // of the newest secret's address

	token  string
	issued uint64 // the version of the secret for which it was issued
}

func newLogin(w *world, checker *Checker, of class, urls []string, device int) *login {
	l := &login{world: w, checker: checker, class: of, device: device, urls: urls}
	for i := range l.clients {
		l.clients[i] = clientOf(byte(1+i), device)
	}
	return l
}

// clientOf returns a client with an address of the device in 127.network.0.0. Ledgers have the networks of letters.
func clientOf(network byte, device int) http.Client {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, network, byte(device>>8), byte(device))}}
	return http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}, Timeout: requestTimeout}
}

// changeAddress gives the newest secret another address.
func (l *login) changeAddress() {
	l.clients[1].CloseIdleConnections()
	l.clients[1] = clientOf(byte(130+l.moves%120), l.device)
	l.moves++
}

func (l *login) close() {
	for i := range l.clients {
		l.clients[i].CloseIdleConnections()
	}
}

// showSecret sends the secret of a version, or the token issued for the secret.
func (l *login) showSecret(ctx context.Context, version uint64, newest bool) Read {
	got := Read{Key: l.device, Version: version, Newest: newest, EdgeIndex: rand.IntN(len(l.urls))}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		fmt.Sprintf("%s/chaos/device/%d", l.urls[got.EdgeIndex], l.device), nil)
	if err != nil {
		panic(err) // the URL is ours
	}
	if token := l.tokenOf(version); l.class == changing && newest && token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
		got.Token = true
	} else {
		l.setCredential(request, version)
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
	l.world.stampRead(&got, before)
	switch {
	case err != nil:
		got.Answer, got.Detail = Unavailable, err.Error()
	case response.StatusCode == http.StatusUnauthorized:
		got.Answer, got.Detail = Refused, "401"
		if newest && !got.Token {
			l.changeAddress()
		}
	case response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") != "":
		got.Answer, got.Detail = Unverified, "503 with Retry-After"
	case response.StatusCode != http.StatusOK:
		got.Answer, got.Detail = Unavailable, response.Status
	case len(seen.Headers["x-gatehouse-device"]) != 1 || seen.Headers["x-gatehouse-device"][0] != deviceID(l.device):
		got.Answer, got.Detail = WrongBody, fmt.Sprintf("let in as %q", seen.Headers["x-gatehouse-device"])
	case l.class == steady && !l.matchPermission(&got, seen.Headers["x-gatehouse-permissions"]):
		got.Answer, got.Detail = WrongBody, fmt.Sprintf("let in with permissions %q", seen.Headers["x-gatehouse-permissions"])
	default:
		got.Answer = Hit
		if l.class == changing && newest && !got.Token && showsToken(l.device) {
			l.handshake(ctx, client, got.EdgeIndex, version)
		}
	}
	return got
}

// matchPermission sets the version of an answer to the version with the answer's permission, and reports whether there
// is one.
func (l *login) matchPermission(got *Read, permissions []string) bool {
	for n := range uint64(permissionNames) {
		if len(permissions) == 1 && permissions[0] == permissionOf(n) {
			got.Version = l.checker.VersionWithPermission(l.device, n)
			return got.Version > 0
		}
	}
	return false
}

func (l *login) setCredential(request *http.Request, version uint64) {
	secret := secretOf(l.device, version)
	switch l.class {
	case steady:
		secret = steadySecrets[rand.IntN(1+l.device%2)]
	case racing:
		secret = racingSecret
	}
	request.Header.Set("x-device-id", deviceID(l.device))
	request.Header.Set("x-device-token", secret)
}

// tokenOf returns the token issued for a version's secret, "" if there is none. Sometimes it drops the token.
func (l *login) tokenOf(version uint64) string {
	if l.issued != version || rand.IntN(16) == 0 {
		l.token = ""
	}
	return l.token
}

// handshake gets a token. Without a token the next request sends the secret again.
func (l *login) handshake(ctx context.Context, client *http.Client, edge int, version uint64) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.urls[edge]+"/chaos/session", nil)
	if err != nil {
		panic(err)
	}
	l.setCredential(request, version)
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
