package push

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// dialSocket connects to the unix socket at path, which must not be a symbolic link: who can write to the directory of
// one edge could let its link lead to another edge's socket. The path may be longer than a socket's address.
func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	failed := func(err error) error {
		return &net.OpError{Op: "dial", Net: "unix", Addr: &net.UnixAddr{Name: path, Net: "unix"}, Err: err}
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, failed(os.NewSyscallError("open", err))
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, failed(os.NewSyscallError("fstat", err))
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, failed(errors.New("not a socket"))
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return nil, failed(e.Err)
	}
	return c, err
}
