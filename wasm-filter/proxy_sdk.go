//go:build sdk

package main

import (
	"time"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"

	"github.com/gatehouse/gatehouse/edge"
	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// proxy is the module's host by the Proxy-Wasm Go SDK. The SDK's results are garbage-collected memory, and outlive the
// callback.
type proxy struct {
	guards proxywasm.MetricGauge // id 0 before the first use

	running *caller // the current caller; the SDK assigns calls to the caller
	entered uint32  // the proxy's current context
	dropped []*request
}

func (*proxy) Now() int64 { return time.Now().UnixMilli() }

func (*proxy) configuration() []byte { return orNil(proxywasm.GetVMConfiguration()) }

func (*proxy) pluginConfiguration(int) []byte { return orNil(proxywasm.GetPluginConfiguration()) }

func (*proxy) setTickPeriod(ms uint32) error { return proxywasm.SetTickPeriodMilliSeconds(ms) }

func (*proxy) Record(region wire.Region, index uint32) []byte {
	value, _, err := proxywasm.GetSharedData(recordKey(region, index))
	return orNil(value, err)
}

func (*proxy) KeepRecord(record []byte) []byte { return record }

func (*proxy) SetRecord(region wire.Region, index uint32, value []byte) error {
	return proxywasm.SetSharedData(recordKey(region, index), value, 0)
}

func (*proxy) State() ([]byte, uint32) {
	value, cas, err := proxywasm.GetSharedData(recordKey(wire.RegionState, 0))
	return orNil(value, err), cas
}

func (*proxy) SetState(value []byte, cas uint32) bool {
	return proxywasm.SetSharedData(recordKey(wire.RegionState, 0), value, cas) == nil
}

func recordKey(region wire.Region, index uint32) string {
	return string(wire.AppendPlace(nil, region, index))
}

func (p *proxy) Guard() uint64 {
	p.defineGuard()
	return uint64(p.guards.Value())
}

// AddGuard implements edge.Host. The SDK panics where our own binding would return an error.
func (p *proxy) AddGuard(n int64) error {
	p.defineGuard()
	p.guards.Add(n)
	return nil
}

func (p *proxy) defineGuard() {
	if p.guards == 0 {
		p.guards = proxywasm.DefineGaugeMetric(guardGauge)
	}
}

func (*proxy) RequestHeaders() []byte {
	headers, err := proxywasm.GetHttpRequestHeaders()
	if err != nil {
		return nil
	}
	return headermap.Append(nil, headers)
}

func (*proxy) RequestHeader(name string) string {
	value, err := proxywasm.GetHttpRequestHeader(name)
	if err != nil {
		return ""
	}
	return value
}

func (*proxy) RequestBody(size int) []byte { return orNil(proxywasm.GetHttpRequestBody(0, size)) }

func (*proxy) ClientAddress() []byte { return readProperty("source", "address") }

func (*proxy) FilterState(name string) []byte { return readProperty("filter_state", name) }

func (*proxy) Claim(metadata, name string) string {
	return string(readProperty("metadata", "filter_metadata", claimsFilter, metadata, name))
}

func readProperty(path ...string) []byte { return orNil(proxywasm.GetProperty(path)) }

func (*proxy) RemoveRequestHeader(name string) {
	logFailure(proxywasm.RemoveHttpRequestHeader(name), "remove request header", name)
}

func (*proxy) AddRequestHeader(name, value string) {
	logFailure(proxywasm.AddHttpRequestHeader(name, value), "add request header", name)
}

func (*proxy) SetNote(n policy.Note, value string) {
	logFailure(proxywasm.SetProperty([]string{n.String()}, []byte(value)), "set property", n.String())
}

func (*proxy) AwaitResponse() bool { return false }

// Reply ignores the details, which the SDK can't send.
func (*proxy) Reply(status int, _ string, headers, body []byte) {
	const noGRPCStatus = -1
	fields, _ := headermap.Parse(headers)
	logFailure(proxywasm.SendHttpResponse(uint32(status), fields, body, noGRPCStatus), "local reply", "")
}

func (p *proxy) WakeStream(stream uint32, goOn func() edge.Action) {
	if p.enterPaused(stream) && goOn() == edge.Continue {
		logFailure(proxywasm.ResumeHttpRequest(), "resume request", "")
	}
}

// enterPaused is as in proxy_wasip1.go.
func (p *proxy) enterPaused(stream uint32) bool {
	return p.StreamExists(stream) && readProperty("request", "duration") == nil &&
		!isAnswered(readProperty("response", "code"))
}

func (p *proxy) StreamExists(stream uint32) bool {
	if proxywasm.SetEffectiveContext(stream) != nil {
		return false
	}
	p.entered = stream
	return true
}

func (p *proxy) EnterStream(stream uint32) { p.StreamExists(stream) }

// callBody returns the first size bytes of the answer in the current callback, nil unless the status is 200. A reset
// call has no headers; a failed connection has a 503's.
func (*proxy) callBody(size int) []byte {
	headers, err := proxywasm.GetHttpCallResponseHeaders()
	for _, h := range headers {
		if err == nil && h == [2]string{":status", "200"} {
			return orNil(proxywasm.GetHttpCallResponseBody(0, size))
		}
	}
	return nil
}

func (*proxy) DefineCounter(name string) uint32 { return uint32(proxywasm.DefineCounterMetric(name)) }

func (*proxy) IncrementCounter(id uint32, n uint64) { proxywasm.MetricCounter(id).Increment(n) }

func (*proxy) Warn(message string) { proxywasm.LogWarn(message) }

func (*proxy) logCritical(message string) { proxywasm.LogCritical(message) }

// logFailure logs the failure of an operation that should always succeed.
func logFailure(err error, what, of string) {
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
