package edge

import (
	"maps"
	"net/netip"
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// Bounds of what a worker remembers about guesses.
const (
	// guessLifeMS is how long a wrong secret is remembered, ms, beyond the sidecar's answer about it.
	guessLifeMS = 60_000
	// maxOnce and maxGuessed bound the pairs of a device and a network with one wrong secret, and with more. Beyond
	// maxOnce, the first wrong secret of a pair counts as its second; beyond maxGuessed, any pair is forgotten.
	maxOnce    = 4096
	maxGuessed = 8192
)

// guesses has the devices whose secrets somebody guesses, with the networks from which that happens. A worker refuses
// the first wrong secret of a device from a network by itself, since a flood over many devices has few others. From
// the second on the sidecar decides about all secrets of the device from there, also about the right one: only so its
// limit holds. Requests with the right secret from elsewhere don't notice.
type guesses struct {
	once    map[pair]int64 // when, unix ms
	devices map[string]map[netip.Addr]guessed
	count   int // of guessed
}

type pair struct {
	device  string
	network netip.Addr
}

// guessed is what is known about a pair.
type guessed struct {
	atMS int64 // of the sidecar's last answer or, before it, of the request, unix ms
	// forMS is how long the answer holds, ms: the device's secrets are throttled or, if own, the edge decides by itself,
	// because the device authenticated from there before.
	forMS int64
	own   bool
}

func newGuesses() guesses {
	return guesses{once: map[pair]int64{}, devices: map[string]map[netip.Addr]guessed{}}
}

// within reports whether less than ms have passed since a time. If it is in the future, the clock was set back.
func within(sinceMS, nowMS, ms int64) bool { return sinceMS <= nowMS && nowMS < sinceMS+ms }

// first remembers a wrong secret of a pair, and reports whether it is the first one.
func (g *guesses) first(p pair, nowMS int64) bool {
	atMS, found := g.once[p]
	if found && within(atMS, nowMS, guessLifeMS) {
		return false
	}
	if !found && len(g.once) >= maxOnce {
		return false // to forget others would permit them another first one
	}
	p.device = strings.Clone(p.device)
	g.once[p] = nowMS
	return true
}

// find returns what is known about a pair; false if its life has ended.
func (g *guesses) find(p pair, nowMS int64) (guessed, bool) {
	k, found := g.devices[p.device][p.network]
	return k, found && within(k.atMS, nowMS, k.forMS+guessLifeMS)
}

// throttledS returns for how many seconds, rounded up, all secrets of a pair are throttled; 0: they aren't.
func (k guessed) throttledS(nowMS int64) uint16 {
	if k.own || !within(k.atMS, nowMS, k.forMS) {
		return 0
	}
	return uint16(min((k.atMS+k.forMS-nowMS+999)/1000, 1<<16-1))
}

// set stores what is known about a pair.
func (g *guesses) set(p pair, k guessed) {
	networks := g.devices[p.device]
	if _, found := networks[p.network]; !found {
		if g.count >= maxGuessed {
			g.forgetAny()
			networks = g.devices[p.device]
		}
		if networks == nil {
			networks = map[netip.Addr]guessed{}
			g.devices[strings.Clone(p.device)] = networks
		}
		g.count++
	}
	networks[p.network] = k
}

func (g *guesses) forgetAny() {
	for device, networks := range g.devices {
		for network := range networks {
			g.drop(pair{device, network})
			return
		}
	}
}

func (g *guesses) drop(p pair) {
	networks := g.devices[p.device]
	if _, found := networks[p.network]; !found {
		return
	}
	g.count--
	if delete(networks, p.network); len(networks) == 0 {
		delete(g.devices, p.device)
	}
}

// sweep forgets what has ended.
func (g *guesses) sweep(nowMS int64) {
	maps.DeleteFunc(g.once, func(_ pair, atMS int64) bool { return !within(atMS, nowMS, guessLifeMS) })
	for device, networks := range g.devices {
		for network := range networks {
			if p := (pair{device, network}); !g.lives(p, nowMS) {
				g.drop(p)
			}
		}
	}
}

func (g *guesses) lives(p pair, nowMS int64) bool {
	_, lives := g.find(p, nowMS)
	return lives
}

// asked stores that the sidecar is asked about a secret of a pair that isn't known to be right.
func (g *guesses) asked(p pair, nowMS int64) {
	if !g.lives(p, nowMS) {
		g.set(p, guessed{atMS: nowMS})
	}
}

// answered stores the sidecar's answer about a secret of a pair; outcome 0: it gave none. right: the secret is known to
// be right.
func (g *guesses) answered(p pair, nowMS int64, outcome wire.Outcome, throttleMS uint32, right bool) {
	switch k, found := g.find(p, nowMS); {
	case outcome == wire.Allow: // the device authenticates from there
		g.drop(p)
	case outcome == wire.Deny:
		g.set(p, guessed{nowMS, int64(throttleMS), throttleMS > 0})
	case outcome == wire.Throttled:
		g.set(p, guessed{nowMS, int64(throttleMS), false})
	case outcome == 0 && found && (k.own || !right):
		// Its last answer holds. A right secret is no guess: it must not keep the device out.
		g.set(p, guessed{nowMS, k.forMS, k.own})
	}
}

// doubts reports whether the sidecar must decide about a secret about which shared memory has decided. Then the request
// must be decided again.
//
//go:noinline
func (c *calls) doubts(s *stream, d *policy.Decision, nowMS int64) bool {
	if d.Action > policy.Reply && !d.WouldBeRefused() || s.answers.Suspect ||
		d.Hint == policy.Right && c.guesses.devices[d.Credential.ID] == nil {
		return false
	}
	network, ok := wire.Network(c.vm.source())
	if !ok {
		return false // all devices may share it
	}
	p := pair{d.Credential.ID, network}
	k, found := c.guesses.find(p, nowMS)
	switch {
	case found && k.own && within(k.atMS, nowMS, k.forMS):
		return false
	case !found && (d.Hint == policy.Right || c.guesses.first(p, nowMS)):
		return false
	}
	s.answers.Suspect = true
	return true
}
