package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/loadtest/stats"
	"github.com/gatehouse/gatehouse/sidecar/internal/config"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem/edgememtest"
	"github.com/gatehouse/gatehouse/sidecar/internal/follow"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
	"github.com/gatehouse/gatehouse/verify/hasher"
	"github.com/gatehouse/gatehouse/verify/lastseen"
)

const (
	fleetBody    = 1024 // bytes of an object
	fleetDevices = 16
	fleetWriters = 16
	// sentMark precedes the time of the write in a body, in nanoseconds.
	sentMark = "sent at "
)

// fleet is a Redis with followers, and a model of what Redis has.
type fleet struct {
	t       *testing.T
	objects int
	server  *redistest.Server
	client  *redis.Client
	writer  *publish.Publisher
	pid     int // of the server

	followers []*follower
	hashers   *hasher.Pool
	restarted func() // called when Redis is ready again
	snapshot  string // that followers start from; "": none

	mu     sync.Mutex // protects all below
	model  model
	since  time.Time       // writes since then count in delays
	delays stats.Histogram // of writes, until an edge has the object
	last   uint64          // number of the last write
}

// model is what Redis has.
type model struct {
	objects map[string]stored // of every key that was ever written; without a body: deleted
	devices map[string]bool   // by id: registered
}

type stored struct {
	version uint64
	body    []byte
}

// follower is a sidecar that pushes to an image of an edge's memory, without sockets.
type follower struct {
	group  *follow.Group
	memory *edgemem.Edge
	image  *edgememtest.Memory
	inStep atomic.Int64 // time of a whole image's state, in milliseconds
	stop   func()
}

// startFleet starts a Redis with objects and devices.
func startFleet(t *testing.T, objects int) *fleet {
	t.Helper()
	f := &fleet{t: t, objects: objects, server: redistest.StartServer(t, "--maxclients", "20000"),
		model: model{map[string]stored{}, map[string]bool{}}, restarted: func() {}}
	f.client = redis.NewClient(&redis.Options{Addr: f.server.Address, PoolSize: 2 * fleetWriters})
	t.Cleanup(func() { f.client.Close() })
	f.writer = publish.New(f.client)
	f.hashers = hasher.New("/proc/self/exe", metrics.New(), slog.New(slog.DiscardHandler))
	t.Cleanup(f.hashers.Close)
	for i := range fleetDevices {
		f.putDevice(i)
	}
	var batch []publish.Object
	for i := range objects {
		batch = append(batch, publish.Object{Key: fleetKey(i), Body: f.newBody(), ContentType: "image/png"})
		if len(batch) < 1000 && i < objects-1 {
			continue
		}
		for j, r := range f.writer.PutAll(t.Context(), batch) {
			require.NoError(t, r.Err)
			f.model.objects[batch[j].Key] = stored{r.Receipt.Version, batch[j].Body}
		}
		batch = nil
	}
	return f
}

func fleetKey(i int) string { return fmt.Sprint("/v1/products/", i) }

func fleetDevice(i int) string { return fmt.Sprint("device-", i) }

// newBody returns a body with the time, which no two bodies share.
func (f *fleet) newBody() []byte {
	return fmt.Appendf(make([]byte, 0, fleetBody), "%s%019d%0*d", sentMark, time.Now().UnixNano(),
		fleetBody-len(sentMark)-19, 0)
}

// put writes an object; writes of a key may overlap.
func (f *fleet) put(ctx context.Context, i int) error {
	key, body := fleetKey(i%f.objects), f.newBody()
	receipt, err := f.writer.Put(ctx, publish.Object{Key: key, Body: body, ContentType: "image/png"})
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = max(f.last, receipt.Seq)
	if receipt.Version > f.model.objects[key].version {
		f.model.objects[key] = stored{receipt.Version, body}
	}
	return nil
}

func (f *fleet) putDevice(i int) {
	f.t.Helper()
	_, err := f.writer.PutDevice(f.t.Context(), publish.Device{ID: fleetDevice(i),
		Hashes: []string{"$2b$04$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234"}})
	require.NoError(f.t, err)
	f.model.devices[fleetDevice(i)] = true
}

// remove deletes an object and a device.
func (f *fleet) remove(i int) {
	f.t.Helper()
	receipt, err := f.writer.Delete(f.t.Context(), fleetKey(i), 0)
	require.NoError(f.t, err)
	f.model.objects[fleetKey(i)] = stored{version: receipt.Version}
	_, err = f.writer.DeleteDevice(f.t.Context(), fleetDevice(i%fleetDevices), true)
	require.NoError(f.t, err)
	f.model.devices[fleetDevice(i%fleetDevices)] = false
}

// copyModel returns the model so far.
func (f *fleet) copyModel() model {
	f.mu.Lock()
	defer f.mu.Unlock()
	return model{maps.Clone(f.model.objects), maps.Clone(f.model.devices)}
}

// startFollowers starts followers up to n, with the parts of a sidecar that call Redis, except presence.
func (f *fleet) startFollowers(n int) {
	f.t.Helper()
	for i := len(f.followers); i < n; i++ {
		f.followers = append(f.followers, f.startFollower(i))
	}
}

func (f *fleet) startFollower(i int) *follower {
	f.t.Helper()
	log, socket := slog.New(slog.DiscardHandler), filepath.Join(f.t.TempDir(), fmt.Sprint(i))
	c, err := config.Load([]string{"--redis.url=redis://" + f.server.Address, "--push.socket=" + socket + ".push",
		"--api.socket=" + socket + ".api", fmt.Sprint("--memory.bytes=", max(512, f.objects/250), "MiB"),
		fmt.Sprint("--memory.objects=", 2*f.objects), "--memory.verdicts=100", "--redis.snapshot=" + f.snapshot})
	require.NoError(f.t, err)
	client, err := c.Redis.Settings("gatehouse-sidecar").Connect()
	require.NoError(f.t, err)
	m := metrics.New()
	m.ObserveRedis(client)
	parts, err := newComponents(c, client, nil, f.hashers, m, noop.NewTracerProvider().Tracer(""), log,
		new(slog.LevelVar))
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	x := &follower{image: edgememtest.NewMemory()}
	x.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		client.Close()
	})
	f.t.Cleanup(x.stop)
	for _, part := range parts {
		switch part := part.(type) {
		case *edgemem.Memory:
			x.memory = part.AddEdge()
		case *follow.Group:
			x.group = part
		case *objectcache.Cache, *lastseen.Log: // presence counts this process's files, of all followers, each time
		default:
			continue
		}
		running.Go(func() { part.Run(ctx) })
	}
	running.Go(func() { f.push(ctx, x) })
	return x
}

// push applies the batches of a follower's memory to its image, as often as a pusher sends.
func (f *fleet) push(ctx context.Context, x *follower) {
	select {
	case <-x.group.Synced():
	case <-ctx.Done():
		return
	}
	x.memory.Reset(nil)
	const heartbeatEvery = 200 * time.Millisecond // see package push
	heartbeat := time.NewTimer(heartbeatEvery)
	defer heartbeat.Stop()
	var batch []byte
	for full := false; ; {
		var info edgemem.BatchInfo
		batch, info = x.memory.TakeBatch(batch)
		status, answer := x.image.Apply(batch)
		state, err := wire.ParseState(answer)
		if status != 200 || err != nil {
			f.t.Errorf("a batch was not applied: %d, %v", status, err)
			return
		}
		f.countDelays(batch)
		x.memory.MarkAcked()
		if full = full || info.Drained; full {
			x.inStep.Store(state.InStepMS)
		}
		if info.More {
			continue
		}
		heartbeat.Reset(heartbeatEvery)
		select {
		case <-ctx.Done():
			return
		case <-x.memory.Wake():
		case <-heartbeat.C:
		}
	}
}

// countDelays counts how long the objects of an applied batch took.
func (f *fleet) countDelays(applied []byte) {
	now := time.Now()
	batch, err := wire.ParseBatch(applied)
	if err != nil {
		f.t.Error(err)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for op := range batch.Ops() {
		_, text, found := bytes.Cut(op.Record, []byte(sentMark))
		if op.Region != wire.RegionBodies || !found {
			continue
		}
		var nanos int64
		for _, digit := range text[:19] {
			nanos = 10*nanos + int64(digit-'0')
		}
		if sent := time.Unix(0, nanos); !sent.Before(f.since) {
			f.delays.Add(now.Sub(sent))
		}
	}
}

// awaitInStep waits until all edges have everything, and know that they were in step with Redis after since. For each
// follower, awaitInStep returns how long that took.
func (f *fleet) awaitInStep(since time.Time, most time.Duration) []time.Duration {
	f.t.Helper()
	took := make([]time.Duration, len(f.followers))
	for waiting := len(took); waiting > 0; <-time.After(5 * time.Millisecond) {
		waiting = 0
		for i, x := range f.followers {
			switch {
			case took[i] > 0:
			case x.inStep.Load() > since.UnixMilli():
				took[i] = time.Since(since)
			default:
				waiting++
			}
		}
		if time.Since(since) > most {
			f.t.Fatalf("not within %v: %d of %d followers in step", most, len(took)-waiting, len(took))
		}
	}
	return took
}

// check compares all images with the model.
func (f *fleet) check() {
	f.t.Helper()
	want := f.copyModel()
	wrong := 0
	for i, x := range f.followers {
		for key, o := range want.objects {
			found, err := x.image.Object(key)
			switch {
			case o.body == nil && errors.Is(err, wire.ErrNotFound):
			case err == nil && found.Version == o.version && bytes.Equal(found.Bodies[0], o.body):
			default:
				if wrong++; wrong < 10 {
					f.t.Errorf("edge %d has version %d of %s (%v), want version %d of %d bytes", i, found.Version, key, err,
						o.version, len(o.body))
				}
			}
		}
		for id, registered := range want.devices {
			status, complete := x.image.Status(id, "secret")
			if !complete || (status == wire.Registered || status == wire.New) != registered {
				if wrong++; wrong < 10 {
					f.t.Errorf("edge %d has status %d of %s (all devices listed: %t), want registered: %t", i, status, id,
						complete, registered)
				}
			}
		}
	}
	if wrong > 0 {
		f.t.Errorf("%d records of edges are wrong", wrong)
	}
}

// storm restarts Redis, with the loss of its last writes or without, and waits until all edges are in step again.
func (f *fleet) storm(lose bool, most time.Duration) (took []time.Duration) {
	f.t.Helper()
	if !lose {
		f.remove(1)
	}
	require.NoError(f.t, f.client.Save(f.t.Context()).Err())
	if saved := f.copyModel(); lose {
		for i := range max(f.objects/10, 1) {
			require.NoError(f.t, f.put(f.t.Context(), i))
		}
		f.remove(0)
		f.awaitInStep(time.Now(), most)
		f.check()
		f.model = saved
	}
	f.server.Kill()
	f.server.Restart()
	since := time.Now()
	f.restarted()
	took = f.awaitInStep(since, most)
	f.check()
	return took
}
