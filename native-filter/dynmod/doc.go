// Package dynmod is the Go side of a dynamic module of Envoy: what Envoy calls, and what a module calls of Envoy. It is
// independent of Gatehouse, and everything in it has the build tag native: it needs cgo, and its functions of Envoy
// exist in Envoy only.
//
// abi.h declares, by hand, the part of Envoy's ABI that is used. hooks.c and noop.c have the functions that Envoy
// calls. Those of noop.c do nothing; the others collect in C what Go needs, so that a request crosses from C into Go
// once. A reply, too, is sent by C, after Go has returned: Envoy may call the module again meanwhile, and no lock is
// held then.
//
// Every function that C calls recovers from panics: one that left it would end Envoy. The request is then answered with
// 503, never let in.
package dynmod
