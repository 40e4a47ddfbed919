package hasher

import (
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// niceness is by how much hashers are nicer than who starts them, 0 to 19 (setpriority(2)):
// where all cores are busy, one gets about a tenth of what others do.
const niceness = 10

// detach makes the hasher a process group of its own: an interrupt from the terminal is for
// who started it, and beNice for itself only.
func detach(command *exec.Cmd) { command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// beNice makes all threads of this process group nicer, and so those that they start. It
// is permitted to everybody; a hasher that can't is one all the same.
func beNice() {
	now, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err == nil {
		_ = unix.Setpriority(unix.PRIO_PGRP, 0, min(20-now+niceness, 19)) // the kernel's getpriority counts from 40 down to 1
	}
}
