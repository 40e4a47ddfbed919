package publish

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// repetition is a write whose request a client library may repeat.
type repetition struct {
	name   string
	mode   string
	member contract.Member
	fields map[string]string
}

const anyHash = "$2a$04$7Jm4FX3SCA6MpoXeHO6JYOnNz1bXcE1PEqkqB0iCcq5CpGk3zSTHu"

var (
	anObject    = contract.ObjectMember("/a")
	aDevice     = contract.CredentialMember("d")
	repetitions = []repetition{
		{"put", replace, anObject, map[string]string{"version": "0", "etag": `"o"`, "content-type": "a", "body": "old"}},
		{"put with a version", replace, anObject,
			map[string]string{"version": "7", "etag": `"v"`, "content-type": "a", "body": "seventh"}},
		{"delete", replace, anObject, map[string]string{"version": "0", "deleted": "1"}},
		{"purge", purge, contract.PurgeMember("/"), map[string]string{"version": "0", "hard": "1"}},
		{"put device", replace, aDevice, map[string]string{"version": "0", "hash": anyHash}},
		{"add device", add, contract.CredentialMember("new"), map[string]string{"version": "0", "hash": anyHash}},
		{"revoke", merge, aDevice, map[string]string{"version": "0", "disabled": contract.DisabledRevoked}},
		{"delete device", replace, aDevice, map[string]string{"version": "0", "deleted": "1"}},
	}
)

// TestRepeatedRequest: a repeated request changes nothing, whatever was written meanwhile, and returns the first
// result.
func TestRepeatedRequest(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		for _, first := range repetitions {
			for _, other := range repetitions {
				t.Run(first.name+", "+other.name, func(t *testing.T) {
					ctx := t.Context()
					require.NoError(t, s.FlushDB(ctx).Err())
					_, err := s.p.Put(ctx, Object{Key: "/a", ContentType: "a"})
					require.NoError(t, err)
					_, err = s.p.PutDevice(ctx, Device{ID: "d", Hashes: []string{anyHash}})
					require.NoError(t, err)
					audited := first.member.Kind == contract.KindCredential
					c := s.p.writer.writeCall(ctx, mutation{first.mode, first.member, first.fields, ""}, audited)
					want := writeScript.runCalls(ctx, s.p.client, c)[0]
					require.NoError(t, want.err)
					m := mutation{other.mode, other.member, other.fields, ""}
					writeScript.runCalls(ctx, s.p.client, s.p.writer.writeCall(ctx, m, false))
					before := s.state(t)
					for range 2 {
						got := writeScript.runCalls(ctx, s.p.client, c)[0]
						if got.err != nil || !slices.Equal(got.numbers, want.numbers) {
							t.Errorf("repeated: %v, %v; want %v", got.numbers, got.err, want.numbers)
						}
					}
					if after := s.state(t); !maps.Equal(before, after) {
						t.Errorf("got %q, want %q", after, before)
					}
				})
			}
		}
	})
}

// state returns all that Redis has of the records, the log and the chain.
func (s server) state(t *testing.T) map[string]string {
	t.Helper()
	ctx, state := t.Context(), map[string]string{}
	for _, key := range s.Keys(ctx, "*").Val() {
		switch s.Type(ctx, key).Val() {
		case "hash":
			state[key] = fmt.Sprint(s.HGetAll(ctx, key).Val())
		case "zset":
			state[key] = fmt.Sprint(s.ZRangeWithScores(ctx, key, 0, -1).Val())
		case "stream":
			state[key] = fmt.Sprint(s.XLen(ctx, key).Val())
		default:
			state[key] = s.Get(ctx, key).Val()
		}
	}
	return state
}

// TestWhichRequestsAreRemembered: requests that are no repetitions are writes of their own.
func TestWhichRequestsAreRemembered(t *testing.T) {
	longBody, ifNone := map[string]string{"body": strings.Repeat("b", 300)}, map[string]string{"version": "=0"}
	const id = "0123456789abcdef0123456789abcdef"
	for name, test := range map[string]struct {
		id, then  string // of the first and second request
		meanwhile func(t *testing.T, s server)
		change    map[string]string
		want      string // version and sequence number of the second, or the error's first word
	}{
		"the same":                       {id: id, then: id, want: "[1 1]"},
		"another id":                     {id: id, then: "1" + id[1:], want: "[2 2]"},
		"another id with the same end":   {id: id, then: "f" + id[1:], want: "[2 2]"},
		"a short id":                     {id: id[1:], then: id[1:], want: "[2 2]"},
		"another request":                {id: id, then: id, change: map[string]string{"body": "other"}, want: "[2 2]"},
		"another length":                 {id: id, then: id, change: longBody, want: "[2 2]"},
		"its own digest":                 {id: id + id, then: id + id, change: ifNone, want: "[1 1]"},
		"another digest":                 {id: id + id, then: id + strings.Repeat("f", 32), want: "REUSED"},
		"more digits without a digest":   {id: id + "ff", then: id + "ff", want: "[1 1]"},
		"65,535 writes later":            {id: id, then: id, meanwhile: laterBy(contract.ChainRing-1, id), want: "[1 1]"},
		"65,536 writes later":            {id: id, then: id, meanwhile: laterBy(contract.ChainRing, id), want: "[3 65538]"},
		"after the loss of the chain":    {id: id, then: id, meanwhile: lose(keys.ChainKey()), want: "[2 2]"},
		"after the loss of the number":   {id: id, then: id, meanwhile: lose(keys.SeqKey()), want: "[1 1]"},
		"after many with the same end":   {id: id, then: id, meanwhile: sameEnd(31, id), want: "[1 1]"},
		"after too many of the same end": {id: id, then: id, meanwhile: sameEnd(32, id), want: "[34 34]"},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s server) {
				ctx := t.Context()
				run := func(id string, change map[string]string) reply {
					m := mutation{replace, anObject, maps.Clone(repetitions[0].fields), ""}
					maps.Copy(m.fields, change)
					c := s.p.writer.writeCall(ctx, m, false)
					c.args[2] = id
					return writeScript.runCalls(ctx, s.p.client, c)[0]
				}
				require.NoError(t, run(test.id, nil).err)
				if test.meanwhile != nil {
					test.meanwhile(t, s)
				}
				got := run(test.then, test.change)
				text := fmt.Sprint(got.numbers)
				if got.err != nil {
					text, _, _ = strings.Cut(got.err.Error(), " ")
				}
				if text != test.want {
					t.Errorf("got %v, %v; want %s", got.numbers, got.err, test.want)
				}
			})
		})
	}
}

// laterBy makes n more writes in the shard; the last write has an id that ends as id does.
func laterBy(n int64, id string) func(*testing.T, server) {
	return func(t *testing.T, s server) {
		t.Helper()
		require.NoError(t, s.IncrBy(t.Context(), keys.SeqKey(), n-1).Err())
		sameEnd(1, id)(t, s)
	}
}

func lose(key string) func(*testing.T, server) {
	return func(t *testing.T, s server) {
		t.Helper()
		require.NoError(t, s.Del(t.Context(), key).Err())
	}
}

// sameEnd makes n writes with ids that end as id does.
func sameEnd(n int, id string) func(*testing.T, server) {
	return func(t *testing.T, s server) {
		t.Helper()
		for i := range n {
			c := s.p.writer.writeCall(t.Context(), mutation{replace, anObject, repetitions[0].fields, ""}, false)
			c.args[2] = fmt.Sprintf("%020x%s", i, id[20:])
			require.NoError(t, writeScript.runCalls(t.Context(), s.p.client, c)[0].err)
		}
	}
}

// TestRepeatedAfterFailover: a promoted replica remembers the requests that were replicated, and applies a lost write
// again.
func TestRepeatedAfterFailover(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), redistest.StartSentinels(t)
	write := func(server *redistest.Server, c call) reply {
		return writeScript.runCalls(ctx, server.Client(t), c)[0]
	}
	p := New(s.Master.Client(t))
	kept := p.writer.writeCall(ctx, mutation{repetitions[0].mode, anObject, repetitions[0].fields, ""}, false)
	lost := p.writer.writeCall(ctx, mutation{repetitions[2].mode, anObject, repetitions[2].fields, ""}, false)
	require.NoError(t, write(s.Master, kept).err)
	require.NoError(t, s.Master.Client(t).Do(ctx, "WAIT", 1, 0).Err())
	s.Failover(t, func() {
		if got := write(s.Master, lost); !slices.Equal(got.numbers, []int64{2, 2}) {
			t.Errorf("before: %v, %v", got.numbers, got.err)
		}
	})
	for _, test := range []struct {
		c    call
		want []int64
	}{{kept, []int64{1, 1}}, {lost, []int64{2, 2}}, {kept, []int64{1, 1}}, {lost, []int64{2, 2}}} {
		if got := write(s.Master, test.c); !slices.Equal(got.numbers, test.want) {
			t.Errorf("%v, %v; want %v", got.numbers, got.err, test.want)
		}
	}
	if seq := s.Master.Client(t).Get(ctx, keys.SeqKey()).Val(); seq != "2" {
		t.Errorf("%s writes, want 2", seq)
	}
}

// TestRepeatedAfterLostSeq: Repeated judges as the script does: a request whose number seq has lost isn't remembered.
func TestRepeatedAfterLostSeq(t *testing.T) {
	t.Parallel()
	client := redistest.StartServer(t).Client(t)
	p, ctx := New(client), WithRequests(t.Context(), Request{ID: [16]byte{1}})
	first, err := p.Put(ctx, Object{Key: "/a", ContentType: "text/plain", Body: []byte("a")})
	require.NoError(t, err)
	if got, err := p.Repeated(ctx, "/a"); err != nil || got != first {
		t.Errorf("got %v, %v, want %v", got, err, first)
	}
	require.NoError(t, client.Decr(ctx, keys.SeqKey()).Err())
	if got, err := p.Repeated(ctx, "/a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("seq was lost: got %v, %v, want ErrNotFound", got, err)
	}
}
