// The edge in NGINX: package edge in a shared library, which LuaJIT loads in each worker, by the build tag nginx. Lua
// keeps the phases, timers and sockets (nginx/lua); shim.c reads and changes requests; exports.go has what Lua calls.
package main

func main() {}
