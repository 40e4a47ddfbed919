//go:build !linux

package freeport

import "net"

// reserveAddress only checks that address is free. On other systems than Linux, a bound socket excludes all other
// sockets.
func reserveAddress(address string) error { return Probe(address) }

// Probe returns an error if nothing can listen on address.
func Probe(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return listener.Close()
}
