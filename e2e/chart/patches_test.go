//go:build linux

package chart

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

const (
	// gatewayListener is Envoy Gateway's name for a listener of Gateway default/eg.
	gatewayListener = "default/eg/http"
	routerFilter    = "envoy.filters.http.router"
)

// object is a mapping in YAML.
type object = map[string]any

type manifest object

func parseManifests(t *testing.T, text string) (manifests []manifest) {
	t.Helper()
	decoder := yaml.NewDecoder(strings.NewReader(text))
	for {
		var m object
		err := decoder.Decode(&m)
		if errors.Is(err, io.EOF) {
			return manifests
		}
		require.NoError(t, err)
		manifests = append(manifests, m)
	}
}

func (m manifest) name() string { return m.mappingAt("metadata")["name"].(string) }

func (m manifest) mappingAt(path ...string) object {
	o := object(m)
	for _, step := range path {
		o = o[step].(object)
	}
	return o
}

// envoyConfig is an Envoy configuration with one HTTP listener, as a mesh makes it.
type envoyConfig struct {
	listeners, clusters []any
	filters             []any  // of the edge listener's HTTP connection manager
	route               object // to the upstream
	routes              object // the route configuration without its virtual hosts
	manager             object // other settings of the HTTP connection manager
}

func newEnvoyConfig() *envoyConfig {
	return &envoyConfig{
		clusters: []any{object{"name": "upstream", "type": "STATIC", "load_assignment": object{
			"cluster_name": "upstream", "endpoints": []any{object{"lb_endpoints": []any{object{"endpoint": object{
				"address": socketAddress("127.0.0.1", 8081)}}}}},
		}}},
		filters: []any{object{"name": routerFilter,
			"typed_config": withTypeURL("extensions.filters.http.router.v3.Router", object{})}},
		route:   object{"match": object{"prefix": "/"}, "route": object{"cluster": "upstream"}},
		routes:  object{"name": "edge"},
		manager: object{},
	}
}

func socketAddress(host string, port int) object {
	return object{"socket_address": object{"address": host, "port_value": port}}
}

// withTypeURL adds the type URL of an Envoy message.
func withTypeURL(message string, fields object) object {
	fields["@type"] = "type.googleapis.com/envoy." + message
	return fields
}

func (c *envoyConfig) marshal(t *testing.T) []byte {
	t.Helper()
	c.routes["virtual_hosts"] = []any{object{"name": "all", "domains": []any{"*"}, "routes": []any{c.route}}}
	manager := withTypeURL("extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", object{
		"stat_prefix": "edge", "http_filters": c.filters, "route_config": c.routes,
	})
	maps.Copy(manager, c.manager)
	edge := object{"name": "edge", "address": socketAddress("127.0.0.1", 8080), "filter_chains": []any{
		object{"filters": []any{object{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}}},
	}}
	text, err := yaml.Marshal(object{
		"static_resources": object{"listeners": append([]any{edge}, c.listeners...), "clusters": c.clusters},
		"admin":            object{"address": socketAddress("127.0.0.1", 9901)},
	})
	require.NoError(t, err)
	return text
}

// patchAsIstio applies the patches of an EnvoyFilter.
func patchAsIstio(t *testing.T, c *envoyConfig, manifests []manifest) {
	for _, m := range manifests {
		if m["kind"] != "EnvoyFilter" {
			continue
		}
		for _, p := range m.mappingAt("spec")["configPatches"].([]any) {
			patch := manifest(p.(object))
			value, operation := patch.mappingAt("patch")["value"], patch.mappingAt("patch")["operation"]
			switch to := fmt.Sprint(patch["applyTo"], " ", operation); to {
			case "CLUSTER ADD":
				c.clusters = append(c.clusters, value)
			case "LISTENER ADD":
				c.listeners = append(c.listeners, value)
			case "HTTP_FILTER INSERT_BEFORE":
				before := patch.mappingAt("match", "listener", "filterChain", "filter", "subFilter")["name"]
				i := slices.IndexFunc(c.filters, func(f any) bool { return f.(object)["name"] == before })
				if i < 0 {
					t.Fatalf("no filter %v to insert before", before)
				}
				c.filters = slices.Insert(c.filters, i, value)
			case "NETWORK_FILTER MERGE":
				switch name := patch.mappingAt("match", "listener", "filterChain", "filter")["name"]; name {
				case "envoy.filters.network.http_connection_manager":
					maps.Copy(c.manager, manifest(value.(object)).mappingAt("typed_config")) // it has none of these fields yet
				case "envoy.filters.network.tcp_proxy": // it has none
				default:
					t.Fatalf("no network filter %v to merge with", name)
				}
			case "ROUTE_CONFIGURATION MERGE":
				maps.Copy(c.routes, value.(object)) // it has none of these fields yet
			default:
				t.Fatalf("patch %s: this test can't apply it", to)
			}
		}
	}
}

// patchAsEnvoyGateway makes a filter from an EnvoyExtensionPolicy, as Envoy Gateway's translator does, and applies the
// patches of an EnvoyPatchPolicy.
func patchAsEnvoyGateway(t *testing.T, c *envoyConfig, manifests []manifest) {
	for _, m := range manifests {
		if m["kind"] != "EnvoyExtensionPolicy" {
			continue
		}
		wasm := manifest(m.mappingAt("spec")["wasm"].([]any)[0].(object))
		configuration, err := json.Marshal(wasm["config"])
		require.NoError(t, err)
		module, err := filepath.Abs("../../build/images/module/plugin.wasm")
		require.NoError(t, err)
		id := "envoyextensionpolicy/" + meshNamespace + "/" + m.name() + "/wasm/0"
		name := "envoy.filters.http.wasm/" + id
		filter := withTypeURL("extensions.filters.http.wasm.v3.Wasm", object{"config": object{
			"name":          wasm["name"],
			"configuration": object{"@type": "type.googleapis.com/google.protobuf.StringValue", "value": string(configuration)},
			"vm_config": object{"vm_id": id, "runtime": "envoy.wasm.runtime.v8",
				"code": object{"local": object{"filename": module}}}, // there, fetched over HTTP
			"fail_open": wasm["failOpen"],
		}})
		c.filters = slices.Insert(c.filters, 0, any(object{"name": name, "disabled": true, "typed_config": filter}))
		c.route["typed_per_filter_config"] = object{
			name: withTypeURL("config.route.v3.FilterConfig", object{"config": object{}})}
	}
	for _, m := range manifests {
		if m["kind"] != "EnvoyPatchPolicy" {
			continue
		}
		for _, p := range m.mappingAt("spec")["jsonPatches"].([]any) {
			c.jsonPatch(t, p.(object))
		}
	}
}

// jsonPatch applies the kinds of patches in the chart: a patch adds a whole resource, or a field of the edge listener's
// filter of a name, of the connection manager, or of the route configuration.
func (c *envoyConfig) jsonPatch(t *testing.T, patch object) {
	t.Helper()
	operation := patch["operation"].(object)
	kind, path := patch["type"], operation["path"]
	switch {
	case operation["op"] != "add":
		t.Fatalf("patch %v: this test can't apply it", patch)
	case path == "" && kind == "type.googleapis.com/envoy.config.cluster.v3.Cluster":
		c.clusters = append(c.clusters, operation["value"])
	case path == "" && kind == "type.googleapis.com/envoy.config.listener.v3.Listener":
		c.listeners = append(c.listeners, operation["value"])
	case patch["name"] == gatewayListener && kind == "type.googleapis.com/envoy.config.route.v3.RouteConfiguration" &&
		operation["jsonPath"] == nil:
		c.routes[strings.TrimPrefix(path.(string), "/")] = operation["value"]
	case patch["name"] == gatewayListener &&
		operation["jsonPath"] ==
			"..filters[?(@.name=='envoy.filters.network.http_connection_manager')].typed_config.http_filters" && path == "/0":
		c.filters = slices.Insert(c.filters, 0, operation["value"])
	case patch["name"] == gatewayListener && path == "/disabled": // of a filter that the listener has, since it has ours
		i := slices.IndexFunc(c.filters, func(f any) bool { return f.(object)["name"] == "gatehouse-listener-guard" })
		c.filters[i].(object)["disabled"] = operation["value"]
	case patch["name"] == gatewayListener && strings.HasPrefix(fmt.Sprint(operation["jsonPath"]), "..routes["):
		c.route["typed_per_filter_config"].(object)[strings.TrimPrefix(path.(string), "/")] = operation["value"]
	case patch["name"] == gatewayListener &&
		operation["jsonPath"] == "..filters[?(@.name=='envoy.filters.network.http_connection_manager')].typed_config":
		c.manager[strings.TrimPrefix(path.(string), "/")] = operation["value"]
	case patch["name"] == gatewayListener:
		for _, f := range c.filters {
			filter := manifest(f.(object))
			within, ok := strings.CutPrefix(operation["jsonPath"].(string),
				fmt.Sprintf("..http_filters[?(@.name=='%s')].", filter["name"]))
			if ok {
				filter.mappingAt(strings.Split(within, ".")...)[strings.TrimPrefix(path.(string), "/")] = operation["value"]
				return
			}
		}
		t.Fatalf("patch %v: the listener has no such filter", patch)
	default:
		t.Fatalf("patch %v: this test can't apply it", patch)
	}
}

// checkServing runs Envoy with the configuration in the mode, and the image's sidecar beside Envoy, and requests an
// object.
func (m mesh) checkServing(t *testing.T) {
	values := []string{"--values", "testdata/values.yaml", "--set", "mode=" + m.mode,
		"--set", "redis.url=redis://127.0.0.1"}
	config := newEnvoyConfig()
	m.patch(t, config, parseManifests(t, m.renderChart(t, append(values, m.values...)...)))
	path := filepath.Join(t.TempDir(), "envoy.yaml")
	require.NoError(t, os.WriteFile(path, config.marshal(t), 0o600))
	server, err := exec.LookPath("redis-server")
	require.NoError(t, err)
	const files = "../../build/images"
	s, err := stack.Start(t.Context(), stack.Options{
		Name: "mesh", Dir: t.TempDir(), RedisServerPath: server, ConfigPath: path, EnvoyPath: files +
			"/envoy/usr/local/bin/envoy",
		SidecarPath: files + "/sidecar/usr/local/bin/gatehouse-sidecar", WasmPath: files + "/sidecar/plugin.wasm",
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	client, err := redisurl.Connect(s.RedisURL())
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	object := publish.Object{Key: "/products/1", Body: []byte(body), ContentType: "application/json"}
	if _, err := publish.New(client).Put(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	await(t, "the object is at the edge", func() error {
		answer, err := http.Get(s.EdgeURL() + "/products/1")
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(answer.Body)
		if err != nil || !isHit(answer) || string(text) != body {
			return fmt.Errorf("got %s, Cache-Status %q, %q, %w", answer.Status, answer.Header.Get("Cache-Status"), text, err)
		}
		return nil
	})
	miss, err := http.Get(s.EdgeURL() + "/products/none")
	require.NoError(t, err)
	_ = miss.Body.Close()
	if got := miss.Header.Values("Cache-Status"); !slices.Equal(got, []string{"gatehouse; fwd=uri-miss"}) {
		t.Errorf("an object that isn't there: got Cache-Status %q, want a miss", got)
	}
}
