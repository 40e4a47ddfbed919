package stack

import "syscall"

// childAttr makes the kernel kill the child when its parent dies, and keeps the terminal's Ctrl-C from the child: the
// parent ends its children in order.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
