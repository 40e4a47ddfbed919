// Package workload has the requests of clients, in a form for all load generators and servers.
package workload

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/publish"
)

// The device of the single workloads.
const (
	Device = "bench-device"
	Secret = "bench-secret-of-32-characters-ab"
)

// Workload is the request or requests that one client repeats.
type Workload struct {
	Name   string
	Method string
	Path   string
	// Headers are lines "Name: value".
	Headers []string
	// Status is the expected status, and Bytes the expected length of the body, -1 if lengths vary.
	Status, Bytes int
	// Count is the number of requests, sent in turn. Requests differ only by the number, 0 to Count-1, in place of
	// [NumberPlaceholder] in Path and Headers. Count 0: one request.
	Count int
}

// NumberPlaceholder is the placeholder of a request's number.
const NumberPlaceholder = "{n}"

// RequestAt returns request i.
func (w Workload) RequestAt(i int) Workload {
	number := strconv.Itoa(i)
	w.Path, w.Headers, w.Count = strings.ReplaceAll(w.Path, NumberPlaceholder, number), slices.Clone(w.Headers), 0
	for j := range w.Headers {
		w.Headers[j] = strings.ReplaceAll(w.Headers[j], NumberPlaceholder, number)
	}
	return w
}

// Requests returns the bytes of the requests to host, in turn.
func (w Workload) Requests(host string) [][]byte {
	if w.Count > 0 {
		one := w
		one.Count = 0
		pattern := one.Requests(host)[0]
		requests := make([][]byte, w.Count)
		for i := range requests {
			requests[i] = bytes.ReplaceAll(pattern, []byte(NumberPlaceholder), strconv.AppendInt(nil, int64(i), 10))
		}
		return requests
	}
	b := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\n", w.Method, w.Path, host)
	for _, h := range w.Headers {
		b = append(append(b, h...), '\r', '\n')
	}
	if w.Method == http.MethodPost {
		b = append(b, "Content-Length: 0\r\n"...)
	}
	return [][]byte{append(b, '\r', '\n')}
}

// JSONBody returns n bytes of JSON that compress as configurations do, the same at every call.
func JSONBody(n int) []byte {
	random := rand.New(rand.NewPCG(uint64(n), 42))
	b := []byte(`{"items":[`)
	for i := 0; len(b) < n; i++ {
		b = fmt.Appendf(b, `{"id":%d,"name":"sensor-%d","threshold":%.3f,"enabled":%v},`, i, random.IntN(1000),
			100*random.Float64(), random.IntN(2) == 0)
	}
	return b[:n]
}

// deviceHeaders returns the headers of every device, and more.
func deviceHeaders(more ...string) []string {
	return append([]string{"User-Agent: device/1.0", "Accept: application/json", "x-device-id: " + Device,
		"x-device-token: " + Secret}, more...)
}

// Paths. Paths under /v1/private/ need a credential.
const (
	Public1K  = "/v1/products/1k"
	Public4K  = "/v1/products/4k5"
	Public48K = "/v1/products/48k"
	Private1K = "/v1/private/1k"
	Telemetry = "/v1/telemetry"
)

// Sizes of the objects, by path.
var Sizes = map[string]int{Public1K: 1 << 10, Public4K: 4608, Public48K: 48 << 10, Private1K: 1 << 10}

// SingleRequests returns the workloads of one request, by scenario. gzipped has the lengths of gzip encodings by path;
// without gzipped, workloads of gzip have a length of 0.
func SingleRequests(gzipped map[string]int) map[string][]Workload {
	get := func(name, path string, status, size int, more ...string) Workload {
		return Workload{Name: name, Method: http.MethodGet, Path: path, Headers: deviceHeaders(more...),
			Status: status, Bytes: size}
	}
	conditional := "If-None-Match: " + ETag(JSONBody(Sizes[Public1K]))
	var full []Workload
	for _, o := range []struct{ name, path string }{{"1 KiB", Public1K}, {"4.5 KiB", Public4K}, {"48 KiB", Public48K}} {
		full = append(full, get("200 "+o.name, o.path, 200, Sizes[o.path]),
			get("200 "+o.name+" gzip", o.path, 200, gzipped[o.path], "Accept-Encoding: gzip"))
	}
	return map[string][]Workload{
		"304": {get("304", Public1K, 304, 0, conditional)},
		"200": full,
		"auth": {{Name: "auth", Method: http.MethodPost, Path: Telemetry, Headers: deviceHeaders(),
			Status: 200, Bytes: -1}},
		"auth-304": {get("auth + 304", Private1K, 304, 0, conditional)},
		"auth-200": {get("auth + 200 1 KiB", Private1K, 200, Sizes[Private1K])},
		"miss":     {get("miss", "/v1/products/none", 200, -1)},
		"pass":     {get("pass", "/v2/elsewhere", 200, -1)},
	}
}

// ContentType is the content type of the bodies.
const ContentType = "application/json"

// ETag returns the entity-tag of a body.
func ETag(body []byte) string { return publish.ETag(ContentType, body) }

const fleetPrefix = "fleet"

// FleetDevice returns the id of device i of a fleet.
func FleetDevice(i int) string { return fmt.Sprint(fleetPrefix, i) }

// ObjectBytes is the size of each object of [ObjectReads].
const ObjectBytes = 1 << 10

// objectETag is the pattern of the entity-tags of [ObjectReads], as long as the publisher's entity-tags.
const objectETag = `"9f86d081884c7d659a2feaa0c5` + NumberPlaceholder + `"`

// ObjectPath returns the path of object i of [ObjectReads].
func ObjectPath(i int) string { return fmt.Sprint("/v1/products/", i) }

// ObjectETag returns the entity-tag of object i: no hash, so that a client can compute the tag.
func ObjectETag(i int) string {
	return strings.ReplaceAll(objectETag, NumberPlaceholder, strconv.Itoa(i))
}

// ObjectReads returns reads of n objects, in turn; conditional reads have the current entity-tag.
func ObjectReads(n int, conditional bool) Workload {
	w := Workload{Name: "200", Method: http.MethodGet, Path: "/v1/products/" + NumberPlaceholder, Headers: deviceHeaders(),
		Status: 200, Bytes: ObjectBytes, Count: n}
	if conditional {
		w.Name, w.Headers, w.Status, w.Bytes = "304", deviceHeaders("If-None-Match: "+objectETag), 304, 0
	}
	return w
}

// DeviceReads returns conditional reads of one object, by n devices of a fleet in turn.
func DeviceReads(n int) Workload {
	return Workload{Name: "auth + 304", Method: http.MethodGet, Path: Private1K, Status: 304, Count: n, Headers: []string{
		"User-Agent: device/1.0", "Accept: application/json", "x-device-id: " + fleetPrefix + NumberPlaceholder,
		"x-device-token: " + Secret, "If-None-Match: " + ETag(JSONBody(Sizes[Private1K]))}}
}
