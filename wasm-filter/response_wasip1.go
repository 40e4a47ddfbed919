//go:build compare && !sdk && !plugins

package main

import "github.com/gatehouse/gatehouse/wasm-filter/abi"

const compares = true

//go:wasmexport proxy_on_response_headers
func proxyOnResponseHeaders(id, _, _ uint32) uint32 {
	if !module.AwaitsResponse(id) {
		return 0
	}
	abi.BeginCallback()
	etag, err := abi.Header(abi.ResponseHeaders, "etag")
	if err != nil {
		etag = ""
	}
	module.CompareResponse(id, etag)
	return 0
}
