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
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/verify/credential"
)

const (
	// maxQueue bounds the upgrades that wait. Further upgrades are dropped; the device's next verification offers the
	// upgrade again.
	maxQueue = 1024
	// timeout bounds one upgrade.
	timeout = 5 * time.Second
	// rest is the time between a failure, such as missing permission to write, and the next upgrade.
	rest = time.Second
)

// Upgrader writes upgrades to Redis one after the other, and is safe for concurrent use.
type Upgrader struct {
	writer     *publish.Publisher
	pepper     *contract.Pepper
	metrics    *metrics.Metrics
	log        *slog.Logger
	logLimiter rate.Sometimes // bounds the log of failures
	queue      chan credential.Upgrade
}

// New returns an Upgrader, which does nothing until [Upgrader.Run].
func New(writer *publish.Publisher, pepper *contract.Pepper, m *metrics.Metrics, log *slog.Logger) *Upgrader {
	return &Upgrader{writer: writer, pepper: pepper, metrics: m, log: log,
		logLimiter: rate.Sometimes{First: 1, Interval: time.Minute}, queue: make(chan credential.Upgrade, maxQueue)}
}

// Offer queues an upgrade without blocking, or drops the upgrade if the queue is full.
func (u *Upgrader) Offer(c credential.Upgrade) {
	select {
	case u.queue <- c:
	default:
		u.countResult("dropped")
	}
}

// Run writes queued upgrades until ctx ends.
func (u *Upgrader) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-u.queue:
			err := u.upgradeHash(ctx, c)
			switch {
			case err == nil:
				u.countResult("upgraded")
				continue
			case errors.Is(err, publish.ErrStale), errors.Is(err, publish.ErrNotFound):
				u.countResult("stale")
				continue
			case ctx.Err() != nil:
				return nil
			}
			u.countResult("error")
			u.logLimiter.Do(func() { u.log.Warn("a device's hash was not upgraded to gh1", "device", c.Device, "error", err) })
		}
		select {
		case <-ctx.Done():
		case <-time.After(rest):
		}
	}
}

func (u *Upgrader) countResult(result string) { u.metrics.Upgrades.WithLabelValues(result).Inc() }

// upgradeHash replaces the hash in the record if the record still has the version in which the secret was right: after
// a later rotation or revocation, upgradeHash fails with [publish.ErrStale].
func (u *Upgrader) upgradeHash(ctx context.Context, c credential.Upgrade) error {
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
