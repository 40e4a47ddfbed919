package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// TestPutAll: results are in the order of the objects, whatever becomes of each, and nothing is lost between batches.
func TestPutAll(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		const n = 2*batchRecords + 3
		bad, twice, odd := 7, batchRecords, batchRecords+1
		objects := make([]Object, n)
		for i := range objects {
			objects[i] = Object{Key: fmt.Sprintf("/%d", i), Body: fmt.Appendf(nil, "body %d", i), ContentType: "text/plain"}
		}
		objects[bad].Key = "/a//b"
		objects[twice].Key = objects[0].Key
		require.NoError(t, s.Set(t.Context(), keys.ObjectKey(objects[odd].Key), "no hash", 0).Err())
		for i, r := range s.p.PutAll(t.Context(), objects) {
			switch {
			case i == bad:
				if !errors.Is(r.Err, ErrInvalid) || !strings.Contains(r.Err.Error(), `want "/a/b"`) {
					t.Errorf("a bad key: %v", r.Err)
				}
			case i == odd:
				if r.Err == nil || !strings.Contains(r.Err.Error(), "WRONGTYPE") {
					t.Errorf("a key of another type: %v", r.Err)
				}
			case i == twice:
				if r.Version != 2 || r.Err != nil {
					t.Errorf("the second write of a key: %+v", r)
				}
			case r.Version != 1 || r.Err != nil:
				t.Errorf("%d: %+v", i, r)
			default:
				want := objects[i].Body
				if i == 0 {
					want = objects[twice].Body
				}
				if got := s.hash(t, contract.ObjectMember(objects[i].Key))[contract.FieldBody]; got != string(want) {
					t.Errorf("%d: body %q", i, got)
				}
			}
		}
		if seq := s.Get(t.Context(), keys.SeqKey()).Val(); seq != fmt.Sprint(n-2) {
			t.Errorf("seq %s, want %d", seq, n-2)
		}
		all := []string{objects[1].Key, "no path", objects[odd].Key, "/never"}
		for i, r := range s.p.DeleteAll(t.Context(), all) {
			if want := []bool{true, false, false, true}[i]; (r.Err == nil) != want {
				t.Errorf("delete %s: %+v", all[i], r)
			}
		}
		if s.hash(t, contract.ObjectMember(objects[1].Key))[contract.FieldDeleted] != "1" {
			t.Error("not deleted")
		}
		if len(s.p.PutAll(t.Context(), nil)) != 0 || len(s.p.DeleteAll(t.Context(), nil)) != 0 {
			t.Error("results of nothing")
		}
	})
}

// TestBatchBounds: no round trip has more than 512 objects or 4 MiB.
func TestBatchBounds(t *testing.T) {
	sized := func(sizes ...int) (objects []Object) {
		for _, size := range sizes {
			objects = append(objects, Object{Body: make([]byte, size)})
		}
		return objects
	}
	const max = limits.MaxBody
	for _, test := range []struct {
		objects []Object
		want    int
	}{
		{sized(0), 1}, {sized(max, max), 1}, {sized(max, 0, 0, 1), 3}, {sized(max/2, max/2), 2}, {sized(max/2, max/2, 1), 2},
		{make([]Object, batchRecords), batchRecords}, {make([]Object, batchRecords+1), batchRecords},
	} {
		if got := batchOf(test.objects); got != test.want {
			t.Errorf("%d objects: %d at once, want %d", len(test.objects), got, test.want)
		}
	}
}

// TestUnanswered: what can't be written because Redis is away fails at once, with the reason.
func TestUnanswered(t *testing.T) {
	redis := redistest.StartServer(t)
	s := serverAt(t, "redis://"+redis.Address)
	objects := make([]Object, 4*batchRecords)
	for i := range objects {
		objects[i] = Object{Key: fmt.Sprint("/", i), ContentType: "a"}
	}
	for _, r := range append(s.p.PutAll(t.Context(), objects[:1]), s.p.PutAll(t.Context(), objects[:1])...) {
		if r.Err != nil { // the second one asks for the number of shards, after the first write of all
			t.Fatal(r.Err)
		}
	}
	redis.Kill()
	attempts := &pipelines{}
	s.AddHook(attempts)
	for i, r := range s.p.PutAll(t.Context(), objects) {
		if r.Err == nil || !strings.Contains(r.Err.Error(), objects[i].Key) ||
			!strings.Contains(r.Err.Error(), "connection refused") {
			t.Fatalf("%d: %v", i, r.Err)
		}
	}
	if n := attempts.Load(); n != 1 {
		t.Errorf("%d pipelines to a Redis that is away, want 1", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	redis.Restart()
	for _, r := range append(s.p.PutAll(ctx, objects), s.p.DeleteAll(ctx, []string{"/a", "/b"})...) {
		if !errors.Is(r.Err, context.Canceled) {
			t.Fatal(r.Err)
		}
	}
	if n := s.DBSize(t.Context()).Val(); n > 0 {
		t.Errorf("%d keys", n)
	}
}

// pipelines counts a client's pipelines.
type pipelines struct{ atomic.Int64 }

func (*pipelines) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*pipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (p *pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		p.Add(1)
		return next(ctx, commands)
	}
}

// TestIfVersion: a write is applied if the stored version is the wanted version.
func TestIfVersion(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		put := func(o Object) (Receipt, error) {
			o.Key, o.ContentType = "/a", "a"
			return s.p.Put(t.Context(), o)
		}
		for i, test := range []struct {
			o    Object
			want uint64
			err  error
		}{
			{Object{IfVersion: 1}, 0, ErrStale}, {Object{IfAbsent: true}, 1, nil}, {Object{IfAbsent: true}, 0, ErrExists},
			{Object{IfVersion: 1}, 2, nil}, {Object{IfVersion: 1}, 0, ErrStale}, {Object{IfVersion: 3}, 0, ErrStale},
			{Object{Version: 9}, 9, nil}, {Object{IfVersion: 9}, 10, nil},
			{Object{IfVersion: 10, Version: 11}, 0, ErrInvalid}, {Object{IfVersion: 10, IfAbsent: true}, 0, ErrInvalid},
			{Object{Version: 11, IfAbsent: true}, 0, ErrInvalid}, {Object{IfVersion: limits.MaxVersion + 1}, 0, ErrInvalid},
		} {
			if r, err := put(test.o); r.Version != test.want || !errors.Is(err, test.err) || err != nil && test.err == nil {
				t.Errorf("%d: %+v, %v; want version %d, %v", i, r, err, test.want, test.err)
			}
		}
		if _, err := s.p.Delete(t.Context(), "/a", 0); err != nil {
			t.Fatal(err)
		}
		if r, err := put(Object{IfAbsent: true}); r.Version != 12 || err != nil {
			t.Errorf("after a tombstone: %+v, %v", r, err)
		}
		if _, err := s.p.Purge(t.Context(), Purge{Prefix: "/", Soft: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := put(Object{IfAbsent: true}); !errors.Is(err, ErrExists) {
			t.Errorf("after a soft purge: %v", err)
		}
		if _, err := s.p.Purge(t.Context(), Purge{Prefix: "/"}); err != nil {
			t.Fatal(err)
		}
		if r, err := put(Object{IfAbsent: true, Tags: []string{"t"}}); r.Version != 13 || err != nil {
			t.Errorf("after a purge: %+v, %v", r, err)
		}
		if _, err := put(Object{IfAbsent: true}); !errors.Is(err, ErrExists) {
			t.Errorf("after a purge and a put: %v", err)
		}
		if _, err := s.p.Purge(t.Context(), Purge{Tag: "t"}); err != nil {
			t.Fatal(err)
		}
		if r, err := put(Object{IfAbsent: true}); r.Version != 14 || err != nil {
			t.Errorf("after a purge of the tag: %+v, %v", r, err)
		}
		s.Del(t.Context(), keys.ObjectKey("/a")) // as its tombstone's expiry would
		if r, err := put(Object{IfAbsent: true}); r.Version < 5 || err != nil {
			t.Errorf("after an expired tombstone: %+v, %v", r, err)
		}
	})
}

// TestDeleteIf: a delete of a version that is not stored does nothing, even if Redis has lost the object.
func TestDeleteIf(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		expect := func(key string, version, want uint64, wantErr error) {
			t.Helper()
			r, err := s.p.DeleteIf(t.Context(), key, version)
			if r.Version != want || !errors.Is(err, wantErr) || err != nil && wantErr == nil {
				t.Errorf("%s version %d: %+v, %v; want version %d, %v", key, version, r, err, want, wantErr)
			}
		}
		for _, version := range []uint64{1, 2, 5} {
			if _, err := s.p.Put(t.Context(), Object{Key: "/a", ContentType: "a", Version: version}); err != nil {
				t.Fatal(err)
			}
		}
		expect("/a", 4, 0, ErrStale)
		expect("/a", 6, 0, ErrStale)
		expect("/a", 0, 0, ErrInvalid)
		expect("/a", limits.MaxVersion+1, 0, ErrInvalid)
		expect("/a#", 5, 0, ErrInvalid)
		if o, err := s.p.Get(t.Context(), "/a"); err != nil || o.Version != 5 {
			t.Errorf("got %+v, %v; want the object", o, err)
		}
		expect("/a", 5, 6, nil)
		if _, err := s.p.Get(t.Context(), "/a"); !errors.Is(err, ErrNotFound) {
			t.Errorf("deleted: %v", err)
		}
		s.FlushAll(t.Context())
		expect("/a", 6, 0, ErrStale)
		if n := s.Exists(t.Context(), keys.DataEpochKey(), keys.SeqKey()).Val(); n > 0 {
			t.Errorf("the emptied Redis was written to")
		}
	})
}

// TestIfVersionOfTheScript: "=" and a number, of other writers, too.
func TestIfVersionOfTheScript(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		m := contract.ObjectMember("/a")
		for _, test := range []struct{ version, want string }{
			{"=1", "STALE version 1 of o:/a is not the stored 0"}, {"=", "INVALID version = of o:/a"},
			{"=-1", "INVALID version"}, {"==0", "INVALID version"}, {"=9007199254740992", "INVALID version"}, {"=0", ""},
			{"=0", "STALE version 0 of o:/a is not the stored 1"}, {"=01", ""}, {"=2", ""}, {"9007199254740991", "INVALID"},
			{"=9007199254740991", "STALE version 9007199254740991"},
			{"~3", "INVALID version ~3 of o:/a: only an object's tombstone"},
		} {
			m := mutation{replace, m, contract.Object{ETag: `""`, ContentType: "a",
				Bodies: []contract.Body{{}}}.Fields(), ""}
			m.fields[contract.FieldVersion] = test.version
			err := writeScript.runCalls(t.Context(), s.p.client, s.p.writer.writeCall(t.Context(), m, false))[0].err
			if (err == nil) != (test.want == "") || err != nil && !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("%s: %v, want %q", test.version, err, test.want)
			}
		}
	})
}

// TestOneCreates: of many writers that want to create an object only one succeeds, and no update of a counter is lost.
func TestOneCreates(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		const writers, updates = 8, 20
		var group sync.WaitGroup
		created := make([]int, writers)
		for w := range writers {
			group.Add(1)
			go func() {
				defer group.Done()
				p := New(s.Client)
				switch _, err := p.Put(t.Context(), Object{Key: "/n", Body: nil, ContentType: "a", IfAbsent: true}); {
				case err == nil:
					created[w] = 1
				case !errors.Is(err, ErrExists):
					t.Error(err)
				}
				for done := 0; done < updates; {
					o, err := p.Get(t.Context(), "/n")
					if err != nil {
						t.Error(err)
						return
					}
					_, err = p.Put(t.Context(), Object{Key: "/n", ContentType: "a", IfVersion: o.Version,
						Body: append(slices.Clone(o.Bodies[0].Bytes), byte('0'+w))})
					if err == nil {
						done++
					} else if !errors.Is(err, ErrStale) {
						t.Error(err)
						return
					}
				}
			}()
		}
		group.Wait()
		o, err := s.p.Get(t.Context(), "/n")
		require.NoError(t, err)
		for w := range writers {
			if n := bytes.Count(o.Bodies[0].Bytes, []byte{byte('0' + w)}); n != updates {
				t.Errorf("writer %d: %d updates, want %d", w, n, updates)
			}
		}
		if n := slices.Max(created); n != 1 || slices.Index(created, 1) < 0 || o.Version != writers*updates+1 {
			t.Errorf("created %v, version %d", created, o.Version)
		}
	})
}

// BenchmarkPutAll writes 10,000 objects of 1 KiB.
func BenchmarkPutAll(b *testing.B) {
	const n = 10_000
	objects := make([]Object, n)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range objects {
		objects[i] = Object{Key: fmt.Sprintf("/products/%d", i), Body: product(random), ContentType: "application/json"}
	}
	for name, start := range map[string]func() redis.UniversalClient{
		"server": func() redis.UniversalClient { return connect(b, redistest.Start(b)) },
		"cluster": func() redis.UniversalClient {
			return connect(b, redistest.StartCluster(b).URL)
		},
	} {
		b.Run(name, func(b *testing.B) {
			client := start()
			p := New(client, Shards(16))
			for b.Loop() {
				for _, r := range p.PutAll(b.Context(), objects) {
					if r.Err != nil {
						b.Fatal(r.Err)
					}
				}
			}
			b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "objects/s")
		})
	}
}

func connect(b *testing.B, url string) redis.UniversalClient {
	client, err := redisurl.Settings{URL: url, Once: !strings.Contains(url, "+cluster")}.Connect()
	require.NoError(b, err)
	b.Cleanup(func() { client.Close() })
	return client
}

// product returns a JSON object of 1 KiB.
func product(random *rand.Rand) []byte {
	var body []byte
	for i := 0; len(body) < 1000; i++ {
		body = fmt.Appendf(body, `{"sku":"%08x","name":"item %d","price":%d.%02d},`, random.Uint32(), random.IntN(5000),
			random.IntN(1000), random.IntN(100))
	}
	return append(append([]byte(`{"items":[`), body[:1012]...), "]}"...)
}
