package edge

import (
	"maps"
	"net/netip"
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// Bounds of a worker's memory of guesses.
const (
	// guessLifeMS is how long a wrong secret is remembered, ms, beyond the sidecar's answer about the secret.
	guessLifeMS = 60_000
	// maxOnce and maxGuessed bound the pairs of a device and a network with one wrong secret, and with more. Beyond
	// maxOnce, the first wrong secret of a pair counts as its second; beyond maxGuessed, any pair is forgotten.
	maxOnce    = 4096
	maxGuessed = 8192
)

// guesses has the devices whose secrets somebody guesses, and the networks of the guesses. A worker itself refuses the
// first wrong secret of a device from a network: a flood over many devices has mostly first guesses. From the second
// on, the sidecar decides about all secrets of the device from the network, also about the right secret: otherwise the
// sidecar's limit would not hold. Requests with the right secret from other networks don't notice.
type guesses struct {
	wrongOnce map[deviceNetwork]int64 // when, unix ms
	devices   map[string]map[netip.Addr]guessState
	count     int // of guessed
}

type deviceNetwork struct {
	device  string
	network netip.Addr
}

// guessState is the knowledge about a device and network.
type guessState struct {
	atMS int64 // of the sidecar's last answer or, before any answer, of the request, unix ms
	// forMS is how long the answer holds, ms: the device's secrets are throttled or, if isOwn, the edge decides by
	// itself, because the device authenticated from there before.
	forMS int64
	isOwn bool
}

func newGuesses() guesses {
	return guesses{wrongOnce: map[deviceNetwork]int64{}, devices: map[string]map[netip.Addr]guessState{}}
}

// isWithin reports whether less than ms have passed since a time. If it is in the future, the clock was set back.
func isWithin(sinceMS, nowMS, ms int64) bool { return sinceMS <= nowMS && nowMS < sinceMS+ms }

// rememberFirst remembers a wrong secret of a pair, and reports whether the secret is the pair's first.
func (g *guesses) rememberFirst(p deviceNetwork, nowMS int64) bool {
	atMS, found := g.wrongOnce[p]
	if found && isWithin(atMS, nowMS, guessLifeMS) {
		return false
	}
	if !found && len(g.wrongOnce) >= maxOnce {
		return false // a forgotten pair would have another first guess
	}
	p.device = strings.Clone(p.device)
	g.wrongOnce[p] = nowMS
	return true
}

// findGuess returns the state of a pair; false without a state, or at the end of the state's life.
func (g *guesses) findGuess(p deviceNetwork, nowMS int64) (guessState, bool) {
	k, found := g.devices[p.device][p.network]
	return k, found && isWithin(k.atMS, nowMS, k.forMS+guessLifeMS)
}

// throttledS returns for how many seconds, rounded up, all secrets of a pair are throttled; 0: they aren't.
func (k guessState) throttledS(nowMS int64) uint16 {
	if k.isOwn || !isWithin(k.atMS, nowMS, k.forMS) {
		return 0
	}
	return uint16(min((k.atMS+k.forMS-nowMS+999)/1000, 1<<16-1))
}

// storeGuess stores the state of a pair.
func (g *guesses) storeGuess(p deviceNetwork, k guessState) {
	networks := g.devices[p.device]
	if _, found := networks[p.network]; !found {
		if g.count >= maxGuessed {
			g.forgetAny()
			networks = g.devices[p.device]
		}
		if networks == nil {
			networks = map[netip.Addr]guessState{}
			g.devices[strings.Clone(p.device)] = networks
		}
		g.count++
	}
	networks[p.network] = k
}

func (g *guesses) forgetAny() {
	for device, networks := range g.devices {
		for network := range networks {
			g.dropGuess(deviceNetwork{device, network})
			return
		}
	}
}

func (g *guesses) dropGuess(p deviceNetwork) {
	networks := g.devices[p.device]
	if _, found := networks[p.network]; !found {
		return
	}
	g.count--
	if delete(networks, p.network); len(networks) == 0 {
		delete(g.devices, p.device)
	}
}

// sweep forgets expired states.
func (g *guesses) sweep(nowMS int64) {
	maps.DeleteFunc(g.wrongOnce, func(_ deviceNetwork, atMS int64) bool { return !isWithin(atMS, nowMS, guessLifeMS) })
	for device, networks := range g.devices {
		for network := range networks {
			if p := (deviceNetwork{device, network}); !g.isRemembered(p, nowMS) {
				g.dropGuess(p)
			}
		}
	}
}

func (g *guesses) isRemembered(p deviceNetwork, nowMS int64) bool {
	_, lives := g.findGuess(p, nowMS)
	return lives
}

// recordCall stores that the sidecar is asked about a pair's secret, which isn't known to be right.
func (g *guesses) recordCall(p deviceNetwork, nowMS int64) {
	if !g.isRemembered(p, nowMS) {
		g.storeGuess(p, guessState{atMS: nowMS})
	}
}

// recordAnswer stores the sidecar's answer about a secret of a pair; outcome 0: it gave none. right: the secret is
// known to be right.
func (g *guesses) recordAnswer(p deviceNetwork, nowMS int64, outcome wire.Outcome, throttleMS uint32, right bool) {
	switch k, found := g.findGuess(p, nowMS); {
	case outcome == wire.Allow: // the device authenticates from the network
		g.dropGuess(p)
	case outcome == wire.Deny:
		g.storeGuess(p, guessState{nowMS, int64(throttleMS), throttleMS > 0})
	case outcome == wire.Throttled:
		g.storeGuess(p, guessState{nowMS, int64(throttleMS), false})
	case outcome == 0 && found && (k.isOwn || !right):
		// The last answer holds. A right secret is no guess: it must not keep the device out.
		g.storeGuess(p, guessState{nowMS, k.forMS, k.isOwn})
	}
}

// mustAsk reports whether the sidecar must decide about a secret despite a decision from shared memory. If true,
// the request must be decided again.
//
//go:noinline
func (c *calls) mustAsk(s *stream, d *policy.Decision, from *policy.Source, nowMS int64) bool {
	if d.Action > policy.Reply && !d.WouldBeRefused() || s.answers.Suspect ||
		d.Hint == policy.Right && c.guesses.devices[d.Credential.ID] == nil {
		return false
	}
	network, ok := wire.Network(c.vm.clientAddress(from))
	if !ok {
		return false // all devices may share an unknown source
	}
	p := deviceNetwork{d.Credential.ID, network}
	k, found := c.guesses.findGuess(p, nowMS)
	switch {
	case found && k.isOwn && isWithin(k.atMS, nowMS, k.forMS):
		return false
	case !found && (d.Hint == policy.Right || c.guesses.rememberFirst(p, nowMS)):
		return false
	}
	s.answers.Suspect = true
	return true
}
