//go:build linux

// Package proc runs the programs of a load test and reads from /proc what they use. It
// is for Linux.
package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// grace is how long a program has from SIGTERM to its end before it gets SIGKILL.
const grace = 5 * time.Second

// Program is what to run.
type Program struct {
	Name string // in errors
	Path string // empty: this very program
	Args []string
	Log  string // file that its output goes to
}

// Process is a program that runs, with a process group of its own.
type Process struct {
	name string
	pid  int
	done chan struct{} // closed when it has ended
}

// Start runs p until Stop, or until this process dies.
func Start(p Program) (*Process, error) {
	if p.Path == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", p.Name, err)
		}
		p.Path = self
	}
	log, err := os.Create(p.Log)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", p.Name, err)
	}
	defer func() { _ = log.Close() }() // the child has its own descriptor
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	child := &Process{name: p.Name, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// Pdeathsig comes when the thread that started the child ends, so that thread stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- fmt.Errorf("start %s: %w", p.Name, err)
			return
		}
		child.pid = cmd.Process.Pid
		started <- nil
		_ = cmd.Wait() // how it ended is in its log
		close(child.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return child, nil
}

// PID is the id of the process and of its group.
func (p *Process) PID() int { return p.pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Stop ends the process and what is left of its group, and returns when the process has
// ended.
func (p *Process) Stop() error {
	if err := syscall.Kill(p.pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	select {
	case <-p.done:
	case <-time.After(grace):
	}
	if err := syscall.Kill(-p.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	<-p.done
	return nil
}
