// Package chaos checks Gatehouse's guarantees of consistency and recovery while its parts are killed, paused and cut
// off from each other: writers publish increasing versions, readers send requests to the edge, a seeded schedule breaks
// and restores parts, and a checker that knows writes, reads and faults judges every answer.
//
// # What is checked
//
//   - wrong body: a hit is exactly one version published under its key, in body, entity-tag and length.
//   - backwards, came back: through one Envoy process, no version is older than a version seen before; no version
//     returns after it was seen to be gone.
//   - too old: no version was replaced more than max_staleness + 1 s before the request.
//   - late, not converged: 2 s after the end of a fault, or without a fault after an acknowledgement, every key has at
//     least the last acknowledged version.
//   - missed: the edge answers the version that a reader has seen there, or that was acknowledged 2 s without a fault
//     ago, until the next write. Excused are an Envoy or a sidecar that was just started, until the edge's memory has
//     been refilled (a resync, or a sidecar that takes over, excuses nobody else); a further write that has begun, or
//     whose outcome is unknown; and, during a fault and 2 s after it, an edge that may not be in step.
//   - lost: when Redis becomes unreachable, every cached answer continues within max_staleness.
//   - expired: nothing is served, and no device let in, more than a second after its ttl or not-after, unless a clock
//     was wrong meanwhile; more than 3 s, if only Redis's clock was wrong and nothing else was broken.
//   - wrote after a loss: while writers are silent, nothing writes to an emptied Redis.
//   - wrong count: two writers increment one object by compare-and-set; no increment is lost or counted twice.
//   - error: no answer is an error, except while Envoy itself, or a VM in Envoy, is down.
//
// Readers use GET and HEAD, ask for each content coding and decode the bodies, and send both validators.
//
// Devices get new secrets and are revoked. They send their present and former secrets, every third device as a token,
// to two edges whose sidecars share verdicts. These are violations:
//
//   - a device is authenticated with a secret that it never had; again after a refusal; 2 s after a revocation or a new
//     secret without a fault, and in any case max_auth_staleness + 1 s afterwards.
//   - a good device is refused (401) at any time, or not verified (503) twice in a row without a fault.
//
// Most devices are written so often that the next write may repair a mistake of the last. Steady devices are written
// seldom: they keep their secrets (every second device has two) for the run and are given other permissions, revoked,
// deleted or registered again every few seconds. Their only permission shows which write was in force. Racing devices
// are revoked while bcrypt runs for them. Mortal devices have a not-after. Rotating devices also send the former
// secret, which must count until the overlap ends, and not after. Two devices own objects, which no other device gets.
// In a quarter of the runs, by the seed, max_auth_staleness is off, and nothing bounds how long a revocation takes in a
// fault. In half of the runs the second edge's sidecar has too little memory for the objects, and evicts some.
//
// An authority decides about further devices, which change in its database. The authority decides, then answers: at
// times slowly, not at all, not as in the contract, or not while it restarts. Each change is followed by an
// invalidation in one of the four ways, until the invalidation is acknowledged. Violations are: a device is let in by
// the state before a change, 2 s after the acknowledgement without a fault, and in any case max_auth_staleness + 1 s
// after it; a good device is refused, or not verified twice in a row while nothing is broken and the authority is well.
//
// Other devices are imported with generated secrets. The sidecars upgrade the hashes at the first authentication, and
// about then the devices get another secret. The same bounds are for the former secret, and the new secret must be
// good.
//
// # Deployments
//
// A single server is behind a link that can be cut. The server can lose power with appendfsync everysec: it is killed,
// and its log loses the last half second. (After kill -9 the kernel still has what was written, unlike after a loss of
// power, so the log is truncated. Not tested: what a disk does with blocks that were not synced.) Two clocks are
// stepped by up to half a minute and back: the clock of Redis's machine, and the clock of the first edge, which Envoy
// and sidecar share; times here are by another clock. The module of the first edge traps in a request, and during a
// push. Messages to its sidecar are lost, also the last messages before all writers fall silent. Redis is full for some
// seconds, and refuses all writes. All devices are revoked at once. Redis is emptied, and nothing may change until
// something is written or the loss is accepted.
//
// A run of a minute has each of these faults at least once, most in pairs: see densePairs. While a link is cut, or
// Envoy is paused, for longer than max_staleness, bulky objects are written, which take some time to reach the edge.
//
// The first edge's sidecar starts from a snapshot, whenever it starts again. Every second snapshot is forged: its
// bodies were changed, and no edge may serve them.
//
// Behind Sentinel, the master is killed and its replica promoted. Writes that were acknowledged in the second before a
// promotion or a loss of power may be lost. The lost writes are counted, revocations separately, and no answer must
// have them; an older version may follow, until the edge has caught up. In a Cluster, slots move between masters under
// writes, and nothing may be lost.
//
// With a replica, from which the sidecars read objects, the replica's link to the master is cut, hangs and is delayed.
// The replica is killed, and comes back empty. It is promoted, gets writes of its own, which no edge may serve, and
// becomes a replica again, at once or at the end of the fault.
//
// # What readers and writers know
//
// Each key and each device has two writers, who put some objects in batches. Redis refuses a version that isn't greater
// than the stored version, so a smaller version never replaces an acknowledged version, whatever the order of arrival;
// a refused write was never in force. A revocation has no version of its own, so no other writer writes to its device
// meanwhile.
//
// A write comes into force at one instant for all workers of an Envoy, because they share memory. But a reader only
// knows that an answer was decided between the answer's beginning and end, so two answers are compared only if one
// began after the other had ended.
//
// Except for the loss of power, Redis runs with appendfsync always: it syncs before it answers or publishes, so writes
// that were acknowledged, or seen by a subscriber, survive kill -9, and the data epoch stays. A write whose
// acknowledgement was lost may have happened or not, until a later write is acknowledged.
//
// A miss shows that an object is gone or was replaced, except after a new Envoy or a new sidecar has emptied the edge's
// memory, until the memory has been refilled.
package chaos

import (
	"fmt"
	"time"
)

// checkOverdue returns the violation of a read that has not caught up with target and began more than limit after
// since.
func checkOverdue(r Read, target uint64, since, limit time.Duration) (Violation, bool) {
	if r.Start <= since+limit {
		return Violation{}, false
	}
	got := r.Detail
	if r.Answer == Hit {
		got = fmt.Sprintf("version %d", r.Version)
	}
	return Violation{"not converged", r.Key, r.End, fmt.Sprintf(
		"%s, asked for %.3f s after the fault had ended at %.3f s; version %d was acknowledged by then",
		got, (r.Start - since).Seconds(), since.Seconds(), target)}, true
}
