//go:build !linux

package stack

import "syscall"

// childAttr keeps the terminal's Ctrl-C from the child: the parent ends children in order. Only Linux can also end
// children when the parent is killed.
func childAttr(bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

func awaitStop(int) error { return nil }
