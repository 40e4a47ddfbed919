package credential

import (
	"net/netip"
	"sync"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// maxFailureNames bounds the failures whose device and network are known by name, for operators.
const maxFailureNames = 1024

// Hold is a network, or a device at a network, that the limits delay.
type Hold struct {
	// Network is an IPv4 address or an IPv6 /64, see [wire.Network].
	Network netip.Prefix
	// Device is the delayed device; "": all devices that never authenticated at Network.
	Device string
	Last   time.Time
	// WaitS is the delay of the next attempt, s; 0: no delay, but other attempts go first (see --limit.window).
	WaitS float64
	// Own: Device authenticated at Network before, so its right secret passes, and only wrong secrets wait.
	Own bool
}

// failureNames has the names of the newest failures: the tables of failures have only hashes. Its methods are safe for
// concurrent use.
type failureNames struct {
	mu sync.Mutex
	// +checklocks:mu
	all map[uint64]*Hold // by the key of the table
	// +checklocks:mu
	keys []uint64 // at most maxFailureNames, in a ring
	next int      // +checklocks:mu
}

// addName records a failure under the key of its table.
func (n *failureNames) addName(key uint64, network netip.Prefix, device string, own bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h := n.all[key]; h != nil {
		h.Last, h.Own = time.Now(), own
		return
	}
	if n.all == nil {
		n.all = make(map[uint64]*Hold)
	}
	if len(n.keys) < maxFailureNames {
		n.keys = append(n.keys, key)
	} else {
		delete(n.all, n.keys[n.next])
		n.keys[n.next] = key
		n.next = (n.next + 1) % maxFailureNames
	}
	n.all[key] = &Hold{Network: network, Device: device, Last: time.Now(), Own: own}
}

func (n *failureNames) dropName(key uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.all, key)
}

// addHolds appends the current holds at an edge among the last 1,024 networks and devices that failed there.
func (t *Throttle) addHolds(held []Hold) []Hold {
	t.names.mu.Lock()
	defer t.names.mu.Unlock()
	for key, h := range t.names.all {
		table := t.bySource
		if h.Device != "" {
			table = t.byPair
		}
		wait := table.retryAfter(key)
		if wait > 0 || h.Device == "" && table.isSuspect(key) {
			now := *h
			now.WaitS = wait.Seconds()
			held = append(held, now)
		}
	}
	return held
}

// releaseHold is ReleaseHold at an edge.
func (t *Throttle) releaseHold(network netip.Prefix, device string) (released int) {
	from := t.sources.sourceOf(network.Addr().String())
	if device == "" {
		t.bySource.forgetKey(uint64(from))
	} else {
		t.byPair.forgetKey(t.sources.pairKey(device, from))
	}
	t.names.mu.Lock()
	defer t.names.mu.Unlock()
	for key, h := range t.names.all {
		if h.Network != network || device != "" && h.Device != device {
			continue
		}
		if h.Device != "" {
			t.byPair.forgetKey(key)
		}
		delete(t.names.all, key)
		released++
	}
	return released
}

// nameFailure records a failure of the attempt for operators.
func (t *Throttle) nameFailure(a *attempt) {
	network, ok := NetworkOf(a.from)
	if !ok {
		return
	}
	t.names.addName(t.pairKey(a), network, a.id, a.familiar)
	if t.limits.SourceFailures > 0 && !a.familiar {
		t.names.addName(uint64(a.source), network, "", false)
	}
}

// NetworkOf returns the network of an address in text form, as the limits see it; false if text is not an address.
func NetworkOf(text string) (netip.Prefix, bool) {
	address, ok := wire.Network(text)
	if !ok {
		return netip.Prefix{}, false
	}
	bits := 32
	if address.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(address, bits), true
}
