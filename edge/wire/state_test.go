package wire

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

func TestStateRoundTrip(t *testing.T) {
	tests := []struct {
		name  string
		state State
	}{
		{"sample", testState},
		{"zero but for the epoch", State{Epoch: 1}},
		{"every number at its end", State{
			Epoch: math.MaxUint64, InStepMS: math.MaxInt64, HeartbeatMS: math.MinInt64,
			ObjectBuckets: math.MaxUint32, VerdictBuckets: math.MaxUint32 - 1, BodySlots: math.MaxUint32 - 2,
		}},
		{"in step before 1970", State{Epoch: 1, InStepMS: -1}},
		{"devices complete", State{Epoch: 1, DevicesComplete: true}},
		{"purges", State{Epoch: 1, Purges: testPurges}},
		{"all purges of the longest prefixes", State{Epoch: 1, Purges: slices.Repeat([]Purge{
			{Stamps: slices.Repeat([]uint64{math.MaxUint64}, limits.MaxShards), Tags: math.MaxUint32, Soft: true,
				VirtualHost: strings.Repeat("h", math.MaxUint8), Prefix: strings.Repeat("/", limits.MaxKey)}}, MaxPurges)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseState(AppendState(nil, &tt.state))
			if err != nil || !reflect.DeepEqual(got, tt.state) {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.state)
			}
		})
	}
}

// TestStateOwnsItsStrings checks that a state outlives the parsed bytes.
func TestStateOwnsItsStrings(t *testing.T) {
	want := State{Epoch: 1, Purges: testPurges}
	rec := AppendState(nil, &want)
	got, err := ParseState(rec)
	clear(rec)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestParseStateMalformed(t *testing.T) {
	good := AppendState(nil, &testState)
	purging := AppendState(nil, &State{Epoch: 1, Purges: testPurges})
	tests := []struct {
		name string
		rec  []byte
	}{
		{"epoch 0", edited(good, set64(8, 0))},
		{"cut in the heartbeat", edited(good, cut(71))},
		{"cut after the flags", edited(good, cut(79))},
		{"a flag that this layout doesn't know", edited(good, set8(72, 2))},
		{"a purge more than are there", edited(purging, set8(purgesAt, 3))},
		{"more purges than the most", AppendState(nil, &State{Epoch: 1, Purges: make([]Purge, MaxPurges+1)})},
		{"cut in the last prefix", edited(purging, cut(len(purging)-1))},
		{"cut in the last stamp", edited(purging, cut(len(purging)-len("shop/v1/")-1))},
		{"cut in the last purge", edited(purging, cut(len(purging)-len("shop/v1/")-8-1))},
		{"neither soft nor hard", edited(purging, set8(80+4, 2))},
		{"more stamps than shards", AppendState(nil, &State{Epoch: 1,
			Purges: []Purge{{Stamps: make([]uint64, limits.MaxShards+1)}}})},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := ParseState(tt.rec); !errors.Is(err, ErrMalformed) {
				t.Errorf("got %+v, %v, want %v", got, err, ErrMalformed)
			}
			sameBeyond(t, tt.rec, readState)
		})
	}
}

func TestPurgeConcerns(t *testing.T) {
	entry := func(key string, tags uint32) *Object {
		o := object(Object{Key: key, Tags: tags}, Variant{Stamp: Stamp(5, 3)}, Variant{Encoding: Gzip, Stamp: Stamp(6, 3)})
		return &o
	}
	until4, until5 := []uint64{Stamp(4, 3)}, []uint64{Stamp(9, 0), Stamp(5, 3)}
	tests := []struct {
		name  string
		purge Purge
		of    *Object
		want  bool
	}{
		{"all", Purge{Stamps: until5, Prefix: "/"}, entry("/a", 0), true},
		{"all, of a later object", Purge{Stamps: until4, Prefix: "/"}, entry("/a", 0), false},
		{"all, in other shards", Purge{Stamps: []uint64{Stamp(9, 2), Stamp(9, 4)}, Prefix: "/"}, entry("/a", 0), false},
		{"all, in no shard", Purge{Prefix: "/"}, entry("/a", 0), false},
		{"all, of a device's object", Purge{Stamps: until5, Prefix: "/"}, entry("@d/a", 0), true},
		{"prefix", Purge{Stamps: until5, Prefix: "/a/"}, entry("/a/b?c=d", 0), true},
		{"another prefix", Purge{Stamps: until5, Prefix: "/a/"}, entry("/b/a/", 0), false},
		{"tag", Purge{Stamps: until5, Tags: 2}, entry("/a", 7), true},
		{"another tag", Purge{Stamps: until5, Tags: 2}, entry("/a", 5), false},
		{"tag, of an object without", Purge{Stamps: until5, Tags: 2}, entry("/a", 0), false},
		{"virtual host", Purge{Stamps: until5, VirtualHost: "shop", Prefix: "/a/"},
			entry("@d//shop:example.com/a/", 0), true},
		{"another virtual host", Purge{Stamps: until5, VirtualHost: "shop", Prefix: "/"},
			entry("//shop2:example.com/", 0), false},
		{"no virtual host", Purge{Stamps: until5, Prefix: "/"}, entry("//shop:example.com/", 0), false},
		{"a virtual host, of an object without", Purge{Stamps: until5, VirtualHost: "shop", Tags: 1},
			entry("/shop", 1), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.purge.Concerns(tt.of); got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
		})
	}
}

func TestParsePurges(t *testing.T) {
	rec := AppendState(nil, &State{Epoch: 2, Purges: testPurges})
	got := ParsePurges(rec)
	clear(rec)
	if !reflect.DeepEqual(got, testPurges) {
		t.Errorf("got %+v, want %+v", got, testPurges)
	}
	rec = AppendState(nil, &State{Epoch: 2, Purges: testPurges})
	for name, other := range map[string][]Purge{
		"cut":            ParsePurges(rec[:len(rec)-1]),
		"no record":      ParsePurges(nil),
		"no such region": ParsePurges(AppendBody(nil, 2, 1, bytes.Repeat([]byte{1}, 200))),
	} {
		if other != nil {
			t.Errorf("%s: got %+v, want none", name, other)
		}
	}
}
