// Package dynmod is the Go side of a dynamic module of Envoy: Envoy's calls into the module, and the module's calls
// into Envoy. It is independent of Gatehouse. All files have the build tag native: dynmod needs cgo, and Envoy's
// functions exist in Envoy only.
//
// abi.h declares, by hand, the used part of Envoy's ABI. hooks.c and noop.c have the functions that Envoy calls. In
// noop.c the functions do nothing; in hooks.c they collect Go's data in C, so a request crosses from C into Go once. A
// reply, too, is sent by C, after Go has returned: Envoy may call the module again meanwhile, and must find no lock
// held.
//
// Every function that C calls recovers from panics: an escaped panic would end Envoy. After a panic the request is
// answered with 503, never let in.
package dynmod
