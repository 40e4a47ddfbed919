//go:build !sdk && !plugins

package main

import (
	"github.com/gatehouse/gatehouse/edge"
	"github.com/gatehouse/gatehouse/wasm-filter/abi"
)

// module is the VM in this instance of the module, and envoy the VM's host. The proxy calls the module on one thread,
// one function at a time.
var (
	envoy  = &proxy{}
	module = edge.New(envoy)
)

// The proxy calls every export known to the proxy for every request, at 0.3 to 0.5 µs each: only necessary exports.

//go:wasmexport proxy_abi_version_0_2_0
func proxyABIVersion() {}

//go:wasmexport proxy_on_configure
func proxyOnConfigure(_, size uint32) uint32 {
	abi.BeginCallback()
	return boolToU32(configureVM(module, envoy, int(size)))
}

//go:wasmexport proxy_on_tick
func proxyOnTick(uint32) {
	abi.BeginCallback()
	module.Tick()
}

//go:wasmexport proxy_on_request_headers
func proxyOnRequestHeaders(id, _, endOfStream uint32) uint32 {
	abi.BeginCallback()
	return uint32(module.RequestHeaders(id, endOfStream != 0))
}

//go:wasmexport proxy_on_request_body
func proxyOnRequestBody(id, size, endOfStream uint32) uint32 {
	abi.BeginCallback()
	return uint32(module.RequestBody(id, int(size), endOfStream != 0))
}

//go:wasmexport proxy_on_http_call_response
func proxyOnHTTPCallResponse(_, token, _, bodySize, _ uint32) {
	abi.BeginCallback()
	module.CallResponse(token, envoy.callBody(int(bodySize)))
}
