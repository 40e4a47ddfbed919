package stack

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

// TestReserved has an address that was given out reserved against others who look for one, and not against who is to
// listen on it, also again.
func TestReserved(t *testing.T) {
	address, err := FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	if err := reserve(address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("got %v for another who wants it, want that it is in use", err)
	}
	for range 2 {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatalf("who it was given to can't listen: %v", err)
		}
		client, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		server, err := listener.Accept()
		if err := errors.Join(err, server.Close(), client.Close(), listener.Close()); err != nil { // leaves a TIME_WAIT
			t.Fatal(err)
		}
	}
	if err := reserve(address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("got %v when it has stopped listening, want that it is in use", err)
	}
}
