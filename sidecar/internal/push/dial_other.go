//go:build !linux

package push

import (
	"context"
	"net"
)

// dialSocket connects to the unix socket at path.
func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", path)
}
