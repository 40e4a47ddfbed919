package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// lowerPriority lowers the priority of all threads of the process, since bcrypt can take hours. New threads inherit the
// priority (setpriority(2)).
func lowerPriority() {
	const niceness = 10
	threads, _ := os.ReadDir("/proc/self/task") // without /proc, only the priority stays
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, niceness)
		}
	}
}
