// Package freeport finds addresses for the servers of tests.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
)

// FindAddress returns a free loopback address, for a program with an address that must be known before the start.
func FindAddress() (string, error) {
	const host = "127.0.0.1"
	port, err := FindPort(host)
	if err != nil {
		return "", fmt.Errorf("free address: %w", err)
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

// lastPort counts up from a random start. When a port is taken, counting continues at a new random number.
var lastPort atomic.Uint32

func init() { lastPort.Store(rand.Uint32()) }

// FindPort finds a free port of host, an IP address, and reserves the port for child processes of this process. The
// port is below 32768, where Linux's ephemeral ports begin: an outgoing connection could take an ephemeral port while
// the program that owns the port restarts.
func FindPort(host string) (int, error) {
	const low, high, attempts = 20000, 32768, 100
	var last error
	for range attempts {
		port := low + int(lastPort.Add(1)%(high-low))
		address := net.JoinHostPort(host, strconv.Itoa(port))
		last = reserveAddress(address)
		if last == nil {
			return port, nil
		}
		lastPort.Store(rand.Uint32()) // another process may own the next thousand ports
	}
	return 0, fmt.Errorf("no free port in %d to %d after %d attempts: %w", low, high-1, attempts, last)
}
