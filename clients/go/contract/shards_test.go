package contract

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// The goldens come from Python's zlib.crc32, since writers exist in other languages.
func TestShardOf(t *testing.T) {
	for _, test := range []struct {
		id                  string
		of1, of2, of8, of64 int
	}{
		{"/", 0, 0, 4, 20},
		{"/v1/products/42", 0, 1, 1, 57},
		{"/v1/products/42?lang=de", 0, 1, 5, 45},
		{"@thermostat-7/v1/me/config", 0, 1, 3, 11},
		{"thermostat-7", 0, 0, 2, 50},
		{strings.Repeat("a", 128), 0, 0, 4, 12},
	} {
		for n, want := range map[Shards]int{0: 0, 1: test.of1, 2: test.of2, 8: test.of8, 64: test.of64} {
			if got := n.Of(test.id); got != want {
				t.Errorf("%q in %d shards: %d, want %d", test.id, n, got, want)
			}
			if got, want := (Keyspace{Shards: n}).KeysOf(test.id), (Keys{Shard: want}); got != want {
				t.Errorf("%q in %d shards: keys of %d, want %d", test.id, n, got.Shard, want.Shard)
			}
		}
	}
}

func TestShardsOfManyKeysAreEven(t *testing.T) {
	const shards, keys = 8, 8000
	var counts [shards]int
	for i := range keys {
		counts[Shards(shards).Of(fmt.Sprint("/v1/products/", i))]++
	}
	for i, n := range counts {
		if n < keys/shards/2 || n > keys/shards*2 {
			t.Errorf("shard %d has %d of %d keys: %v", i, n, keys, counts)
		}
	}
}

func TestShardsAgree(t *testing.T) {
	for _, test := range []struct {
		ours   Shards
		stored string
		want   string // in the error; empty: no error
	}{
		{0, "", ""}, {0, "1", ""}, {1, "1", ""}, {8, "", ""}, {8, "8", ""},
		{1, "8", "is 8, this program is set to 1"},
		{8, "1", "is 1, this program is set to 8"},
		{8, "eight", "delete it"},
		{8, "08", "delete it"},
	} {
		err := Keyspace{Shards: test.ours}.Agree(test.stored)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%d with %q: %v, want %q", test.ours, test.stored, err, test.want)
		}
		if e := (*ShardsError)(nil); errors.As(err, &e) != (strings.Contains(test.want, "is set to")) {
			t.Errorf("%d with %q: %T", test.ours, test.stored, err)
		}
	}
	err := Keyspace{Namespace: "shop"}.Agree("8")
	for _, want := range []string{"{gatehouse.shop:0}:shards is 8", "{gatehouse.shop:*}:*"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("in a namespace: %v, want %q", err, want)
		}
	}
	for n, ok := range map[Shards]bool{-1: false, 0: true, 1: true, 64: true, 65: false} {
		if err := n.Check(); (err == nil) != ok {
			t.Errorf("%d shards: %v", n, err)
		}
	}
}

func TestMemberBelongs(t *testing.T) {
	m := ObjectMember("/v1/products/42")
	of := Shards(8).Of(m.ID)
	if err := Shards(8).Belongs(m, of); err != nil {
		t.Error(err)
	}
	err := Shards(8).Belongs(m, of+1)
	if ReasonOf(err) != ReasonConflict || !strings.Contains(err.Error(), m.String()) {
		t.Errorf("got %v, want a conflict that names %s", err, m)
	}
}
