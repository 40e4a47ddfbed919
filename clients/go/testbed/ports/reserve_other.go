//go:build !linux

package stack

import "net"

// reserve only checks whether address is free: on other systems a bound socket excludes all others.
func reserve(address string) error { return probe(address) }

// probe returns an error if nothing can listen on address.
func probe(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return listener.Close()
}
