package main

import (
	"net/netip"
	"time"

	"github.com/gatehouse/gatehouse/wasm-filter/policy"
	"github.com/gatehouse/gatehouse/wire"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
)

// host is what the filter asks of the proxy while it serves requests. Calls about a
// request mean the current context: the one whose callback runs, or the one that
// enter named last.
type host interface {
	// now is the proxy's clock, unix ms.
	now() int64
	// record is the shared-data record at a place, nil if there is none. The caller owns it.
	record(region wire.Region, index uint32) []byte
	// setRecord copies value into shared data.
	setRecord(region wire.Region, index uint32, value []byte) error
	// requestHeaders are all request headers, names in lower case, pseudo-headers included.
	requestHeaders() [][2]string
	// requestBody is the first size bytes of the buffered request body.
	requestBody(size int) []byte
	// source is the client's address without its port, as the proxy trusts it; "" if unknown.
	source() string
	// claim is a claim of the token that the proxy's JWT filter has validated for the
	// request and put aside as metadata; "" if there is none.
	claim(metadata, name string) string
	removeRequestHeader(name string)
	addRequestHeader(name, value string)
	addResponseHeader(name, value string)
	// reply answers the request; its context must pause and may not reply again.
	reply(status int, headers [][2]string, body []byte) error
	// resume sends a paused request on.
	resume()
	// enter makes a stream the current context; false if it is gone.
	enter(contextID uint32) bool
	// call posts body to path at cluster. done gets the response's body if its status
	// is 200, else nil. It is not called if the stream that is current now ends first.
	call(cluster, path string, body []byte, timeout time.Duration, done func(body []byte)) error
	// count adds to a counter.
	count(counter policy.Counter, n uint64)
	warn(message string)
}

// sdkHost is the host as the Proxy-Wasm Go SDK shows it.
type sdkHost struct {
	counters map[policy.Counter]proxywasm.MetricCounter // those used so far
}

func newSDKHost() sdkHost {
	return sdkHost{counters: map[policy.Counter]proxywasm.MetricCounter{}}
}

func (sdkHost) now() int64 { return time.Now().UnixMilli() }

func (sdkHost) record(region wire.Region, index uint32) []byte {
	var place [wire.PlaceSize]byte
	value, _, err := proxywasm.GetSharedData(string(wire.AppendPlace(place[:0], region, index)))
	if err != nil {
		return nil
	}
	return value
}

func (sdkHost) setRecord(region wire.Region, index uint32, value []byte) error {
	var place [wire.PlaceSize]byte
	return proxywasm.SetSharedData(string(wire.AppendPlace(place[:0], region, index)), value, 0)
}

func (sdkHost) requestHeaders() [][2]string {
	headers, err := proxywasm.GetHttpRequestHeaders()
	if err != nil {
		return nil
	}
	return headers
}

func (sdkHost) requestBody(size int) []byte {
	body, err := proxywasm.GetHttpRequestBody(0, size)
	if err != nil {
		return nil
	}
	return body
}

func (sdkHost) source() string {
	address, err := proxywasm.GetProperty([]string{"source", "address"})
	if err != nil {
		return ""
	}
	ap, err := netip.ParseAddrPort(string(address))
	if err != nil {
		return "" // not an IP address: a unix socket
	}
	return ap.Addr().WithZone("").Unmap().String()
}

func (sdkHost) claim(metadata, name string) string {
	value, err := proxywasm.GetProperty([]string{"metadata", "filter_metadata", "envoy.filters.http.jwt_authn", metadata, name})
	if err != nil {
		return ""
	}
	return string(value)
}

func (sdkHost) removeRequestHeader(name string) {
	if err := proxywasm.RemoveHttpRequestHeader(name); err != nil {
		proxywasm.LogErrorf("remove request header %q: %v", name, err)
	}
}

func (sdkHost) addRequestHeader(name, value string) {
	if err := proxywasm.AddHttpRequestHeader(name, value); err != nil {
		proxywasm.LogErrorf("add request header %q: %v", name, err)
	}
}

func (sdkHost) addResponseHeader(name, value string) {
	if err := proxywasm.AddHttpResponseHeader(name, value); err != nil {
		proxywasm.LogErrorf("add response header %q: %v", name, err)
	}
}

func (sdkHost) reply(status int, headers [][2]string, body []byte) error {
	return proxywasm.SendHttpResponse(uint32(status), headers, body, -1)
}

func (sdkHost) resume() {
	if err := proxywasm.ResumeHttpRequest(); err != nil {
		proxywasm.LogErrorf("resume request: %v", err)
	}
}

func (sdkHost) enter(contextID uint32) bool {
	return proxywasm.SetEffectiveContext(contextID) == nil
}

func (sdkHost) call(cluster, path string, body []byte, timeout time.Duration, done func(body []byte)) error {
	headers := [][2]string{{":method", "POST"}, {":path", path}, {":authority", "gatehouse"}}
	_, err := proxywasm.DispatchHttpCall(cluster, headers, body, nil, uint32(timeout.Milliseconds()),
		func(_, bodySize, _ int) { done(callResponse(bodySize)) })
	return err
}

// callResponse is the body of the response to a call if its status is 200. A call that
// was reset has no headers; one that couldn't connect has those of a 503.
func callResponse(size int) []byte {
	headers, err := proxywasm.GetHttpCallResponseHeaders()
	if err != nil {
		return nil
	}
	for _, h := range headers {
		if h[0] == ":status" && h[1] == "200" {
			body, err := proxywasm.GetHttpCallResponseBody(0, size)
			if err != nil {
				return nil
			}
			return body
		}
	}
	return nil
}

func (h sdkHost) count(counter policy.Counter, n uint64) {
	metric, ok := h.counters[counter]
	if !ok {
		metric = proxywasm.DefineCounterMetric(counter.String())
		h.counters[counter] = metric
	}
	metric.Increment(n)
}

func (sdkHost) warn(message string) { proxywasm.LogWarn(message) }
