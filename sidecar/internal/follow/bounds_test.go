package follow

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// sizes records the bytes and the number of records of each pipeline.
type sizes struct{ bytes, records []int }

func (*sizes) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*sizes) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (s *sizes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		err := next(ctx, commands)
		bytes, records := 0, 0
		for _, c := range commands {
			if all, ok := c.(*redis.MapStringStringCmd); ok {
				records++
				for field, value := range all.Val() {
					bytes += len(field) + len(value)
				}
			}
		}
		if records > 0 {
			s.bytes, s.records = append(s.bytes, bytes), append(s.records, records)
		}
		return err
	}
}

// TestReadsAreBounded reads objects of many sizes: the bytes of a pipeline's records are bounded, also without
// permission to ask for sizes, and small records are read many at a time.
func TestReadsAreBounded(t *testing.T) {
	const large, small = 30, 1000
	s := redistest.StartServer(t)
	root := s.Client(t)
	pipe := root.Pipeline()
	fields := func(body string) map[string]string {
		return map[string]string{"version": "1", "published": "1", "etag": `"a"`, "content-type": "a", "body": body,
			"body.gzip": body + "x"}
	}
	largest := fields(strings.Repeat("b", 1<<20-1))
	keys := contract.Keys{}
	for i := range large + small {
		key := fmt.Sprint("/", i)
		if i < large {
			pipe.HSet(t.Context(), keys.ObjectKey(key), largest)
		} else {
			pipe.HSet(t.Context(), keys.ObjectKey(key), fields("x"))
		}
		pipe.ZAdd(t.Context(), keys.LogKey(), redis.Z{Score: float64(i + 1), Member: "o:" + key})
	}
	pipe.Set(t.Context(), keys.DataEpochKey(), "beef", 0)
	pipe.Set(t.Context(), keys.SeqKey(), large+small, 0)
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, rights string
		records      int  // at most in a pipeline
		warn         bool // about the permission
	}{
		{"with sizes", "+memory|usage", pipelineSize, false},
		{"without", "-memory", 2, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.NoError(t, root.Do(t.Context(), "ACL", "SETUSER", "default", tt.rights).Err())
			f, _, log := idle(t, &redis.Options{Addr: s.Address})
			client, err := f.findServer(t.Context())
			require.NoError(t, err)
			read := new(sizes)
			client.AddHook(read)
			err = f.newReader(client).readLog(t.Context(), 0, large+small, contract.KindObject)
			require.NoError(t, err)
			all := 0
			for i, bytes := range read.bytes {
				if all += read.records[i]; bytes > pipelineBytes || read.records[i] > tt.records {
					t.Errorf("a pipeline read %d records of %d bytes, want at most %d of %d", read.records[i],
						bytes, tt.records, pipelineBytes)
				}
			}
			if all != large+small {
				t.Errorf("%d records were read, want %d", all, large+small)
			}
			if most := large/2 + small/tt.records + 10; len(read.bytes) > most {
				t.Errorf("%d pipelines, want at most %d", len(read.bytes), most)
			}
			if got := strings.Contains(log.String(), "permit MEMORY USAGE (+memory|usage)"); got != tt.warn {
				t.Errorf("the log names the permission: %v, want %v", got, tt.warn)
			}
		})
	}
}

// TestLeaseIsKept prolongs a lease that is about to end.
func TestLeaseIsKept(t *testing.T) {
	s := redistest.StartServer(t)
	root := s.Client(t)
	f, _, _ := idle(t, &redis.Options{Addr: s.Address})
	master, err := f.findServer(t.Context())
	require.NoError(t, err)
	reader := f.newReader(master)
	require.NoError(t, reader.acquireLease(t.Context()))
	life := func() time.Duration { return root.PTTL(t.Context(), f.keys.ResyncKey()).Val() }
	for _, tt := range []struct {
		name string
		age  time.Duration
		want bool // the lease is prolonged
	}{{"new", 0, false}, {"old", leaseLife / 2, true}, {"just prolonged", -1, false}} {
		root.PExpire(t.Context(), f.keys.ResyncKey(), leaseLife/3)
		if tt.age >= 0 {
			reader.leaseAt = time.Now().Add(-tt.age)
		}
		require.NoError(t, reader.applyUrgent(t.Context()))
		if got := life() > leaseLife/2; got != tt.want {
			t.Errorf("%s: it lives for %v", tt.name, life())
		}
	}
	root.Del(t.Context(), f.keys.ResyncKey()) // the lease has expired
	reader.leaseAt = time.Now().Add(-leaseLife)
	if err := reader.applyUrgent(t.Context()); err != nil || life() > 0 {
		t.Errorf("a lease that has expired lives for %v, %v", life(), err)
	}
}
