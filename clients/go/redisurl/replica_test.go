package redisurl

import (
	"encoding/pem"
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

func TestFindReplicas(t *testing.T) {
	for _, test := range []struct{ url, address, want string }{
		{"redis://h", "", "names no sentinels"},
		{"redis+cluster://h", "r:6379", "a Cluster sends events past replication"},
		{"redis+cluster://h", "", "a Cluster sends events past replication"},
		{"redis://h", "redis://r", `"redis://r": want a name or address`},
		{"redis://h", "r:0", `"r:0": want a name or address`},
		{"http://h", "r", "scheme"},
		{"redis://h", "r", ""}, {"unix:///run/redis", "r:6380", ""}, {"redis+sentinel://h/main", "r", ""},
		{"redis+sentinel://h/main", "", ""},
	} {
		_, err := Settings{URL: test.url}.FindReplicas(test.address)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s, %q: got %v, want %q", test.url, test.address, err, test.want)
		}
	}
}

// TestPickByAddress: a replica has the login and database of the URL, and is verified by its name.
func TestPickByAddress(t *testing.T) {
	t.Parallel()
	server := redistest.StartServer(t, "--requirepass", "hunter2")
	replicas, err := Settings{URL: "redis://:hunter2@nowhere.invalid/3"}.FindReplicas("localhost:" + server.Port())
	require.NoError(t, err)
	client, err := replicas.Pick(t.Context())
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.Set(t.Context(), "k", "v", 0).Err())
	if got := client.Options(); got.DB != 3 || !strings.HasSuffix(got.Addr, ":"+server.Port()) ||
		strings.HasPrefix(got.Addr, "localhost") {
		t.Errorf("got %s and database %d, want one address of localhost, and 3", got.Addr, got.DB)
	}

	https := httptest.NewTLSServer(nil) // for its certificate, of example.com and 127.0.0.1
	defer https.Close()
	ca := write(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: https.Certificate().Raw})))
	port := startRefusing(t, https.TLS, "ERR it is no Redis")
	for _, test := range []struct{ name, want string }{
		{"", "valid for example.com, *.example.com, not localhost"}, {"example.com", "ERR it is no Redis"},
	} {
		secure := Settings{URL: "rediss://nowhere.invalid", TLSCAFile: ca, TLSServerName: test.name}
		replicas, err := secure.FindReplicas(net.JoinHostPort("localhost", port))
		require.NoError(t, err)
		client, err := replicas.Pick(t.Context())
		require.NoError(t, err)
		defer client.Close()
		if err := client.Get(t.Context(), "k").Err(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("server name %q: got %v, want %q", test.name, err, test.want)
		}
	}
}

// TestPickBySentinels: never the master, also if no replica is left.
func TestPickBySentinels(t *testing.T) {
	t.Parallel()
	sentinels := redistest.StartSentinels(t)
	dead := redistest.FreeAddress(t)
	replicas, err := Settings{URL: strings.Replace(sentinels.URL, "://", "://"+dead+",", 1)}.FindReplicas("")
	require.NoError(t, err)
	for range 8 { // in any order of the sentinels
		client, err := replicas.Pick(t.Context())
		require.NoError(t, err)
		defer client.Close()
		if got := client.Options().Addr; got != sentinels.Replica.Address {
			t.Errorf("got %s, want the replica %s", got, sentinels.Replica.Address)
		}
	}
	sentinels.Replica.Kill()
	await.Until(t, "no replica", func() bool {
		_, err := replicas.Pick(t.Context())
		return err != nil && strings.Contains(err.Error(), "1 replicas of main, and none is up")
	})
}
