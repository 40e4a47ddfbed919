package freeport

import (
	"errors"
	"net"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// TestReserved: a returned address is reserved against other processes that look for an address, and the owner can
// listen on the address, repeatedly.
func TestReserved(t *testing.T) {
	address, err := FindAddress()
	require.NoError(t, err)
	if err := reserveAddress(address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("got %v for another process, want that it is in use", err)
	}
	for range 2 {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatalf("the owner can't listen: %v", err)
		}
		client, err := net.Dial("tcp", address)
		require.NoError(t, err)
		server, err := listener.Accept()
		if err := errors.Join(err, server.Close(), client.Close(), listener.Close()); err != nil { // leaves a TIME_WAIT
			t.Fatal(err)
		}
	}
	if err := reserveAddress(address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("got %v when it has stopped listening, want that it is in use", err)
	}
}

// TestProbeLeavesNoListener: the owner can listen right after a probe, also while this process starts children, which
// have copies of the process's sockets until they execute their programs.
func TestProbeLeavesNoListener(t *testing.T) {
	var children sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		children.Add(1)
		go func() {
			defer children.Done()
			for {
				select {
				case <-done:
					return
				default:
					_ = exec.Command("true").Run()
				}
			}
		}()
	}
	defer children.Wait()
	defer close(done)
	for range 200 {
		address, err := FindAddress()
		require.NoError(t, err)
		require.NoError(t, Probe(address))
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatalf("after a probe: %v", err)
		}
		_ = listener.Close()
	}
}
