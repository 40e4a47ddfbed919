package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
)

// Options are the settings of a stack. The zero value is a stack with free ports, the repository's envoy.yaml, the
// programs built by make, and an embedded Redis.
type Options struct {
	// Name of the stack, "test" by default: letters, digits, '.', '_' and '-'.
	Name string
	// Dir gets the rendered configuration, the logs and, if Dir is short enough, the sockets. The mode becomes 0700.
	// Default: .run/NAME in the repository.
	Dir string

	// HOST:PORT each. Empty or port 0 chooses a free port, which the stack keeps.
	Edge, EnvoyAdmin, SidecarAdmin, Upstream string
	// Redis is the address of the stack's own Redis, embedded or RedisServerPath.
	Redis string
	// RedisURL names a running Redis to use.
	RedisURL string
	// RedisServerPath is a redis-server to run as a child, instead of the embedded Redis.
	RedisServerPath string
	// RedisArgs are appended to redis-server's.
	RedisArgs []string
	// RedisEnv is added to the environment of redis-server, NAME=value each.
	RedisEnv []string

	// EdgesDir is a directory with a directory for each of several edges, by the name of the stack: this stack's sidecar
	// serves them all, its own edge among them.
	EdgesDir string
	// Agent is the stack whose sidecar serves this stack's edge: this stack has neither a sidecar nor a Redis. Agent must
	// have EdgesDir.
	Agent *Stack

	// SidecarRedisURL is the sidecar's URL of Redis if not direct: a proxy's.
	SidecarRedisURL string

	// Concurrency is the number of Envoy's workers, 2 by default.
	Concurrency int

	// EdgeKind is the edge: the proxy and the form of the filter. Default: $EDGE_KIND, otherwise Envoy with Wasm.
	EdgeKind EdgeKind
	// NginxPath is the path of nginx, for an nginx edge. Default: nginx on the path.
	NginxPath string
	// EnvoyPath is Envoy's binary. Default: $ENVOY, otherwise Envoy in .venv.
	EnvoyPath string
	// EnvoyArgs are appended to Envoy's.
	EnvoyArgs []string
	// EnvoyEnv is added to Envoy's environment, NAME=value each.
	EnvoyEnv []string
	// SidecarPath is gatehouse-sidecar. Default: build/gatehouse-sidecar.
	SidecarPath string
	// SidecarArgs are appended to the sidecar's.
	SidecarArgs []string
	// SidecarEnv is added to the sidecar's environment, NAME=value each.
	SidecarEnv []string
	// Binding is the filter's Proxy-Wasm binding: own, sdk, or plugins, our own with rules in the plugins' own
	// configurations. Default: $BINDING, otherwise own.
	Binding string
	// WasmPath is the filter. Default: build/gatehouse.wasm, build/gatehouse-sdk.wasm or build/gatehouse-plugins.wasm.
	WasmPath string
	// LibraryPath is the filter as a dynamic module. Default: build/libgatehouse.so.
	LibraryPath string
	// NginxLibrary is the library with the policy, for nginx. Default: build/libgatehouse-nginx.so.
	NginxLibrary string
	// ConfigPath is the Envoy configuration that the stack adapts. Default: envoy/envoy.yaml.
	ConfigPath string
	// Rules replaces the edge filter's configuration, from "sidecar" to "default".
	Rules string
	// ModifyConfig changes the configuration after everything else, at every start of Envoy.
	ModifyConfig func(*Config) error

	// NginxConfigPath is the nginx.conf that the stack adapts. Default: nginx/nginx.conf.
	NginxConfigPath string
	// ModifyNginx returns nginx.conf with changes, at every start of nginx. ModifyConfig doesn't apply to nginx.
	ModifyNginx func(config string) string

	// Seed is called once, after the start of Redis and before the start of the sidecar, so that the first snapshot has
	// everything that Seed publishes. Default: [AcceptLoss] of one shard.
	Seed func(ctx context.Context, redisURL string) error
	// ReadyTimeout bounds every wait for a part to become ready; default: three minutes, since Envoy compiles the module.
	ReadyTimeout time.Duration
}

var validName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,31}$`)

// CheckName returns an error for an invalid name of a stack.
func CheckName(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("%w: STACK %q: want 1 to 32 letters, digits, '.', '_' or '-', not starting with '.'",
			ErrUsage, name)
	}
	return nil
}

// withDefaults sets the defaults, and checks everything that needs no running program.
func (o Options) withDefaults() (Options, error) {
	o.Name = orDefault(o.Name, "test")
	if err := CheckName(o.Name); err != nil {
		return o, err
	}
	if o.Concurrency == 0 {
		o.Concurrency = 2
	}
	if o.Concurrency < 1 || o.Concurrency > 256 {
		return o, fmt.Errorf("%w: CONCURRENCY %d: want 1 to 256", ErrUsage, o.Concurrency)
	}
	o.EdgeKind = orDefault(o.EdgeKind, EdgeKind(orDefault(os.Getenv("EDGE_KIND"), string(EnvoyEdge))))
	if !o.EdgeKind.OnEnvoy() && o.EdgeKind != NginxEdge {
		return o, fmt.Errorf("%w: EDGE_KIND %q: want %s, %s or %s", ErrUsage, o.EdgeKind, EnvoyEdge, NativeEdge, NginxEdge)
	}
	if o.EdgeKind == NginxEdge && o.ModifyConfig != nil && o.ModifyNginx == nil {
		return o, fmt.Errorf("%w: EDGE_KIND nginx: these options change Envoy's configuration, and not nginx.conf", ErrUsage)
	}
	if o.ReadyTimeout == 0 {
		o.ReadyTimeout = 3 * time.Minute
	}
	if o.RedisURL != "" && o.RedisServerPath != "" {
		return o, fmt.Errorf("%w: a Redis to use and a redis-server to run are both given: %s, %s",
			ErrUsage, o.RedisURL, o.RedisServerPath)
	}
	if o.Agent != nil {
		o.RedisURL, o.EdgesDir = o.Agent.RedisURL(), o.Agent.opts.EdgesDir
	}
	if err := o.defaultPaths(); err != nil {
		return o, err
	}
	return o, o.resolveAddresses()
}

// defaultPaths makes all paths absolute, since children may have other working directories.
func (o *Options) defaultPaths() error {
	root, err := Root()
	if err != nil {
		return err
	}
	o.Dir = orDefault(o.Dir, filepath.Join(root, ".run", o.Name))
	o.SidecarPath = orDefault(o.SidecarPath, filepath.Join(root, "build", "gatehouse-sidecar"))
	module, build := "gatehouse.wasm", "run: make build"
	if o.Binding = orDefault(o.Binding, orDefault(os.Getenv("BINDING"), "own")); o.Binding != "own" {
		module, build = "gatehouse-"+o.Binding+".wasm", "run: make wasm BINDING="+o.Binding
	}
	o.WasmPath = orDefault(o.WasmPath, filepath.Join(root, "build", module))
	o.LibraryPath = orDefault(o.LibraryPath, filepath.Join(root, "build", "libgatehouse.so"))
	if o.EdgeKind == NginxEdge {
		return o.nginxPaths()
	}
	o.ConfigPath = orDefault(o.ConfigPath, filepath.Join(root, "envoy", "envoy.yaml"))
	if o.EnvoyPath == "" {
		if o.EnvoyPath, err = FindEnvoy(); err != nil {
			return err
		}
	}
	for _, path := range []*string{&o.Dir, &o.SidecarPath, &o.WasmPath, &o.LibraryPath, &o.ConfigPath, &o.EnvoyPath} {
		if *path, err = filepath.Abs(*path); err != nil {
			return fmt.Errorf("absolute path of %s: %w", *path, err)
		}
	}
	filter := o.WasmPath
	if o.EdgeKind == NativeEdge {
		filter, build = o.LibraryPath, "run: make native"
	}
	for _, need := range []struct{ path, remedy string }{
		{o.SidecarPath, "run: make build"},
		{filter, build},
		{o.ConfigPath, "envoy/envoy.yaml is part of the repository"},
		{o.EnvoyPath, "set ENVOY to Envoy's binary, or run: scripts/install-envoy.sh"},
	} {
		if _, err := os.Stat(need.path); err != nil {
			return fmt.Errorf("%w: %w; %s", ErrUsage, err, need.remedy)
		}
	}
	return nil
}

func (o *Options) nginxPaths() (err error) {
	if o.NginxPath == "" {
		if o.NginxPath, err = FindNginx(); err != nil {
			return err
		}
	}
	root, err := Root()
	if err != nil {
		return err
	}
	o.NginxLibrary = orDefault(o.NginxLibrary, filepath.Join(root, "build", "libgatehouse-nginx.so"))
	o.NginxConfigPath = orDefault(o.NginxConfigPath, filepath.Join(root, "nginx", "nginx.conf"))
	for _, path := range []*string{&o.Dir, &o.SidecarPath, &o.NginxLibrary, &o.NginxConfigPath} {
		if *path, err = filepath.Abs(*path); err != nil {
			return fmt.Errorf("absolute path of %s: %w", *path, err)
		}
	}
	for _, path := range []string{o.SidecarPath, o.NginxLibrary} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("%w: %w; run: make build EDGE_KIND=nginx", ErrUsage, err)
		}
	}
	return nil
}

// resolveAddresses chooses the free ports. Addresses that are given twice or in use are errors.
func (o *Options) resolveAddresses() error {
	addresses := []struct {
		variable string
		address  *string
	}{
		{"EDGE", &o.Edge}, {"ENVOY_ADMIN", &o.EnvoyAdmin}, {"SIDECAR_ADMIN", &o.SidecarAdmin},
		{"UPSTREAM", &o.Upstream}, {"REDIS", &o.Redis},
	}
	if o.RedisURL != "" {
		addresses = addresses[:4]
	}
	owner := map[string]string{}
	for _, a := range addresses {
		address, err := resolveAddress(a.variable, *a.address)
		if err != nil {
			return err
		}
		if other, taken := owner[address]; taken {
			return fmt.Errorf("%w: %s and %s are both %s", ErrUsage, other, a.variable, address)
		}
		owner[address], *a.address = a.variable, address
		if err := freeport.Probe(address); err != nil {
			return &AddressError{Variable: a.variable, Address: address, Err: err}
		}
	}
	return nil
}

// Root returns the path of the repository: the nearest directory from here up with envoy/envoy.yaml.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find repository: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "envoy", "envoy.yaml")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find repository: no envoy/envoy.yaml in this directory or above it")
		}
		dir = parent
	}
}

// FindEnvoy returns the path of Envoy's binary: $ENVOY, otherwise the binary installed by scripts/install-envoy.sh.
func FindEnvoy() (string, error) {
	if path := os.Getenv("ENVOY"); path != "" {
		return path, nil
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	pattern := filepath.Join(root, ".venv", "lib", "python3.*", "site-packages", "envoy", "_bin", "envoy")
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("%w: no Envoy; set ENVOY to its binary, or run: scripts/install-envoy.sh", ErrUsage)
	}
	return found[0], nil
}

func orDefault[T ~string](value, fallback T) T {
	if value == "" {
		return fallback
	}
	return value
}
