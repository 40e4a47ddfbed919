package envoyconfig

import (
	"fmt"
	"strings"

	"github.com/gatehouse/gatehouse/check/topology"
	"github.com/gatehouse/gatehouse/internal/envoyrules"
)

// chain is a filter chain of a listener.
type chain struct {
	resources *resources

	listener object
	at       string // position within the listener
	match    object // the connections that the chain takes, nil if unknown
	manager  object // the HTTP connection manager, nil if absent
	filters  []object
	edge     *plugin // the plugin that judges the requests, nil if absent
	stored   []storedValue
}

// collectChains returns the filter chains of all listeners below v.
func (a *analysis) collectChains(v any) (all []chain) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			all = append(all, a.collectChains(item)...)
		}
	case map[string]any:
		o := object(v)
		if o.Has("filter_chains") || o.Has("default_filter_chain") {
			return a.listenerChains(o)
		}
		for _, key := range o.Keys() {
			if !envoyrules.IsSkipped(o, key) {
				all = append(all, a.collectChains(o[key])...)
			}
		}
	}
	return all
}

func (a *analysis) listenerChains(listener object) (all []chain) {
	add := func(at string, c, match object) {
		one := chain{resources: &a.resources, listener: listener, at: at, match: match, filters: c.List("filters")}
		for _, filter := range one.filters {
			if kind, inner := filter.Object("typed_config").Typed(); envoyrules.IsType(kind, envoyrules.ManagerType) {
				one.manager = inner
			}
		}
		one.edge = a.findEdge(one.manager)
		one.stored = a.storedByChain(&one)
		all = append(all, one)
	}
	for i, c := range listener.List("filter_chains") {
		match := c.Object("filter_chain_match")
		if listener.Has("filter_chain_matcher") { // Envoy ignores filter_chain_match
			match = nil
		}
		add(fmt.Sprintf("filter_chains[%d]", i), c, match)
	}
	if c := listener.Object("default_filter_chain"); c != nil {
		add("default_filter_chain", c, nil)
	}
	return all
}

// findEdge returns the plugin with rules in a connection manager.
func (a *analysis) findEdge(manager object) *plugin {
	for _, p := range a.plugins {
		if manager != nil && isSame(p.Manager, manager) && p.Rules != nil && !p.Rules.PushListener {
			return p
		}
	}
	return nil
}

func listenerReach(listener object) topology.Reach {
	if listener.Has("internal_listener") {
		return topology.ReachProxy
	}
	if !bindsPort(listener) && listener.Text("traffic_direction") == "OUTBOUND" {
		return topology.ReachMachine // a mesh's listener, for the programs of the same pod
	}
	most := addressReach(listener.Object("address"))
	for _, more := range listener.List("additional_addresses") {
		most = max(most, addressReach(more.Object("address")))
	}
	return most
}

// bindsPort reports whether a listener binds its own port.
func bindsPort(listener object) bool {
	return listener.Field("bind_to_port") != false && listener.Object("deprecated_v1").Field("bind_to_port") != false
}

func addressReach(address object) topology.Reach {
	if pipe := address.Object("pipe"); pipe != nil {
		if int(pipe.Number("mode", 0))&0o022 != 0 { // write permission on a socket is permission to connect
			return topology.ReachMachine
		}
		return topology.ReachUser
	}
	if topology.IsLoopback(address.Object("socket_address").Text("address")) {
		return topology.ReachMachine
	}
	return topology.ReachNetwork
}

// addressKey names an address, "" for none.
func addressKey(address object) string {
	if pipe := address.Object("pipe"); pipe != nil {
		return "unix:" + pipe.Text("path")
	}
	if internal := address.Object("envoy_internal_address"); internal != nil {
		return "listener " + internal.Text("server_listener_name")
	}
	socket := address.Object("socket_address")
	if socket == nil {
		return ""
	}
	port := fmt.Sprint(socket.Field("port_value"))
	host := socket.Text("address")
	if topology.IsLoopback(host) {
		host = "loopback"
	}
	return host + ":" + port
}

func (r *resources) clusterTargets(name string) (all topology.Targets) {
	return r.clusterTargetsWithin(name, 0)
}

func (r *resources) clusterTargetsWithin(name string, depth int) (all topology.Targets) {
	if name == "" || depth > 8 {
		return nil
	}
	all = append(all, "cluster "+name)
	cluster := r.clusters[name]
	if cluster.Text("type") == "EDS" {
		service := cluster.Object("eds_cluster_config").Text("service_name")
		if service == "" {
			service = name
		}
		all = append(all, "service "+service)
	}
	for _, locality := range cluster.Object("load_assignment").List("endpoints") {
		for _, endpoint := range locality.List("lb_endpoints") {
			if key := addressKey(endpoint.Object("endpoint").Object("address")); key != "" {
				all = append(all, key)
			}
		}
	}
	_, aggregate := cluster.Object("cluster_type").Object("typed_config").Typed()
	members, _ := aggregate.Field("clusters").([]any)
	for _, member := range members {
		switch member := member.(type) {
		case string: // a member of an aggregate
			all = append(all, r.clusterTargetsWithin(member, depth+1)...)
		case map[string]any: // a member of a composite
			all = append(all, r.clusterTargetsWithin(object(member).Text("name"), depth+1)...)
		}
	}
	return all
}

// clusterClientChoice describes how clients choose the address to which a cluster connects, "" if clients can't.
func (r *resources) clusterClientChoice(name string) string {
	cluster := r.clusters[name]
	kind := cluster.Object("cluster_type").Text("name")
	typed, _ := cluster.Object("cluster_type").Object("typed_config").Typed()
	switch {
	case cluster.Object("original_dst_lb_config").Flag("use_http_header"):
		return "by a header"
	case cluster.Object("original_dst_lb_config").Has("metadata_key"):
		return "by metadata, which a filter may take from a header"
	case strings.Contains(kind+typed, "dynamic_forward_proxy"):
		return "by the host that they name"
	}
	return ""
}

// networkTargets returns the targets of a network filter other than a connection manager.
func (r *resources) networkTargets(filter object) (all topology.Targets) {
	_, config := filter.Object("typed_config").Typed()
	return r.namedTargets(map[string]any(config))
}

// namedTargets returns the targets of the clusters that a configuration names.
func (r *resources) namedTargets(config any) (all topology.Targets) {
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				walk(item)
			}
		case map[string]any:
			o := object(v)
			all = append(all, r.clusterTargets(o.Text("cluster"))...)
			for _, cluster := range o.Object("weighted_clusters").List("clusters") {
				all = append(all, r.clusterTargets(cluster.Text("name"))...)
			}
			for _, key := range o.Keys() {
				if key != "access_log" {
					walk(o[key])
				}
			}
		}
	}
	walk(config)
	return all
}
