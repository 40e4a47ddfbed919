package stack

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

func TestResolve(t *testing.T) {
	for _, c := range []struct{ name, address, want string }{
		{"as it is", "127.0.0.1:8080", "127.0.0.1:8080"},
		{"all addresses", ":8080", "0.0.0.0:8080"},
		{"version 6", "[::1]:8080", "[::1]:8080"},
		{"name", "localhost:8080", "127.0.0.1:8080"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := resolveAddress("EDGE", c.address)
			if err != nil || got != c.want {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
	for _, address := range []string{"8080", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:x:y"} {
		t.Run(address, func(t *testing.T) {
			_, err := resolveAddress("EDGE", address)
			if !errors.Is(err, ErrUsage) {
				t.Fatalf("got %v, want ErrUsage", err)
			}
			if !strings.Contains(err.Error(), "EDGE "+strconv.Quote(address)) ||
				!strings.Contains(err.Error(), "want HOST:PORT") {
				t.Errorf("got %q, want the variable, the value and the form", err)
			}
		})
	}
}

func TestAddressInUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	taken := listener.Addr().String()
	for _, variable := range []string{"EDGE", "ENVOY_ADMIN", "SIDECAR_ADMIN", "UPSTREAM", "REDIS"} {
		t.Run(variable, func(t *testing.T) {
			var o Options
			*map[string]*string{
				"EDGE": &o.Edge, "ENVOY_ADMIN": &o.EnvoyAdmin, "SIDECAR_ADMIN": &o.SidecarAdmin,
				"UPSTREAM": &o.Upstream, "REDIS": &o.Redis,
			}[variable] = taken
			err := o.resolveAddresses()
			want := variable + " " + taken + ": address already in use; choose another: make run " + variable + "=127.0.0.1:PORT"
			if err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
			if errors.Is(err, ErrUsage) {
				t.Error("got ErrUsage, want a runtime error: the same options work at another time")
			}
		})
	}
}

func TestAddressGivenTwice(t *testing.T) {
	address, err := resolveAddress("EDGE", "")
	require.NoError(t, err)
	o := Options{Edge: address, Redis: address}
	if err := o.resolveAddresses(); !errors.Is(err, ErrUsage) ||
		!strings.Contains(err.Error(), "EDGE and REDIS are both "+address) {
		t.Errorf("got %v, want that EDGE and REDIS are the same", err)
	}
	o.RedisURL = "redis://elsewhere:6379"
	if err := o.resolveAddresses(); err != nil {
		t.Errorf("with a Redis elsewhere: got %v, want nil", err)
	}
}

func TestReachable(t *testing.T) {
	for address, want := range map[string]string{
		"0.0.0.0:80":     "127.0.0.1:80",
		"[::]:80":        "127.0.0.1:80",
		"127.0.0.1:8080": "127.0.0.1:8080",
		"10.1.2.3:80":    "10.1.2.3:80",
	} {
		if got := dialAddress(address); got != want {
			t.Errorf("%s: got %s, want %s", address, got, want)
		}
	}
}
