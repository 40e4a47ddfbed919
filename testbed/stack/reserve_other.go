//go:build !linux

package stack

// reserve only checks whether address is free: on other systems a bound socket excludes all others.
func reserve(address string) error { return probe(address) }
