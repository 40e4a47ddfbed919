package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gatehouse/gatehouse/e2e/stack"
)

// stopWait is more than a stack takes to stop its parts one after the other.
const stopWait = 20 * time.Second

type stopCommand struct {
	Stack string `env:"STACK" default:"demo" help:"Name of the stack."`
}

// Run is called by the command line.
func (c *stopCommand) Run(out output) error {
	if err := stack.CheckName(c.Stack); err != nil {
		return err
	}
	dir, err := stackDir(c.Stack)
	if err != nil {
		return err
	}
	pid, err := stop(filepath.Join(dir, pidFile), stopWait)
	switch {
	case err != nil:
		return fmt.Errorf("stop stack %s: %w", c.Stack, err)
	case pid == 0:
		_, _ = fmt.Fprintf(out.stdout, "stack %s is not running\n", c.Stack)
	default:
		_, _ = fmt.Fprintf(out.stdout, "stopped stack %s (pid %d)\n", c.Stack, pid)
	}
	return nil
}

// stop ends the process that holds the pid file: SIGTERM, and after wait SIGKILL, which
// ends its children too. It returns its pid when it has ended, 0 if there was none.
func stop(path string, wait time.Duration) (int, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open pid file: %w", err)
	}
	defer func() { _ = file.Close() }()

	signalled, killed := 0, false
	deadline := time.Now().Add(wait)
	for {
		free, err := lock(file)
		if err != nil || free {
			return signalled, err
		}
		pid := readPID(file) // 0: it has the lock but has not written it yet, or just emptied it
		switch late := time.Now().After(deadline); {
		case late && killed:
			return 0, fmt.Errorf("pid %d still runs %s after SIGKILL", signalled, wait)
		case late:
			if signalled == 0 {
				return 0, fmt.Errorf("%s is locked but names no process", path)
			}
			if err := syscall.Kill(signalled, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return 0, fmt.Errorf("kill pid %d: %w", signalled, err)
			}
			killed, deadline = true, time.Now().Add(wait)
		case signalled == 0 && pid != 0:
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
				return 0, fmt.Errorf("end pid %d: %w", pid, err)
			}
			signalled = pid
		}
		time.Sleep(20 * time.Millisecond)
	}
}
