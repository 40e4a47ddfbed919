package contract

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/seed"
)

var (
	bothPurges = map[string]string{"version": "2", "published": "3", "hard": "7", "soft": "9"}
	tagged     = func() map[string]string {
		fields := maps.Clone(object)
		fields["tags"], fields["seq"] = "A,a,b:1", "12"
		return fields
	}()
)

func TestPurgeRoundTrip(t *testing.T) {
	for _, test := range []struct {
		fields map[string]string
		want   Purge
	}{
		{tombstone, Purge{Version: 2, PublishedMS: 3, Deleted: true}},
		{bothPurges, Purge{Version: 2, PublishedMS: 3, Hard: 7, Soft: 9}},
		{map[string]string{"version": "1", "published": "1", "soft": "1"}, Purge{Version: 1, PublishedMS: 1, Soft: 1}},
	} {
		got, err := ParsePurge(test.fields)
		if err != nil || got != test.want {
			t.Fatalf("got %+v, %v; want %+v", got, err, test.want)
		}
		if fields := got.Fields(); !maps.Equal(fields, test.fields) {
			t.Errorf("Fields() = %v, want %v", fields, test.fields)
		}
	}
	o, err := ParseObject(tagged)
	if err != nil || o.Seq != 12 || !slices.Equal(o.Tags, []string{"A", "a", "b:1"}) || !maps.Equal(o.Fields(), tagged) {
		t.Errorf("got %+v, %v", o, err)
	}
}

func TestParsePurgeRefuses(t *testing.T) {
	refused(t, bothPurges, []refusal{
		{"version", absent, ReasonMissing},
		{"deleted", "1", ReasonConflict},
		{"hard", "0", ReasonLimit},
		{"hard", "01", ReasonMalformed},
		{"hard", "9", ReasonConflict},
		{"soft", "9007199254740992", ReasonLimit},
		{"seq", "1", ReasonUnknown},
	}, func(fields map[string]string) error {
		_, err := ParsePurge(fields)
		return err
	})
	if _, err := ParsePurge(map[string]string{"version": "1", "published": "1"}); ReasonOf(err) != ReasonMissing {
		t.Errorf("neither hard nor soft: %v", err)
	}
	most := strings.Repeat("a,", MaxTags)
	refused(t, tagged, []refusal{
		{"tags", "", ReasonMalformed},
		{"tags", "a,", ReasonMalformed},
		{"tags", "b,a", ReasonMalformed},
		{"tags", "a,a", ReasonMalformed},
		{"tags", "a b", ReasonMalformed},
		{"tags", strings.Repeat("a", 65), ReasonMalformed},
		{"tags", most + "a", ReasonLimit},
		{"tags", strings.Repeat("a", 2000), ReasonLimit},
		{"seq", "0", ReasonLimit},
		{"seq", "x", ReasonMalformed},
	}, func(fields map[string]string) error {
		_, err := ParseObject(fields)
		return err
	})
}

func TestPurgeMembers(t *testing.T) {
	long := strings.Repeat("a", 2046)
	for id, ok := range map[string]bool{
		"/": true, "/a/": true, "/a/b/": true, "//shop/": true, "//shop/a/": true, "#t": true, "//shop#t": true,
		"/%C3/": true, "#a:B": true, "//shop#a:B": true, "/a//": true, "/" + long + "/": true,
		"//" + strings.Repeat("s", 64) + "/": true, "#" + strings.Repeat("t", 64): true,
		"": false, "/a": false, "a/": false, "//shop": false, "//": false, "///": false, "///a/": false, "//Shop/": false,
		"//shop:h/": false, "//:h/": false, "//shop//a/": false, "@d/a/": false, "/a?b/": false, "/a#b/": false, "#": false,
		"#a b": false, "#a,b": false, "//#t": false, "//shop:h#t": false, "/%c3/": false, "/a b/": false, "/é/": false,
		"/" + long + "a/": false, "//" + strings.Repeat("s", 65) + "/": false, "#" + strings.Repeat("t", 65): false,
	} {
		m, err := ParseMember("p:" + id)
		if ok != (err == nil) || ok && m != PurgeMember(id) || !ok && ReasonOf(err) == "" {
			t.Errorf("%.80q: %v, %v; want valid %v", id, m, err, ok)
		}
	}
	for shard := range 3 {
		if err := Shards(3).Belongs(PurgeMember("/"), shard); err != nil {
			t.Errorf("shard %d: %v", shard, err)
		}
	}
}

// TestPurges compares random objects and purges with the words of docs/redis-contract.md: a purge concerns the objects
// of its virtual host with its tag, or with a path that begins with its prefix, whatever the device, host and query.
func TestPurges(t *testing.T) {
	seed := seed.Of(t)
	r := rand.New(rand.NewPCG(seed, 0))
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	segments := func() (path []string) {
		for range r.IntN(4) {
			path = append(path, one("a", "b", "shop"))
		}
		return path
	}
	hits := 0
	for range 20000 {
		host, path, tags := one("", "", "shop", "shop-2"), segments(), []string(nil)
		for _, tag := range []string{"//shop/a/", "/a/", "shop#t"} {
			if r.IntN(2) == 0 {
				tags = append(tags, tag)
			}
		}
		key := "/" + strings.Join(path, "/")
		slash := len(path) > 0 && r.IntN(3) == 0
		if slash {
			key += "/"
		}
		key += one("", "?a=/b/", "#en")
		if of := one("", ":h.example"); host+of != "" {
			key = "//" + host + of + key
		}
		key = one("", "@dev") + key
		seq := uint64(1 + r.IntN(5))
		all, purged, stale := Purges{}, false, false
		for range r.IntN(4) {
			at, prefix, tag := one("", "shop", "shop-2"), segments(), one("//shop/a/", "/a/", "shop#t")
			p := Purge{ID: TagPurge(at, tag), Hard: uint64(r.IntN(5)), Soft: uint64(r.IntN(5))}
			concerns := slices.Contains(tags, tag)
			if r.IntN(2) == 0 {
				p.ID = PrefixPurge(at, strings.Join(append(append([]string{""}, prefix...), ""), "/"))
				concerns = len(prefix) < len(path) && slices.Equal(prefix, path[:len(prefix)]) ||
					slash && slices.Equal(prefix, path) || len(prefix) == 0
			}
			if _, err := ParseMember(PurgeMember(p.ID).String()); err != nil {
				t.Fatal(err)
			}
			if before, found := all[p.ID]; found {
				p = before
			}
			all[p.ID] = p
			purged = purged || concerns && at == host && p.Hard > 0 && p.Hard >= seq
			stale = stale || concerns && at == host && p.Soft > 0 && p.Soft >= seq
		}
		gotPurged, gotStale := all.Of(key, tags, seq)
		if gotPurged != purged || gotStale != (stale && !purged) {
			t.Fatalf("seed %d: %s, tags %v, seq %d, purges %v: got %v %v, want %v %v", seed, key, tags, seq,
				fmt.Sprint(all), gotPurged, gotStale, purged, stale && !purged)
		}
		if purged || stale {
			hits++
		}
	}
	if hits < 1000 {
		t.Errorf("only %d of the random objects were purged", hits)
	}
}

func FuzzPurgeMember(f *testing.F) {
	f.Add("//shop/a/")
	f.Add("//shop#a:B")
	f.Add("//shop#//shop/%c3?b&a#t")
	f.Fuzz(func(t *testing.T, id string) {
		m, err := ParseMember("p:" + id)
		if err != nil {
			if ReasonOf(err) == "" {
				t.Fatalf("error without a reason: %v", err)
			}
			return
		}
		// An object that the purge concerns, according to VisitPurges.
		space, tag, isTag := strings.Cut(id, "#")
		key, tags := id, []string(nil)
		if isTag {
			key, tags = space+"/", []string{tag}
		}
		if _, err := ParseMember(ObjectMember(key).String()); err != nil && len(key) < 2048 {
			t.Fatalf("%q: %v", key, err)
		}
		found := false
		VisitPurges(key, tags, func(visited []byte) bool {
			found = string(visited) == m.ID
			return !found
		})
		if !found {
			t.Fatalf("purge %q doesn't concern %q", id, key)
		}
	})
}

func TestSplitPurge(t *testing.T) {
	type parts [3]string
	for _, want := range []parts{
		{"", "/", ""}, {"", "/a/b/", ""}, {"", "", "a:b"}, {"", "", "//shop/a/#b"},
		{"shop", "", "/a/#/b/"}, {"shop", "/a/", ""}, {"shop", "", "a"},
	} {
		id := PrefixPurge(want[0], want[1])
		if want[2] != "" {
			id = TagPurge(want[0], want[2])
		}
		if virtualHost, prefix, tag := SplitPurge(id); (parts{virtualHost, prefix, tag}) != want {
			t.Errorf("%s: got %q, %q, %q", id, virtualHost, prefix, tag)
		}
	}
}
