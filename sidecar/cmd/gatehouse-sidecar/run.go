package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/internal/admin"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/presence"
	"github.com/gatehouse/gatehouse/internal/settings"
	"github.com/gatehouse/gatehouse/internal/tracing"
	"github.com/gatehouse/gatehouse/internal/version"
	"github.com/gatehouse/gatehouse/sidecar/internal/api"
	"github.com/gatehouse/gatehouse/sidecar/internal/config"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/edges"
	"github.com/gatehouse/gatehouse/sidecar/internal/follow"
	"github.com/gatehouse/gatehouse/sidecar/internal/inspect"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
	"github.com/gatehouse/gatehouse/sidecar/internal/push"
	"github.com/gatehouse/gatehouse/verify/authority"
	"github.com/gatehouse/gatehouse/verify/credential"
	"github.com/gatehouse/gatehouse/verify/familiar"
	"github.com/gatehouse/gatehouse/verify/hasher"
	"github.com/gatehouse/gatehouse/verify/invalidate"
	"github.com/gatehouse/gatehouse/verify/lastseen"
	"github.com/gatehouse/gatehouse/verify/token"
	"github.com/gatehouse/gatehouse/verify/upgrade"
)

// drainTimeout bounds how long the sidecar takes to stop.
const drainTimeout = 10 * time.Second

// component is a part of the sidecar that runs until ctx ends.
type component interface {
	Run(ctx context.Context) error
}

// listener is a component that accepts connections. Run serves the connections of Listen.
type listener interface {
	Listen() error
}

// run is the program, with everything of the process given.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c, err := config.Load(args)
	problems := func() []error { return settings.FindProblems(err, c) }
	if code, ends := settings.ExitEarly("gatehouse-sidecar", c, config.PrintUsage, problems, stdout, stderr); ends {
		return code
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	log, level := c.Log.NewLogger(stderr)
	started := []any{"version", version.Name()}
	if c.Redis.Namespace != "" {
		started = append(started, "namespace", c.Redis.Namespace)
	}
	log.Info("gatehouse sidecar starts", started...)
	if err := runComponents(ctx, c, log, level); err != nil {
		log.Error("gatehouse sidecar failed", "error", err)
		return settings.ExitRuntime
	}
	log.Info("gatehouse sidecar stopped")
	return settings.ExitOK
}

// runComponents runs all components until ctx ends or a component fails.
func runComponents(ctx context.Context, c *config.Config, log *slog.Logger, level *slog.LevelVar) error {
	settings.LogRedis(log)
	client, err := c.Redis.Settings("gatehouse-sidecar").Connect()
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	defer client.Close()
	client.AddHook(tracing.RedisHook())
	m := metrics.New()
	m.Registry.MustRegister(admin.BuildInfo(version.Name()))
	m.ObserveRedis(client)
	tracer, stopTracing, err := tracing.New(tracing.Config{Endpoint: c.Trace.Endpoint, Ratio: c.Trace.Ratio,
		Version: version.Name()}, m, log)
	if err != nil {
		return err
	}
	defer stopTracing()
	others, leave, err := joinFleet(c, m, log)
	if err != nil {
		return err
	}
	defer leave()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	hashers := hasher.New(program, m, log)
	defer hashers.Close()
	components, err := newComponents(c, client, others, hashers, m, tracer, log, level)
	if err != nil {
		return err
	}
	// All sockets are open before the first is served: a probe's answer means that each call is accepted.
	for _, part := range components {
		if part, ok := part.(listener); ok {
			if err := part.Listen(); err != nil {
				return err
			}
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range components {
		group.Go(func() error { return part.Run(ctx) })
	}
	done := make(chan error, 1)
	go func() { done <- group.Wait() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(drainTimeout):
		return fmt.Errorf("did not stop within %v: calls or connections hang", drainTimeout)
	}
}

// newComponents makes the components and connects them.
func newComponents(c *config.Config, client redis.UniversalClient, others credential.Fleet, hashers *hasher.Pool,
	m *metrics.Metrics, tracer trace.Tracer, log *slog.Logger, level *slog.LevelVar) ([]component, error) {
	keyspace, devices := c.Redis.Keyspace(client), c.Redis.DeviceKeyspace(client)
	memory := edgemem.New(edgemem.Config{Objects: c.Memory.Objects, Verdicts: c.Memory.Verdicts,
		Shards: keyspace.Shards, Propagation: m.Propagation})
	m.Registry.MustRegister(memory.Collector())
	objects, err := objectcache.New(objectcache.Config{Bytes: int64(c.Memory.Bytes), Objects: c.Memory.Objects,
		Shards: keyspace.Shards}, memory, m, log)
	if err != nil {
		return nil, err
	}
	seen := lastseen.New(client, devices, m, log)
	addresses := familiar.Open(c.API.Socket+".known", log)
	peppers, err := c.Credential.ReadPeppers()
	if err != nil {
		return nil, fmt.Errorf("credential.pepper_file: %w", err)
	}
	var upgrades component
	var offer func(credential.Upgrade)
	writer := publish.New(client, publish.Shards(c.Redis.Shards), publish.Namespace(devices.Namespace))
	if c.Credential.Upgrade {
		upgrader := upgrade.New(writer, &peppers[0], m, log)
		upgrades, offer = upgrader, upgrader.Offer
	}
	var deviceAuthority credential.Authority
	if c.Authority.URL != "" {
		if deviceAuthority, err = authority.New(c.Authority.Settings(), m, log); err != nil {
			return nil, err
		}
	}
	replicas, err := c.Redis.Replicas("gatehouse-sidecar")
	if err != nil {
		return nil, fmt.Errorf("redis.read: %w", err)
	}
	var followers *follow.Group
	verifier := credential.New(credential.Config{
		Workers: c.BcryptWorkers(), Queue: c.Bcrypt.Queue, Wait: c.Bcrypt.Wait, MaxCost: c.Bcrypt.MaxCost,
		AllowTTL: c.Verdict.AllowTTL, DenyTTL: c.Verdict.DenyTTL, PinTTL: c.Verdict.PinTTL,
		Limits:  credential.Limits{DeviceFailures: c.Limit.Device, SourceFailures: c.Limit.Source, Window: c.Limit.Window},
		Compare: hashers.Compare, Peppers: peppers, Upgrade: offer, Shards: keyspace.Shards, Fleet: others, Known: addresses,
		Seen: seen, Authority: deviceAuthority, MaxAnswers: c.Memory.Verdicts,
		Registered: func(ctx context.Context, id string) (bool, error) { return followers.Registered(ctx, id) },
	}, memory, m, log)
	followers = follow.NewGroup(keyspace, func(i int) follow.Config {
		of := follow.Config{
			Objects: objects.Shard(i), Credentials: verifier.Shard(i), Purges: objects.Purges(i),
			DeviceNamespace: c.Redis.DeviceNamespace, AcceptLossAfter: c.Redis.AcceptLossAfter,
			Snapshot: c.Redis.Snapshot,
			Tracer:   tracer, Trace: memory.TraceChanges,
		}
		if replicas != nil {
			of.Replicas = replicas
		}
		return of
	}, memory, client, m, log)
	fetcher, err := api.NewRedis(objects, client, c.Redis.PoolSize, keyspace, followers.Applied,
		followers.Synced(), m)
	if err != nil {
		return nil, err
	}
	if replicas != nil {
		fetcher.ReadReplicas(followers.Replica)
	}
	settings, err := c.Session.Settings()
	if err != nil {
		return nil, err
	}
	tokens := token.New(settings)
	var inspector *inspect.Inspector
	all := edges.New(edges.Config{
		PushSocket: c.Push.Socket, APISocket: c.API.Socket, Directories: c.Edge.Directories, Memory: memory,
		NewPusher: func(e *edgemem.Edge, socket string) *push.Pusher {
			return push.New(e, socket, followers.Synced(), m, tracer, log)
		},
		NewServer: func(e *edgemem.Edge, name, socket string) (*api.Server, func()) {
			v := inspector.WatchVerifier(name)
			return api.New(socket, v, fetcher.AddEdge(), inspector.WatchUses(name), e, tokens, m, tracer, log), v.RemoveEdge
		},
		Log: log,
	})
	checks := []admin.Check{{Name: "redis", Ready: followers.Ready}, {Name: "push", Ready: all.Ready}}
	resync := inspect.NewResync(followers.Resync, all.PushAll, log)
	inspector = inspect.New(inspect.Parts{
		Version: version.Name(), Started: time.Now(), Registry: m.Registry, Ready: func() []string {
			return admin.FailedReasons(checks)
		},
		Failure: followers.Failure, Degraded: followers.Degraded,
		Memory: memory, Edges: all, Objects: objects, Verifier: verifier, Tokens: tokens, Redis: client, Keyspace: keyspace,
		Devices: devices, EdgeAdmin: c.Edge.Admin, Resync: resync,
	})
	m.Registry.MustRegister(all.Collector())
	listed := presence.New(client, keyspace, c.Place(), inspector.Presence, log)
	operator := inspect.NewServer(inspector, c.Admin.Actions, level, log).Handler()
	tuner := garbageTuner{followers.StartBytes, int64(c.Memory.Bytes)}
	components := []component{
		memory, objects, followers, all, tuner, addresses, inspector, resync, listed, seen,
		admin.New(c.Admin.Address, m.Registry, checks, operator, log),
	}
	if c.Admin.Metrics != "" {
		components = append(components, admin.New(c.Admin.Metrics, m.Registry, checks, nil, log))
	}
	if upgrades != nil {
		components = append(components, upgrades)
	}
	if c.Authority.InvalidateAddress != "" {
		token, err := c.Authority.ReadInvalidateToken()
		if err != nil {
			return nil, fmt.Errorf("authority.invalidate_token_file: %w", err)
		}
		components = append(components, invalidate.New(c.Authority.InvalidateAddress, token, writer, m, log))
	}
	return components, nil
}
