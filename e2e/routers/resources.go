package routers

import "slices"

// A resource is served by every router under some paths and methods. A resource with a permission is protected: only a
// device with the permission may reach it.
type resource struct {
	name       string
	permission string
	method     string // one by which it is reached
	path       string // a path by which it is reached
}

const (
	readConfig     = "config.read"
	writeTelemetry = "telemetry.write"
	admin          = "admin"
)

// resources are the same in all routers: see apps and newGoRouters.
var resources = []resource{
	{"telemetry", writeTelemetry, "POST", "/v1/telemetry"},
	{"telemetry", writeTelemetry, "POST", "/v1/telemetry/room"},
	{"fleet-config", readConfig, "GET", "/v1/fleet/config"},
	{"me-config", readConfig, "GET", "/v1/me/config"},
	{"users", admin, "GET", "/v1/admin/users"},
	{"users", admin, "POST", "/v1/admin/users/7"},
	{"device", admin, "PUT", "/v1/devices/7"},
	{"device", admin, "DELETE", "/v1/devices/7"},

	{"telemetry-read", "", "GET", "/v1/telemetry"},
	{"telemetry-read", "", "GET", "/v1/telemetry/room"},
	{"products", "", "GET", "/v1/products/42"},
	{"health", "", "GET", "/v1/admin/health"},
	{"device-read", "", "GET", "/v1/devices/7"},
	{"files", "", "GET", "/files/a"},
}

// protected are the resources that need a permission.
var protected = slices.DeleteFunc(slices.Clone(resources), func(r resource) bool { return r.permission == "" })

// findResource returns the resource of a name, the first of several.
func findResource(name string) (resource, bool) {
	i := slices.IndexFunc(resources, func(r resource) bool { return r.name == name })
	if i < 0 {
		return resource{}, false
	}
	return resources[i], true
}

// rules are the edge's rules for the resources: exact paths and prefixes, with and without methods, open rules before
// protected rules, three permissions, all kinds of cache.
const rules = `
sidecar: {cluster: gatehouse-sidecar, timeout: 2s}
credentials: {id_header: x-device-id, secret_header: x-device-token}
max_staleness: 30s
rules:
- match: {path: /v1/admin/health}
- match: {prefix: /v1/admin/}
  auth: {permissions: [admin]}
- match: {prefix: /v1/telemetry, methods: [POST]}
  auth: {permissions: [telemetry.write]}
- match: {prefix: /v1/products/, methods: [GET]}
  cache: {query: [lang]}
- match: {path: /v1/fleet/config}
  auth: {permissions: [config.read]}
  cache: {query: [rev], on_miss: fetch}
- match: {path: /v1/me/config}
  auth: {permissions: [config.read]}
  cache: {scope: device}
- match: {prefix: /v1/devices/, methods: [PUT, DELETE]}
  auth: {permissions: [admin]}
`

// rulesOf adds the default for requests that no rule matches. With default deny, rulesOf also adds rules that allow the
// open resources.
func rulesOf(fallback string) string {
	open := ""
	if fallback == "deny" {
		open = `
- match: {prefix: /v1/telemetry, methods: [GET]}
- match: {prefix: /v1/devices/, methods: [GET]}
- match: {prefix: /files/}
`
	}
	return rules + open + "default: " + fallback + "\n"
}

// An identity is the credential that a request sends.
type identity struct {
	name        string
	device      string // the identity that the edge sends to the upstream; empty: none
	permissions []string
	id, secret  string // sent; empty: nothing
}

// Nobody sends no credential.
var nobody = &identity{name: "nobody"}

// identities are nobody, devices with a permission each, and wrong credentials of the device with all permissions.
var identities = []*identity{
	nobody,
	{name: "half", id: "root"},
	{name: "wrong", id: "root", secret: "guessed"},
	{name: "reader", device: "reader", permissions: []string{readConfig}, id: "reader", secret: "reader-secret"},
	{name: "writer", device: "writer", permissions: []string{writeTelemetry}, id: "writer", secret: "writer-secret"},
	{name: "root", device: "root", permissions: []string{admin}, id: "root", secret: "root-secret"},
}

func identityOf(name string) *identity {
	return identities[slices.IndexFunc(identities, func(i *identity) bool { return i.name == name })]
}

// published are objects that the edge answers itself. The entity-tag names the object also in answers without a body.
var published = []struct{ key, tag string }{
	{"/v1/products/published", cachedTag + "products"},
	{"/v1/fleet/config?rev=1", cachedTag + "fleet-config"},
	{"@reader/v1/me/config", cachedTag + "me-config:reader"},
}

// cachedTag begins the entity-tag of every published object.
const cachedTag = "cached:"
