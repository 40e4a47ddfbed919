package nginx_test

import (
	"encoding/base64"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/wire"
)

const (
	worldNow   = 1_790_000_000_000
	worldEpoch = 77
)

// world makes cases at random: a configuration, state and memory, and requests.
type world struct {
	*rand.Rand
	state   wire.State
	records map[wire.Region]map[uint32][]byte
	config  *policy.Config
}

func (w *world) chance(percent int) bool { return w.IntN(100) < percent }

func pickOf[T any](w *world, of ...T) T { return of[w.IntN(len(of))] }

var (
	worldDevices = []string{"dev", "d2", "d3", "a.device-with-a-long_name"}
	worldSecrets = []string{"s3cret", strings.Repeat("s", 72), "x"}
	worldNames   = []string{"config.read", "telemetry.write", "admin", "other"}
	worldPaths   = []string{"/v1/telemetry", "/v1/products/7", "/v1/products/caf%C3%A9", "/v1/fleet/config", "/v1/me", "/v1/session", "/open", "/v1/products/"}
	worldKeys    = []string{"/v1/products/7", "/v1/products/7?lang=de", "/v1/products/caf%C3%A9", "/v1/fleet/config", "@dev/v1/me", "/v1/me", "/v1/products/7?a=1&lang=de"}
)

// next returns the next case, with some requests.
func (w *world) next(t *testing.T, asks int) worldCase {
	t.Helper()
	c := worldCase{Rules: w.rules()}
	w.config = parsed(t, c.Rules)
	w.fill()
	c.ReadMS = worldNow - pickOf[int64](w, 0, 100, 200, -1)
	if w.chance(95) {
		c.State = wire.AppendState(nil, &w.state)
	}
	for _, region := range slices.Sorted(maps.Keys(w.records)) {
		for _, index := range slices.Sorted(maps.Keys(w.records[region])) {
			c.Records = append(c.Records, worldRecord{region.String(), index, w.records[region][index]})
		}
	}
	for range asks {
		c.Requests = append(c.Requests, w.ask())
	}
	return c
}

// secretOf returns a device's secret.
func secretOf(id string) string { return worldSecrets[len(id)%len(worldSecrets)] }

// rules returns a random configuration, as its users write it.
func (w *world) rules() string {
	credentials := pickOf(w, `{id_header: x-device-id, secret_header: x-device-token}`, `{id_header: x-device-id, secret_header: x-device-token, forward: true}`, `{basic: true}`)
	text := "credentials: " + credentials + "\nmax_staleness: " + pickOf(w, "30s", "5s") + "\ndefault: " + pickOf(w, "pass", "pass", "deny") +
		"\nstale: " + pickOf(w, "bypass", "serve") + "\n"
	if w.chance(30) {
		text += "max_auth_staleness: 3s\n"
	} else if w.chance(30) {
		text += "verdict_grace: 1m\n"
	}
	if w.chance(40) {
		text += "session: {metadata: gatehouse}\n"
	}
	cache := func() string {
		return pickOf(w, "{}", "{query: [lang]}", "{query: []}", "{on_miss: fetch}", "{on_miss: fetch, query: [lang]}")
	}
	auth := func() string {
		return "{permissions: [" + pickOf(w, "", "", "", "", "config.read", "telemetry.write", "config.read, admin", "nobody.has.it") + "]}"
	}
	text += "rules:\n- {match: {path: /v1/session, methods: [POST]}, session: issue}\n- {match: {prefix: /v1/telemetry}, auth: " + auth() + "}\n"
	if w.chance(50) {
		text += "- {match: {prefix: /v1/products/, methods: [POST]}, auth: " + auth() + "}\n"
	}
	text += "- {match: {prefix: /v1/products/}, cache: " + cache() + "}\n"
	text += "- {match: {path: /v1/fleet/config}, auth: " + auth() + ", cache: " + cache() + "}\n"
	text += "- {match: {path: /v1/me}, auth: " + auth() + ", cache: {scope: device, on_miss: " + pickOf(w, "pass", "fetch") + "}}\n"
	return text
}

// ago returns a time around the bounds that decisions have.
func (w *world) ago() int64 {
	if w.chance(75) {
		return worldNow
	}
	return worldNow - pickOf[int64](w, 150, 999, 1000, 2500, 3000, 3001, 4999, 5001, 29_999, 30_000, 30_001, -500, -1000, -1001, -5000)
}

// soon returns an expiry in ms around now.
func (w *world) soon() int64 {
	return worldNow + pickOf[int64](w, 60_000, 60_000, 1, 0, -1, -30_000, -59_999, -60_000, 3_600_000)
}

func (w *world) put(region wire.Region, index uint32, record []byte) {
	if w.chance(3) {
		return
	}
	if w.chance(3) {
		record = slices.Clone(record)
		record[w.IntN(len(record))] ^= byte(1 << w.IntN(8))
	}
	if w.records[region] == nil {
		w.records[region] = map[uint32][]byte{}
	}
	w.records[region][index] = record
}

// fill makes the state and the memory.
func (w *world) fill() {
	w.records = map[wire.Region]map[uint32][]byte{}
	w.state = wire.State{
		Epoch: worldEpoch, InStepMS: w.ago(), HeartbeatMS: w.ago(), ObjectBuckets: 3, VerdictBuckets: 2,
		DevicesComplete: w.chance(70), Permissions: append([]string{}, worldNames[:w.IntN(len(worldNames)+1)]...),
	}
	for i := range 16 {
		w.state.Keys.Placement[i], w.state.Keys.Credential[i] = byte(w.Uint32()), byte(w.Uint32())
	}
	verdicts, devices := map[uint32][]wire.Verdict{}, map[uint32][]wire.Device{}
	for _, id := range worldDevices {
		bucket, tag := w.state.Keys.Device(id, w.state.VerdictBuckets)
		if w.chance(95) {
			device := wire.Device{Tag: tag, Closed: w.chance(30)}
			device.New = !device.Closed && w.chance(40)
			devices[bucket] = append(devices[bucket], device)
		}
		if w.chance(80) {
			v := wire.Verdict{Digest: w.state.Keys.Digest(id, secretOf(id)), Permissions: w.Uint64()&31 | 3*w.Uint64N(2), ExpiresMS: w.soon(), Outcome: pickOf(w, wire.Allow, wire.Allow, wire.Allow, wire.Allow, wire.Deny)}
			if w.chance(50) {
				session := v
				session.Digest = w.state.Keys.SessionDigest(id, "1-2")
				verdicts[bucket] = append(verdicts[bucket], session)
			}
			if w.chance(50) {
				v.RefreshAfterMS = w.soon()
			}
			if w.chance(30) {
				v.NotAfterMS = w.soon()
			}
			verdicts[bucket] = append(verdicts[bucket], v)
		}
	}
	epoch := func() uint64 {
		if w.chance(4) {
			return worldEpoch + 1
		}
		return worldEpoch
	}
	for bucket := range w.state.VerdictBuckets {
		w.put(wire.RegionVerdicts, bucket, wire.AppendVerdicts(nil, epoch(), verdicts[bucket], devices[bucket]))
	}
	objects := map[uint32][]byte{}
	counts := map[uint32]int{}
	for i, key := range worldKeys {
		if w.chance(20) {
			continue
		}
		o, bodies := w.object(key, uint32(4*i))
		for k, v := range o.Variants() {
			stamp := v.Stamp
			if w.chance(4) {
				stamp++
			}
			w.put(wire.RegionBodies, v.Slot, wire.AppendBody(nil, epoch(), stamp, bodies[k]))
		}
		bucket, tag := w.state.Keys.Place(key, w.state.ObjectBuckets)
		objects[bucket], counts[bucket] = wire.AppendObject(objects[bucket], tag, &o), counts[bucket]+1
	}
	for bucket := range w.state.ObjectBuckets {
		record := append(wire.AppendObjectsHeader(nil, epoch(), counts[bucket]), objects[bucket]...)
		w.put(wire.RegionObjects, bucket, wire.FinishRecord(record, 0))
	}
}

// object returns a random object and its bodies.
func (w *world) object(key string, slot uint32) (o wire.Object, bodies [][]byte) {
	o = wire.Object{Key: key, Version: 1 + w.Uint64N(9), PublishedMS: worldNow - pickOf[int64](w, 0, 500, 1999, 2000, 3500, 86_400_000, 86_400_000, 86_400_000, -700), ETag: pickOf(w, `"v1"`, `"v2"`), ContentType: "text/plain"}
	if w.chance(40) {
		o.TTLMS = pickOf[uint64](w, 1, 1000, 3500, 60_000, 86_400_500, 1<<52)
	}
	for e := range wire.Encodings {
		if e == wire.Identity && w.chance(85) || e != wire.Identity && w.chance(35) {
			body := fmt.Appendf(nil, "%s as %s %s", key, e, strings.Repeat(".", w.IntN(9)))
			o.AddVariant(wire.Variant{Encoding: e, Slot: slot + uint32(e), Length: uint32(len(body)), Stamp: uint64(slot) + uint64(e) + 1})
			bodies = append(bodies, body)
		}
	}
	if len(bodies) == 0 {
		o.AddVariant(wire.Variant{Slot: slot, Length: 1, Stamp: uint64(slot) + 1})
		bodies = append(bodies, []byte("x"))
	}
	return o, bodies
}

// ask makes a request.
func (w *world) ask() worldAsk {
	target := pickOf(w, worldPaths...)
	if w.chance(30) {
		target = pickOf(w, "/v1/telemetry", "/v1/fleet/config", "/v1/me")
	}
	if w.chance(40) {
		target += pickOf(w, "?lang=de", "?lang=de&a=1", "?a=1&lang=de", "?", "?%6cang=de", "?b", "/")
	}
	if w.chance(2) { // too long for a key
		target += pickOf(w, "?"+strings.Repeat("a&", 70), "?x="+strings.Repeat("y", 2100))
	}
	if w.chance(10) {
		target = strings.Replace(target, pickOf(w, "/v1", "%C3%A9", "o"), pickOf(w, "/v1/", "%c3%a9", "%6f", "/x/..", "//", "%0a/v1"), 1)
	}
	q := worldAsk{NowMS: worldNow + pickOf[int64](w, 0, 0, 0, 1, 200, -1), Method: pickOf(w, "GET", "GET", "GET", "GET", "GET", "HEAD", "POST", "POST", "get", "OPTIONS"), Target: target}
	add := func(name, value string) { q.Headers = append(q.Headers, [2]string{name, value}) }
	w.credential(add)
	if w.chance(40) {
		add("if-none-match", pickOf(w, `"v1"`, `W/"v1"`, `"v2", "v1"`, "*", `"x"`, "", `"v1`))
	}
	if w.chance(5) {
		add("if-none-match", `"v2"`)
	}
	if w.chance(20) {
		add("if-modified-since", pickOf(w, "Mon, 21 Sep 2026 14:13:18 GMT", "Mon, 21 Sep 2026 14:13:20 GMT", "Sun, 20 Sep 2026 14:13:22 GMT", "Sun, 20 Sep 2026 14:13:22 GMT", "Sunday, 20-Sep-26 14:13:22 GMT", ""))
	}
	if w.chance(40) {
		add("accept-encoding", pickOf(w, "gzip", "br, gzip;q=0.5", "identity;q=0", "*", "zstd, *;q=0", ""))
	} else if w.chance(1) {
		add("accept-encoding", strings.Repeat("x", 513))
	}
	if w.chance(4) {
		add(pickOf(w, "if-match", "if-unmodified-since"), "x")
	}
	if w.chance(8) {
		add("content-type", pickOf(w, "application/grpc", "application/grpc-web", "text/plain"))
	}
	w.answer(&q.Answers)
	if w.config.SessionMetadata != "" && w.chance(25) {
		q.Headers = slices.DeleteFunc(q.Headers, func(h [2]string) bool { return strings.HasPrefix(h[0], "x-device") || h[0] == "authorization" })
		q.Token = &worldToken{pickOf(w, append(worldDevices, "", "a/b")...), pickOf(w, "1-2", "1-2", "1-2", "", strings.Repeat("1", 42))}
	}
	return q
}

// credential adds a credential, mostly a right one.
func (w *world) credential(add func(name, value string)) {
	if w.chance(8) {
		return
	}
	id := pickOf(w, worldDevices...)
	secret := secretOf(id)
	if w.chance(8) {
		secret = pickOf(w, worldSecrets...)
	}
	if w.chance(6) {
		id, secret = pickOf(w, "unknown", "a/b", "", "dev"), pickOf(w, "", "nul\x00", strings.Repeat("s", 73), "wrong")
	}
	if !w.config.Credentials.Basic {
		if w.chance(97) {
			add("x-device-id", id)
		}
		if w.chance(97) {
			add("x-device-token", secret)
		}
		if w.chance(3) {
			add("x-device-token", secret)
		}
		return
	}
	encoded := base64.StdEncoding.EncodeToString([]byte(id + ":" + secret))
	if w.chance(10) {
		encoded = pickOf(w, "", "  "+encoded, encoded+"=", strings.TrimRight(encoded, "="), "ZGV2OnMzY3JldB==", base64.StdEncoding.EncodeToString([]byte("nocolon")), "!"+encoded)
	}
	scheme := "Basic "
	if w.chance(15) {
		scheme = pickOf(w, "basic ", "BASIC ", "Bearer ", "Basic")
	}
	add("authorization", scheme+encoded)
}

// answer makes the sidecar's answers so far.
func (w *world) answer(a *worldAnswers) {
	outcome := pickOf(w, wire.Allow, wire.Allow, wire.Deny, wire.Unavailable, wire.Throttled)
	epoch := pickOf[uint64](w, worldEpoch, worldEpoch, worldEpoch, worldEpoch+1)
	if w.chance(10) {
		a.Verify = wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: outcome, RetryAfterS: uint16(w.IntN(4)), Permissions: w.Uint64() & 31, Epoch: epoch})
	}
	a.Unreachable = w.chance(10)
	if a.Suspect = w.chance(20); a.Suspect && w.chance(30) {
		a.ThrottledS = uint16(1 + w.IntN(20))
	}
	switch {
	case w.chance(5):
		a.FailedFetch = true
	case w.chance(15):
		o, bodies := w.object(pickOf(w, worldKeys...), 100)
		if w.chance(30) {
			a.Fetch = wire.AppendFetchResponse(nil, epoch, nil, nil)
		} else {
			a.Fetch = wire.AppendFetchResponse(nil, epoch, &o, bodies)
		}
	}
	if w.chance(25) {
		r := wire.SessionResponse{Outcome: outcome, RetryAfterS: uint16(w.IntN(4))}
		if outcome == wire.Allow {
			r.Body = []byte(`{"token":"t"}`)
		}
		a.Session = wire.AppendSessionResponse(nil, &r)
	}
}
