package hasher

import (
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// niceness is how much nicer a hasher of low priority is than the sidecar (setpriority(2)): a tenth of its weight.
const niceness = 10

// detachProcess protects the hasher from the terminal's interrupt, which is for the hasher's parent. The hasher dies
// with its parent: a stopped hasher would not notice the end of its input.
func detachProcess(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// setPaused stops the hasher, or continues it. Raising the priority instead is impossible: an unprivileged process
// can't leave SCHED_IDLE (sched(7)).
func (h *process) setPaused(stop bool) {
	signal := syscall.SIGCONT
	if stop {
		signal = syscall.SIGSTOP
	}
	_ = h.command.Process.Signal(signal) // an ended process is handled elsewhere
}

// lowerPriority lowers the priority of the calling thread. Every process has permission for that; if the call fails,
// the hasher works at normal priority.
//
// Niceness alone is not enough for a hasher whose result nobody needs: a thread that wakes up waits up to 3 ms for the
// end of a nicer thread's slice, but does not wait for a SCHED_IDLE thread (sched(7)).
func lowerPriority(p Priority) {
	if p == Idle {
		_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
		return
	}
	own, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // 20 - the niceness: 1 to 40
	if err != nil {
		return
	}
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, min(20-own+niceness, 19))
}
