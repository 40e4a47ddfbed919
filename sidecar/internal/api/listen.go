package api

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/netutil"
)

// maxConnections bounds the connections to a socket for everybody: a proxy has fewer, and another process of an edge
// must not use up the sidecar's file descriptors.
const maxConnections = 4096

// maxPath is the longest path of a unix socket that every system accepts.
const maxPath = 103

// umask guards the process's file mode mask. Only the mask ensures that other users can't open the socket, not even for
// a moment.
var umask sync.Mutex

// Listen listens on a unix socket that only this user can connect to, or everybody who can enter its directory. Listen
// replaces a socket file without a listener.
func Listen(path string, everybody bool) (net.Listener, error) {
	if err := removeStale(path); err != nil {
		return nil, err
	}
	if !everybody {
		return listenUnix(path, 0o600)
	}
	l, err := listenUnix(path, 0o666)
	if err != nil {
		return nil, err
	}
	return netutil.LimitListener(l, maxConnections), nil
}

func listenUnix(path string, mode int) (net.Listener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("socket path %q has %d bytes, at most %d are allowed", path, len(path), maxPath)
	}
	umask.Lock()
	defer umask.Unlock()
	before := syscall.Umask(0o777 &^ mode)
	defer syscall.Umask(before)
	return net.Listen("unix", path)
}

// ErrInUse means that a socket's path has a listener.
var ErrInUse = errors.New("another process listens")

// removeStale removes the socket file at path if the socket has no listener.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket: remove it, or use another path", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("%w on %s, maybe another sidecar: stop it, or use another path", ErrInUse, path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("check for a listener on %s: %w", path, err)
	}
	return os.Remove(path)
}
