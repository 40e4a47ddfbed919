//go:build linux

package proc

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// PinServingThreads gives core 0 to the serving threads of s, which has Workers or Forks, and restricts all other
// threads of s, of s's children and of the processes in rest to the other cores, until undo is called. Processes and
// threads started meanwhile inherit the restriction.
func PinServingThreads(s Server, rest ...int) (undo func() error, err error) {
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
	children, err := childrenOf()
	if err != nil {
		return nil, err
	}
	pids := slices.Concat(rest, []int{s.PID}, children[s.PID])
	undo = func() error {
		var errs []error
		for _, pid := range pids {
			errs = append(errs, pinProcess(pid, &all))
		}
		return errors.Join(errs...)
	}
	for _, pid := range pids {
		if err := pinProcess(pid, &others); err != nil {
			return nil, errors.Join(err, undo())
		}
	}
	serving, err := s.servingThreads()
	if err == nil {
		err = pinThreads(serving, &first)
	}
	if err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// pinProcess restricts all threads of a process to cores.
func pinProcess(pid int, cores *unix.CPUSet) error {
	tasks, err := listThreads(pid, "")
	if err != nil {
		return err
	}
	return pinThreads(tasks, cores)
}

// pinThreads restricts threads to cores.
func pinThreads(tasks []string, cores *unix.CPUSet) error {
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
