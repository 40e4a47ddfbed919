package metrics_test

import (
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
)

// TestHistograms are native ones with a bounded number of buckets, and classic ones.
func TestHistograms(t *testing.T) {
	m := metrics.New()
	for i := range 1 << 20 {
		m.PushSeconds.Observe(float64(uint(1) << (i % 40)))
		m.PushSeconds.Observe(1 / float64(uint(1)<<(i%40)))
	}
	families, err := m.Registry.Gather()
	require.NoError(t, err)
	found := 0
	for _, family := range families {
		for _, series := range family.GetMetric() {
			h := series.GetHistogram()
			if h == nil || !strings.HasPrefix(family.GetName(), "gatehouse_") {
				continue
			}
			found++
			if h.Schema == nil || len(h.GetBucket()) == 0 {
				t.Errorf("%s: schema %v, %d classic buckets", family.GetName(), h.Schema, len(h.GetBucket()))
			}
			if n := len(h.GetPositiveDelta()); n > 160 {
				t.Errorf("%s: %d native buckets", family.GetName(), n)
			}
		}
	}
	if found < 6 {
		t.Errorf("%d series of histograms", found)
	}
}

// TestObserveRedis measures each command and each pipeline once, also of a Cluster.
func TestObserveRedis(t *testing.T) {
	server := miniredis.RunT(t)
	require.NoError(t, server.Set("a", "b"))
	for name, client := range map[string]redis.UniversalClient{
		"server":  redis.NewClient(&redis.Options{Addr: server.Addr()}),
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}}),
	} {
		t.Run(name, func(t *testing.T) {
			defer client.Close()
			m := metrics.New()
			m.ObserveRedis(client)
			get := func() {
				require.NoError(t, client.Get(t.Context(), "a").Err())
			}
			pipeline := func() {
				pipe := client.Pipeline()
				pipe.Get(t.Context(), "a")
				pipe.Get(t.Context(), "a")
				if _, err := pipe.Exec(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			get() // with the calls that begin a connection
			pipeline()
			for _, tt := range []struct {
				call    string
				do      func()
				another string
			}{{"command", get, "pipeline"}, {"pipeline", pipeline, "command"}} {
				count := func(call string) float64 {
					return metricstest.Value(t, m, "gatehouse_redis_seconds", "call", call)
				}
				before, others := count(tt.call), count(tt.another)
				tt.do()
				if got, other := count(tt.call)-before, count(tt.another)-others; got != 1 || other != 0 {
					t.Errorf("%s: measured %v, and %v of %s; want 1 and 0", tt.call, got, other, tt.another)
				}
			}
		})
	}
}
