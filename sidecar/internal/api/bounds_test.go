package api_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/sidecar/internal/api"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
)

// TestFetchWithoutBounds fetches a far too large record, written by hand: the record is not read. Without permission to
// ask for the size, the record is read, and refused.
func TestFetchWithoutBounds(t *testing.T) {
	const size = 15 << 20
	client := redistest.StartServer(t).Client(t)
	record := contract.Keys{}.ObjectKey("/a")
	fields := map[string]string{"version": "1", "published": "1", "etag": `"a"`, "content-type": "a",
		"body": strings.Repeat("x", size)}
	require.NoError(t, client.HSet(t.Context(), record, fields).Err())
	sent := func() int {
		n, err := strconv.Atoi(regexp.MustCompile(`total_net_output_bytes:(\d+)`).FindStringSubmatch(
			client.Info(t.Context(), "stats").Val())[1])
		require.NoError(t, err)
		return n
	}
	for rights, read := range map[string]bool{"+memory|usage": false, "-memory": true} {
		t.Run(rights, func(t *testing.T) {
			require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "default", rights).Err())
			m := metrics.New()
			cache, err := objectcache.New(objectcache.Config{Bytes: 1 << 20, Objects: 1, Shards: 1},
				edgemem.New(edgemem.Config{}), m, discard)
			require.NoError(t, err)
			cache.Purges(0).EndResync()
			shared, err := api.NewRedis(cache, client, 16, contract.Keyspace{}, new(applied).get, synced, m)
			require.NoError(t, err)
			fetcher := shared.AddEdge()
			before := sent()
			if _, found, err := fetcher.Fetch(t.Context(), "/a"); found || contract.ReasonOf(err) != contract.ReasonLimit {
				t.Errorf("got %v, %v, want a limit", found, err)
			}
			if got := sent()-before > size; got != read {
				t.Errorf("read %v, want %v", got, read)
			}
			if got := metricstest.Value(t, m, "gatehouse_corrupt_total", "kind", "object", "reason", "limit"); got != 1 {
				t.Errorf("counted %v times, want once", got)
			}
		})
	}
}
