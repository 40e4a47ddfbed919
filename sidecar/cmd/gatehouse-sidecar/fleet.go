package main

import (
	"fmt"
	"log/slog"

	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/tracing"
	"github.com/gatehouse/gatehouse/sidecar/internal/config"
	"github.com/gatehouse/gatehouse/verify/credential"
	"github.com/gatehouse/gatehouse/verify/sharedverdict"
)

// joinFleet returns the sidecars with which this sidecar shares verdicts, nil without a fleet; leave closes the
// connections. The fleet has connections of its own: its calls end soon, and must not take the followers' connections.
func joinFleet(c *config.Config, m *metrics.Metrics, log *slog.Logger) (others credential.Fleet,
	leave func(), err error) {
	secret, err := c.Verdict.ReadSecret()
	if err != nil {
		return nil, nil, fmt.Errorf("verdict.secret_file: %w", err)
	}
	if secret == nil {
		return nil, func() {}, nil
	}
	client, err := c.Redis.Settings("gatehouse-sidecar").Connect()
	if err != nil {
		return nil, nil, fmt.Errorf("redis: %w", err)
	}
	m.ObserveRedis(client)
	client.AddHook(tracing.RedisHook())
	log.Info("sharing verdicts with sidecars that have the same secret")
	return sharedverdict.New(secret, client, c.Redis.DeviceKeyspace(client), m, log), func() { client.Close() }, nil
}
