package main

import (
	"time"

	"github.com/gatehouse/gatehouse/wasm-filter/policy"
	"github.com/gatehouse/gatehouse/wire"
)

// host is what the filter asks of the proxy. Calls about a request mean the current
// context: the one whose callback runs, or the one that enter named last.
//
// What it returns as bytes belongs to the callback that runs and is overwritten by the
// next one: what must live longer is copied. What it is given it copies.
type host interface {
	// now is the proxy's clock, unix ms.
	now() int64
	// configuration is the VM's, during configure.
	configuration() []byte
	setTickPeriod(ms uint32) error
	// record is the shared-data record at a place, nil if there is none.
	record(region wire.Region, index uint32) []byte
	setRecord(region wire.Region, index uint32, value []byte) error
	// state is the state record, nil if there is none, and the number of its writing.
	state() (record []byte, cas uint32)
	// setState writes the state record if it is still that of cas, or in any case if cas is 0.
	setState(value []byte, cas uint32) bool
	// guard is the value of the gauge that guards kept answers, 0 if it can't be read.
	guard() uint64
	// addGuard adds to it, on all workers at once.
	addGuard(n int64) error
	// requestHeaders are all request headers, for headermap.ParseFields, names in lower case,
	// pseudo-headers included; nil if they can't be read.
	requestHeaders() []byte
	// requestBody is the first size bytes of the buffered request body.
	requestBody(size int) []byte
	// source is the client's address, with its port, as the proxy trusts it; nil if unknown.
	source() []byte
	// filterState is an object of the request's or its connection's filter state; nil if there is none.
	filterState(name string) []byte
	// claim is a claim of the token that the proxy's JWT filter has validated for the
	// request and put aside as metadata; "" if there is none. It is the callback's, too.
	claim(metadata, name string) string
	removeRequestHeader(name string)
	addRequestHeader(name, value string)
	// note lays down what the route configuration adds to the response from upstream: adding it here would be a
	// callback for every response.
	note(n policy.Note, value string)
	// reply answers the request, with headers of headermap.Append; its context must pause and may
	// not reply again.
	reply(status int, headers, body []byte)
	// resume sends a paused request on.
	resume()
	// enter makes a stream the current context; false if it is gone. What was returned before is
	// overwritten, as by another callback.
	enter(stream uint32) bool
	// call posts body to path at cluster. The token comes back with the answer, which comes
	// be the stream that is current now still there or not, but not if its plugin is gone.
	call(cluster, path string, body []byte, timeout time.Duration) (token uint32, err error)
	// callBody is the first size bytes of the answer whose callback runs, nil unless its
	// status is 200.
	callBody(size int) []byte
	// count adds to a counter.
	count(counter policy.Counter, n uint64)
	warn(message string)
	critical(message string)
}

// What the bindings of host have in common.
const (
	guardGauge    = "gatehouse.guard"
	claimsFilter  = "envoy.filters.http.jwt_authn" // whose metadata claims are in
	callAuthority = "gatehouse"                    // of calls
)
