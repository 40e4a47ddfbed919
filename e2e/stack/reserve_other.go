//go:build !linux

package stack

// reserve only looks whether address is free: elsewhere a socket that is bound keeps all others off.
func reserve(address string) error { return probe(address) }
