//go:build linux

package peers

import (
	"bytes"
	_ "embed"
	"fmt"
	"net"
	"strings"
	"text/template"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

//go:embed envoy.yaml.tmpl
var listenerYAML string

var listenerTemplate = template.Must(template.New("listener").Parse(listenerYAML))

// Listener is an Envoy listener without Gatehouse, otherwise configured like the edge.
type Listener struct {
	Name    string
	Address string // host:port
	// Upstream is the address that requests are routed to; empty: a direct_response answers.
	Upstream string
	// Auth is the ext_authz service; empty: none.
	Auth string
}

// URL returns the listener's URL.
func (l Listener) URL() string { return "http://" + l.Address }

// AddListeners adds listeners and their clusters to an Envoy's configuration.
func AddListeners(c *stack.Config, listeners []Listener) error {
	all, err := c.Find("static_resources", "listeners")
	if err != nil {
		return err
	}
	clusters, err := c.Find("static_resources", "clusters")
	if err != nil {
		return err
	}
	added := map[string]bool{}
	for _, l := range listeners {
		node, err := l.yamlNode()
		if err != nil {
			return err
		}
		all.Content = append(all.Content, node)
		for _, address := range []string{l.Upstream, l.Auth} {
			if address == "" || added[address] {
				continue
			}
			added[address] = true
			if node, err = clusterNode(address); err != nil {
				return err
			}
			clusters.Content = append(clusters.Content, node)
		}
	}
	return nil
}

func (l Listener) yamlNode() (*yaml.Node, error) {
	host, port, err := net.SplitHostPort(l.Address)
	if err != nil {
		return nil, fmt.Errorf("listener %s: %w", l.Name, err)
	}
	var text bytes.Buffer
	err = listenerTemplate.Execute(&text, map[string]any{
		"Listener": l, "Host": host, "Port": port, "Public48K": workload.Public48K,
		"KiB": strings.Repeat("x", 1<<10), "KiB48": strings.Repeat("x", 48<<10),
	})
	if err != nil {
		return nil, fmt.Errorf("listener %s: %w", l.Name, err)
	}
	return parseYAML(text.Bytes())
}

// clusterNode returns a cluster with a single address, which is also the cluster's name.
func clusterNode(address string) (*yaml.Node, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	return parseYAML(fmt.Appendf(nil, `{name: "%s", type: STATIC, connect_timeout: 1s,
  circuit_breakers: {thresholds: [{max_connections: 4096, max_pending_requests: 4096, max_requests: 4096}]},
  load_assignment: {cluster_name: "%s", endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %s, port_value: %s}}}}]}]}}`,
		address, address, host, port))
}

// AnswerUnmatchedDirectly makes the edge answer requests that match no rule by a direct_response, so that Gatehouse is
// the only cost of an unmatched request.
func AnswerUnmatchedDirectly(c *stack.Config) error {
	edge, err := c.Find("static_resources", "listeners", "edge")
	if err != nil {
		return err
	}
	routes, err := parseYAML([]byte(`[{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: "` +
		strings.Repeat("x", 1<<10) + `"}}}]`))
	if err != nil {
		return err
	}
	if !replaceRoutes(edge, routes) {
		return fmt.Errorf("the edge listener has no routes")
	}
	return nil
}

// replaceRoutes replaces the routes under node.
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

func parseYAML(text []byte) (*yaml.Node, error) {
	var node yaml.Node
	if err := yaml.Unmarshal(text, &node); err != nil {
		return nil, err
	}
	return node.Content[0], nil
}
