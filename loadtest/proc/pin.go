//go:build linux

package proc

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Pin lets those threads of a process whose names begin with prefix run on the cores from
// first up to, not including, end. Threads that they start later inherit it.
func Pin(pid int, prefix string, first, end int) error {
	var set unix.CPUSet
	for core := first; core < end; core++ {
		set.Set(core)
	}
	tasks, err := threads(pid, prefix)
	if err != nil {
		return err
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(id, &set); err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
			return fmt.Errorf("pin thread %d of process %d to cores %d to %d: %w", id, pid, first, end-1, err)
		}
	}
	return nil
}
