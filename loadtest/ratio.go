package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/e2e/stack"
	"github.com/gatehouse/gatehouse/sidecar/publish"
)

// reference is a listener that answers 1 KiB by direct_response: the least that an answer
// of Envoy's costs.
const reference = `
name: reference
address: {socket_address: {address: 127.0.0.1, port_value: %d}}
filter_chains:
- filters:
  - name: envoy.filters.network.http_connection_manager
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: reference
      http_filters:
      - name: envoy.filters.http.router
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
      route_config:
        virtual_hosts:
        - {name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: "%s"}}}]}
      normalize_path: true
      merge_slashes: true
      path_with_escaped_slashes_action: REJECT_REQUEST
      common_http_protocol_options: {headers_with_underscores_action: REJECT_REQUEST}
      use_remote_address: true
`

// workload is what wrk asks of the edge.
type workload struct {
	name    string
	path    string
	headers []string
}

const (
	benchDevice = "bench-device"
	benchSecret = "bench-secret-of-32-characters-ab"
	slice       = time.Second
	wrkConns    = 32
)

// workloads are those of the table in README; all carry what a device sends.
func workloads(etag string) []workload {
	device := []string{"User-Agent: device/1.0", "Accept: application/json", "x-device-id: " + benchDevice, "x-device-token: " + benchSecret}
	conditional := append(slices.Clone(device), "If-None-Match: "+etag)
	return []workload{
		{"pass to direct_response", "/none", device},
		{"304", "/v1/products/1", conditional},
		{"auth + 304", "/v1/private/1", conditional},
		{"200, 1 KiB", "/v1/products/1", device},
		{"auth + 200, 1 KiB", "/v1/private/1", device},
		{"200, 48 KiB", "/v1/products/2", device},
	}
}

// ratio measures Envoy's CPU per request against the reference, in turn, slice by slice.
func ratio(ctx context.Context, o *options, out io.Writer) (err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		return err
	}
	b, err := start(ctx, stack.Options{
		Name: "ratio", Concurrency: 1,
		Rules: `{credentials: {id_header: x-device-id, secret_header: x-device-token}, rules: [
			{match: {prefix: /v1/private/}, auth: {permissions: [read]}, cache: {}}, {match: {prefix: /v1/}, cache: {}}]}`,
		ModifyConfig: func(c *stack.Config) error { return addReference(c, port) },
	}, seedRatio)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()

	fmt.Fprintf(out, "ratio: Envoy's CPU per request against direct_response of 1 KiB; 1 worker, wrk -t1 -c%d, %d pairs of slices of %s, median (min – max)\n", wrkConns, o.Pairs, slice)
	ref := workload{"direct_response", "/", workloads("")[0].headers}
	for _, w := range workloads(publish.ETag(ratioBody(1 << 10))) {
		if _, err := b.slice(ctx, b.EdgeURL(), w); err != nil { // V8 compiles what is hot while it runs
			return err
		}
		var ratios, subject, base []float64
		for range o.Pairs {
			s, err := b.slice(ctx, b.EdgeURL(), w)
			if err != nil {
				return err
			}
			r, err := b.slice(ctx, fmt.Sprint("http://127.0.0.1:", port), ref)
			if err != nil {
				return err
			}
			ratios, subject, base = append(ratios, s/r), append(subject, s), append(base, r)
		}
		slices.Sort(ratios)
		fmt.Fprintf(out, "%-24s %.2f (%.2f – %.2f)   %.1f µs, direct_response %.1f µs\n", w.name,
			median(ratios), ratios[0], ratios[len(ratios)-1], median(subject), median(base))
	}
	return nil
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// addReference adds the reference, and makes what no rule matches a direct_response, too.
func addReference(c *stack.Config, port int) error {
	listeners, err := c.Find("static_resources", "listeners")
	if err != nil {
		return err
	}
	var node yaml.Node
	if err := yaml.Unmarshal(fmt.Appendf(nil, reference, port, strings.Repeat("x", 1024)), &node); err != nil {
		return err
	}
	listeners.Content = append(listeners.Content, node.Content[0])
	var routes yaml.Node
	if err := yaml.Unmarshal([]byte(`[{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: "`+strings.Repeat("x", 1024)+`"}}}]`), &routes); err != nil {
		return err
	}
	edge, err := c.Find("static_resources", "listeners", "edge")
	if err != nil {
		return err
	}
	if !replaceRoutes(edge, routes.Content[0]) {
		return errors.New("the edge listener has no routes")
	}
	return nil
}

// replaceRoutes puts routes in place of those under node.
func replaceRoutes(node, routes *yaml.Node) bool {
	for i, child := range node.Content {
		if node.Kind == yaml.MappingNode && i%2 == 0 && child.Value == "routes" {
			node.Content[i+1] = routes
			return true
		}
		if replaceRoutes(child, routes) {
			return true
		}
	}
	return false
}

func ratioBody(n int) []byte { return bytes.Repeat([]byte("0123456789abcdef"), n/16) }

func seedRatio(ctx context.Context, p *publish.Publisher) error {
	for key, n := range map[string]int{"/v1/products/1": 1 << 10, "/v1/private/1": 1 << 10, "/v1/products/2": 48 << 10} {
		if err := put(ctx, p, key, ratioBody(n)); err != nil {
			return err
		}
	}
	_, err := p.PutDevice(ctx, publish.Device{ID: benchDevice, Secret: benchSecret, Permissions: []string{"read"}, Cost: 4})
	return err
}

// slice loads url for a while and is Envoy's CPU per request, µs.
func (b *bench) slice(ctx context.Context, url string, w workload) (float64, error) {
	args := []string{"-t1", "-c" + strconv.Itoa(wrkConns), "-d" + slice.String()}
	for _, h := range w.headers {
		args = append(args, "-H", h)
	}
	before, err := cpu(b.EnvoyPID())
	if err != nil {
		return 0, err
	}
	text, err := exec.CommandContext(ctx, "wrk", append(args, url+w.path)...).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("wrk: %w: %s", err, text)
	}
	after, err := cpu(b.EnvoyPID())
	if err != nil {
		return 0, err
	}
	if strings.Contains(string(text), "Non-2xx") || strings.Contains(string(text), "Socket errors") {
		return 0, fmt.Errorf("wrk saw errors: %s", text)
	}
	_, rest, found := strings.Cut(string(text), "Latency")
	if !found {
		return 0, fmt.Errorf("wrk printed %q", text)
	}
	for line := range strings.Lines(rest) {
		if count, _, found := strings.Cut(line, " requests in "); found {
			n, err := strconv.ParseFloat(strings.TrimSpace(count), 64)
			return (after - before).Seconds() * 1e6 / n, err
		}
	}
	return 0, fmt.Errorf("wrk printed %q", text)
}

// cpu is the time that a process has used so far (proc(5), fields 14 and 15 of stat, in
// clock ticks of 10 ms).
func cpu(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks time.Duration
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, err
		}
		ticks += time.Duration(n)
	}
	return ticks * 10 * time.Millisecond, nil
}
