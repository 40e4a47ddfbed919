// The filter of Gatehouse as a dynamic module of Envoy, by the build tag native: what package edge does, over dynmod.
// The functions that Envoy calls are in dynmod; they lead to filter.go.
package main

func main() {}
