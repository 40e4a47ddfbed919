package hasher

import (
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// niceness is that of a hasher of low priority, 0 to 19 (setpriority(2)).
const niceness = 10

// detach keeps an interrupt from the terminal, which is for who started the hasher, from it. It dies
// with who started it: one that is stopped would not see its input end.
func detach(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// pause stops the hasher, or lets it go on. Its priority could not be raised instead: who
// isn't privileged can't leave SCHED_IDLE (sched(7)).
func (h *process) pause(stop bool) {
	signal := syscall.SIGCONT
	if stop {
		signal = syscall.SIGSTOP
	}
	_ = h.command.Process.Signal(signal) // if it has ended, that is seen elsewhere
}

// leave lets the calling thread leave the processor to others. It is permitted to
// everybody; a hasher that can't is one all the same.
//
// Niceness alone is not enough for a hasher whose result is of no use to anybody: who
// wakes up waits for a nicer thread's slice to end, up to 3 ms each time, but not for one
// of SCHED_IDLE (sched(7)).
func leave(p Priority) {
	if p == Idle {
		_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
		return
	}
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, niceness)
}
