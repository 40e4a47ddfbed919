package chaos

import (
	"fmt"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/testbed/link"
)

// foreignKeys is the number of keys that are written at a promoted replica.
const foreignKeys = 20

// replicated is a master with a replica, and the link between both.
type replicated struct {
	master, replica *redistest.Server
	link            *link.Link
	promotions      int
}

func startReplicated(t redistest.T) *replicated {
	r := &replicated{master: redistest.StartServer(t, "--appendonly", "yes", "--appendfsync", "always",
		"--repl-ping-replica-period", "1")}
	var err error
	if r.link, err = link.New(redistest.FreeAddress(t), r.master.Address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.link.Close)
	r.replica = redistest.StartServer(t, "--replicaof", "127.0.0.1 "+r.linkPort(), "--repl-timeout", "5")
	r.awaitLinked(t)
	return r
}

func (r *replicated) linkPort() string {
	_, port, _ := strings.Cut(r.link.Address(), ":")
	return port
}

// awaitLinked waits until the replica has the master's data.
func (r *replicated) awaitLinked(t redistest.T) {
	client := r.replica.Client(t)
	var info string
	for end := time.Now().Add(await.Deadline); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
		if info = client.Info(t.Context(), "replication").Val(); strings.Contains(info, "master_link_status:up") {
			return
		}
	}
	t.Fatalf("the replica has no link to its master: %s", info)
}

// breakIt begins a fault of the replica or its link, which is delayed by delay.
func (r *replicated) breakIt(t redistest.T, kind FaultKind, delay time.Duration) {
	switch kind {
	case CutReplica:
		r.link.Cut()
	case HangReplica:
		r.link.Hang()
	case DelayReplica:
		r.link.Delay(delay, delay/2)
	case KillReplica:
		r.replica.Kill()
	case PromoteReplica:
		client := r.replica.Client(t)
		tx := client.TxPipeline() // as sentinels do
		tx.Do(t.Context(), "REPLICAOF", "NO", "ONE")
		tx.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal")
		tx.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub")
		if _, err := tx.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		p := publish.New(client)
		for key := range foreignKeys {
			_, err := p.Put(t.Context(), publish.Object{Key: storedKey(key), Body: fmt.Append(nil, "of another history"),
				ContentType: "text/plain"})
			if err != nil {
				t.Fatal(err)
			}
		}
		if r.promotions++; r.promotions%2 == 0 { // it is a replica with writes of its own for the rest of the fault
			r.link.Cut()
			r.replicate(t)
		}
	}
}

// replicate makes the replica a replica again.
func (r *replicated) replicate(t redistest.T) {
	if err := r.replica.Client(t).Do(t.Context(), "REPLICAOF", "127.0.0.1", r.linkPort()).Err(); err != nil {
		t.Fatal(err)
	}
}

// repair ends a fault.
func (r *replicated) repair(t redistest.T, kind FaultKind) {
	switch kind {
	case CutReplica:
		if err := r.link.Heal(); err != nil {
			t.Fatal(err)
		}
	case HangReplica, DelayReplica:
		r.link.Clear()
	case KillReplica:
		r.replica.Restart()
	case PromoteReplica:
		if err := r.link.Heal(); err != nil {
			t.Fatal(err)
		}
		r.replicate(t)
	}
	r.awaitLinked(t)
}
