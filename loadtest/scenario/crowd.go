//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/e2e/stack"
	"github.com/gatehouse/gatehouse/loadtest/proc"
	"github.com/gatehouse/gatehouse/sidecar/publish"
)

// Clients that come at once, and what Envoy may have: its own descriptors are some 70.
const (
	limitClients     = 300
	limitDescriptors = 200
	limitConnections = 100
)

// tuneLimits has more clients than Envoy has descriptors, and then more than its own limit
// of connections allows.
func tuneLimits(ctx context.Context, _ *Options, out *Recorder) error {
	for _, test := range []struct {
		name                     string
		descriptors, connections int
	}{
		{fmt.Sprintf("ulimit -n %d", limitDescriptors), limitDescriptors, 50_000},
		{fmt.Sprintf("max_active_downstream_connections %d", limitConnections), 0, limitConnections},
	} {
		out.doing("%s", test.name)
		if err := limited(ctx, test.name, test.descriptors, test.connections, out); err != nil {
			return fmt.Errorf("%s: %w", test.name, err)
		}
	}
	return nil
}

// limited starts an Envoy with limits, 0 for none of descriptors, and has clients come.
func limited(ctx context.Context, name string, descriptors, connections int, out *Recorder) (err error) {
	dir, err := os.MkdirTemp("", "gatehouse-loadtest-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	envoy, err := envoyWith(dir, descriptors)
	if err != nil {
		return err
	}
	b, err := start(ctx, stack.Options{Name: "limits", Concurrency: 1, Rules: worldRules, EnvoyPath: envoy, ModifyConfig: func(c *stack.Config) error {
		return c.Set(connections, "overload_manager", "resource_monitors", "envoy.resource_monitors.global_downstream_max_connections", "typed_config", "max_active_downstream_connections")
	}}, func(ctx context.Context, p *publish.Publisher) error { return seedSingles(ctx, p, 4) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	before, err := proc.Read(b.servers())
	if err != nil {
		return err
	}
	answered, closed, silent := b.crowd(ctx)
	after, err := proc.Read(b.servers())
	if err != nil {
		return err
	}
	used := after.Since(before)
	if err := wait(ctx, 500*time.Millisecond); err != nil { // until Envoy sees that clients have gone
		return err
	}
	counted, err := fetch(ctx, b.EnvoyAdminURL()+"/stats?filter=^listener.*overflow$&usedonly")
	if err != nil {
		return err
	}
	log, err := os.ReadFile(filepath.Join(b.Dir(), "envoy.log"))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "tuning: %s, %d clients at once: %d answered, %d closed without an answer, %d waited 2 s for either; Envoy used %.2f cores meanwhile; its statistics say %q, its log %q\n",
		name, limitClients, answered, closed, silent, used.CPU["envoy"]/used.Seconds, strings.Join(strings.Fields(counted), " "), strings.Join(refusals(string(log)), "; "))
	return nil
}

// envoyWith is the path of an Envoy that may have so many descriptors, 0 for as many as this
// process.
func envoyWith(dir string, descriptors int) (string, error) {
	envoy, err := stack.FindEnvoy()
	if err != nil || descriptors == 0 {
		return envoy, err
	}
	path := filepath.Join(dir, "envoy")
	script := fmt.Sprintf("#!/bin/sh\nulimit -n %d\nexec '%s' \"$@\"\n", descriptors, envoy)
	return path, os.WriteFile(path, []byte(script), 0o700)
}

// refusals are the lines of Envoy's log that speak of connections or descriptors.
func refusals(log string) (lines []string) {
	for line := range strings.Lines(log) {
		if lower := strings.ToLower(line); strings.Contains(lower, "open files") || strings.Contains(lower, "accept") || strings.Contains(lower, "connection") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// crowd has clients come, ask, and stay, and counts what became of them.
func (b *bench) crowd(ctx context.Context) (answered, closed, silent int) {
	request := authorized().Requests(strings.TrimPrefix(b.EdgeURL(), "http://"))[0]
	outcomes := make(chan int, limitClients)
	var open []*conn
	for range limitClients {
		c, err := dial(ctx, b.EdgeURL())
		if err != nil {
			outcomes <- 1
			continue
		}
		open = append(open, c)
		go func() {
			_ = c.SetDeadline(time.Now().Add(2 * time.Second))
			status, err := c.send(request)
			switch {
			case err == nil && status == authorized().Status:
				outcomes <- 0
			case errors.Is(err, os.ErrDeadlineExceeded):
				outcomes <- 2
			default:
				outcomes <- 1
			}
		}()
	}
	var counts [3]int
	for range limitClients {
		counts[<-outcomes]++
	}
	for _, c := range open {
		c.close()
	}
	return counts[0], counts[1], counts[2]
}
