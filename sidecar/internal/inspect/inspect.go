// Package inspect answers operators: is this sidecar healthy, why does a request get its answer, who is held back.
// Answers have no secrets. No question changes anything, except a release, a resync and the log's level.
package inspect

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/edges"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
	"github.com/gatehouse/gatehouse/verify/credential"
	"github.com/gatehouse/gatehouse/verify/token"
)

// Parts are the sources of an Inspector.
type Parts struct {
	Version  string
	Started  time.Time
	Registry prometheus.Gatherer // the sidecar's metrics
	// Ready returns why the sidecar isn't ready, nothing if ready.
	Ready func() []string
	// Failure returns why Redis isn't followed or read, "" if it is; Degraded returns which features are missing
	// meanwhile.
	Failure  func() string
	Degraded func() []string
	Memory   *edgemem.Memory
	Edges    *edges.Group
	Objects  *objectcache.Cache
	Verifier *credential.Verifier
	Tokens   *token.Issuer
	Redis    redis.UniversalClient
	// Keyspace is the objects', Devices the devices'.
	Keyspace, Devices contract.Keyspace
	// EdgeAdmin is the address of the edge's counters, host:port.
	EdgeAdmin string
	Resync    *Resync
}

// Inspector is safe for concurrent use.
type Inspector struct {
	Parts
	hits, refused counts
	calls         counts // by edge: verifications, and reports of hits
	history       history
	reading       sync.Mutex // held while the edge's configuration is read
}

// New returns an Inspector. Run must run for the history.
func New(p Parts) *Inspector { return &Inspector{Parts: p} }
