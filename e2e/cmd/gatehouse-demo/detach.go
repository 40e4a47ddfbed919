package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// logFile takes what a stack in the background prints.
const logFile = "demo.log"

// detach starts this program again with the same arguments, in a session of its own, and
// returns when it has reported that it is ready or has ended.
func detach(ctx context.Context, name string, out output) error {
	dir, err := stackDir(name)
	if err != nil {
		return err
	}
	// Held for a moment only, to refuse a second start before its log is overwritten.
	held, err := hold(dir, name)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	held.release()
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = log.Close() }()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	ready, readyWriter, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	defer func() { _ = ready.Close() }()

	cmd := exec.Command(self, append(os.Args[1:len(os.Args):len(os.Args)], "--ready-fd=3")...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{readyWriter}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = readyWriter.Close() // now only the child has it: its end is the end of the pipe
	if err != nil {
		return fmt.Errorf("start in the background: %w", err)
	}
	cancel := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer cancel()

	banner, err := io.ReadAll(ready)
	if err != nil {
		return fmt.Errorf("wait for readiness: %w", err)
	}
	if len(banner) > 0 {
		_, err := out.stdout.Write(banner)
		return errors.Join(err, cmd.Process.Release())
	}
	err = cmd.Wait()
	_, _ = io.WriteString(out.stderr, logTail(log.Name()))
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
		return exitStatus(exit.ExitCode())
	}
	return fmt.Errorf("stack %s ended before it was ready: %s; its log is %s", name, cmd.ProcessState, shown(log.Name()))
}

// logTail is the last lines of a log, at most 40.
func logTail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := strings.SplitAfter(string(text), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "")
}
