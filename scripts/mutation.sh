#!/usr/bin/env bash
# Takes out, one at a time, the checks that consistency rests on, and shows that a named test
# fails without each: a check that no test misses can get lost. Sources are replaced for the
# compiler only (go test -overlay); the tree stays as it is. With CHAOS=1, a minute of chaos
# also runs against each mutant, and says how many violations its checker finds.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# mutate NAME FILE BEFORE AFTER: writes an overlay that replaces BEFORE, which FILE must have
# once, by AFTER.
mutate() {
  local name=$1 file=$2 before=$3 after=$4 text
  text=$(<"$file")
  local rest=${text#*"$before"}
  if [[ $rest == "$text" || $rest == *"$before"* ]]; then
    echo "mutation: $name: want \"$before\" once in $file; bring scripts/mutation.sh up to date" >&2
    return 1
  fi
  printf '%s\n' "${text/"$before"/"$after"}" >"$work/$name.go"
  printf '{"Replace": {"%s": "%s"}}\n' "$PWD/$file" "$work/$name.go" >"$work/$name.json"
}

# red NAME PACKAGE TEST: TEST passes as the tree is and fails with the overlay. A mutant that
# doesn't compile shows nothing.
red() {
  local name=$1 package=$2 test=$3
  go test -c -o "$work/$name.test" -overlay "$work/$name.json" "$package" || return 1
  if ! go test -timeout 2m -run "^$test\$" "$package" >"$work/$name.log" 2>&1 || grep -q 'no tests to run' "$work/$name.log"; then
    cat "$work/$name.log" >&2
    echo "mutation: $name: $test of $package doesn't pass as it is" >&2
    return 1
  fi
  # A test that waits for ever for what the mutant never does is red, too. The servers that it
  # started end with it.
  if (cd "$package" && timeout --signal KILL 20 "$work/$name.test" -test.run "^$test\$") >"$work/$name.log" 2>&1; then
    echo "mutation: $name: $test of $package passes without it" >&2
    return 1
  fi
  echo "mutation: $name: $test of $package fails without it"
}

# chaos NAME: a minute of chaos against programs built with the overlay.
chaos() {
  local name=$1
  local out=$work/$name
  mkdir "$out"
  go build -overlay "$work/$name.json" -o "$out/" ./sidecar/cmd/gatehouse-sidecar
  scripts/build-wasm.sh "$out/gatehouse.wasm" -overlay "$work/$name.json"
  build/gatehouse-chaos --sidecar "$out/gatehouse-sidecar" --wasm "$out/gatehouse.wasm" >"$out/log" 2>&1 || true
  echo "mutation: $name: chaos: $(tail -n 1 "$out/log")"
}

# check NAME FILE BEFORE AFTER PACKAGE TEST
check() {
  if ! mutate "$1" "$2" "$3" "$4" || ! red "$1" "$5" "$6"; then
    failed=1
    return
  fi
  if [[ -n ${CHAOS:-} ]]; then chaos "$1"; fi
}

if [[ -n ${CHAOS:-} ]]; then
  ENVOY=$(scripts/install-envoy.sh)
  export ENVOY
  make --no-print-directory build
fi

check gap-detection sidecar/internal/events/subscriber.go \
  'case e.Seq > s.seq+1:' 'case false:' ./sidecar/internal/events TestHole
check version-compare sidecar/internal/mirror/mirror.go \
  'o.Version < before.version ||' 'false ||' ./sidecar/internal/mirror TestVersions
check in-flight-fetch-guard sidecar/internal/mirror/resync.go \
  'if generation != m.generations' 'if false && generation != m.generations' ./sidecar/internal/mirror TestResync
check fetch-not-ahead-of-the-edge sidecar/internal/api/server.go \
  'AwaitObject(ctx, key); err != nil' 'AwaitObject(ctx, key); false && err != nil' ./sidecar/internal/api TestFetchIsNotAheadOfTheEdge
check fetch-not-behind-the-request wasm-filter/calls.go \
  'return after(s.id, c.newest)' 'return false' ./wasm-filter TestFetchedBeforeItCame
check newest-of-all-streams wasm-filter/vm.go \
  'if after(id, v.newest) {' 'if true {' ./wasm-filter TestFetchedBeforeItCame
check refusal-not-ahead-of-the-edge sidecar/internal/api/server.go \
  '_ = s.image.AwaitTakeover(ctx)' '' ./sidecar/internal/api TestRefusalIsNotAheadOfTheEdge
check allow-behind-its-names sidecar/internal/image/take.go \
  ' && bits>>m.acked.permissions == 0' '' ./sidecar/internal/image TestAwait
check resync-meets-what-moves-up sidecar/internal/events/catchup.go \
  'master, 0, math.MaxUint64, contract.KindObject' 'master, 0, min(1100, math.MaxUint64), contract.KindObject' ./sidecar/internal/events TestWrittenDuringResync
check read-before-a-removal sidecar/internal/mirror/mirror.go \
  'm.removals[m.stripe(key)]++' '' ./sidecar/internal/mirror TestReadBeforeRemoval
check path-as-it-came wasm-filter/policy/match.go \
  'case a == b || a < 0 &&' 'case true ||' ./wasm-filter/policy TestRuleOf
check path-that-climbs wasm-filter/policy/match.go \
  'if climbs(path) {' 'if false && climbs(path) {' ./wasm-filter/policy TestRuleOf
check epoch-compare wire/wire.go \
  'if got != epoch {' 'if false && got != epoch {' ./wire TestEpoch
check old-epoch-hidden-first sidecar/internal/image/take.go \
  '{wire.RegionObjects, 0, objects}' '{wire.RegionObjects, objects, objects}' ./sidecar/internal/image TestNewEpochHidesOldVersions
check old-verdicts-hidden-first sidecar/internal/image/take.go \
  '{wire.RegionVerdicts, 0, verdicts}' '{wire.RegionVerdicts, verdicts, verdicts}' ./sidecar/internal/image TestNewEpochHidesOldVersions
check complete-behind-the-marks sidecar/internal/image/devices.go \
  '&& m.verdicts.dirty.popped >= d.after' '' ./sidecar/internal/image TestCompleteComesBehindTheMarks
check complete-with-all-marks-only sidecar/internal/image/devices.go \
  'd.known && !d.crowded &&' 'd.known &&' ./sidecar/internal/image TestCrowded
check closed-goes-with-its-verdict sidecar/internal/image/devices.go \
  'if k.marks[i].only == v {' 'if false && k.marks[i].only == v {' ./sidecar/internal/image TestStanding
check closed-by-the-only-secret sidecar/internal/credential/verifier.go \
  'len(r.hashes) == 1)' 'true)' ./sidecar/internal/credential TestOnlySecret
check complete-with-all-shards sidecar/internal/credential/resync.go \
  'if !slices.Contains(s.synced, false) {' 'if true || !slices.Contains(s.synced, false) {' ./sidecar/internal/credential TestDevicesComplete
check no-refusal-when-silent wasm-filter/policy/decide.go \
  'return e.heard(nowMS) && (standing' 'return (standing' ./wasm-filter/policy TestDecideWithoutACall
check absent-is-not-unknown-yet wasm-filter/policy/decide.go \
  'standing == wire.Absent && e.state.DevicesComplete' 'standing == wire.Absent' ./wasm-filter/policy TestDecideWithoutACall
check torn-read-check wire/object.go \
  'stamp != v.Stamp ||' 'false ||' ./wire TestFindBodyNeverAnother
check shared-verdict-seal sidecar/internal/fleet/seal.go \
  '!hmac.Equal(' 'false && !hmac.Equal(' ./sidecar/internal/fleet TestOpen
check shared-verdict-of-an-old-record sidecar/internal/credential/hash.go \
  'r == nil || r.generation != a.generation' 'r == nil' ./sidecar/internal/credential TestRevocationBeatsSharedVerdict
check kept-answer-by-its-guard wasm-filter/policy/kept.go \
  '&& mem.Guard() == k.guard' '' ./wasm-filter TestAnswersAreKept
check kept-answer-of-its-time wasm-filter/policy/kept.go \
  'nowMS < k.untilMS &&' 'k.untilMS != 0 &&' ./wasm-filter/policy TestKeptByTheMillisecond
check kept-answer-of-its-device wasm-filter/policy/answer.go \
  'q.device = d.Device' '' ./wasm-filter/policy TestKeptIsOfOneDevice
check kept-answer-of-a-body-that-is-kept wasm-filter/policy/kept.go \
  '(k.body == nil || k.body.Bytes != nil)' 'true' ./wasm-filter/policy TestKeptWithoutItsBody
check guard-before-the-object wasm-filter/policy/answer.go \
  'validity{guard,' 'validity{mem.Guard(),' ./wasm-filter/policy TestGuardIsReadFirst
check kept-answers-end-with-each-tick wasm-filter/vm.go \
  'v.edge.Forget()' '' ./wasm-filter TestUnguardedWriteShowsAtTick
check fetched-is-not-kept wasm-filter/policy/answer.go \
  'if answers.Fetch == nil && !stale' 'if !stale' ./wasm-filter/policy TestFetchedIsNotKept
check kept-answer-of-its-clock wasm-filter/policy/kept.go \
  'k.fromMS <= nowMS &&' '' ./wasm-filter/policy TestKeptByTheMillisecond
check kept-answer-of-its-rule wasm-filter/policy/answer.go \
  'question{rule: r.rule,' 'question{' ./wasm-filter/policy TestKeptIsOfOneRule
check kept-answer-of-its-state wasm-filter/policy/decide.go \
  'e.Forget()' '' ./wasm-filter/policy TestKeptIsOfOneState
check guard-of-each-batch wasm-filter/ingest.go \
  'if op.Region == wire.RegionObjects {' 'if false {' ./wasm-filter TestAnswersAreKept
check nothing-kept-while-written wasm-filter/guard.go \
  'value&guardUp == 0' 'true' ./wasm-filter TestNothingKeptWhileObjectsAreWritten
check guard-of-the-push-listener wasm-filter/guard.go \
  '== wire.MinRecord && binary.LittleEndian.Uint64(record) == value' '== wire.MinRecord' ./wasm-filter TestForeignGuard
check late-takeover wasm-filter/ingest.go \
  'cas, held := i.holds(batch.Replaces)' 'cas, held := i.holds(batch.Replaces); held = held || batch.Replaces != batch.Epoch' ./wasm-filter TestIngest
check overtaken-batch-is-made-good wasm-filter/ingest.go \
  'if wrote {' 'if false && wrote {' ./wasm-filter TestIngestIsOvertaken
check revoked-while-fetching wasm-filter/calls.go \
  's.answers.Verify = nil' '' ./wasm-filter TestRevokedWhileFetching
check room-for-verifications wasm-filter/calls.go \
  '|| c.fetches+fetches > maxFetches' '' ./wasm-filter TestFetchesLeaveRoom
check room-for-the-follower sidecar/internal/api/fetcher.go \
  'min(connections/2, maxReads)/servers' '100*connections/servers' ./sidecar/internal/api TestReadsLeaveRoom
check hold-of-sessions wasm-filter/policy/session.go \
  'd.New = standing == wire.New && e.heard(nowMS)' '' ./wasm-filter TestHeldSourceOfSessions
check head-as-get wasm-filter/policy/match.go \
  '|| method == "HEAD" && slices.Contains(m.Methods, "GET")' '' ./wasm-filter/policy TestMatches
check no-grace-after-not-after wasm-filter/policy/decide.go \
  '(v.NotAfterMS == 0 || nowMS < v.NotAfterMS)' 'true' ./wasm-filter/policy TestVerdictGrace
check no-401-out-of-step wasm-filter/policy/decide.go \
  'if !e.recent(nowMS, e.state.InStepMS) {' 'if false {' ./wasm-filter/policy TestDecideWithoutACall
check no-grpc-from-the-cache wasm-filter/policy/answer.go \
  '|| r.grpc() ||' '||' ./wasm-filter/policy TestDecideCache
check refused-login sidecar/internal/events/position.go \
  'return c.Err() != nil' 'return true' ./sidecar/internal/events TestLoginRefused
check catch-up-from-one-server sidecar/internal/events/catchup.go \
  'server{conn, address(client)}' 'server{client, address(client)}' ./sidecar/internal/events TestOneServer
check loss-is-remembered sidecar/internal/events/catchup.go \
  's.synced = false
		return' 'return' ./sidecar/internal/events TestLostIsRemembered
check confirmed-by-time sidecar/internal/mirror/mirror.go \
  'k.publishedMS != o.PublishedMS ||' '' ./sidecar/internal/mirror TestConfirm
check history-of-a-promoted-replica sidecar/internal/events/position.go \
  'h.own && h.run == known.run' 'h.run == known.run' ./sidecar/internal/events TestDemotedAndPromoted
check method-in-any-case wasm-filter/policy/match.go \
  'if upper == r.method() || ambiguous {' 'if true {' ./wasm-filter/policy TestRuleOfMethod
check turn-of-objects sidecar/internal/image/take.go \
  'm.crowdedOut = m.dirty.len() > 0' 'm.crowdedOut = m.dirty.len() < 0' ./sidecar/internal/image TestBodyOverTheBoundIsNotCrowdedOut
check waiters-are-bounded wasm-filter/calls.go \
  'len(c.vm.paused) >= most' 'false' ./wasm-filter TestWaitersAreBounded
check places-for-verifications wasm-filter/calls.go \
  'most /= 2' '' ./wasm-filter TestFetchesLeavePlaces
check replies-are-bounded wasm-filter/filter.go \
  'v.replied > maxReplied {' 'false {' ./wasm-filter TestRepliesAreBounded
check session-of-another-record sidecar/internal/credential/session.go \
  'why == "" && r.session() == session' 'why == "" && r != nil' ./sidecar/internal/credential TestSessionEnds
check refused-token-not-ahead-of-the-edge sidecar/internal/api/session.go \
  '_ = s.image.AwaitTakeover(ctx)' '_ = ctx' ./sidecar/internal/api TestRefusalIsNotAheadOfTheEdge
check known-denial-of-sessions wasm-filter/policy/session.go \
  '|| standing == wire.Found && v.Outcome == wire.Deny && nowMS < v.ExpiresMS' '|| v.Outcome == 99' ./wasm-filter/policy TestDecideToken
check revoked-while-told-of-names sidecar/internal/api/server.go \
  'if !s.verifier.Stands(' 'if false && !s.verifier.Stands(' ./sidecar/internal/api TestVerify
check revoked-while-objects-are-read sidecar/internal/events/catchup.go \
  's.applyDevices(epoch) })' '})' ./sidecar/internal/events TestRevokedWhileObjectsAreRead
check deny-by-default wasm-filter/policy/match.go \
  'return r.rule >= 0 || r.ambiguous || e.config.DenyByDefault' 'return r.rule >= 0 || r.ambiguous' ./wasm-filter TestDefault
check identity-of-what-passes wasm-filter/policy/match.go \
  'all.Lengths&identityLengths == 0 ||' 'true ||' ./wasm-filter TestForgedIdentity
check spelling-of-what-passes wasm-filter/policy/match.go \
  'l.Passes = l.usual &&' 'l.Passes =' ./wasm-filter/policy TestLocate
check default-of-what-passes wasm-filter/policy/match.go \
  '!e.config.DenyByDefault && (all' '(all' ./wasm-filter TestDefault
check method-of-what-is-plain wasm-filter/policy/match.go \
  'if at.usual && inUpperCase(r.method()) {' 'if at.usual {' ./wasm-filter/policy TestRuleOfMethod

exit "$failed"
