package stack

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttr makes the kernel end the child when its parent dies: by SIGTERM if it has processes that only it can end.
// It keeps the terminal's Ctrl-C from the child: the parent ends its children in order.
func childAttr(group bool) *syscall.SysProcAttr {
	if group {
		return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	}
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitStop waits until all threads of a child have stopped after a SIGSTOP, or it has ended: kill doesn't wait for
// those that run on another processor.
func awaitStop(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
