package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gatehouse/gatehouse/testbed/upstream"
)

// ledger records the writes of devices and judges the answers to the devices. Each version has its own secret. ledger
// is safe for concurrent use.
type ledger struct {
	run        *run
	rule       string // begins the names of its rules
	id         func(device int) string
	secretOf   func(device int, version uint64) string
	permission func(version uint64) string
	// good reports whether an answer may not be a refusal, steady whether what verifies was well since some time. The
	// callers hold the lock.
	good   func(*history, *Read) bool
	steady func(since time.Duration) bool

	mu         sync.Mutex // protects the rest
	devices    []history
	unverified []int // consecutive answers
	answers    [answers]int
}

func newLedger(r *run, rule string, devices int, id func(int) string, secretOf func(int, uint64) string,
	permission func(uint64) string) *ledger {
	return &ledger{run: r, rule: rule, id: id, secretOf: secretOf, permission: permission,
		devices: make([]history, devices), unverified: make([]int, devices)}
}

// secretVersion returns the version of a device's newest secret, or of the former secret, and whether the secret is in
// force; 0 if there is none.
func (l *ledger) secretVersion(device int, former bool) (version uint64, newest bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	writes := l.devices[device].writes
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

// secretClient sends a device's secrets: the newest from its own address, former secrets from another address.
type secretClient struct {
	*ledger
	device  int
	clients [2]http.Client // by whether the secret is the newest
}

func (l *ledger) newSecretClient(device int) *secretClient {
	s := &secretClient{ledger: l, device: device}
	for i := range s.clients {
		s.clients[i] = clientOf(l.rule[0]+byte(i), device)
	}
	return s
}

func (s *secretClient) close() {
	for i := range s.clients {
		s.clients[i].CloseIdleConnections()
	}
}

// loginAll has a device send its secrets until ctx ends, like [login].
func (l *ledger) loginAll(ctx context.Context, device int, every time.Duration) {
	s := l.newSecretClient(device)
	defer s.close()
	repeat(ctx, every, func() { s.showSecret(ctx, rand.IntN(3) == 0) })
}

// showSecret sends the newest or the former secret, and judges the answer.
func (s *secretClient) showSecret(ctx context.Context, former bool) {
	version, newest := s.secretVersion(s.device, former)
	if version == 0 {
		return
	}
	client := &s.clients[0]
	if newest {
		client = &s.clients[1]
	}
	r := Read{Key: s.device, Version: version, Newest: newest, EdgeIndex: rand.IntN(len(s.run.urls))}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.run.urls[r.EdgeIndex]+"/chaos/device/ledger", nil)
	if err != nil {
		panic(err) // the URL is ours
	}
	request.Header.Set("x-device-id", s.id(s.device))
	request.Header.Set("x-device-token", s.secretOf(s.device, version))
	before := s.run.world.moment()
	response, err := client.Do(request)
	var seen upstream.Seen
	if err == nil {
		if response.StatusCode == http.StatusOK {
			err = json.NewDecoder(response.Body).Decode(&seen)
		}
		_ = response.Body.Close()
	}
	s.run.world.stampRead(&r, before)
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
	case !slices.Equal(seen.Headers["x-gatehouse-device"], []string{s.id(s.device)}) ||
		!slices.Equal(seen.Headers["x-gatehouse-permissions"], []string{s.permission(version)}):
		r.Answer, r.Detail = WrongBody, fmt.Sprintf("let in as %q with %q", seen.Headers["x-gatehouse-device"],
			seen.Headers["x-gatehouse-permissions"])
	}
	for _, text := range s.judgeAnswer(&r) {
		s.run.reportViolation(Violation{s.rule + text[0], s.device, r.End, text[1]})
	}
}

// judgeAnswer returns the rules that an answer violates, each with a text. An edge may let a device in by the state
// before a write until the write is acknowledged, and as long afterwards as with any write.
func (l *ledger) judgeAnswer(r *Read) (found [][2]string) {
	quiet := func() bool {
		l.run.devices.mu.Lock()
		defer l.run.devices.mu.Unlock()
		return l.run.devices.isQuietFor(r.Start, r.End)
	}
	starvation := l.run.devices.starvation
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers[r.Answer]++
	h := &l.devices[r.Key]
	if r.Version > uint64(len(h.writes)) { // forgotten meanwhile
		return nil
	}
	report := func(rule, format string, args ...any) {
		found = append(found, [2]string{rule, fmt.Sprintf(format, args...)})
	}
	limits, good := l.run.devices.limits, l.good(h, r)
	if r.Answer != Unverified {
		l.unverified[r.Key] = 0
	}
	switch age := h.ageAt(r.Version, r.Start); r.Answer {
	case WrongBody:
		report("wrong body", "%s", r.Detail)
	case Hit:
		switch {
		case age > limits.MaxStaleness+limits.Slack:
			report("too old", "version %d was invalidated %.3f s before the request at %.3f s", r.Version, age.Seconds(),
				r.Start.Seconds())
		case starvation.hasPassed(r.Start-age, r.Start, limits.Converge) && quiet():
			report("late", "version %d was invalidated %.3f s before the request at %.3f s; nothing was broken", r.Version,
				age.Seconds(), r.Start.Seconds())
		}
	case Refused:
		if good {
			report("good one refused", "version %d, shown at %.3f s, is in force", r.Version, r.Start.Seconds())
		}
	case Unverified:
		at, acked := h.ackOf(r.Version)
		if r.Newest && good && acked && starvation.hasPassed(at, r.Start, limits.Converge) && l.steady(r.Start) &&
			!starvation.isHeavy(r.Start-limits.Converge, r.End) && quiet() {
			if l.unverified[r.Key]++; l.unverified[r.Key] == 2 {
				report("not verified", "version %d, shown at %.3f s, and once before; nothing was broken", r.Version,
					r.Start.Seconds())
			}
		}
	}
	return found
}
