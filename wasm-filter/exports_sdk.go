//go:build sdk

package main

import (
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/gatehouse/gatehouse/edge"
)

// module is the VM in this instance of the module, and sdk the VM's host.
var (
	sdk    = &proxy{}
	module = edge.New(sdk)
)

func init() {
	proxywasm.SetPluginContext(func(id uint32) types.PluginContext { return &pluginContext{caller: caller{id: id}} })
}

// pluginContext implements types.PluginContext.
type pluginContext struct {
	types.DefaultPluginContext
	caller
}

// OnPluginStart implements types.PluginContext.
func (c *pluginContext) OnPluginStart(size int) types.OnPluginStartStatus {
	sdk.beginCallback(&c.caller)
	return types.OnPluginStartStatus(configureVM(module, sdk, size))
}

// OnTick implements types.PluginContext.
func (c *pluginContext) OnTick() {
	sdk.beginCallback(&c.caller)
	sdk.askAgain()
	module.Tick()
}

// NewHttpContext implements types.PluginContext.
func (*pluginContext) NewHttpContext(id uint32) types.HttpContext {
	return &httpContext{caller: caller{id: id}}
}

// httpContext implements types.HttpContext.
type httpContext struct {
	types.DefaultHttpContext
	caller
}

// OnHttpRequestHeaders implements types.HttpContext.
func (c *httpContext) OnHttpRequestHeaders(_ int, endOfStream bool) types.Action {
	sdk.beginCallback(&c.caller)
	return types.Action(module.RequestHeaders(c.id, endOfStream))
}

// OnHttpRequestBody implements types.HttpContext.
func (c *httpContext) OnHttpRequestBody(size int, endOfStream bool) types.Action {
	sdk.beginCallback(&c.caller)
	return types.Action(module.RequestBody(c.id, size, endOfStream))
}

// OnHttpStreamDone implements types.HttpContext.
func (c *httpContext) OnHttpStreamDone() { sdk.endStream(&c.caller) }
