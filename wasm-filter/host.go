package main

import (
	"time"

	"github.com/gatehouse/gatehouse/wasm-filter/policy"
	"github.com/gatehouse/gatehouse/wire"
)

// host is the filter's interface to the proxy. Calls about a request refer to the current context: the one whose
// callback runs, or the one entered last.
//
// Bytes that it returns are valid during the current callback; the next one overwrites them. It copies its arguments.
type host interface {
	// now returns the proxy's clock, unix ms.
	now() int64
	// configuration returns the VM's configuration, during configure.
	configuration() []byte
	// pluginConfiguration returns the first size bytes of the plugin's own configuration, during configure.
	pluginConfiguration(size int) []byte
	setTickPeriod(ms uint32) error
	// record returns the shared-data record at a place, nil if there is none.
	record(region wire.Region, index uint32) []byte
	// keep returns a record, or a part of one, for longer than the callback.
	keep(record []byte) []byte
	setRecord(region wire.Region, index uint32, value []byte) error
	// state returns the state record, nil if there is none, and its compare-and-swap number.
	state() (record []byte, cas uint32)
	// setState writes the state record if its number is still cas, or unconditionally if cas is 0.
	setState(value []byte, cas uint32) bool
	// guard returns the value of the guard's gauge, 0 if it can't be read.
	guard() uint64
	// addGuard adds to the gauge, which all workers share.
	addGuard(n int64) error
	// requestHeaders returns all request headers, for headermap.ParseFields, with names in lower case, including
	// pseudo-headers; nil if they can't be read.
	requestHeaders() []byte
	// requestHeader returns the values of a request header, joined by commas; "" if there is none. It, too, is valid
	// during the current callback.
	requestHeader(name string) string
	// requestBody returns the first size bytes of the buffered request body.
	requestBody(size int) []byte
	// source returns the client's address with its port, as trusted by the proxy; nil if unknown.
	source() []byte
	// filterState returns an object from the filter state of the request or its connection; nil if there is none.
	filterState(name string) []byte
	// claim returns a claim of the token that the proxy's JWT filter has validated for the request and stored as
	// metadata; "" if there is none. It, too, is valid during the current callback.
	claim(metadata, name string) string
	removeRequestHeader(name string)
	addRequestHeader(name, value string)
	// note sets a header that the route configuration adds to the response from upstream: adding it here would need a
	// callback for every response.
	note(n policy.Note, value string)
	// reply answers the request, with headers in the form of headermap.Append and details for access logs; its context
	// must pause and may not reply again.
	reply(status int, details string, headers, body []byte)
	// resume continues a paused request.
	resume()
	// enter makes a stream the current context, to continue or answer it; false if it has ended, or the
	// proxy itself has answered. It overwrites earlier
	// results, like another callback.
	enter(stream uint32) bool
	// exists makes a stream the current context; false if the proxy has deleted that. A stream that has ended may exist
	// until the proxy is idle.
	exists(stream uint32) bool
	// call posts body to path at cluster, for the request that from identifies. The answer arrives with the returned
	// token, even if the current stream has gone, but not if its plugin has.
	call(cluster, path string, body []byte, from origin, timeout time.Duration) (token uint32, err error)
	// callBody returns the first size bytes of the answer in the current callback, nil unless its status is 200.
	callBody(size int) []byte
	// defineCounter returns the id of the counter of this name, 0 if it can't be defined.
	defineCounter(name string) (id uint32)
	// count adds n, which isn't 0, to a counter.
	count(id uint32, n uint64)
	warn(message string)
	critical(message string)
}

// origin identifies the request that a call is for, so that the sidecar's traces and logs can name it.
type origin struct {
	requestID, traceparent string // "": none
}

// headers returns the headers of a call to path.
func (o origin) headers(path string) [][2]string {
	headers := [][2]string{{":method", "POST"}, {":path", path}, {":authority", callAuthority}}
	if o.requestID != "" {
		headers = append(headers, [2]string{requestIDHeader, o.requestID})
	}
	if o.traceparent != "" {
		headers = append(headers, [2]string{traceparentHeader, o.traceparent})
	}
	return headers
}

// Constants of all bindings of host.
const (
	guardGauge    = "gatehouse.guard"
	claimsFilter  = "envoy.filters.http.jwt_authn" // its metadata has the claims
	callAuthority = "gatehouse"                    // of calls

	requestIDHeader   = "x-request-id"
	traceparentHeader = "traceparent" // W3C Trace Context
)
