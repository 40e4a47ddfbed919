package publish

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/clients/go/testbed/seed"
)

// listed returns the keys of all objects; stale objects have a star.
func listed(t *testing.T, p *Publisher) (keys []string) {
	t.Helper()
	for entry, err := range p.List(t.Context(), "") {
		require.NoError(t, err)
		if keys = append(keys, entry.Key); entry.Stale {
			keys[len(keys)-1] += "*"
		}
	}
	slices.Sort(keys)
	return keys
}

// TestPurge: objects published earlier are gone, objects published later stay, in every shard.
func TestPurge(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		p := New(s.Client, Shards(3))
		put := func(key string, tags ...string) {
			t.Helper()
			if _, err := p.Put(t.Context(), Object{Key: key, Body: []byte(key), ContentType: "a", Tags: tags}); err != nil {
				t.Fatal(err)
			}
		}
		purge := func(u Purge) {
			t.Helper()
			receipts, err := p.Purge(t.Context(), u)
			if err != nil || len(receipts) != 3 || slices.Contains(receipts, Receipt{}) {
				t.Fatalf("purge %+v: %v, %v; want 3 receipts", u, receipts, err)
			}
		}
		want := func(keys ...string) {
			t.Helper()
			if got := listed(t, p); !slices.Equal(got, keys) {
				t.Errorf("listed %q, want %q", got, keys)
			}
			for _, key := range keys {
				if _, err := p.Get(t.Context(), strings.TrimSuffix(key, "*")); err != nil {
					t.Error(err)
				}
			}
		}
		all := []string{"//shop/a/1", "//shop:h/a/1", "/a", "/a/1", "/a/2", "/b/1", "@d/a/1"}
		for _, key := range all {
			put(key, "t", "b", "t")
		}
		if o, err := p.Get(t.Context(), "/a"); err != nil || !slices.Equal(o.Tags, []string{"b", "t"}) || o.Seq == 0 {
			t.Fatalf("got %+v, %v; want tags b and t, and its number", o, err)
		}
		want(all...)
		purge(Purge{Prefix: "/a/"})
		want("//shop/a/1", "//shop:h/a/1", "/a", "/b/1")
		if _, err := p.Get(t.Context(), "/a/1"); !errors.Is(err, ErrNotFound) {
			t.Errorf("get a purged object: %v", err)
		}
		put("/a/1", "t")
		want("//shop/a/1", "//shop:h/a/1", "/a", "/a/1", "/b/1")
		purge(Purge{Tag: "b", VirtualHost: "shop", Soft: true})
		want("//shop/a/1*", "//shop:h/a/1*", "/a", "/a/1", "/b/1")
		purge(Purge{Tag: "t", VirtualHost: "shop"})
		want("/a", "/a/1", "/b/1")
		purge(Purge{Tag: "t", Soft: true})
		put("/b/1")
		want("/a*", "/a/1*", "/b/1")
		purge(Purge{Tag: "t"})
		want("/b/1")
		purge(Purge{Prefix: "/"})
		want()
		if receipt, err := p.Put(t.Context(), Object{Key: "/a/1", ContentType: "a"}); err != nil || receipt.Version != 3 {
			t.Errorf("version %d, %v; want 3: a purge changes none", receipt.Version, err)
		}
	})
}

// TestPurgeRecord: a soft purge keeps an earlier hard purge, a hard purge removes the soft purge, and the event has the
// whole record.
func TestPurgeRecord(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		key := keys.RecordKey(contract.PurgeMember("#t"))
		for i, step := range []struct {
			soft bool
			want contract.Purge
		}{
			{true, contract.Purge{Version: 1, Soft: 1}},
			{false, contract.Purge{Version: 2, Hard: 2}},
			{true, contract.Purge{Version: 3, Hard: 2, Soft: 3}},
			{true, contract.Purge{Version: 4, Hard: 2, Soft: 4}},
			{false, contract.Purge{Version: 5, Hard: 5}},
		} {
			if _, err := s.p.Purge(t.Context(), Purge{Tag: "t", Soft: step.soft}); err != nil {
				t.Fatal(err)
			}
			fields := s.HGetAll(t.Context(), key).Val()
			got, err := contract.ParsePurge(fields)
			got.PublishedMS = 0
			if err != nil || got != step.want {
				t.Errorf("step %d: %+v, %v; want %+v", i, got, err, step.want)
			}
			if score := s.ZScore(t.Context(), keys.LogKey(), "p:#t").Val(); score != float64(i+1) {
				t.Errorf("step %d: score %v", i, score)
			}
		}
		// A purge written by hand must not purge later objects.
		s.HSet(t.Context(), key, "hard", "9007199254740991")
		if _, err := s.p.Purge(t.Context(), Purge{Tag: "t", Soft: true}); err != nil {
			t.Fatal(err)
		}
		if hard, err := s.HExists(t.Context(), key, "hard").Result(); hard || err != nil {
			t.Errorf("a number of a later write was kept: %v, %v", hard, err)
		}
	})
}

func TestPurgeRefuses(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		for _, u := range []Purge{{}, {Tag: "a", Prefix: "/"}, {Tag: "a b"}, {Prefix: "/a"}, {Prefix: "a/"},
			{Prefix: "/a/../b/"}, {Prefix: "//a/"}, {Prefix: "/%c3/"}, {Prefix: "/a?b/"}, {Prefix: "/", VirtualHost: "a:b"},
			{Tag: "a", VirtualHost: "A"}} {
			if _, err := s.p.Purge(t.Context(), u); !errors.Is(err, ErrInvalid) {
				t.Errorf("%+v: %v, want ErrInvalid", u, err)
			}
		}
		comma := Object{Key: "/a", ContentType: "a", Tags: []string{"a,b"}}
		if _, err := s.p.Put(t.Context(), comma); !errors.Is(err, ErrInvalid) {
			t.Errorf("put with a comma in a tag: %v", err)
		}
		// Of the script alone.
		object := contract.ObjectMember("/a")
		for name, run := range map[string]mutation{
			"an object in mode purge": {purge, object, map[string]string{"hard": "1"}, ""},
			"a purge in mode replace": {replace, contract.PurgeMember("#t"), map[string]string{"hard": "1"}, ""},
			"a purge in mode merge":   {merge, contract.PurgeMember("#t"), map[string]string{"soft": "1"}, ""},
			"both":                    {purge, contract.PurgeMember("#t"), map[string]string{"hard": "1", "soft": "1"}, ""},
			"another value":           {purge, contract.PurgeMember("#t"), map[string]string{"hard": "7"}, ""},
			"a tombstone":             {purge, contract.PurgeMember("#t"), map[string]string{"deleted": "1"}, ""},
			"a number of the writer": {replace, object,
				map[string]string{"etag": `""`, "content-type": "a", "body": "", "seq": "9"}, ""},
		} {
			run.fields[contract.FieldVersion] = "0"
			if _, err := s.p.writer.writeRecord(t.Context(), run.mode, run.member, run.fields); !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", name, err)
			}
		}
		if seq := s.Exists(t.Context(), keys.SeqKey()).Val(); seq != 0 {
			t.Error("something was written")
		}
	})
}

// TestPurgesAreApart does random puts, deletions and purges in two namespaces with virtual hosts, and compares the
// objects left in Redis with a model made from the documents only.
func TestPurgesAreApart(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		seed := seed.Of(t)
		r := rand.New(rand.NewPCG(seed, 0))
		one := func(of ...string) string { return of[r.IntN(len(of))] }
		type object struct {
			virtualHost string
			path        string
			tags        []string
		}
		spaces := []*Publisher{New(s.Client, Shards(2)), New(s.Client, Shards(2), Namespace("other"))}
		models := []map[string]object{{}, {}}
		for step := range 300 {
			i := r.IntN(2)
			p, model := spaces[i], models[i]
			o := object{one("", "shop", "b"), "/" + one("a/", "b/", "") + one("a/", "shop/", "") + one("x", "y", ""), nil}
			for _, tag := range []string{"a", "/a/", "//shop/a/#T"} {
				if r.IntN(2) == 0 {
					o.tags = append(o.tags, tag)
				}
			}
			key, host := o.path+one("", "?/a/"), one("", "h")
			if o.virtualHost+host != "" {
				key = KeyOfVirtualHost(o.virtualHost, host, key)
			}
			key = one("", "@d") + key
			var err error
			switch r.IntN(6) {
			default:
				_, err = p.Put(t.Context(), Object{Key: key, ContentType: "a", Tags: o.tags})
				model[key] = o
			case 1:
				_, err = p.Delete(t.Context(), key, 0)
				delete(model, key)
			case 2:
				tag := one("a", "/a/", "//shop/a/#T")
				_, err = p.Purge(t.Context(), Purge{Tag: tag, VirtualHost: o.virtualHost})
				maps.DeleteFunc(model, func(_ string, other object) bool {
					return other.virtualHost == o.virtualHost && slices.Contains(other.tags, tag)
				})
			case 3:
				prefix := o.path[:strings.LastIndex(o.path, "/")+1]
				_, err = p.Purge(t.Context(), Purge{Prefix: prefix, VirtualHost: o.virtualHost})
				maps.DeleteFunc(model, func(_ string, other object) bool {
					return other.virtualHost == o.virtualHost && strings.HasPrefix(other.path, prefix)
				})
			}
			if err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if step%10 > 0 {
				continue
			}
			for i, p := range spaces {
				if got, want := listed(t, p), slices.Sorted(maps.Keys(models[i])); !slices.Equal(got, want) {
					t.Fatalf("seed %d, step %d, namespace %d: got %q, want %q", seed, step, i, got, want)
				}
			}
			if _, err := p.Get(t.Context(), key); (err == nil) != (fmt.Sprint(model[key]) != fmt.Sprint(object{})) {
				t.Fatalf("seed %d, step %d: get %s: %v, the model has %v", seed, step, key, err, model[key])
			}
		}
	})
}

// TestTrimPurges: the records of purged objects are deleted, then the purges that no older object needs. No purged
// object comes back, and later objects stay.
func TestTrimPurges(t *testing.T) {
	onServer(t, func(t *testing.T, s server) {
		put := func(key string, tags ...string) {
			t.Helper()
			if _, err := s.p.Put(t.Context(), Object{Key: key, ContentType: "a", Tags: tags}); err != nil {
				t.Fatal(err)
			}
		}
		put("/a/1", "t")
		put("/a/2", "t", "soft")
		put("/b/1", "soft")
		for _, u := range []Purge{{Tag: "t"}, {Prefix: "/none/"}, {Tag: "soft", Soft: true}} {
			if _, err := s.p.Purge(t.Context(), u); err != nil {
				t.Fatal(err)
			}
		}
		put("/a/1", "t")
		want := []string{"/a/1", "/b/1*"}
		for round, trimmed := range []Trimmed{{Members: 6, Purged: 1, Purges: 2}, {Members: 6}} {
			done, err := s.p.Trim(t.Context())
			if err != nil || done != trimmed {
				t.Errorf("round %d: %+v, %v; want %+v", round, done, err, trimmed)
			}
			if got := listed(t, s.p); !slices.Equal(got, want) {
				t.Errorf("round %d: listed %q, want %q", round, got, want)
			}
		}
		purges, err := s.p.reader.readAllPurges(t.Context(), keys)
		if err != nil || len(purges) != 1 || purges["#soft"].Soft == 0 {
			t.Errorf("left are %v, %v; want only #soft", purges, err)
		}
		if ttl := s.TTL(t.Context(), keys.RecordKey(contract.PurgeMember("#t"))).Val(); ttl <= 0 {
			t.Errorf("the tombstone of #t expires after %v", ttl)
		}
		if _, err := s.p.Purge(t.Context(), Purge{Tag: "t"}); err != nil { // over the tombstone
			t.Fatal(err)
		}
		if got := listed(t, s.p); !slices.Equal(got, want[1:]) {
			t.Errorf("after another purge: %q, want %q", got, want[1:])
		}
	})
}
