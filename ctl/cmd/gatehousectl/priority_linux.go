package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// lowerPriority makes all threads of the process nicer, as bcrypt can take hours. New threads inherit it
// (setpriority(2)).
func lowerPriority() {
	const niceness = 10
	threads, _ := os.ReadDir("/proc/self/task") // without it the import works as well
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, niceness)
		}
	}
}
