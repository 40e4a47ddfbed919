// Package chaos checks Gatehouse's guarantees of consistency and recovery while its parts are killed, paused and cut
// off from each other: writers publish increasing versions, readers send requests to the edge, a seeded schedule breaks
// and restores parts, and a checker that knows all three judges every answer.
//
// # What is checked
//
//   - wrong body: a hit is exactly one version that was published under its key, in body, entity-tag and length.
//   - backwards, came back: through one Envoy process, no version below one that was seen; no version that was seen to
//     be gone.
//   - too old: no version that was replaced more than max_staleness + 1 s before the request.
//   - late, not converged: 2 s after a fault has ended, or after an acknowledgement without a fault, every key has at
//     least the last acknowledged version.
//   - missed: the edge answers the version that a reader has seen there, or that was acknowledged 2 s without a fault
//     ago, until the next write. Excused are an Envoy or a sidecar that was just started, until it has been refilled (a
//     resync, and a sidecar that takes over, are no excuse for others); another write that has begun, or whose outcome
//     is unknown; and, during a fault and 2 s after it, an edge that may not be in step.
//   - lost: when Redis becomes unreachable, every cached answer continues within max_staleness.
//   - expired: nothing is served, and no device let in, more than a second after its ttl or not-after, unless a clock
//     was wrong in between; more than 3 s, if it was Redis's and nothing else was broken.
//   - wrote after a loss: while writers are silent, nothing writes to an emptied Redis.
//   - wrong count: two writers increment one object by compare-and-set; no increment is lost or counted twice.
//   - error: no answer is an error, except while Envoy itself, or one of its VMs, is down.
//
// Readers use GET and HEAD, ask for each content coding and decode what they get, and send both validators.
//
// Devices get new secrets and are revoked, and send the secrets that they have or had, every third device as a token,
// to two edges whose sidecars share verdicts. These are violations:
//
//   - a device is authenticated with a secret that it never had; again after a refusal; 2 s after a revocation or a new
//     secret without a fault, and in any case max_auth_staleness + 1 s after it.
//   - a good one is refused (401) at any time, or not verified (503) twice in a row without a fault.
//
// Most devices are written so often that a next write may repair what went wrong with the last one. So others are not:
// steady devices keep their secrets (every second one has two) for the run and are given other permissions, revoked,
// deleted or registered again every few seconds. Their only permission shows which write was in force. Racing devices
// are revoked while bcrypt runs for them. Mortal ones have a not-after. Rotating ones also send the secret before,
// which must count until the overlap ends, and not after. Two devices own objects, which no other device gets. In a
// quarter of the runs, by the seed, max_auth_staleness is off, and nothing bounds how long a revocation takes in a
// fault. In half of the runs the second edge's sidecar has too little memory for the objects, and evicts some.
//
// An authority decides about further devices, which change in its database: it decides, then answers, at times slowly,
// not at all, not as in the contract, or not while it restarts. Each change is followed by an invalidation in one of
// the four ways, until it is acknowledged. Violations are: a device is let in by what was right before a change, 2 s
// after the acknowledgement without a fault, and in any case max_auth_staleness + 1 s after it; a good one is refused,
// or not verified twice in a row while nothing is broken and the authority is well.
//
// Other devices are imported with generated secrets, whose hashes the sidecars upgrade at the first authentication, and
// get another secret about then. The same bounds are for the former secret, and the new one must be good.
//
// # Deployments
//
// A single server is behind a link that can be cut. It can lose power with appendfsync everysec: it is killed, and its
// log loses what was appended in the last half second. (After kill -9 the kernel still has what was written, unlike
// after a loss of power, so the log is truncated. It isn't tested what a disk does with blocks that were not synced.)
// The clocks of its machine and of the first edge's, which Envoy and sidecar share, are stepped by up to half a minute
// and back; times here are by another clock. The module of that edge traps in a request, and during a push. Messages to
// its sidecar are lost, also the last ones before all writers fall silent. Redis is full for some seconds, and refuses
// all writes. All devices are revoked at once. Redis is emptied, and nothing may change until something is written or
// the loss is accepted.
//
// A run of a minute has each of these faults at least once, most of them in pairs: see densePairs. While a link is cut,
// or Envoy is paused, for longer than max_staleness, bulky objects are written, which take some time to reach the edge.
//
// Behind Sentinel, the master is killed and its replica promoted. Writes that were acknowledged in the second before
// that or before a loss of power may be lost. They are counted, revocations separately, and no answer must have them;
// an older version may follow, until the edge has caught up. In a Cluster, slots move between masters under writes, and
// nothing may be lost.
//
// # What readers and writers know
//
// Each key and each device has two writers, who put some objects in batches. Redis refuses a version that isn't greater
// than the one it has, so an acknowledged version is never replaced by a smaller one, whatever the order of arrival; a
// write that was refused was never in force. A revocation has no version of its own, so no other writer
// writes to its device meanwhile.
//
// A write comes into force at one instant for all workers of an Envoy, because they share memory. But a reader only
// knows that an answer was decided between its beginning and its end, so two answers are compared only if one began
// after the other had ended.
//
// Except for the loss of power, Redis runs with appendfsync always: it syncs before it answers or publishes, so writes
// that were acknowledged, or seen by a subscriber, survive kill -9, and the data epoch stays. A write whose
// acknowledgement was lost may have happened or not, until a later one is acknowledged.
//
// A miss shows that an object is gone or was replaced, except after a new Envoy or a new sidecar has emptied the edge's
// memory, until it has been refilled.
package chaos

import (
	"fmt"
	"time"
)

// overdue returns the violation of a read that has not caught up with target and began more than limit after since.
func overdue(r Read, target uint64, since, limit time.Duration) (Violation, bool) {
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
