package main

import (
	"bytes"
	"slices"

	"github.com/gatehouse/gatehouse/wasm-filter/policy"
	"github.com/gatehouse/gatehouse/wire"
)

// action is what the proxy does with a stream when a callback has returned.
type action uint32

const (
	proceed action = 0
	pause   action = 1
)

// vm is what all plugins of one VM share. Several plugin configurations can live in one
// VM, so nothing in it depends on a configuration.
type vm struct {
	host    host
	plugins []*plugin
	objects objectCache
	bodies  bodyCache
	counts  [policy.Counters]uint64 // since the last flush

	// stream is the one that was created last. Most streams are answered or passed by
	// their first callback, which follows at once, and leave nothing behind: they all use
	// this one. Who has to wait is copied to paused.
	stream stream
	paused map[uint32]*stream           // by id
	calls  map[uint32]func(body []byte) // by token

	// pushes are the streams of the push listener. Nobody tells when one of them is gone,
	// since that would be a callback for every stream: see sweep.
	pushes  map[uint32]*ingest
	sweepAt int // entries of it
}

func newVM(h host) *vm {
	return &vm{host: h, paused: map[uint32]*stream{}, pushes: map[uint32]*ingest{},
		calls: map[uint32]func([]byte){}, sweepAt: sweepLeast}
}

func (v *vm) createPlugin(id uint32) { v.plugins = append(v.plugins, &plugin{vm: v, id: id}) }

// plugin is the one of an id, nil if there is none.
func (v *vm) plugin(id uint32) *plugin {
	for _, p := range v.plugins {
		if p.id == id {
			return p
		}
	}
	return nil
}

// createStream precedes the request headers of the stream, with nothing in between.
func (v *vm) createStream(id, plugin uint32) {
	if len(v.pushes) > 0 { // most of the time there is none, and this is every request's way
		delete(v.pushes, id) // ids come again after 2³² streams
	}
	v.stream = stream{plugin: v.plugin(plugin), id: id}
}

func (v *vm) configure(plugin uint32, size int) bool { return v.plugin(plugin).configure(size) }

func (v *vm) tick(plugin uint32) { v.plugin(plugin).tick() }

func (v *vm) requestHeaders(id uint32, endOfStream bool) action {
	s := &v.stream
	if s.id != id || s.plugin == nil {
		panic("gatehouse: the proxy shows request headers of a stream that it hasn't just created")
	}
	if s.plugin.edge.Config().PushListener {
		i := &ingest{vm: v}
		if !endOfStream {
			v.pushes[id] = i
		}
		return i.headers(endOfStream)
	}
	return s.proceed()
}

// requestBody is of interest at the push listener only.
func (v *vm) requestBody(id uint32, size int, endOfStream bool) action {
	i := v.pushes[id]
	if i == nil {
		return proceed
	}
	if endOfStream {
		delete(v.pushes, id)
	}
	return i.body(size, endOfStream)
}

// sweepLeast is how many entries of streams are kept before the first sweep.
const sweepLeast = 1024

// sweep forgets streams and plugins that are gone. It waits until the entries of streams
// have doubled since the last time, so that there are at most twice as many as there are
// streams, and an entry is looked at twice on average.
func (v *vm) sweep() {
	if len(v.pushes) < v.sweepAt {
		return
	}
	for id := range v.pushes {
		if !v.host.enter(id) {
			delete(v.pushes, id)
		}
	}
	v.plugins = slices.DeleteFunc(v.plugins, func(p *plugin) bool { return !v.host.enter(p.id) })
	v.sweepAt = sweepLeast + 2*len(v.pushes)
}

// callResponse hands the answer to a call to the plugin that made it.
func (v *vm) callResponse(token uint32, size int) {
	if done, ok := v.calls[token]; ok {
		delete(v.calls, token)
		done(v.host.callBody(size))
	}
}

func (v *vm) count(counter policy.Counter) { v.counts[counter]++ }

// flush adds what was counted to the proxy's counters.
func (v *vm) flush() {
	for c := policy.None + 1; c < policy.Counters; c++ {
		if v.counts[c] != 0 {
			v.host.count(c, v.counts[c])
			v.counts[c] = 0
		}
	}
}

// Claim implements policy.Claims.
func (v *vm) Claim(metadata, name string) string { return v.host.claim(metadata, name) }

// Record implements policy.Memory.
func (v *vm) Record(region wire.Region, index uint32) []byte { return v.host.record(region, index) }

// Object implements policy.Memory.
func (v *vm) Object(state *wire.State, key string) (*wire.Object, error) {
	return v.objects.find(v.host, state, key)
}

// Body implements policy.Memory.
func (v *vm) Body(epoch uint64, variant wire.Variant) []byte {
	if body := v.bodies.get(epoch, variant); body != nil {
		return body
	}
	body, err := wire.FindBody(v.host.record(wire.RegionBodies, variant.Slot), epoch, variant)
	if err != nil {
		return nil
	}
	v.bodies.put(epoch, variant, bytes.Clone(body))
	return body
}
