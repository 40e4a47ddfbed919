package edge

import (
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// emulateBoth starts an edge beside a push listener.
func emulateBoth(t *testing.T) *emulator {
	e := emulate(t, rules)
	edge := e.vm
	e.config = []byte(`{"push_listener": true}`)
	e.start(t)
	e.vm, e.push = edge, e.vm
	return e
}

// version returns an object with this entity-tag.
func version(key, etag string) *wire.Object {
	o := newObject(key, 4)
	o.ETag = etag
	return &o
}

// objects returns the record of a bucket with one object.
func objects(s *wire.State, o *wire.Object) (bucket uint32, record []byte) {
	bucket, tag := s.Keys.Place(o.Key, s.ObjectBuckets)
	return bucket, wire.FinishRecord(wire.AppendObject(wire.AppendObjectsHeader(nil, s.Epoch, 1), tag, o), 0)
}

// pushObject applies a batch with an object, like the sidecar's.
func pushObject(t *testing.T, e *emulator, s wire.State, o *wire.Object) {
	t.Helper()
	bucket, record := objects(&s, o)
	s.InStepMS = e.clock
	held, _ := wire.RecordEpoch(e.records[place(wire.RegionState, 0)], wire.RegionState) // 0 for no epoch
	b := wire.BeginBatch(nil, s.Epoch, held)
	b = wire.AppendOp(b, wire.RegionObjects, bucket, func(dst []byte) []byte { return append(dst, record...) })
	b = wire.AppendOp(b, wire.RegionState, 0, func(dst []byte) []byte { return wire.AppendState(dst, &s) })
	e.nextID++
	id := e.nextID
	e.streams[id] = &exchange{request: [][2]string{{":method", "POST"}, {":path", "/v1/apply"}}}
	e.callback(id, func() { e.push.RequestHeaders(id, false) })
	e.body = b
	e.callback(id, func() { e.push.RequestBody(id, len(b), true) })
	if got := e.streams[id].reply; got == nil || got.status != 200 {
		t.Fatalf("push: got %+v, want 200", got)
	}
}

// etag requests an object, of any version, and returns the entity-tag.
func etag(e *emulator, key string) string {
	x := e.streams[send(e, key, [2]string{"if-none-match", "*"})]
	if x.reply == nil {
		return ""
	}
	return fields(x.reply.headers)["etag"]
}

// emulateKept starts an edge that caches an answer with version 1 of an object.
func emulateKept(t *testing.T, key string) *emulator {
	t.Helper()
	e := emulateBoth(t)
	pushObject(t, e, state, version(key, `"v1"`))
	e.tick()
	for range 3 {
		etag(e, key)
	}
	return e
}

// overwrite writes an object to shared memory without changing the guard.
func overwrite(e *emulator, o *wire.Object) {
	bucket, record := objects(&state, o)
	e.records[place(wire.RegionObjects, bucket)] = record
}

// TestAnswersAreKept counts the reads of shared memory: for a repeated request the object is read once more, until it
// is written or a tick comes.
func TestAnswersAreKept(t *testing.T) {
	const key = "/v1/products/1"
	e := emulateBoth(t)
	ask := func(what, want string, reads int) {
		t.Helper()
		before := e.reads
		for range 10 {
			if got := etag(e, key); got != want {
				t.Fatalf("%s: got %s, want %s", what, got, want)
			}
		}
		if got := e.reads - before; got != reads {
			t.Errorf("%s: got %d reads for 10 requests, want %d", what, got, reads)
		}
	}
	pushObject(t, e, state, version(key, `"v1"`))
	ask("before the guard is known", `"v1"`, 10)
	e.tick()
	ask("again and again", `"v1"`, 1) // it was asked for before
	pushObject(t, e, state, version("/v1/products/2", `"other"`))
	ask("another was written", `"v1"`, 1)
	pushObject(t, e, state, version(key, `"v2"`))
	ask("written", `"v2"`, 1)
	e.tick()
	ask("after a tick", `"v2"`, 1) // its hash is remembered
	later := state
	later.Epoch++
	pushObject(t, e, later, version(key, `"v3"`))
	e.tick()
	ask("another epoch", `"v3"`, 1)
}

// TestNothingKeptWhileObjectsAreWritten: while a batch writes, on any worker, each request reads shared memory. This
// keeps versions in order.
func TestNothingKeptWhileObjectsAreWritten(t *testing.T) {
	const key = "/v1/products/1"
	e := emulateKept(t, key)
	for range 2 { // two concurrent batches
		require.NoError(t, (&guardWriter{host: e}).raise())
	}
	for i, want := range []string{`"v1"`, `"v2"`, `"v3"`} {
		if i == 2 { // one has ended
			(&guardWriter{host: e, raised: true}).lower()
		}
		overwrite(e, version(key, want))
		for range 3 {
			if got := etag(e, key); got != want {
				t.Fatalf("got %s while objects are written, want %s", got, want)
			}
		}
	}
}

// TestAbandonedGuard: a VM of the push listener traps during a write of objects. Some time later another VM lowers the
// guard for the trapped VM, but not for a VM that only takes turns.
func TestAbandonedGuard(t *testing.T) {
	const key = "/v1/products/1"
	e := emulateKept(t, key)
	other := guardWriter{host: e}
	pushes := func(each func()) {
		for range 2 * abandonedAfter {
			require.NoError(t, other.raise())
			pushObject(t, e, state, version("/v1/products/2", `"other"`))
			each()
		}
	}
	reads := func() int {
		before := e.reads
		for range 10 {
			etag(e, key)
		}
		return e.reads - before
	}
	pushes(func() {
		if got := reads(); got != 10 {
			t.Fatalf("got %d reads for 10 requests while another VM writes, want 10", got)
		}
		other.lower()
	})
	for _, which := range []string{"one", "a second"} {
		pushes(func() {})
		e.tick()
		if got := reads(); got > 2 {
			t.Errorf("got %d reads for 10 requests after %s VM has trapped, want the answer to be kept", got, which)
		}
		other = guardWriter{host: e}
	}
}

// TestUnguardedWriteShowsAtTick: objects are written by a module without a guard, whose state may be unreadable, too.
func TestUnguardedWriteShowsAtTick(t *testing.T) {
	const key = "/v1/products/1"
	for _, readable := range []bool{true, false} {
		e := emulateKept(t, key)
		overwrite(e, version(key, `"v2"`))
		if !readable {
			e.records[place(wire.RegionState, 0)] = []byte("of another layout")
		}
		e.tick()
		if got := etag(e, key); got != `"v2"` {
			t.Errorf("got %s after a tick, want the newest; a state that can be read: %v", got, readable)
		}
	}
}

// TestForeignGuard: the gauge isn't the push listener's, so no answers are cached.
func TestForeignGuard(t *testing.T) {
	const key = "/v1/products/1"
	e := emulateBoth(t)
	pushObject(t, e, state, version(key, `"v1"`))
	e.gauge += 1 << 8
	e.tick()
	for range 3 {
		etag(e, key)
	}
	overwrite(e, version(key, `"v2"`))
	if got := etag(e, key); got != `"v2"` {
		t.Errorf("got %s, want what is in shared memory", got)
	}
}

// TestMoreThanAreKept requests more objects than there are cached answers, and missing objects: each request gets its
// own answer.
func TestMoreThanAreKept(t *testing.T) {
	e := emulateBoth(t)
	wide := state
	wide.ObjectBuckets = 1 << 30
	keys := make([]string, 2048)
	for i := range keys {
		keys[i] = "/v1/private/" + string([]byte{'a' + byte(i%26), 'a' + byte(i/26%26), 'a' + byte(i/676)})
	}
	for _, key := range keys[:len(keys)/2] {
		pushObject(t, e, wide, version(key, `"`+key+`"`))
	}
	e.tick()
	putVerdict(e, e.clock+1000)
	for range 3 {
		for i, key := range keys {
			want := ""
			if i < len(keys)/2 {
				want = `"` + key + `"`
			}
			if got := etag(e, key); got != want {
				t.Fatalf("%s: got %s, want %s", key, got, want)
			}
		}
	}
	if e.tick(); e.counted(policy.CacheMiss) == 0 {
		t.Error("no miss was counted")
	}
}
