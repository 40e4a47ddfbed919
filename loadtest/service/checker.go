package service

import (
	"crypto/sha256"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/sync/singleflight"
)

// verdictLife is how long a verdict is cached: Gatehouse's default.
const verdictLife = 30 * time.Second

// checker checks credentials against stored hashes.
type checker struct {
	hashes   map[string][]byte // by device id; never written after the start
	verdicts sync.Map          // [sha256.Size]byte → verdict
	flight   singleflight.Group
}

type verdict struct {
	allow bool
	until time.Time
}

// allowsCached runs bcrypt once for each credential and life of a verdict, for any number of concurrent requests.
func (c *checker) allowsCached(id, secret string) bool {
	key := sha256.Sum256([]byte(id + "\x00" + secret))
	if v, ok := c.verdicts.Load(key); ok && time.Now().Before(v.(verdict).until) {
		return v.(verdict).allow
	}
	allow, _, _ := c.flight.Do(string(key[:]), func() (any, error) {
		allow := c.allowsByBcrypt(id, secret)
		c.verdicts.Store(key, verdict{allow, time.Now().Add(verdictLife)})
		return allow, nil
	})
	return allow.(bool)
}

// allowsByBcrypt runs bcrypt.
func (c *checker) allowsByBcrypt(id, secret string) bool {
	hash := c.hashes[id]
	return hash != nil && bcrypt.CompareHashAndPassword(hash, []byte(secret)) == nil
}
