package metrics_test

import (
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics/metricstest"
)

func TestLint(t *testing.T) {
	problems, err := testutil.GatherAndLint(metrics.New().Registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// TestHistograms are native ones with a bounded number of buckets, and classic ones.
func TestHistograms(t *testing.T) {
	m := metrics.New()
	for i := range 1 << 20 {
		m.PushSeconds.Observe(float64(uint(1) << (i % 40)))
		m.PushSeconds.Observe(1 / float64(uint(1)<<(i%40)))
	}
	families, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
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

// TestObserveRedis measures a command and a pipeline once each, also of a Cluster.
func TestObserveRedis(t *testing.T) {
	address := miniredis.RunT(t).Addr()
	for name, client := range map[string]redis.UniversalClient{
		"server":  redis.NewClient(&redis.Options{Addr: address}),
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{address}}),
	} {
		t.Run(name, func(t *testing.T) {
			defer client.Close()
			m := metrics.New()
			m.ObserveRedis(client)
			count := func(call string) float64 {
				return metricstest.Value(t, m, "gatehouse_redis_seconds", "call", call)
			}
			if err := client.Get(t.Context(), "a").Err(); err != redis.Nil {
				t.Fatal(err)
			}
			commands := count("command") // a Cluster's client also asks for its servers
			if commands == 0 || name == "server" && commands != 1 || count("pipeline") != 0 {
				t.Errorf("%v commands, %v pipelines", commands, count("pipeline"))
			}
			pipe := client.Pipeline()
			pipe.Get(t.Context(), "a")
			pipe.Get(t.Context(), "a")
			if _, err := pipe.Exec(t.Context()); err != redis.Nil {
				t.Fatal(err)
			}
			if count("pipeline") != 1 || count("command") != commands {
				t.Errorf("after a pipeline: %v commands, %v pipelines", count("command"), count("pipeline"))
			}
		})
	}
}
