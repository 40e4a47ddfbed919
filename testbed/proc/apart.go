//go:build linux

package proc

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Apart gives core 0 to the serving threads of s, which has Workers, and restricts all other threads of s and of the
// processes in rest to the other cores, until undo is called. What those start meanwhile inherits
// this.
func Apart(s Server, rest ...int) (undo func() error, err error) {
	if runtime.NumCPU() < 2 {
		return nil, errors.New("a core for the serving threads alone: this machine has only one")
	}
	var first, others, all unix.CPUSet
	first.Set(0)
	all.Set(0)
	for i := 1; i < runtime.NumCPU(); i++ {
		others.Set(i)
		all.Set(i)
	}
	undo = func() error {
		var errs []error
		for _, pid := range append(rest, s.PID) {
			errs = append(errs, keep(pid, "", &all))
		}
		return errors.Join(errs...)
	}
	for _, pid := range append(rest, s.PID) {
		if err := keep(pid, "", &others); err != nil {
			return nil, errors.Join(err, undo())
		}
	}
	if err := keep(s.PID, s.Workers, &first); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// keep restricts the threads of a process whose names begin with prefix to cores.
func keep(pid int, prefix string, cores *unix.CPUSet) error {
	tasks, err := threads(pid, prefix)
	if err != nil {
		return err
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(id, cores); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("cores of %s: %w", strings.TrimPrefix(task, "/proc/"), err)
		}
	}
	return nil
}
