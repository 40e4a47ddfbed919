//go:build native

package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/native-filter/dynmod/fakeenvoy"
)

const nativeRules = `{"sidecar": {"cluster": "sidecar"}, "credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"},
	"rules": [{"match": {"path": "/who"}, "auth": {}}, {"match": {"prefix": "/fetched/"}, "cache": {"on_miss": "fetch"}}]}`

const nativeEpoch = 7

var nativeState = wire.State{Epoch: nativeEpoch, ObjectBuckets: 4, VerdictBuckets: 4}

// onFakeEnvoy returns a configuration with the rules, and two workers. The memory is in step, and has no objects and no
// verdicts.
func onFakeEnvoy(t *testing.T) (*fakeenvoy.Config, [2]*fakeenvoy.Worker) {
	t.Helper()
	now := time.Now().UnixMilli()
	state := nativeState
	state.InStepMS, state.HeartbeatMS = now, now
	shared.SetState(wire.AppendState(nil, &state), 0)
	runtime.LockOSThread() // this is Envoy's main thread
	c, ok := fakeenvoy.NewConfig(nativeRules)
	if !ok {
		t.Fatal("the rules were refused")
	}
	workers := [2]*fakeenvoy.Worker{fakeenvoy.NewWorker(), fakeenvoy.NewWorker()}
	t.Cleanup(func() {
		c.Destroy()
		for _, w := range workers {
			w.Stop()
		}
		runtime.UnlockOSThread()
	})
	return c, workers
}

func nativeRequest(path string, more ...[2]string) [][2]string {
	return append([][2]string{{":method", "GET"}, {":path", path}, {":authority", "edge"}, {":scheme", "http"}}, more...)
}

func who(device string) [][2]string {
	return nativeRequest("/who", [2]string{"x-device-id", device}, [2]string{"x-device-token", "secret"},
		[2]string{"x-request-id", "id-of-" + device})
}

var allowed = wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Allow, Epoch: nativeEpoch})

// begin begins a request on a worker.
func begin(c *fakeenvoy.Config, w *fakeenvoy.Worker, headers [][2]string) (r *fakeenvoy.Request) {
	w.Do(func() { r = c.Begin(true, headers...) })
	return r
}

// run runs the scheduled work of a request, and fails the test if none was scheduled.
func run(t *testing.T, w *fakeenvoy.Worker, r *fakeenvoy.Request) {
	t.Helper()
	ran := false
	w.Do(func() { ran = r.Run() })
	if !ran {
		t.Error("the request was not woken")
	}
}

// TestNativeCoalesces has requests on two workers wait for one verification; the first request ends.
func TestNativeCoalesces(t *testing.T) {
	c, w := onFakeEnvoy(t)
	first, second, third := begin(c, w[0], who("dev")), begin(c, w[0], who("dev")), begin(c, w[1], who("dev"))
	c.Main()
	if got := len(c.Calls()); got != 1 {
		t.Fatalf("got %d calls, want one", got)
	}
	for _, r := range []*fakeenvoy.Request{first, second, third} {
		if r.Passed() || r.Status() != 0 {
			t.Fatalf("got %d before the answer", r.Status())
		}
	}
	w[0].Do(first.End)
	c.Answer(0, allowed)
	run(t, w[0], second)
	run(t, w[1], third)
	for i, r := range []*fakeenvoy.Request{second, third} {
		if !r.Passed() || !r.RouteChosen() {
			t.Errorf("request %d: passed %t, %d; route chosen again: %t", i+2, r.Passed(), r.Status(), r.RouteChosen())
		}
	}
	w[0].Do(second.End)
	w[1].Do(third.End)
}

// TestNativeEndedStreamsLeave: more streams than places end during a wait. The call goes on.
func TestNativeEndedStreamsLeave(t *testing.T) {
	c, w := onFakeEnvoy(t)
	for range edge.MaxWaiting + 1 {
		r := begin(c, w[0], who("ends"))
		if r.Status() != 0 {
			t.Fatalf("got %d, want every stream to wait", r.Status())
		}
		w[0].Do(r.End)
	}
	last := begin(c, w[0], who("ends"))
	c.Main()
	if got := len(c.Calls()); got != 1 {
		t.Fatalf("got %d calls, want one", got)
	}
	c.Answer(0, allowed)
	run(t, w[0], last)
	if !last.Passed() {
		t.Errorf("got %d, want the stream that waits to pass", last.Status())
	}
	w[0].Do(last.End)
}

// TestNativeRefusedCall fails a call: every request gets a 503.
func TestNativeRefusedCall(t *testing.T) {
	c, w := onFakeEnvoy(t)
	first, second := begin(c, w[0], who("refused")), begin(c, w[1], who("refused"))
	c.Main()
	c.Answer(0, []byte("no verdict"))
	for i, r := range []*fakeenvoy.Request{first, second} {
		run(t, w[i], r)
		if r.Status() != 503 {
			t.Errorf("got %d, want 503", r.Status())
		}
		w[i].Do(r.End)
	}
}

// version returns an object with this entity-tag.
func version(key, etag string) *wire.Object {
	o := &wire.Object{Key: key, Version: 1, ETag: etag, ContentType: "text/plain"}
	o.AddVariant(wire.Variant{Encoding: wire.Identity, Length: 4, Stamp: 1})
	return o
}

// objects returns the record of a bucket with one object.
func objects(s *wire.State, o *wire.Object) (bucket uint32, record []byte) {
	bucket, tag := s.Keys.Place(o.Key, s.ObjectBuckets)
	return bucket, wire.FinishRecord(wire.AppendObject(wire.AppendObjectsHeader(nil, s.Epoch, 1), tag, o), 0)
}

// fetchedObject is the sidecar's answer to a fetch.
func fetchedObject(key, body string) []byte {
	o := wire.Object{Key: key, Version: 1, ETag: `"v1"`, ContentType: "text/plain", PublishedMS: time.Now().UnixMilli()}
	o.AddVariant(wire.Variant{Encoding: wire.Identity, Length: uint32(len(body))})
	return wire.AppendFetchResponse(nil, nativeEpoch, &o, [][]byte{[]byte(body)})
}

// TestNativeJoinedFetch: a worker's request joins an earlier fetch of a second worker. The answer may be older than the
// client's object, so the answer is dropped: memory is read again, and then a second call is made.
func TestNativeJoinedFetch(t *testing.T) {
	c, w := onFakeEnvoy(t)
	first, second := begin(c, w[0], nativeRequest("/fetched/1")), begin(c, w[1], nativeRequest("/fetched/1"))
	c.Main()
	if got := len(c.Calls()); got != 1 {
		t.Fatalf("got %d calls, want one", got)
	}
	c.Answer(0, fetchedObject("/fetched/1", "old"))
	run(t, w[0], first)
	if first.Status() != 200 || first.Text() != "old" {
		t.Errorf("first: got %d %q", first.Status(), first.Text())
	}
	run(t, w[1], second)
	if second.Status() != 0 {
		t.Fatalf("second: got %d %q by the answer to a call that was made before it came", second.Status(), second.Text())
	}
	c.Main()
	if got := len(c.Calls()); got != 2 {
		t.Fatalf("got %d calls, want a second one", got)
	}
	c.Answer(1, fetchedObject("/fetched/1", "new"))
	run(t, w[1], second)
	if second.Status() != 200 || second.Text() != "new" {
		t.Errorf("second: got %d %q", second.Status(), second.Text())
	}
	w[0].Do(first.End)
	w[1].Do(second.End)
}

// TestNativeCallsKeepTheirHeaders begins a second request, which overwrites the memory of the first one's headers,
// before the main thread makes the call.
func TestNativeCallsKeepTheirHeaders(t *testing.T) {
	c, w := onFakeEnvoy(t)
	first := begin(c, w[0], who("dev-1"))
	second := begin(c, w[0], nativeRequest("/open", [2]string{"x-filler", strings.Repeat("#", 80)}))
	c.Main()
	if got := c.Headers(0); !strings.Contains(got, "x-request-id: id-of-dev-1\n") {
		t.Errorf("got headers %q", got)
	}
	c.Answer(0, allowed)
	run(t, w[0], first)
	w[0].Do(first.End)
	w[0].Do(second.End)
}

// TestNativeRace has both workers serve requests of some devices, while calls are answered, and records are written. It
// has something to find with the race detector only.
func TestNativeRace(t *testing.T) {
	c, workers := onFakeEnvoy(t)
	const requests, devices = 120, 20
	var serving, background sync.WaitGroup
	for _, w := range workers {
		serving.Go(func() {
			var waiting []*fakeenvoy.Request
			for n := 0; n < requests || len(waiting) > 0; n++ {
				if n < requests {
					waiting = append(waiting, begin(c, w, who(fmt.Sprint("racer", n%devices))))
				}
				w.Do(func() {
					waiting = slices.DeleteFunc(waiting, func(r *fakeenvoy.Request) bool {
						r.Run()
						ended := r.Passed() || r.Status() != 0
						if ended {
							r.End()
						}
						return ended
					})
				})
			}
		})
	}
	served := make(chan struct{})
	until := func(f func()) {
		for {
			select {
			case <-served:
				return
			default:
				f()
			}
		}
	}
	answered := 0
	background.Go(func() { // the main thread
		until(func() {
			c.Main()
			for ; answered < len(c.Calls()); answered++ {
				c.Answer(answered, allowed)
			}
		})
	})
	place := uint32(0)
	background.Go(func() { // the sidecar
		until(func() {
			place = (place + 1) % 4
			if err := shared.SetRecord(wire.RegionVerdicts, place, wire.AppendVerdicts(nil, nativeEpoch, nil, nil)); err != nil {
				t.Error(err)
			}
		})
	})
	serving.Wait()
	close(served)
	background.Wait()
}

// TestNativeLateStream: streams are numbered over all workers, and numbers repeat: a worker without requests so far
// knows whether a request came before the worker's call.
func TestNativeLateStream(t *testing.T) {
	c, w := onFakeEnvoy(t)
	fakeenvoy.SetNewest(1<<31 + 100)
	first, late := begin(c, w[0], nativeRequest("/fetched/late")), begin(c, w[0], nativeRequest("/fetched/late"))
	c.Main()
	c.Answer(0, fetchedObject("/fetched/late", "old"))
	run(t, w[0], first)
	run(t, w[0], late)
	if first.Text() != "old" || late.Status() != 0 {
		t.Errorf("got %q and %d %q, want the answer for the first only", first.Text(), late.Status(), late.Text())
	}
	c.Main()
	if got := len(c.Calls()); got != 2 {
		t.Fatalf("got %d calls, want another one for the late request", got)
	}
	c.Answer(1, fetchedObject("/fetched/late", "new"))
	run(t, w[0], late)
	if late.Text() != "new" {
		t.Errorf("the late request: got %q", late.Text())
	}
	w[0].Do(first.End)
	w[0].Do(late.End)
}

// TestNativeAnswersAreKept: a worker caches answers after a push. A record that is written behind the guard's back
// shows which requests still read the memory.
func TestNativeAnswersAreKept(t *testing.T) {
	c, w := onFakeEnvoy(t)
	const key = "/fetched/kept"
	bucket, one := objects(&nativeState, version(key, `"1"`))
	_, two := objects(&nativeState, version(key, `"2"`))
	b := wire.BeginBatch(nil, nativeEpoch, nativeEpoch)
	b = wire.AppendOp(b, wire.RegionObjects, bucket, func(dst []byte) []byte { return append(dst, one...) })
	listener, ok := fakeenvoy.NewConfig(`{"push_listener": true}`)
	if !ok {
		t.Fatal("the push listener was refused")
	}
	defer listener.Destroy()
	w[0].Do(func() {
		push := listener.Begin(false, [2]string{":method", "POST"}, [2]string{":path", "/v1/apply"})
		if push.Body(b, true); push.Status() != 200 {
			t.Errorf("push: got %d %s", push.Status(), push.Text())
		}
		push.End()
	})
	conditional := nativeRequest(key, [2]string{"if-none-match", `"1"`})
	ask := func() (status int) {
		w[0].Do(func() {
			r := c.Begin(true, conditional...)
			status = r.Status()
			r.End()
		})
		return status
	}
	write := func(record []byte) {
		require.NoError(t, shared.SetRecord(wire.RegionObjects, bucket, record))
	}
	kept := false
	for deadline := time.Now().Add(await.Deadline); !kept && time.Now().Before(deadline); {
		ask()
		ask()
		write(two)
		kept = ask() == 304
		write(one)
	}
	if !kept {
		t.Error("no answer was cached")
	}
}

// TestNativeOtherSidecar: a listener with another sidecar would read the verdicts of the first one's.
func TestNativeOtherSidecar(t *testing.T) {
	onFakeEnvoy(t)
	other := strings.Replace(nativeRules, `"cluster": "sidecar"`, `"cluster": "other"`, 1)
	if c, ok := fakeenvoy.NewConfig(other); ok {
		c.Destroy()
		t.Error("rules with another sidecar: got accepted beside those of the first")
	}
	c, ok := fakeenvoy.NewConfig(nativeRules)
	if !ok {
		t.Fatal("other rules with the same sidecar: got refused")
	}
	c.Destroy()
}

// TestNativeRepliesAreBounded: one answer wakes many requests, and Envoy keeps all bodies at the same time.
func TestNativeRepliesAreBounded(t *testing.T) {
	c, w := onFakeEnvoy(t)
	const most = edge.MaxReplied >> 20
	var requests []*fakeenvoy.Request
	for range most + 20 {
		requests = append(requests, begin(c, w[0], nativeRequest("/fetched/big")))
	}
	c.Main()
	body := strings.Repeat("x", 1<<20)
	for answered := 0; answered < len(c.Calls()); answered++ {
		c.Answer(answered, fetchedObject("/fetched/big", body))
		served := 0
		for _, r := range requests {
			before := r.Status()
			w[0].Do(func() { r.Run() })
			if before == 0 && r.Status() == 200 {
				served++
			}
		}
		if served > most {
			t.Errorf("got %d bodies of 1 MiB for one answer, want %d at most", served, most)
		}
		c.Main()
	}
	passed := 0
	for _, r := range requests {
		if r.Passed() {
			passed++
		}
		w[0].Do(r.End)
	}
	if passed == 0 {
		t.Errorf("got all of %d requests answered, want some sent upstream", len(requests))
	}
}

// TestNativeEndsOnAWorker: a discovered configuration may end with its last stream, on a worker, during a call on the
// main thread. The configuration ends after the answer.
func TestNativeEndsOnAWorker(t *testing.T) {
	onFakeEnvoy(t)
	c, ok := fakeenvoy.NewConfig(nativeRules)
	if !ok {
		t.Fatal("the rules were refused")
	}
	w := fakeenvoy.NewWorker()
	defer w.Stop()
	r := begin(c, w, who("ends"))
	c.Main()
	if got := len(c.Calls()); got != 1 {
		t.Fatalf("got %d calls, want one", got)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Do(func() {
			r.End()
			c.Destroy()
		})
	}()
	select {
	case <-ended:
		t.Error("the configuration has ended before the answer")
	case <-time.After(50 * time.Millisecond):
	}
	c.Answer(0, allowed)
	select {
	case <-ended:
	case <-time.After(await.Deadline):
		t.Error("the configuration doesn't end after the answer")
	}
}

// TestNativeEndsDuringATick: Envoy holds a configuration while work is scheduled, so a report of hits, on the thread of
// ticks, can end the configuration.
func TestNativeEndsDuringATick(t *testing.T) {
	onFakeEnvoy(t)
	c, ok := fakeenvoy.NewConfig(nativeRules)
	if !ok {
		t.Fatal("the rules were refused")
	}
	const key = "/fetched/tick"
	bucket, record := objects(&nativeState, version(key, `"1"`))
	require.NoError(t, shared.SetRecord(wire.RegionObjects, bucket, record))
	c.EndAtCommit()
	w := fakeenvoy.NewWorker()
	defer w.Stop()
	w.Do(func() {
		for range 100 { // a sample of the hits is reported
			r := c.Begin(true, nativeRequest(key, [2]string{"if-none-match", `"1"`})...)
			if r.Status() != 304 {
				t.Errorf("got %d, want 304", r.Status())
			}
			r.End()
		}
	})
	await.Until(t, "the configuration ends", c.Ended)
}
