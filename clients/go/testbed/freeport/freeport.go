// Package freeport finds addresses for the servers of tests.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
)

// Address returns a loopback address on which nothing listens, for a program whose address must be known before it
// starts.
func Address() (string, error) {
	const host = "127.0.0.1"
	port, err := On(host)
	if err != nil {
		return "", fmt.Errorf("free address: %w", err)
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

// lastPort counts up from a random start, and from another one when a port is taken.
var lastPort atomic.Uint32

func init() { lastPort.Store(rand.Uint32()) }

// On finds a port of host, an IP address, on which nothing listens, and reserves it for the programs that this
// process starts. The port is below 32768, where Linux's ephemeral ports begin: an outgoing connection could take an
// ephemeral port while the program that owns it restarts.
func On(host string) (int, error) {
	const low, high, attempts = 20000, 32768, 100
	var last error
	for range attempts {
		port := low + int(lastPort.Add(1)%(high-low))
		address := net.JoinHostPort(host, strconv.Itoa(port))
		last = reserve(address)
		if last == nil {
			return port, nil
		}
		lastPort.Store(rand.Uint32()) // another process may have the next thousand
	}
	return 0, fmt.Errorf("no free port in %d to %d after %d attempts: %w", low, high-1, attempts, last)
}
