package follow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/clients/go/testbed/seed"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/follow"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// served has the entity-tags of the objects at the edge.
type served struct {
	cacheEdge
	tags sync.Map
}

func (e *served) Grow(int)                     {}
func (e *served) PutObject(o *contract.Object) { e.tags.Store(o.Key, o.ETag) }
func (e *served) DeleteObject(key string)      { e.tags.Delete(key) }
func (e *served) DeleteObjects(keys []string) {
	for _, key := range keys {
		e.tags.Delete(key)
	}
}

// ends is a Redis, a sidecar's cache and verifier that follow Redis, and the records that both must have.
type ends struct {
	t        *testing.T
	s        server
	edge     *served
	devices  *credential.Verifier
	older    *redis.Script     // a writer that may give any version
	want     map[string]string // by key: the entity-tag of an object at the edge
	admitted map[string]bool   // by device
	steps    []string
	log      logbuffer.Buffer
}

const hashOfS = "$2b$04$abcdefghijklmnopqrstuuGmTnTYVlrYqSsMkYwu1mqOOOVYS.Fy6"

func startEnds(t *testing.T) *ends {
	t.Helper()
	s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
	source, err := os.ReadFile("../../../clients/go/publish/write.lua")
	require.NoError(t, err)
	uncapped := strings.Replace(string(source), "local own = 4503599627370496", "local own = newest", 1)
	if uncapped == string(source) {
		t.Fatal("write.lua has another cap")
	}
	x := &ends{t: t, s: s, edge: new(served), older: redis.NewScript(uncapped), want: map[string]string{},
		admitted: map[string]bool{}}
	m, log := metrics.New(), slog.New(slog.NewTextHandler(&x.log, nil))
	cache, err := objectcache.New(objectcache.Config{Bytes: 1 << 24, Objects: 10000, Shards: 1}, x.edge, m, log)
	require.NoError(t, err)
	x.devices = credential.New(credential.Config{Shards: 1, MaxCost: 15},
		edgemem.New(edgemem.Config{Objects: 1, Verdicts: 1, Shards: 1}), m, log)
	client := redis.NewClient(&redis.Options{Addr: s.line.Address(), MaxRetries: -1})
	f := follow.New(follow.Config{Objects: cache.Shard(0), Purges: cache.Purges(0), Credentials: x.devices.Shard(0),
		Clock: new(clock)}, client, m, log)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait(); client.Close() })
	x.put("/first", 0, nil)
	<-f.Synced()
	return x
}

// put publishes an object by the current writer, or by an older writer.
func (x *ends) put(key string, version uint64, older *redis.Script) {
	x.t.Helper()
	etag := fmt.Sprintf("%q", strconv.Itoa(len(x.steps)))
	x.run(fmt.Sprintf("put %s, version %d", key, version), version, older, contract.ObjectMember(key),
		map[string]string{"etag": etag, "content-type": "a", "body": key}, func() { x.want[key] = etag })
}

func (x *ends) enrol(id string, version uint64, older *redis.Script) {
	x.t.Helper()
	x.run(fmt.Sprintf("put device %s, version %d", id, version), version, older, contract.CredentialMember(id),
		map[string]string{"hash": hashOfS}, func() { x.admitted[id] = true })
}

// run writes a record. With version 0 the write must succeed; with another version, done means success.
func (x *ends) run(step string, version uint64, older *redis.Script, m contract.Member, fields map[string]string,
	done func()) {
	x.t.Helper()
	x.steps = append(x.steps, step)
	if older == nil {
		older = publishScript
	}
	args := []any{"replace", version, fmt.Sprintf("%x", len(x.steps)), m.String(), 0, keys.EventsChannel(), "PUBLISH", ""}
	for field, value := range fields {
		args = append(args, field, value)
	}
	names := []string{keys.RecordKey(m), keys.SeqKey(), keys.LogKey(), keys.DataEpochKey(), keys.ChainKey()}
	err := older.Run(x.t.Context(), x.s.Client, names, args...).Err()
	if err == nil {
		done()
	} else if version == 0 || !strings.HasPrefix(err.Error(), "STALE") && !strings.HasPrefix(err.Error(), "INVALID") {
		x.fail(err)
	}
}

func (x *ends) fail(err error) {
	x.t.Helper()
	x.t.Fatalf("%v\nafter:\n%s", err, strings.Join(x.steps, "\n"))
}

// must is a step that must succeed.
func (x *ends) must(step string, run func() error) {
	x.t.Helper()
	x.steps = append(x.steps, step)
	if err := run(); err != nil {
		x.fail(err)
	}
}

func (x *ends) delete(key string) {
	x.t.Helper()
	x.must("delete "+key, func() error {
		delete(x.want, key)
		_, err := x.s.publish.Delete(x.t.Context(), key, 0)
		return err
	})
}

func (x *ends) revoke(id string) {
	x.t.Helper()
	x.must("revoke "+id, func() error {
		x.admitted[id] = false
		_, err := x.s.publish.RevokeDevice(x.t.Context(), id)
		if errors.Is(err, publish.ErrNotFound) {
			return nil
		}
		return err
	})
}

func (x *ends) forget(id string) {
	x.t.Helper()
	x.must("delete device "+id, func() error {
		x.admitted[id] = false
		_, err := x.s.publish.DeleteDevice(x.t.Context(), id, true)
		return err
	})
}

// purge purges all objects.
func (x *ends) purge() {
	x.t.Helper()
	x.must("purge", func() error {
		clear(x.want)
		_, err := x.s.publish.Purge(x.t.Context(), publish.Purge{Prefix: "/"})
		return err
	})
}

// direct sends a command that no script sends.
func (x *ends) direct(step string, command ...any) {
	x.t.Helper()
	x.must(step, func() error { return x.s.Do(x.t.Context(), command...).Err() })
}

// agree waits until the sidecar has all writes.
func (x *ends) agree() {
	x.t.Helper()
	differ := func() string {
		for key, want := range x.want {
			if got, _ := x.edge.tags.Load(key); got != want {
				return fmt.Sprintf("%s: the edge has %v, want %s", key, got, want)
			}
		}
		extra := ""
		x.edge.tags.Range(func(key, tag any) bool {
			if x.want[key.(string)] == "" {
				extra = fmt.Sprintf("%s: the edge has %v, want none", key, tag)
			}
			return extra == ""
		})
		for id, want := range x.admitted {
			if d := x.devices.Describe(id); (d.Refusal == "") != want {
				return fmt.Sprintf("%s: %+v, want it admitted: %v", id, d, want)
			}
		}
		return extra
	}
	const patience = 10 * time.Second
	for end := time.Now().Add(patience); differ() != ""; <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			x.fail(errors.New(differ()))
		}
	}
}

var publishScript = func() *redis.Script {
	source, err := os.ReadFile("../../../clients/go/publish/write.lua")
	if err != nil {
		panic(err)
	}
	return redis.NewScript(string(source))
}()

const (
	last   = uint64(limits.MaxVersion)
	lastOf = "9007199254740991"
)

// TestCountersAtTheirEnd sets each counter to its end, as an older writer, or a client that writes to Redis directly,
// may have: a deletion, a revocation, a purge and the next write take effect.
func TestCountersAtTheirEnd(t *testing.T) {
	for name, end := range map[string]func(x *ends){
		"versions of older writers": func(x *ends) {
			x.put("/a", last, x.older)
			x.enrol("d", last, x.older)
		},
		"versions before the last": func(x *ends) {
			x.put("/a", last-1, x.older)
			x.enrol("d", last-1, x.older)
		},
		"highest own versions": func(x *ends) {
			x.put("/a", limits.MaxOwnVersion, nil)
			x.enrol("d", limits.MaxOwnVersion, nil)
		},
		"seq":                 func(x *ends) { x.direct("seq", "SET", keys.SeqKey(), lastOf) },
		"seq before the last": func(x *ends) { x.direct("seq", "SET", keys.SeqKey(), last-1) },
		"seq above all":       func(x *ends) { x.direct("seq", "SET", keys.SeqKey(), "18446744073709551615") },
		"seq is no number":    func(x *ends) { x.direct("seq", "SET", keys.SeqKey(), "x") },
		"floor":               func(x *ends) { x.direct("floor", "HSET", keys.ChainKey(), "floor", lastOf) },
		"scores":              func(x *ends) { x.direct("score", "ZADD", keys.LogKey(), lastOf, "o:/a", lastOf, "c:d") },
		"scores of other ones": func(x *ends) {
			x.direct("score", "ZADD", keys.LogKey(), lastOf, "o:/new", lastOf, "c:new")
		},
		"head of the chain": func(x *ends) {
			x.direct("head", "HSET", keys.ChainKey(), "head", lastOf+" "+strings.Repeat("a", 40))
		},
		"version of the purge": func(x *ends) {
			x.direct("purge", "HSET", keys.RecordKey(contract.PurgeMember("/")), "version", lastOf)
		},
		"number of the purge": func(x *ends) {
			x.direct("purge", "HSET", keys.RecordKey(contract.PurgeMember("/")), "hard", lastOf)
		},
		"a record's own number": func(x *ends) { x.direct("seq", "HSET", keys.ObjectKey("/a"), "seq", lastOf) },
		"times of a device": func(x *ends) {
			x.run("times", 0, nil, contract.CredentialMember("e"), map[string]string{"hash": hashOfS + "\n" + hashOfS,
				"not-after": lastOf, "old-until": lastOf}, func() {})
			x.agree()
			if _, err := json.Marshal(x.devices.Describe("e")); err != nil {
				x.fail(err)
			}
		},
		"ttl": func(x *ends) {
			x.run("ttl", 0, nil, contract.ObjectMember("/b"), map[string]string{"etag": `"ttl"`, "content-type": "a",
				"body": "", "ttl": lastOf}, func() { x.want["/b"] = `"ttl"` })
			x.agree()
			if o, err := x.s.publish.Get(x.t.Context(), "/b"); err != nil || o.TTL() < 200*365*24*time.Hour {
				x.fail(fmt.Errorf("ttl %v, %w", o.TTL(), err))
			}
		},
		"evicted, of the highest own version": func(x *ends) {
			x.enrol("d", limits.MaxOwnVersion, nil)
			x.agree()
			x.direct("evict", "DEL", keys.CredentialKey("d"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := startEnds(t)
			x.purge()
			x.put("/a", 0, nil)
			x.put("/b", 0, nil)
			x.enrol("d", 0, nil)
			x.enrol("e", 0, nil)
			x.agree()
			end(x)
			x.revoke("d")
			x.delete("/a")
			x.agree()
			x.enrol("d", 0, nil)
			x.put("/a", 0, nil)
			x.put("/new", 0, nil)
			x.enrol("new", 0, nil)
			x.agree()
			x.purge()
			x.agree()
			x.put("/a", 0, nil)
			x.forget("d")
			x.forget("new")
			x.agree()
		})
	}
	t.Run("both version and time of a record, which nothing follows", func(t *testing.T) {
		t.Parallel()
		x := startEnds(t)
		// The records that a sidecar reads when it starts, or after a forged event.
		x.put("/a", last, x.older)
		x.enrol("d", last, x.older)
		x.direct("published", "HSET", keys.ObjectKey("/a"), "published", lastOf)
		x.direct("published", "HSET", keys.CredentialKey("d"), "published", lastOf)
		x.direct("epoch", "SET", keys.DataEpochKey(), "beef") // all is read again
		x.put("/b", 0, nil)
		x.agree()
		x.put("/a", 0, nil)
		x.agree()
		x.delete("/a")
		x.revoke("d")
		x.agree()
	})
}

// TestCountersAreWild writes versions at and around each bound, and counters that no script leaves. The test's own map
// has the successful writes: whatever the counters were, the sidecar ends with the last write.
func TestCountersAreWild(t *testing.T) {
	random, steps := rand.New(rand.NewPCG(seed.Of(t), 0)), sized(5000, 500)
	x := startEnds(t)
	extremes := []uint64{1, 2, limits.MaxOwnVersion - 1, limits.MaxOwnVersion, limits.MaxOwnVersion + 1, last - 1, last}
	for range steps {
		key, id := fmt.Sprint("/", random.IntN(3)), fmt.Sprint("d", random.IntN(3))
		version, older := uint64(0), (*redis.Script)(nil)
		if random.IntN(2) == 0 {
			version = extremes[random.IntN(len(extremes))]
			if random.IntN(2) == 0 {
				older = x.older
			}
		}
		switch random.IntN(10) {
		case 0, 1:
			x.put(key, version, older)
		case 2, 3:
			x.enrol(id, version, older)
		case 4:
			x.delete(key)
		case 5, 6:
			x.revoke(id)
		case 7:
			x.forget(id)
		case 8:
			x.purge()
		default:
			end := extremes[random.IntN(len(extremes))]
			switch random.IntN(4) {
			case 0:
				if now, _ := x.s.Get(t.Context(), keys.SeqKey()).Uint64(); end <= now || end >= limits.MaxOwnVersion {
					continue // a lower number is a loss of writes: the script also goes back, from one beyond 2^52
				}
				x.direct(fmt.Sprint("seq ", end), "SET", keys.SeqKey(), end)
			case 1:
				x.direct(fmt.Sprint("floor ", end), "HSET", keys.ChainKey(), "floor", end)
			case 2:
				x.direct(fmt.Sprint("score of ", key, " ", end), "ZADD", keys.LogKey(), "XX", end, "o:"+key)
				x.put(key, 0, nil)
			default:
				// The sidecar knows the time of the last write: a lower time is a counter set back.
				if then, err := x.s.HGet(t.Context(), keys.CredentialKey(id), "published").Uint64(); err == nil && end > then {
					x.direct(fmt.Sprint("published of ", id, " ", end), "HSET", keys.CredentialKey(id), "published", end)
				}
			}
		}
		x.agree()
	}
}

// TestLaterContract: a later release's writers and readers work beside ours until a later writer uses a feature that
// ours don't know. Afterwards each of our writes is refused by name, and the sidecar keeps its records: no write
// succeeds that the edge doesn't get.
func TestLaterContract(t *testing.T) {
	source, err := os.ReadFile("../../../clients/go/publish/write.lua")
	require.NoError(t, err)
	later := string(source)
	for old, now := range map[string]string{
		"local speaks = 1": "local speaks = 2",
		"etag = { 128, ":   "later = { 9, number, 2 }, etag = { 128, ",
		"p = { hard":       "p = { later = { 9, number, 2 }, hard",
		"hash = { 4":       "later = { 9, number, 2 }, hash = { 4",
	} {
		if strings.Count(later, old) != 1 {
			t.Fatalf("write.lua has %q %d times", old, strings.Count(later, old))
		}
		later = strings.Replace(later, old, now, 1)
	}
	operations := map[string]func(x *ends) error{
		"put": func(x *ends) error {
			_, err := x.s.publish.Put(t.Context(), publish.Object{Key: "/new", ContentType: "a"})
			return err
		},
		"delete": func(x *ends) error { _, err := x.s.publish.Delete(t.Context(), "/kept", 0); return err },
		"purge": func(x *ends) error {
			_, err := x.s.publish.Purge(t.Context(), publish.Purge{Prefix: "/"})
			return err
		},
		"put a device": func(x *ends) error {
			_, err := x.s.publish.PutDevice(t.Context(), publish.Device{ID: "new", Hashes: []string{hashOfS}})
			return err
		},
		"change a device": func(x *ends) error {
			_, err := x.s.publish.ChangeDevice(t.Context(), "kept", 0, func(c *contract.Credential) error { return nil })
			return err
		},
		"revoke":          func(x *ends) error { _, err := x.s.publish.RevokeDevice(t.Context(), "kept"); return err },
		"forget a device": func(x *ends) error { _, err := x.s.publish.DeleteDevice(t.Context(), "kept", true); return err },
	}
	for name, uses := range map[string]func(x *ends, next *redis.Script){
		"an object": func(x *ends, next *redis.Script) {
			x.run("later object", 0, next, contract.ObjectMember("/later"), map[string]string{"etag": `""`,
				"content-type": "a", "body": "", "later": "1"}, func() {})
		},
		"a device": func(x *ends, next *redis.Script) {
			x.run("later device", 0, next, contract.CredentialMember("later"), map[string]string{"hash": hashOfS,
				"later": "1"}, func() {})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x, next := startEnds(t), redis.NewScript(later)
			x.put("/kept", 0, next)
			x.enrol("kept", 0, next)
			x.put("/both", 0, nil)
			x.agree()
			if needs := x.s.HExists(t.Context(), keys.ChainKey(), contract.ChainNeeds).Val(); needs {
				t.Fatal("a record that all understand needs a later contract")
			}
			uses(x, next)
			before := x.s.Get(t.Context(), keys.SeqKey()).Val()
			for operation, run := range operations {
				err := run(x)
				if !errors.Is(err, publish.ErrOutdated) || !strings.Contains(err.Error(), "needs version 2 of the contract") {
					t.Errorf("%s: %v, want an error that names the contract", operation, err)
				}
			}
			if now := x.s.Get(t.Context(), keys.SeqKey()).Val(); now != before {
				t.Errorf("seq %s, was %s: our writes were not refused", now, before)
			}
			const refused = `redis can't be followed: the edge serves what it has" error="{gatehouse:0}:chain needs version 2`
			await.Until(t, "the refusal in the log", func() bool { return strings.Contains(x.log.String(), refused) })
			x.put("/unseen", 0, next) // our sidecar doesn't read the object
			delete(x.want, "/unseen")
			x.agree()
		})
	}
}
