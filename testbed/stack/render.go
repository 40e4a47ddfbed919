package stack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Paths in production's envoy.yaml that a stack replaces.
const (
	productionWasm       = "/etc/gatehouse/gatehouse.wasm"
	productionLibrary    = "/usr/lib/gatehouse/libgatehouse.so"
	productionPushSocket = "/run/gatehouse/push.sock"
	productionAPISocket  = "/run/gatehouse/api.sock"
)

// maxSocketPath is the longest path of a unix socket in bytes, without the final NUL (sun_path of sockaddr_un on Linux
// has 108).
const maxSocketPath = 107

// render writes the stack's envoy.yaml, which can also be run by hand beside the rest of the stack.
func (s *Stack) render() error {
	config, err := LoadConfig(s.opts.ConfigPath)
	if err != nil {
		return err
	}
	native := config.isNative() // before ModifyConfig, which may add modules
	steps := []func() error{
		func() error { return config.SetAddress(s.opts.Edge, "static_resources", "listeners", "edge") },
		func() error {
			return config.SetAddress(s.opts.Upstream, "static_resources", "clusters", "upstream",
				"load_assignment", "endpoints", "0", "lb_endpoints", "0", "endpoint")
		},
		func() error { return config.SetAddress(s.opts.EnvoyAdmin, "admin") },
		func() error { return s.setModule(config, native) },
		func() error { return config.Replace(productionPushSocket, s.PushSocket()) },
		func() error { return config.Replace(productionAPISocket, s.APISocket()) },
		func() error {
			if s.opts.Rules == "" {
				return nil
			}
			return config.SetRules(s.opts.Rules)
		},
		func() error {
			if s.opts.ModifyConfig == nil {
				return nil
			}
			return s.opts.ModifyConfig(config)
		},
		func() error {
			if s.opts.Binding == "plugins" {
				config.MoveRules()
			}
			return nil
		},
		func() error {
			if s.opts.EdgeKind == NativeEdge && !native {
				return config.MakeNative(s.opts.LibraryPath)
			}
			return nil
		},
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("render %s: %w", s.opts.ConfigPath, err)
		}
	}
	text, err := config.Bytes()
	if err != nil {
		return err
	}
	note := fmt.Sprintf("# Stack %s: made from %s at every start, so edits here are lost.\n\n",
		s.opts.Name, filepath.Base(s.opts.ConfigPath))
	if err := os.WriteFile(s.ConfigPath(), append([]byte(note), text...), 0o600); err != nil {
		return fmt.Errorf("write Envoy configuration: %w", err)
	}
	return nil
}

// setModule sets the files of the stack's filters, in a configuration like envoy.yaml, or like envoy-native.yaml if
// native.
func (s *Stack) setModule(config *Config, native bool) error {
	switch {
	case !native:
		return config.Replace(productionWasm, s.opts.WasmPath)
	case s.opts.EdgeKind != NativeEdge:
		return errors.New("it has the dynamic module: want EDGE_KIND=native")
	}
	return config.Replace(productionLibrary, s.opts.LibraryPath)
}

// makeDirs makes the stack's directory, removes old logs, and makes the directory of the sockets. Both directories are
// the same unless a socket's path would be too long; the sockets then have a directory of their own, which Stop
// removes. Both have mode 0700, to protect the push socket, too, between its creation and its chmod.
func (s *Stack) makeDirs() error {
	if err := os.MkdirAll(s.opts.Dir, 0o700); err != nil {
		return fmt.Errorf("make directory of stack %s: %w", s.opts.Name, err)
	}
	if err := os.Chmod(s.opts.Dir, 0o700); err != nil {
		return fmt.Errorf("protect directory of stack %s: %w", s.opts.Name, err)
	}
	for _, log := range []string{"envoy.log", "nginx.log", "sidecar.log", "redis.log"} { // of an earlier run
		if err := os.Remove(s.path(log)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove old log of stack %s: %w", s.opts.Name, err)
		}
	}
	if s.opts.EdgesDir != "" {
		s.sockets, s.ownSockets = filepath.Join(s.opts.EdgesDir, s.opts.Name), true
		if err := os.MkdirAll(s.sockets, 0o700); err != nil {
			return fmt.Errorf("make directory for sockets: %w", err)
		}
		return nil
	}
	s.sockets = s.opts.Dir
	if len(s.PushSocket()) <= maxSocketPath {
		return nil
	}
	dir, err := os.MkdirTemp("/tmp", "gatehouse-")
	if err != nil {
		return fmt.Errorf("make directory for sockets: %w", err)
	}
	s.sockets, s.ownSockets = dir, true
	return nil
}
