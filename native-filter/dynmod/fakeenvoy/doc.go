// Package fakeenvoy is an Envoy for tests of a dynamic module with the race detector, which Envoy's own process can't
// have: fakeenvoy implements Envoy's functions for modules, and calls the module's hooks. Like package dynmod, the
// package has the build tag native.
package fakeenvoy
