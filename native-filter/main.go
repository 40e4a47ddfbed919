// The filter of Gatehouse as a dynamic module of Envoy, by the build tag native: package edge over dynmod. Envoy calls
// functions in dynmod, which call filter.go.
package main

func main() {}
