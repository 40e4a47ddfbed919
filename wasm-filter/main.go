// The filter of Gatehouse: a Proxy-Wasm module that answers from the proxy's shared
// memory (edge plugins) and writes what the sidecar sends into it (push plugin).
package main

import "github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"

func main() {}

func init() { proxywasm.SetVMContext(newVM(newSDKHost())) }
