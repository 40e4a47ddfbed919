package credential

import (
	"errors"
	"slices"
	"sync"
	"time"
)

const (
	// maxFailedCalls bounds the list of recently failed calls. If another call is answered within blameWithin, the
	// failed calls' credentials, not the service, may be the cause.
	maxFailedCalls = 64
	blameWithin    = time.Second
)

// calls bounds the running calls of an authority, and finds the sources that make calls fail. It is safe for concurrent
// use.
type calls struct {
	throttle *Throttle

	mu sync.Mutex
	// +checklocks:mu
	own map[uint64]int // number of calls for unknown secrets from a device's own network, by pair
	// +checklocks:mu
	failed []failedCall // the newest last
}

// failedCall is an attempt, without its secret, whose call failed.
type failedCall struct {
	attempt
	at time.Time
}

// reserveCall admits a call only if, should all running calls have wrong secrets, the failure limits still hold. A
// secret that was right needs no reservation at the device's own network, so guesses can't lock the device out.
func (c *calls) reserveCall(a *attempt) (leave func(), ok bool) {
	t, pair := c.throttle, c.throttle.pairKey(a)
	switch {
	case a.source == 0, a.familiar && a.wasRight:
		return func() {}, true
	case a.familiar:
		return c.reserveOwn(pair)
	case !t.byPair.beginAttempt(pair):
		return nil, false
	case !t.bySource.beginAttempt(uint64(a.source)):
		t.byPair.endAttempt(pair)
		return nil, false
	}
	return func() {
		t.byPair.endAttempt(pair)
		t.bySource.endAttempt(uint64(a.source))
	}, true
}

func (c *calls) reserveOwn(pair uint64) (leave func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own[pair] >= maxPerDevice {
		return nil, false
	}
	c.own[pair]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.own[pair]--; c.own[pair] == 0 {
			delete(c.own, pair)
		}
	}, true
}

// addFailed records that the attempt's call failed because of err.
func (c *calls) addFailed(a *attempt, err error) {
	if a.familiar || !errors.Is(err, ErrFailed) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.failed) == maxFailedCalls {
		c.failed = slices.Delete(c.failed, 0, 1)
	}
	c.failed = append(c.failed, failedCall{attempt{id: a.id, source: a.source, from: a.from}, time.Now()})
}

// blameFailed runs when a call was answered. It counts the calls that failed just before as guesses of their sources: a
// single client's failures must not keep new devices out. While the service is down, nobody is blamed.
func (c *calls) blameFailed() {
	c.mu.Lock()
	lately := c.failed
	c.failed = nil
	c.mu.Unlock()
	for i := range lately {
		if time.Since(lately[i].at) < blameWithin {
			c.throttle.blameSource(&lately[i].attempt)
		}
	}
}
