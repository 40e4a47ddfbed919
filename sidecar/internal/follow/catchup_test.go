package follow

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
)

// TestCatchUpInParts fails over to a server with all writes. The first catch-up with the server ends early, and the
// next catch-up continues at its end, instead of reading everything.
func TestCatchUpInParts(t *testing.T) {
	server := redistest.StartServer(t)
	client := redis.NewClient(&redis.Options{Addr: server.Address, MaxRetries: -1})
	t.Cleanup(func() { client.Close() })
	applied, stop := 0, func() {}
	sink := &flood{arrive: func() {
		if applied++; applied == pageSize+1 {
			stop()
		}
	}}
	c := Config{Objects: sink, Credentials: new(removed[contract.Credential]), Purges: noPurges{}, Clock: noClock{}}
	s := New(c, client, metrics.New(), slog.New(slog.DiscardHandler))
	first := publish.Object{Key: "/first", Body: []byte("x"), ContentType: "text/plain"}
	_, err := publish.New(client).Put(t.Context(), first)
	if err == nil {
		err = s.catchUp(t.Context(), catchUpConnected)
	}
	if err != nil {
		t.Fatal(err)
	}
	const last = 2*pageSize + 1
	pipe := client.Pipeline()
	for i := 2; i <= last; i++ {
		m := contract.ObjectMember(fmt.Sprint("/", i))
		record := contract.Object{Version: 1, PublishedMS: 1, ETag: `"x"`, ContentType: "a", Bodies: []contract.Body{{}}}
		pipe.HSet(t.Context(), s.keys.RecordKey(m), record.Fields())
		pipe.ZAdd(t.Context(), s.keys.LogKey(), redis.Z{Score: float64(i), Member: m.String()})
	}
	pipe.Set(t.Context(), s.keys.SeqKey(), last, 0)
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.history, s.historyAt = history{runID: "before", replicationID: "before"}, time.Now()
	applied, stop = 0, func() {
		if err := server.Client(t).ClientKillByFilter(t.Context(), "TYPE", "normal").Err(); err != nil {
			t.Error(err)
		}
	}
	if err := s.catchUp(t.Context(), catchUpConnected); err == nil || s.seq != pageSize+1 {
		t.Fatalf("got %v and seq %d, want an error after a page", err, s.seq)
	}
	if err := s.catchUp(t.Context(), catchUpConnected); err != nil || s.seq != last {
		t.Fatalf("got %v and seq %d, want %d", err, s.seq, last)
	}
	if got := metricstest.Value(t, s.metrics, "gatehouse_full_resyncs_total"); got != 1 {
		t.Errorf("got %v full resyncs, want the first one only", got)
	}
}

// SetCompareEvery sets the interval between comparisons, and returns a function that resets it. No follower may run.
func SetCompareEvery(interval time.Duration) (back func()) {
	before := compareEvery
	compareEvery = interval
	return func() { compareEvery = before }
}
