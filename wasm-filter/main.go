// The filter of Gatehouse: a Proxy-Wasm module that answers from the proxy's shared memory (edge plugins) and writes
// the sidecar's pushes into the memory (push plugin). The proxy's entry points are in exports_wasip1.go.
package main

func main() {}
