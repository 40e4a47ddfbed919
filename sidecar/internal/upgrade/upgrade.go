// Package upgrade replaces the hashes of generated secrets by gh1 when their devices authenticate: then the sidecar
// knows the secret.
package upgrade

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/sidecar/internal/credential"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
)

const (
	// maxQueue bounds the upgrades that wait. Beyond it they are dropped; a device's next verification offers it again.
	maxQueue = 1024
	// timeout bounds one upgrade.
	timeout = 5 * time.Second
	// rest is the time between a failure, such as of a user that may not write, and the next upgrade.
	rest = time.Second
)

// Upgrader writes upgrades to Redis, one after the other. It is safe for concurrent use.
type Upgrader struct {
	writer  *publish.Publisher
	pepper  *contract.Pepper
	metrics *metrics.Metrics
	log     *slog.Logger
	tell    rate.Sometimes // bounds the log of failures
	queue   chan credential.Upgrade
}

// New returns an Upgrader that does nothing until [Upgrader.Run].
func New(writer *publish.Publisher, pepper *contract.Pepper, m *metrics.Metrics, log *slog.Logger) *Upgrader {
	return &Upgrader{writer: writer, pepper: pepper, metrics: m, log: log,
		tell: rate.Sometimes{First: 1, Interval: time.Minute}, queue: make(chan credential.Upgrade, maxQueue)}
}

// Offer queues an upgrade, or drops it if the queue is full. It doesn't block.
func (u *Upgrader) Offer(c credential.Upgrade) {
	select {
	case u.queue <- c:
	default:
		u.count("dropped")
	}
}

// Run writes queued upgrades until ctx ends.
func (u *Upgrader) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-u.queue:
			err := u.upgrade(ctx, c)
			switch {
			case err == nil:
				u.count("upgraded")
				continue
			case errors.Is(err, publish.ErrStale), errors.Is(err, publish.ErrNotFound):
				u.count("stale")
				continue
			case ctx.Err() != nil:
				return nil
			}
			u.count("error")
			u.tell.Do(func() { u.log.Warn("a device's hash was not upgraded to gh1", "device", c.Device, "error", err) })
		}
		select {
		case <-ctx.Done():
		case <-time.After(rest):
		}
	}
}

func (u *Upgrader) count(result string) { u.metrics.Upgrades.WithLabelValues(result).Inc() }

// upgrade replaces the hash in the record if the record still has the version in which the secret was right: a rotation
// or revocation since then makes it fail with [publish.ErrStale].
func (u *Upgrader) upgrade(ctx context.Context, c credential.Upgrade) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	hash, err := u.pepper.Hash(c.Secret)
	if err != nil {
		return err
	}
	_, err = u.writer.ChangeDevice(ctx, c.Device, c.Version, func(r *contract.Credential) error {
		i := slices.Index(r.Hashes, c.Hash)
		if i < 0 {
			return publish.ErrStale
		}
		r.Hashes[i] = hash
		return nil
	})
	return err
}
