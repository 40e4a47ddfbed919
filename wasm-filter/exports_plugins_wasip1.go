//go:build plugins

package main

import (
	"github.com/gatehouse/gatehouse/edge"
	"github.com/gatehouse/gatehouse/wasm-filter/abi"
)

// module has the plugins of this instance of the module, and envoy is their host. The proxy calls the module on one
// thread, one function at a time.
var (
	envoy  = &proxy{}
	module = newPlugins(envoy)
)

//go:wasmexport proxy_abi_version_0_2_0
func proxyABIVersion() {}

//go:wasmexport proxy_on_configure
func proxyOnConfigure(id, size uint32) uint32 {
	abi.BeginCallback()
	return boolToU32(module.configurePlugin(id, int(size)))
}

//go:wasmexport proxy_on_context_create
func proxyOnContextCreate(id, of uint32) { module.contextCreated(id, of) }

//go:wasmexport proxy_on_tick
func proxyOnTick(id uint32) {
	abi.BeginCallback()
	module.tickPlugin(id)
}

//go:wasmexport proxy_on_request_headers
func proxyOnRequestHeaders(id, _, endOfStream uint32) uint32 {
	abi.BeginCallback()
	return uint32(module.requestHeaders(id, endOfStream != 0))
}

//go:wasmexport proxy_on_request_body
func proxyOnRequestBody(id, size, endOfStream uint32) uint32 {
	abi.BeginCallback()
	return uint32(module.requestBody(id, int(size), endOfStream != 0))
}

//go:wasmexport proxy_on_http_call_response
func proxyOnHTTPCallResponse(id, token, _, bodySize, _ uint32) {
	abi.BeginCallback()
	module.callResponse(id, token, envoy.callBody(int(bodySize)))
}

// requestBody matters only at the push listener.
func (p *plugins) requestBody(id uint32, size int, endOfStream bool) edge.Action {
	if p.shared == nil {
		return edge.Continue
	}
	return p.shared.RequestBody(id, size, endOfStream)
}

// callResponse passes an answer to a call of the plugin.
func (p *plugins) callResponse(id, token uint32, body []byte) {
	if of := p.byID[id]; of != nil {
		of.vm.CallResponse(token, body)
	}
}
