package stack

import "syscall"

// childAttr makes the kernel end the child when its parent dies: by SIGTERM if it has processes that only it can end. It
// keeps the terminal's Ctrl-C from the child: the parent ends its children in order.
func childAttr(group bool) *syscall.SysProcAttr {
	if group {
		return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	}
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
