package follow

import (
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// recentLinks is how many recent links the tracker stores, for comparison without a call to Redis.
const recentLinks = 1024

// chain is the follower's knowledge of a shard's chain. See [contract.Link].
type chain struct {
	// digest is the digest of the last applied event; "" if no event was applied, or the chain doesn't have the digest.
	digest string
	// readable: Redis permits reading the chain, so digest is right.
	readable bool
	recent   [recentLinks]contract.Link
}

// addLink records the last applied write: its number and digest.
func (c *chain) addLink(seq uint64, digest string) {
	c.digest = strings.Clone(digest) // not a part of the payload, which would stay in memory
	if digest != "" {
		c.recent[seq%recentLinks] = contract.Link{Seq: seq, Digest: c.digest}
	}
}

// standing is an event's relation to the follower's position.
type standing int

const (
	follows        standing = iota // the next event
	applied                        // an earlier event, applied
	unsure                         // an earlier event; only Redis knows whether it was applied
	gap                            // a later event
	otherDataEpoch                 // from another data epoch
	otherHistory                   // the event's number belongs to another write
)

// judgeEvent compares an event and its payload with the follower's position.
func (t *tracker) judgeEvent(e *contract.Event, payload string) standing {
	link := t.chain.recent[e.Seq%recentLinks]
	switch {
	case e.DataEpoch != t.dataEpoch:
		return otherDataEpoch
	case e.Seq > t.seq+1:
		return gap
	case e.Seq == t.seq+1:
		if t.chain.readable && !contract.Follows(t.chain.digest, payload) {
			return otherHistory
		}
		return follows
	case link.Seq != e.Seq:
		return unsure
	case link.Digest != e.Digest:
		return otherHistory
	}
	return applied
}
