package redistest

import (
	"testing"

	"github.com/gatehouse/gatehouse/sidecar/redisurl"
)

func TestDeployments(t *testing.T) {
	cluster, sentinels := StartCluster(t), StartSentinels(t)
	for _, url := range []string{cluster.URL, sentinels.URL} {
		client, err := redisurl.Connect(url)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if err := client.Set(t.Context(), "a", "b", 0).Err(); err != nil {
			t.Errorf("%s: %v", url, err)
		}
		if got := client.Get(t.Context(), "a").Val(); got != "b" {
			t.Errorf("%s: got %q, want b", url, got)
		}
	}
}
