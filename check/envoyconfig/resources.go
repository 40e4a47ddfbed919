package envoyconfig

import (
	"reflect"

	"github.com/gatehouse/gatehouse/internal/envoyrules"
)

// object is a protobuf message.
type object = envoyrules.Object

// isSame reports whether two objects are the same object of the file.
func isSame(a, b object) bool {
	return a != nil && b != nil && reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// resources are the objects that listeners refer to by name.
type resources struct {
	clusters map[string]object
	// complete: the file has all clusters and listeners.
	complete bool
	routes   map[string]object
	admin    object // the admin address, nil if absent
}

// collectResources finds the resources of a file.
func (r *resources) collectResources(tree any) {
	r.clusters, r.routes = map[string]object{}, map[string]object{}
	m, _ := tree.(map[string]any)
	bootstrap := object(m)
	dynamic := bootstrap.Object("dynamic_resources")
	r.admin = bootstrap.Object("admin").Object("address")
	r.complete = bootstrap.Has("static_resources") && !dynamic.Has("cds_config") && !dynamic.Has("lds_config") &&
		!dynamic.Has("ads_config")
	for _, cluster := range bootstrap.Object("static_resources").List("clusters") {
		r.clusters[cluster.Text("name")] = cluster
	}
	for _, dump := range bootstrap.List("configs") {
		r.complete = true // a dump of a running Envoy
		if admin := dump.Object("bootstrap").Object("admin"); admin != nil {
			r.admin = admin.Object("address")
		}
		r.addDump(dump)
	}
}

func (r *resources) addDump(dump object) {
	for _, kind := range []string{"static_clusters", "dynamic_active_clusters"} {
		for _, item := range dump.List(kind) {
			cluster := item.Object("cluster")
			r.clusters[cluster.Text("name")] = cluster
		}
	}
	for _, kind := range []string{"static_route_configs", "dynamic_route_configs"} {
		for _, item := range dump.List(kind) {
			route := item.Object("route_config")
			r.routes[route.Text("name")] = route
		}
	}
}

// routeConfigs returns the known route configurations of a connection manager; unseen is the name of an unknown one.
func (r *resources) routeConfigs(manager object) (all []object, unseen string) {
	scopes := manager.Object("scoped_routes")
	if scopes.Has("scoped_rds") {
		unseen = scopes.Text("name")
	}
	scoped := scopes.Object("scoped_route_configurations_list").List("scoped_route_configurations")
	for _, from := range append([]object{manager}, scoped...) {
		inline := from.Object("route_config")
		if from.Has("route_configuration") {
			inline = from.Object("route_configuration")
		}
		if inline == nil {
			name := from.Object("rds").Text("route_config_name") + from.Text("route_configuration_name")
			if inline = r.routes[name]; inline == nil && name != "" {
				unseen = name
			}
		}
		if inline != nil {
			all = append(all, inline)
		}
	}
	return all, unseen
}
