// Package config has the sidecar's settings.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/internal/settings"
	"github.com/gatehouse/gatehouse/internal/snapshot"
)

// Config has every setting.
type Config struct {
	settings.Program `embed:""`

	Redis      Redis        `embed:"" prefix:"redis." envprefix:"GATEHOUSE_REDIS_"`
	Push       Push         `embed:"" prefix:"push." envprefix:"GATEHOUSE_PUSH_"`
	API        API          `embed:"" prefix:"api." envprefix:"GATEHOUSE_API_"`
	Admin      Admin        `embed:"" prefix:"admin." envprefix:"GATEHOUSE_ADMIN_"`
	Edge       Edge         `embed:"" prefix:"edge." envprefix:"GATEHOUSE_EDGE_"`
	Memory     Memory       `embed:"" prefix:"memory." envprefix:"GATEHOUSE_MEMORY_"`
	Bcrypt     Bcrypt       `embed:"" prefix:"bcrypt." envprefix:"GATEHOUSE_BCRYPT_"`
	Verdict    Verdict      `embed:"" prefix:"verdict." envprefix:"GATEHOUSE_VERDICT_"`
	Authority  Authority    `embed:"" prefix:"authority." envprefix:"GATEHOUSE_AUTHORITY_"`
	Session    Session      `embed:"" prefix:"session." envprefix:"GATEHOUSE_SESSION_"`
	Limit      Limit        `embed:"" prefix:"limit." envprefix:"GATEHOUSE_LIMIT_"`
	Log        settings.Log `embed:"" prefix:"log." envprefix:"GATEHOUSE_LOG_"`
	Trace      Trace        `embed:"" prefix:"trace." envprefix:"GATEHOUSE_TRACE_"`
	Credential Credential   `embed:"" prefix:"credential." envprefix:"GATEHOUSE_CREDENTIAL_"`
}

var about = settings.About{Name: "gatehouse-sidecar",
	Does: "Keeps an Envoy's shared memory in step with Redis, and verifies credentials for it."}

// Place returns a path that distinguishes the sidecars of a machine.
func (c *Config) Place() string {
	if len(c.Edge.Directories) > 0 {
		return c.Edge.Directories[0]
	}
	return c.Push.Socket
}

// Load reads the flags in args, the environment, and the file named by them, see [settings.Load].
func Load(args []string) (*Config, error) { return settings.Load(new(Config), about, args) }

// PrintUsage writes the list of flags.
func PrintUsage(w io.Writer) error { return about.PrintUsage(w, new(Config)) }

// Redis configures following Redis.
type Redis struct {
	settings.RedisServer `embed:""`
	Read                 string        `env:"READ" default:"master" placeholder:"WHERE" help:"Where objects are read: master; replica, one that the sentinels name; or HOST:PORT of a replica. Devices are always read at the master. Default: ${default}."`
	DeviceNamespace      string        `env:"DEVICE_NAMESPACE" placeholder:"NAME" help:"Namespace of the devices, if they have one of their own. Default: that of redis.namespace."`
	Snapshot             string        `env:"SNAPSHOT" placeholder:"SOURCE" help:"Snapshot of gatehousectl snapshot to start from: a path, s3://BUCKET/KEY, http://… or https://…. Default: none, everything is read from Redis."`
	AcceptLossAfter      time.Duration `env:"ACCEPT_LOSS_AFTER" default:"0s" placeholder:"TIME" help:"Believe an empty Redis after this time: drop everything, and refuse all devices. Default: 0s, never; gatehousectl accept-loss does so at once."`
}

// Push configures the connection to the push listener.
type Push struct {
	Socket string `env:"SOCKET" default:"/run/gatehouse/push.sock" placeholder:"PATH" help:"Unix socket that Envoy's push listener listens on. Default: ${default}."`
}

// API configures the server for the edge's calls.
type API struct {
	Socket string `env:"SOCKET" default:"/run/gatehouse/api.sock" placeholder:"PATH" help:"Unix socket to listen on for Envoy's calls. Default: ${default}."`
}

// Admin configures the server for operators.
type Admin struct {
	Address string `env:"ADDRESS" default:"127.0.0.1:9090" placeholder:"HOST:PORT" help:"Address to serve metrics, health, profiles and the operator's page on. Default: ${default}."`
	Metrics string `env:"METRICS" placeholder:"HOST:PORT" help:"Address to serve only metrics and health on, for Prometheus and probes from elsewhere. Default: none."`
	Actions bool   `env:"ACTIONS" help:"Let operators release throttled networks, and resync, by the page or gatehousectl. Default: they only see."`
}

// Edge configures where the edges are, and the connection to an only edge's operators' server.
type Edge struct {
	Directories []string `env:"DIRECTORIES" placeholder:"PATTERN" help:"Directories of edges, such as /run/gatehouse/edges/*, several separated by commas: each directory that matches, now or later, is an edge, with push.sock of the proxy and api.sock of the sidecar. Default: none, one edge at push.socket and api.socket."`
	Admin       string   `env:"ADMIN" default:"127.0.0.1:9901" placeholder:"HOST:PORT" help:"Address of Envoy's admin interface, or of nginx's counters, for the rates that the operator's page shows. Default: ${default}."`
}

// Memory bounds the edge's memory.
type Memory struct {
	Bytes    Bytes `env:"BYTES" default:"256MiB" placeholder:"SIZE" help:"Shared memory for objects. Default: ${default}."`
	Objects  int   `env:"OBJECTS" default:"100000" placeholder:"N" help:"Maximum number of objects. Default: ${default}."`
	Verdicts int   `env:"VERDICTS" default:"100000" placeholder:"N" help:"Maximum number of allow verdicts, and of deny verdicts. Default: ${default}."`
}

// Bcrypt bounds the cost of bcrypt.
type Bcrypt struct {
	Workers int           `env:"WORKERS" default:"0" placeholder:"N" help:"Concurrent runs of bcrypt. Default: 0, half of the processors."`
	Queue   int           `env:"QUEUE" default:"1024" placeholder:"N" help:"Maximum number of verifications that wait for a worker; further ones get a 503. Default: ${default}."`
	Wait    time.Duration `env:"WAIT" default:"1500ms" placeholder:"D" help:"How long a request waits for its verification, less than sidecar.timeout of the filter. Default: ${default}."`
	MaxCost int           `env:"MAX_COST" default:"14" placeholder:"N" help:"Highest bcrypt cost; a record with a higher one, or with a hash of another scheme that takes longer, is refused. Default: ${default}."`
}

// Credential configures hashes by a pepper.
type Credential struct {
	PepperFile []string `env:"PEPPER_FILE" placeholder:"FILE" help:"Pepper of gh1 hashes, at least 32 bytes; give several times, or separated by commas, to accept several. Read at start."`
	Upgrade    bool     `env:"UPGRADE" help:"Hash generated secrets of good devices again, as gh1 with the first pepper. Needs permission to write to Redis."`
}

// Verdict configures the lifetimes of verdicts, and how sidecars share verdicts.
type Verdict struct {
	AllowTTL   time.Duration `env:"ALLOW_TTL" default:"30s" placeholder:"D" help:"How long an allow verdict lives, ± 10 percent. Default: ${default}."`
	DenyTTL    time.Duration `env:"DENY_TTL" default:"5s" placeholder:"D" help:"How long a deny verdict lives. Default: ${default}."`
	PinTTL     time.Duration `env:"PIN_TTL" default:"1h" placeholder:"D" help:"How long the sidecar remembers that bcrypt confirmed a secret, at most; 0: not at all. Default: ${default}."`
	SecretFile string        `env:"SECRET_FILE" placeholder:"FILE" help:"Secret of the fleet, at least 32 bytes; with it, sidecars share verdicts through Redis. Read at start."`
}

// Limit bounds wrong secrets.
type Limit struct {
	Device int           `env:"DEVICE" default:"5" placeholder:"N" help:"Maximum number of wrong secrets for one device from one address in the window; 0: no limit. Default: ${default}."`
	Source int           `env:"SOURCE" default:"100" placeholder:"N" help:"Maximum number of wrong secrets from one address in the window; 0: no limit. Default: ${default}."`
	Window time.Duration `env:"WINDOW" default:"1m" placeholder:"D" help:"The window of the limits. Default: ${default}."`
}

// Trace configures traces.
type Trace struct {
	Endpoint string  `env:"ENDPOINT" placeholder:"URL" help:"Collector of traces, by OTLP over HTTP, such as http://127.0.0.1:4318. Default: none, no traces."`
	Ratio    float64 `env:"RATIO" default:"0.01" placeholder:"RATIO" help:"Part of the calls without a traceparent that begin a trace, 0 to 1. Default: ${default}."`
}

// maxSocket is the longest path of a unix socket that every system accepts.
const maxSocket = 103

// CheckValues returns all errors of the values, joined. The flag parser would call a method Validate before the file is
// read.
func (c *Config) CheckValues() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	errs = append(errs, c.Redis.check()...)
	for _, s := range []struct{ name, path string }{{"push.socket", c.Push.Socket}, {"api.socket", c.API.Socket}} {
		check(s.path != "", "%s: empty, want the path of a unix socket", s.name)
		check(len(s.path) <= maxSocket, "%s: %q has %d bytes, at most %d are allowed", s.name, s.path, len(s.path), maxSocket)
	}
	check(c.Push.Socket != c.API.Socket, "api.socket: %q is push.socket too; each needs its own", c.API.Socket)
	for _, pattern := range c.Edge.Directories {
		_, err := filepath.Match(pattern, "")
		check(err == nil, "edge.directories: %q: %v", pattern, err)
		check(filepath.IsAbs(pattern), "edge.directories: %q: want an absolute path", pattern)
	}
	_, _, err := net.SplitHostPort(c.Admin.Address)
	check(err == nil, "admin.address: %q: want host:port", c.Admin.Address)
	if c.Admin.Metrics != "" {
		_, _, err = net.SplitHostPort(c.Admin.Metrics)
		check(err == nil, "admin.metrics: %q: want host:port", c.Admin.Metrics)
	}
	_, _, err = net.SplitHostPort(c.Edge.Admin)
	check(err == nil, "edge.admin: %q: want host:port", c.Edge.Admin)
	check(c.Memory.Bytes >= 1<<20 && c.Memory.Bytes <= 1<<40, "memory.bytes: %v is out of 1MiB to 1TiB", c.Memory.Bytes)
	for _, n := range []struct {
		name                   string
		value, lowest, highest int
	}{
		{"memory.objects", c.Memory.Objects, 1, 1 << 24},
		{"memory.verdicts", c.Memory.Verdicts, 1, 1 << 24},
		{"bcrypt.workers", c.Bcrypt.Workers, 0, 1024},
		{"bcrypt.queue", c.Bcrypt.Queue, 1, 1 << 20},
		{"bcrypt.max_cost", c.Bcrypt.MaxCost, contract.MinCost, contract.MaxCost},
		{"limit.device", c.Limit.Device, 0, 1 << 20},
		{"limit.source", c.Limit.Source, 0, 1 << 20},
	} {
		check(n.value >= n.lowest && n.value <= n.highest, "%s: %d is out of %d to %d", n.name, n.value, n.lowest, n.highest)
	}
	for _, d := range []struct {
		name   string
		value  time.Duration
		lowest time.Duration
	}{
		{"bcrypt.wait", c.Bcrypt.Wait, time.Millisecond},
		{"verdict.allow_ttl", c.Verdict.AllowTTL, time.Second},
		{"verdict.deny_ttl", c.Verdict.DenyTTL, 0},
		{"verdict.pin_ttl", c.Verdict.PinTTL, 0},
		{"limit.window", c.Limit.Window, time.Second},
	} {
		check(d.value >= d.lowest && d.value <= 30*24*time.Hour, "%s: %v is out of %v to 720h", d.name, d.value, d.lowest)
	}
	errs = append(errs, c.Credential.validate()...)
	errs = append(errs, c.Verdict.validate()...)
	errs = append(errs, c.Authority.validate()...)
	errs = append(errs, c.Log.Check()...)
	errs = append(errs, c.Session.validate()...)
	errs = append(errs, c.Trace.validate()...)
	return errors.Join(errs...)
}

// validate returns all errors, without any part of the URL, which may contain a password.
func (t *Trace) validate() (errs []error) {
	if t.Endpoint != "" {
		u, err := url.Parse(t.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil ||
			u.RawQuery != "" || u.Fragment != "" {
			errs = append(errs, errors.New("trace.endpoint: want http://HOST:PORT or https://HOST:PORT, and maybe a path"))
		}
	}
	if !(t.Ratio >= 0 && t.Ratio <= 1) { // also not NaN
		errs = append(errs, fmt.Errorf("trace.ratio: %v is out of 0 to 1", t.Ratio))
	}
	return errs
}

// BcryptWorkers returns the maximum number of concurrent runs of bcrypt.
func (c *Config) BcryptWorkers() int {
	if c.Bcrypt.Workers > 0 {
		return c.Bcrypt.Workers
	}
	return max(runtime.GOMAXPROCS(0)/2, 1)
}

// DeviceKeyspace returns the keyspace of the devices; client was made from the settings.
func (r *Redis) DeviceKeyspace(client redis.UniversalClient) contract.Keyspace {
	k := r.Keyspace(client)
	k.Namespace = cmp.Or(r.DeviceNamespace, k.Namespace)
	return k
}

// Replicas returns the replicas to read objects from, nil if objects are read at the master.
func (r *Redis) Replicas(client string) (*redisurl.Replicas, error) {
	switch r.Read {
	case "master":
		return nil, nil
	case "replica":
		return r.Settings(client).FindReplicas("")
	}
	return r.Settings(client).FindReplicas(r.Read)
}

func (r *Redis) check() (errs []error) {
	errs = r.RedisServer.Check()
	if _, err := r.Replicas(""); err != nil && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("redis.read: %w", err))
	}
	if err := contract.CheckNamespace(r.DeviceNamespace); err != nil {
		errs = append(errs, fmt.Errorf("redis.device_namespace: %w", err))
	}
	if err := snapshot.CheckLocation(r.Snapshot); err != nil {
		errs = append(errs, fmt.Errorf("redis.snapshot: %w", err))
	}
	if r.AcceptLossAfter < 0 || r.AcceptLossAfter > 30*24*time.Hour {
		errs = append(errs, fmt.Errorf("redis.accept_loss_after: %v is out of 0s to 720h", r.AcceptLossAfter))
	}
	return errs
}
