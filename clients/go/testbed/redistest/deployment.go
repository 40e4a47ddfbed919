package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// deploymentTimeout bounds the time until the servers of a deployment know each other.
const deploymentTimeout = 20 * time.Second

// Cluster is a Redis Cluster of three masters with all slots, and a replica of the first.
type Cluster struct {
	// URL is for package redisurl, and names two of the masters.
	URL     string
	Masters []*Server
	Replica *Server
}

// StartCluster runs a Cluster until the test ends. All servers have an append-only file, and consider a server failed
// after a second.
func StartCluster(t T) *Cluster {
	t.Helper()
	const masters, slots = 3, 16384
	c := &Cluster{}
	servers := make([]*Server, masters+1)
	buses := make([]string, len(servers))
	for i := range servers {
		_, buses[i], _ = net.SplitHostPort(FreeAddress(t)) // the default bus port, port + 10000, may be over 65535
		servers[i] = StartServer(t, "--cluster-enabled", "yes", "--cluster-port", buses[i], "--cluster-node-timeout", "1000",
			"--cluster-require-full-coverage", "no", "--appendonly", "yes", "--appendfsync", "always")
	}
	c.Masters, c.Replica = servers[:masters], servers[masters]
	c.URL = "redis+cluster://" + c.Masters[2].Address + "," + c.Masters[1].Address
	for i, server := range servers {
		client := server.Client(t)
		require.NoError(t, client.Do(t.Context(), "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
		if i < masters {
			require.NoError(t, client.ClusterAddSlotsRange(t.Context(), i*slots/masters, (i+1)*slots/masters-1).Err())
		}
		for j, other := range servers[:i] {
			require.NoError(t, client.Do(t.Context(), "CLUSTER", "MEET", "127.0.0.1", other.Port(), buses[j]).Err())
		}
	}
	id := c.Masters[0].Client(t).Do(t.Context(), "CLUSTER", "MYID").Val()
	replica := c.Replica.Client(t)
	awaitSuccess(t, "the replica to follow", func() error {
		return replica.Do(t.Context(), "CLUSTER", "REPLICATE", id).Err()
	})
	for _, server := range servers {
		client := server.Client(t)
		awaitSuccess(t, "the Cluster to be whole", func() error {
			nodes, info := client.ClusterNodes(t.Context()).Val(), client.ClusterInfo(t.Context()).Val()
			if !strings.Contains(info, "cluster_state:ok") || strings.Count(nodes, " connected") != len(servers) ||
				strings.Count(nodes, "slave") != 1 {
				return fmt.Errorf("%s\n%s", info, nodes)
			}
			return nil
		})
	}
	awaitSuccess(t, "the replica to be in step", func() error { return checkReplicaLink(t, replica) })
	return c
}

// Sentinels is a master with a replica and three sentinels.
type Sentinels struct {
	// URL is for package redisurl.
	URL             string
	Master, Replica *Server

	clients []*redis.SentinelClient
}

// StartSentinels runs a master, a replica and sentinels until the test ends. The sentinels consider a master down after
// half a second.
func StartSentinels(t T) *Sentinels {
	t.Helper()
	const sentinels = 3
	s := &Sentinels{Master: StartServer(t)}
	s.Replica = StartServer(t, "--replicaof", "127.0.0.1 "+s.Master.Port())
	replica := s.Replica.Client(t)
	awaitSuccess(t, "the replica to be in step", func() error { return checkReplicaLink(t, replica) })
	var addresses []string
	var clients []*redis.SentinelClient
	for range sentinels {
		file := filepath.Join(t.TempDir(), "sentinel.conf") // sentinels write to this file
		require.NoError(t, os.WriteFile(file, []byte("sentinel monitor main 127.0.0.1 "+s.Master.Port()+" 2\n"+
			"sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 10000\n"), 0o600))
		server := StartServer(t, file, "--sentinel")
		addresses = append(addresses, server.Address)
		client := redis.NewSentinelClient(&redis.Options{Addr: server.Address})
		t.Cleanup(func() { client.Close() })
		clients = append(clients, client)
	}
	for _, client := range clients {
		awaitSuccess(t, "the sentinels to know each other", func() error {
			info, err := client.Master(t.Context(), "main").Result()
			if err != nil || info["num-slaves"] != "1" || info["num-other-sentinels"] != fmt.Sprint(sentinels-1) {
				return fmt.Errorf("%v, %v", info, err)
			}
			return nil
		})
	}
	s.clients = clients
	s.URL = "redis+sentinel://" + strings.Join(addresses, ",") + "/main"
	return s
}

// Failover kills the master and waits until the sentinels have promoted the replica. Master and Replica are swapped.
// Before, the replica is detached and behind is called: the writes that the master acknowledges during behind are lost.
func (s *Sentinels) Failover(t T, behind func()) {
	t.Helper()
	require.NoError(t, s.Replica.Client(t).Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
	behind()
	s.Master.Kill()
	s.Master, s.Replica = s.Replica, s.Master
	for _, client := range s.clients {
		awaitSuccess(t, "the sentinels to agree on the promoted replica", func() error {
			address, err := client.GetMasterAddrByName(t.Context(), "main").Result()
			if err != nil || len(address) != 2 || address[1] != s.Master.Port() {
				return fmt.Errorf("%v, %v", address, err)
			}
			return nil
		})
	}
}

// Rejoin starts the killed server as the replica of the new master.
func (s *Sentinels) Rejoin(t T) {
	t.Helper()
	// As a replica from its start on: the old data on disk must not be read as a master's.
	s.Replica.args = []string{"--replicaof", "127.0.0.1 " + s.Master.Port()}
	s.Replica.Restart()
	replica := s.Replica.Client(t)
	awaitSuccess(t, "the replica to be in step", func() error { return checkReplicaLink(t, replica) })
}

// checkReplicaLink returns nil if the replica follows its master.
func checkReplicaLink(t T, replica *redis.Client) error {
	info := replica.Info(t.Context(), "replication").Val()
	if !strings.Contains(info, "master_link_status:up") {
		return fmt.Errorf("%s", info)
	}
	return nil
}

// Client returns a client of this server alone, which is closed when the test ends.
func (s *Server) Client(t T) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: s.Address, MaxRetries: -1})
	t.Cleanup(func() { client.Close() })
	return client
}

func awaitSuccess(t T, what string, check func() error) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) { // yields between two checks of a condition
		err := check()
		if err == nil {
			return
		}
		if time.Since(begin) > deploymentTimeout {
			t.Fatalf("%s: not within %s: %v", what, deploymentTimeout, err)
		}
	}
}
