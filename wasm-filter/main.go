// The filter of Gatehouse: a Proxy-Wasm module that answers from the proxy's shared
// memory (edge plugins) and writes what the sidecar sends into it (push plugin). The
// functions that the proxy calls are in exports_wasip1.go.
package main

func main() {}
