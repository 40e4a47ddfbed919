// Package chaos checks what Gatehouse promises of consistency and recovery while its parts
// are killed, paused and cut off from each other: writers publish increasing versions, readers
// ask the edge, a seeded schedule breaks and mends, and a checker that knows all three holds
// every answer against what may be seen.
//
// # What is checked
//
//   - wrong body: a hit is exactly one version that was published under its key, in body,
//     entity-tag and length.
//   - backwards, came back: through one Envoy process, no version below one that was seen;
//     no version that was seen to be gone.
//   - too old: no version that was replaced more than max_staleness + 1 s before the request.
//   - late, not converged: 2 s after a fault has ended, or after an acknowledgement when there
//     was none, every key has at least the last acknowledged version.
//   - missed: what a reader has seen at an edge, or what was acknowledged and then had 2 s in which nothing was broken, is
//     answered from there until it is written again. Excused are an Envoy or a sidecar that has just been started, until all
//     of it was seen again (a resync, and a sidecar that takes over, are no excuse for others); another write that has
//     begun, or whose outcome is unknown; and, during a fault and 2 s after it, an edge that may not be in step.
//   - lost: when Redis goes away, every cached answer goes on within max_staleness.
//   - error: no answer is an error, but while Envoy itself is down.
//
// Devices get new secrets and are revoked, and show what they have or had, every third one as a token, at two edges whose
// sidecars share verdicts. Of them:
//
//   - let in with a secret that was never given; let in again after a refusal; let in 2 s after a revocation or a new secret
//     while nothing is broken, and in any case max_auth_staleness + 1 s after it.
//   - a good one refused (401) at any time, or not verified (503) while nothing is broken.
//
// # Deployments
//
// A single server is behind a link that can be cut. It can lose power with appendfsync everysec: it is killed, and its log
// loses what was appended in the last half of a second. (A loss of power is not kill -9, which leaves to the kernel what was written; so
// the log is cut off. What a disk does with blocks that were not synced is not tested.) Behind Sentinel, the master is killed and its
// replica promoted. Writes that were acknowledged in the second before either may be lost. They are counted, revocations by themselves,
// and no answer has to have them; an older version may follow, until the edge has caught up. In a Cluster, slots move between masters under writes, and nothing may be lost.
//
// # What readers and writers know
//
// Each key and each device has two writers. Redis refuses a version that isn't greater than the one it has, so whatever comes
// first, an acknowledged version is never replaced by a smaller one; a write that was refused was never in force.
// A revocation has no version of its own, so nobody else writes to its device meanwhile.
//
// A write is in force at one instant for all workers of an Envoy, because their shared memory
// is one. But a reader knows only that an answer was decided between its beginning and its end,
// so two answers are compared only if one began after the other had ended.
//
// But for that, Redis runs with appendfsync always: it syncs before it answers or publishes, so what was
// acknowledged, or seen by a subscriber, survives kill -9, and the data epoch stays. A write
// whose acknowledgement got lost may have happened or not, until a later one is acknowledged.
//
// A miss shows that an object is gone or was replaced, but not after the edge's memory was
// emptied, by a new Envoy or a new sidecar, until all of it was seen again.
package chaos

import (
	"fmt"
	"time"
)

// overdue is the violation that an answer shows which has not caught up with target, if it
// was asked for more than limit after since.
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
