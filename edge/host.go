// Package edge is the common part of all edges: streams, calls to the sidecar, pushes, and a worker's memory. Package
// policy decides; [Host] is the only interface to the proxy. wasm-filter, native-filter and nginx/host are the hosts.
package edge

import (
	"time"

	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// Host is the edge's interface to the proxy. Calls about a request refer to the current stream: the stream whose
// callback runs, or the stream entered or woken last.
//
// Returned bytes are valid during the current callback; the next callback overwrites them. Host copies arguments.
type Host interface {
	// Now returns the proxy's clock, unix ms.
	Now() int64

	// Record returns a record of shared memory, nil if absent.
	Record(region wire.Region, index uint32) []byte
	// KeepRecord returns a record, or a part of a record, for longer than the callback.
	KeepRecord(record []byte) []byte
	SetRecord(region wire.Region, index uint32, value []byte) error
	// State returns the state record, nil if absent, and the record's compare-and-swap number.
	State() (record []byte, cas uint32)
	// SetState writes the state record if the number is still cas, or unconditionally if cas is 0.
	SetState(value []byte, cas uint32) bool
	// Guard returns the value of the guard's gauge, 0 if unreadable.
	Guard() uint64
	// AddGuard adds to the gauge, which all workers share.
	AddGuard(n int64) error

	// RequestHeaders returns all request headers, for headermap.ParseFields, with names in lower case, including
	// pseudo-headers; nil if they can't be read.
	RequestHeaders() []byte
	// RequestHeader returns the values of a request header, joined by commas, valid during the current callback; "" for
	// none.
	RequestHeader(name string) string
	// RequestBody returns the first size bytes of the buffered request body.
	RequestBody(size int) []byte
	// ClientAddress returns the client's address with port, as trusted by the proxy; nil if unknown.
	ClientAddress() []byte
	// FilterState returns an object from the filter state of the request or its connection; nil for none.
	FilterState(name string) []byte
	// Claim returns a claim of the request's token, which the proxy's JWT filter has validated and stored as metadata;
	// valid during the current callback; "" for none.
	Claim(metadata, name string) string
	RemoveRequestHeader(name string)
	AddRequestHeader(name, value string)
	// SetNote sets a header that the route configuration adds to the upstream's response: adding the header here would
	// need a callback for every response.
	SetNote(n policy.Note, value string)
	// AwaitResponse has [VM.CompareResponse] called with the current stream's response, or [VM.EndStream] at the end of
	// a stream without a response. It returns false if unsupported.
	AwaitResponse() bool
	// Reply answers the request, with headers in the form of headermap.Append and details for access logs; its stream
	// must pause and may not reply again.
	Reply(status int, details string, headers, body []byte)

	// WakeStream runs goOn in a callback of a paused stream, and applies the returned action: at once or, if the stream
	// belongs to another thread, later on the stream's thread. goOn doesn't run if the stream has ended, or the proxy
	// itself has answered.
	WakeStream(stream uint32, goOn func() Action)
	// StreamExists reports whether the proxy has a stream; an ended stream may remain until idle. Afterwards there is
	// no current stream, see EnterStream.
	StreamExists(stream uint32) bool
	// EnterStream makes the stream whose callback runs the current stream again.
	EnterStream(stream uint32)

	// CallSidecar makes a call. The answer arrives with the returned token, even if the current stream has gone, but
	// not if the plugin has. newest is the call's newest stream or, after joining another worker's equal call, the
	// newest stream of the equal call.
	CallSidecar(c Call) (token, newest uint32, err error)

	// DefineCounter returns the id of the counter called name, 0 on failure.
	DefineCounter(name string) (id uint32)
	// IncrementCounter adds n > 0 to a counter.
	IncrementCounter(id uint32, n uint64)
	Warn(message string)
}

// Call is a call to the sidecar: a POST.
type Call struct {
	Cluster, Path string
	Body          []byte
	From          Origin
	Timeout       time.Duration
	Newest        uint32 // the newest stream
	Shared        bool   // the answer to an equal call of another worker will do
}

// Origin identifies the request of a call, for the sidecar's traces and logs.
type Origin struct {
	RequestID, Traceparent string // "": none
}

const (
	callAuthority     = "gatehouse"
	requestIDHeader   = "x-request-id"
	traceparentHeader = "traceparent" // W3C Trace Context
)

// Headers returns the call's headers.
func (c *Call) Headers() [][2]string {
	headers := [][2]string{{":method", "POST"}, {":path", c.Path}, {":authority", callAuthority}}
	if c.From.RequestID != "" {
		headers = append(headers, [2]string{requestIDHeader, c.From.RequestID})
	}
	if c.From.Traceparent != "" {
		headers = append(headers, [2]string{traceparentHeader, c.From.Traceparent})
	}
	return headers
}
