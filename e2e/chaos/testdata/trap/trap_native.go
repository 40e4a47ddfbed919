//go:build native

package edge

// trap panics: a dynamic module can't fail in a harder way without ending Envoy, which is a fault of its own.
func trap() { panic("asked to") }
