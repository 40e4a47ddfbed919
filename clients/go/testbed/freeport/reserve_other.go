//go:build !linux

package freeport

import "net"

// reserve only checks whether address is free: on other systems a bound socket excludes all others.
func reserve(address string) error { return Probe(address) }

// Probe returns an error if nothing can listen on address.
func Probe(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return listener.Close()
}
