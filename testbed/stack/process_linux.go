package stack

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttr makes the kernel end the child when the parent dies: by SIGTERM for a group, since only the child can end
// its own processes. The child doesn't get the terminal's Ctrl-C: the parent ends children in order.
func childAttr(group bool) *syscall.SysProcAttr {
	if group {
		return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	}
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitStop waits until all threads of a child have stopped after a SIGSTOP, or the child has ended: kill doesn't wait
// for threads on other processors.
func awaitStop(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
