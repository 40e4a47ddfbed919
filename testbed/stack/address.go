package stack

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
)

// ErrUsage is wrapped by every error that the caller can fix by other options: wrong addresses, names and paths. Other
// failures don't wrap ErrUsage.
var ErrUsage = errors.New("usage")

// AddressError reports that the stack can't listen on an address.
type AddressError struct {
	Variable string // as passed to make, for example "EDGE"
	Address  string // HOST:PORT
	Err      error
}

// Error names the variable, the address, the reason and the fix.
func (e *AddressError) Error() string {
	reason := e.Err.Error()
	if errno := syscall.Errno(0); errors.As(e.Err, &errno) {
		reason = errno.Error() // without the address, which the message already has
	}
	host, _, err := net.SplitHostPort(e.Address)
	if err != nil {
		host = "127.0.0.1"
	}
	return fmt.Sprintf("%s %s: %s; choose another: make run %s=%s",
		e.Variable, e.Address, reason, e.Variable, net.JoinHostPort(host, "PORT"))
}

// Unwrap returns the reason.
func (e *AddressError) Unwrap() error { return e.Err }

// resolveAddress turns HOST:PORT into IP:PORT, since Envoy requires an IP. An empty address or port 0 becomes a free
// port; an empty host means all addresses.
func resolveAddress(variable, address string) (string, error) {
	if address == "" {
		address = "127.0.0.1:0"
	}
	bad := func(err error) error {
		return fmt.Errorf("%w: %s %q: %w; want HOST:PORT, for example 127.0.0.1:8080", ErrUsage, variable, address, err)
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return "", bad(err)
	}
	tcp, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return "", bad(err)
	}
	if tcp.IP == nil {
		tcp.IP = net.IPv4zero
	}
	if tcp.Port == 0 {
		if tcp.Port, err = freeport.FindPort(tcp.IP.String()); err != nil {
			return "", &AddressError{Variable: variable, Address: address, Err: err}
		}
	}
	return tcp.String(), nil
}

// dialAddress returns the address by which a client on this host connects to a listener on address.
func dialAddress(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}
