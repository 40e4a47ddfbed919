package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// TestRevocationOnReplicas: a failover of Sentinel undoes an acknowledged revocation that no replica has. revoke
// --replicas reports the risk, and a confirmed revocation stays.
func TestRevocationOnReplicas(t *testing.T) {
	t.Parallel()
	servers := redistest.StartSentinels(t)
	s := &shell{t, nil, map[string]string{"GATEHOUSE_REDIS": servers.URL}}
	for _, device := range []string{"kept", "lost", "doubtful"} {
		s.ok("secret", "device", "put", device, "--secret-file", "-", "--cost", "4")
	}
	began := time.Now()
	s.ok("", "device", "revoke", "kept", "--replicas", "1")
	confirmed := time.Since(began)
	began = time.Now()
	s.ok("", "device", "revoke", "kept")
	t.Logf("confirmed by a replica in %v; without waiting %v", confirmed, time.Since(began))
	servers.Failover(t, func() { // without the replica
		if said := s.ok("", "device", "revoke", "lost"); !strings.Contains(said, "lost: revoked") {
			t.Error(said)
		}
		r := s.run("", "device", "revoke", "doubtful", "--replicas", "1")
		if r.code != 1 || !strings.Contains(r.stdout, "doubtful: revoked") ||
			!strings.Contains(r.stderr, "0 of 1 replicas have the revocation") {
			t.Errorf("got %+v, want exit code 1 with why", r)
		}
	})
	client := redis.NewClient(&redis.Options{Addr: servers.Master.Address})
	defer client.Close()
	for device, revoked := range map[string]bool{"kept": true, "lost": false, "doubtful": false} {
		got := client.HGet(t.Context(), contract.Keys{}.CredentialKey(device), contract.FieldDisabled).Val()
		if (got != "") != revoked {
			t.Errorf("%s after the failover: disabled is %q, want a revocation: %t", device, got, revoked)
		}
	}
}

// TestReplicasOfACluster: the server of the device's shard is asked, and with --all that of each.
func TestReplicasOfACluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("in the long form: it waits in vain twice, for 5 s")
	}
	cluster := redistest.StartCluster(t) // one of its masters has a replica
	const shards = contract.Shards(8)
	s := &shell{t, nil, map[string]string{"GATEHOUSE_REDIS": cluster.URL,
		"GATEHOUSE_REDIS_SHARDS": fmt.Sprint(int(shards))}}
	client, err := redisurl.Settings{URL: cluster.URL}.Connect()
	require.NoError(t, err)
	defer client.Close()
	devices := map[bool]string{} // by whether the server of its shard has a replica
	for i := 0; len(devices) < 2; i++ {
		device := fmt.Sprint("d", i)
		seq := contract.Keyspace{Shards: shards}.KeysOf(device).SeqKey()
		server, err := client.(*redis.ClusterClient).MasterForKey(t.Context(), seq)
		require.NoError(t, err)
		devices[strings.Contains(server.Info(t.Context(), "replication").Val(), "connected_slaves:1")] = device
	}
	for replicated, device := range devices {
		s.ok("secret", "device", "put", device, "--secret-file", "-", "--cost", "4")
		r := s.run("", "device", "revoke", device, "--replicas", "1")
		if (r.code == 0) != replicated || !strings.Contains(r.stdout, device+": revoked") {
			t.Errorf("%s, replicated: %t: got %+v", device, replicated, r)
		}
	}
	r := s.run("", "device", "revoke", "--all", "--replicas", "1")
	if r.code != 1 || !strings.Contains(r.stdout, "revoked") || !strings.Contains(r.stderr, "0 of 1 replicas") {
		t.Errorf("got %+v, want all revoked, and that a server has no replica", r)
	}
}
