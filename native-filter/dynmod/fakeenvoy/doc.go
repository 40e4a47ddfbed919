// Package fakeenvoy is an Envoy for tests of a dynamic module, with the race detector, which Envoy's own process can't
// have: it has the functions of Envoy that the module calls, and calls the module's hooks. Like package dynmod it has
// the build tag native.
package fakeenvoy
