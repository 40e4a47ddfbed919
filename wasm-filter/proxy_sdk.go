//go:build sdk

package main

import (
	"time"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"

	"github.com/gatehouse/gatehouse/wasm-filter/headermap"
	"github.com/gatehouse/gatehouse/wasm-filter/policy"
	"github.com/gatehouse/gatehouse/wire"
)

// proxy is the module's host by the Proxy-Wasm Go SDK. The SDK's results are garbage-collected memory, so they outlive
// the callback.
type proxy struct {
	guards proxywasm.MetricGauge // id 0 before it is used

	running *caller // whose callback runs; the SDK assigns calls to it
	entered uint32  // the proxy's current context
	dropped []*request
}

func (*proxy) now() int64 { return time.Now().UnixMilli() }

func (*proxy) configuration() []byte { return orNil(proxywasm.GetVMConfiguration()) }

func (*proxy) pluginConfiguration(int) []byte { return orNil(proxywasm.GetPluginConfiguration()) }

func (*proxy) setTickPeriod(ms uint32) error { return proxywasm.SetTickPeriodMilliSeconds(ms) }

func (*proxy) record(region wire.Region, index uint32) []byte {
	value, _, err := proxywasm.GetSharedData(key(region, index))
	return orNil(value, err)
}

func (*proxy) keep(record []byte) []byte { return record }

func (*proxy) setRecord(region wire.Region, index uint32, value []byte) error {
	return proxywasm.SetSharedData(key(region, index), value, 0)
}

func (*proxy) state() ([]byte, uint32) {
	value, cas, err := proxywasm.GetSharedData(key(wire.RegionState, 0))
	return orNil(value, err), cas
}

func (*proxy) setState(value []byte, cas uint32) bool {
	return proxywasm.SetSharedData(key(wire.RegionState, 0), value, cas) == nil
}

func key(region wire.Region, index uint32) string {
	return string(wire.AppendPlace(nil, region, index))
}

func (p *proxy) guard() uint64 {
	p.defineGuard()
	return uint64(p.guards.Value())
}

// addGuard implements host. The SDK panics where our own binding would return an error.
func (p *proxy) addGuard(n int64) error {
	p.defineGuard()
	p.guards.Add(n)
	return nil
}

func (p *proxy) defineGuard() {
	if p.guards == 0 {
		p.guards = proxywasm.DefineGaugeMetric(guardGauge)
	}
}

func (*proxy) requestHeaders() []byte {
	headers, err := proxywasm.GetHttpRequestHeaders()
	if err != nil {
		return nil
	}
	return headermap.Append(nil, headers)
}

func (*proxy) requestHeader(name string) string {
	value, err := proxywasm.GetHttpRequestHeader(name)
	if err != nil {
		return ""
	}
	return value
}

func (*proxy) requestBody(size int) []byte { return orNil(proxywasm.GetHttpRequestBody(0, size)) }

func (*proxy) source() []byte { return property("source", "address") }

func (*proxy) filterState(name string) []byte { return property("filter_state", name) }

func (*proxy) claim(metadata, name string) string {
	return string(property("metadata", "filter_metadata", claimsFilter, metadata, name))
}

func property(path ...string) []byte { return orNil(proxywasm.GetProperty(path)) }

func (*proxy) removeRequestHeader(name string) {
	check(proxywasm.RemoveHttpRequestHeader(name), "remove request header", name)
}

func (*proxy) addRequestHeader(name, value string) {
	check(proxywasm.AddHttpRequestHeader(name, value), "add request header", name)
}

func (*proxy) note(n policy.Note, value string) {
	check(proxywasm.SetProperty([]string{n.String()}, []byte(value)), "set property", n.String())
}

// reply ignores the details, which the SDK can't send.
func (*proxy) reply(status int, _ string, headers, body []byte) {
	const noGRPCStatus = -1
	fields, _ := headermap.Parse(headers)
	check(proxywasm.SendHttpResponse(uint32(status), fields, body, noGRPCStatus), "local reply", "")
}

func (*proxy) resume() { check(proxywasm.ResumeHttpRequest(), "resume request", "") }

// enter implements host, as proxy_wasip1.go describes.
func (p *proxy) enter(stream uint32) bool {
	return p.exists(stream) && property("request", "duration") == nil && !answered(property("response", "code"))
}

func (p *proxy) exists(stream uint32) bool {
	if proxywasm.SetEffectiveContext(stream) != nil {
		return false
	}
	p.entered = stream
	return true
}

// callBody implements host. A call that was reset has no headers; one that could not connect has a 503's.
func (*proxy) callBody(size int) []byte {
	headers, err := proxywasm.GetHttpCallResponseHeaders()
	for _, h := range headers {
		if err == nil && h == [2]string{":status", "200"} {
			return orNil(proxywasm.GetHttpCallResponseBody(0, size))
		}
	}
	return nil
}

func (*proxy) defineCounter(name string) uint32 { return uint32(proxywasm.DefineCounterMetric(name)) }

func (*proxy) count(id uint32, n uint64) { proxywasm.MetricCounter(id).Increment(n) }

func (*proxy) warn(message string) { proxywasm.LogWarn(message) }

func (*proxy) critical(message string) { proxywasm.LogCritical(message) }

// check logs that the proxy refused an operation that should always succeed.
func check(err error, what, of string) {
	if err != nil {
		proxywasm.LogErrorf("gatehouse: %s %q: %v", what, of, err)
	}
}

func orNil(value []byte, err error) []byte {
	if err != nil {
		return nil
	}
	return value
}
