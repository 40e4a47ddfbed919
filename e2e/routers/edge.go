package routers

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// An edge is a whole Gatehouse with routers behind it.
type edge struct {
	*stack.Stack
	fallback string // value of default in its rules
	address  string // HOST:PORT
	address2 string // for HTTP/2, with prior knowledge
	routers  []string
}

// startEdge starts an edge with the given default. The configuration is the repository's envoy.yaml or nginx.conf with
// the test's rules, and with routes that match routerHeader. The filter's decisions don't depend on routerHeader.
func startEdge(ctx context.Context, opts stack.Options, fallback string, names []string,
	address map[string]string) (*edge, error) {
	opts.Name, opts.Dir = "routers-"+fallback, filepath.Join(opts.Dir, fallback)
	opts.Rules, opts.Seed = rulesOf(fallback), seedRedis
	opts.ModifyConfig = func(c *stack.Config) error {
		for _, name := range names {
			if err := addCluster(c, name, address[name]); err != nil {
				return err
			}
		}
		if err := setRoutes(c, names); err != nil {
			return err
		}
		// The delayed close of a connection that Envoy can't continue: no client waits for the close here.
		return c.Set("0.02s", append(manager, "delayed_close_timeout")...)
	}
	opts.ModifyNginx = func(config string) string { return routesOfNginx(config, names, address) }
	s, err := stack.Start(ctx, opts)
	if err != nil {
		return nil, err
	}
	e := &edge{Stack: s, fallback: fallback, address: strings.TrimPrefix(s.EdgeURL(), "http://"), routers: names}
	e.address2 = e.address
	if s.EdgeKind() == stack.NginxEdge {
		e.address2 = strings.Replace(e.address, "127.0.0.1:", "127.0.0.2:", 1)
	}
	return e, nil
}

// seedRedis registers the devices and publishes the objects.
func seedRedis(ctx context.Context, redisURL string) error {
	redis, err := redisurl.Connect(redisURL)
	if err != nil {
		return err
	}
	defer func() { _ = redis.Close() }()
	p := publish.New(redis)
	for _, who := range identities {
		if who.device == "" {
			continue
		}
		device := publish.Device{ID: who.id, Secret: who.secret, Permissions: who.permissions, Cost: 4}
		if _, err := p.PutDevice(ctx, device); err != nil {
			return fmt.Errorf("register %s: %w", who.name, err)
		}
	}
	for _, o := range published {
		object := publish.Object{Key: o.key, Body: []byte(o.tag + "\n"), ContentType: "text/plain", ETag: `"` + o.tag + `"`}
		if _, err := p.Put(ctx, object); err != nil {
			return fmt.Errorf("publish %s: %w", o.key, err)
		}
	}
	return nil
}

func addCluster(c *stack.Config, name, address string) error {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	clusters, err := c.Find("static_resources", "clusters")
	if err != nil {
		return err
	}
	endpoint := dict{"endpoint": dict{"address": dict{"socket_address": dict{"address": host, "port_value": port}}}}
	var cluster yaml.Node
	if err := cluster.Encode(dict{
		"name": name, "type": "STATIC", "connect_timeout": "1s",
		"load_assignment": dict{"cluster_name": name, "endpoints": []dict{{"lb_endpoints": []dict{endpoint}}}},
	}); err != nil {
		return err
	}
	clusters.Content = append(clusters.Content, &cluster)
	return nil
}

type dict = map[string]any

func setRoutes(c *stack.Config, names []string) error {
	routes := make([]dict, len(names))
	for i, name := range names {
		routes[i] = dict{
			"match": dict{"prefix": "/", "headers": []dict{{"name": routerHeader, "string_match": dict{"exact": name}}}},
			// Some servers close a connection when they can't parse a request, or after some time.
			"route": dict{"cluster": name, "timeout": "5s",
				"retry_policy": dict{"retry_on": "connect-failure,refused-stream,reset", "num_retries": 2}},
		}
	}
	return c.Set(routes, append(manager, "route_config", "virtual_hosts", "upstream", "routes")...)
}

// manager is the path of the edge's connection manager in envoy.yaml.
var manager = slices.Clip([]string{"static_resources", "listeners", "edge", "filter_chains",
	"0", "filters", "0", "typed_config"})

// nginxListen and nginxPass are the lines of nginx.conf that routesOfNginx changes.
var (
	nginxListen = regexp.MustCompile(`listen 127\.0\.0\.1(:[0-9]+) reuseport;`)
	nginxPass   = regexp.MustCompile(`proxy_pass http://service;`)
)

// routesOfNginx returns nginx.conf with the routers. A request in HTTP/0.9 has no headers: the first router gets it.
// nginx 1.22 has no listener for both HTTP/1 and HTTP/2 with prior knowledge, so HTTP/2 has its own address.
func routesOfNginx(config string, names []string, address map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  map $%s $router {\n    \"\" %s;\n", "http_"+strings.ReplaceAll(routerHeader, "-", "_"), names[0])
	for _, name := range names {
		fmt.Fprintf(&b, "    %[1]s %[1]s;\n", name)
	}
	b.WriteString("  }\n")
	for _, name := range names {
		fmt.Fprintf(&b, "  upstream %s { server %s max_fails=0; keepalive 16; }\n", name, address[name])
	}
	// The time in which the router sent a header: "-" for each attempt without a header.
	b.WriteString("  map $upstream_header_time $by_router { default $upstream_header_time; ~^[-,:\\s]*$ \"\"; }\n")
	config = strings.Replace(config, "  upstream service {", b.String()+"  upstream service {", 1)
	config = nginxListen.ReplaceAllString(config,
		"$0 listen 127.0.0.2$1 http2 reuseport;\n    keepalive_requests 1000000;\n    add_header "+
			upstreamHeader+" $$by_router always;")
	// Some servers close a connection when they can't parse a request, or after some time.
	return nginxPass.ReplaceAllString(config,
		"proxy_pass http://$$router; proxy_next_upstream error timeout non_idempotent;")
}
