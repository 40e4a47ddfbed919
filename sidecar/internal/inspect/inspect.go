// Package inspect answers operators: is this sidecar well, why is a request answered as it is, who is held back. Its
// answers have no secrets, and no question changes anything except a release, a resync and the
// log's level.
package inspect

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/credential"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
	"github.com/gatehouse/gatehouse/sidecar/internal/token"
)

// Parts is what an Inspector asks.
type Parts struct {
	Version  string
	Started  time.Time
	Registry prometheus.Gatherer // the sidecar's metrics
	// Ready returns why the sidecar isn't ready, nothing if it is.
	Ready func() []string
	// Failure returns why Redis isn't followed or read, "" if it is; Degraded what is missing though it is.
	Failure  func() string
	Degraded func() []string
	Memory   *edgemem.Memory
	Objects  *objectcache.Cache
	Verifier *credential.Verifier
	Tokens   *token.Issuer
	Redis    redis.UniversalClient
	Keyspace contract.Keyspace
	// EdgeAdmin is the address of the edge's counters, host:port.
	EdgeAdmin string
	Resync    *Resync
}

// Inspector is safe for concurrent use.
type Inspector struct {
	Parts
	hits, refused counts
	history       history
	reading       sync.Mutex // held while the edge's configuration is read
}

// New returns an Inspector. Its Run must run for the history.
func New(p Parts) *Inspector { return &Inspector{Parts: p} }
