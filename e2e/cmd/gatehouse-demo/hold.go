package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/gatehouse/gatehouse/e2e/stack"
)

// pidFile is held by an exclusive flock as long as the stack runs. The kernel drops the lock
// with the process, however that ends, so a pid that is left behind is never taken for a
// running one, nor a stranger that got its number for the stack.
const pidFile = "pid"

// held is the pid file of a stack that this process runs.
type held struct{ file *os.File }

// stackDir is where a stack keeps its state. It needn't exist.
func stackDir(name string) (string, error) {
	root, err := stack.Root()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, ".run", name), nil
}

// shown is path as the user would write it.
func shown(path string) string {
	if dir, err := os.Getwd(); err == nil {
		if relative, err := filepath.Rel(dir, path); err == nil {
			return relative
		}
	}
	return path
}

// hold makes this process the one that runs the stack.
func hold(dir, name string) (*held, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of stack %s: %w", name, err)
	}
	file, err := os.OpenFile(filepath.Join(dir, pidFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open pid file: %w", err)
	}
	taken, err := lock(file)
	if err == nil && !taken {
		err = fmt.Errorf("stack %s runs already (pid %d); end it with: make stop STACK=%s, or run another, with other addresses: make run STACK=NAME EDGE=HOST:PORT",
			name, readPID(file), name)
	}
	if err == nil {
		err = writePID(file, strconv.Itoa(os.Getpid())+"\n")
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return &held{file: file}, nil
}

// release empties the file and drops the lock. The file stays: another process may have it
// open already, and must find the same one as the next.
func (h *held) release() {
	_ = writePID(h.file, "")
	_ = h.file.Close()
}

// lock tries to take the lock, and reports whether it did.
func lock(file *os.File) (bool, error) {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return true, nil
}

func writePID(file *os.File, text string) error {
	if err := file.Truncate(0); err != nil {
		return fmt.Errorf("write pid file: %w", err)
	}
	if _, err := file.WriteAt([]byte(text), 0); err != nil {
		return fmt.Errorf("write pid file: %w", err)
	}
	return nil
}

// readPID is the pid in the file, 0 if there is none (yet).
func readPID(file *os.File) int {
	text, err := io.ReadAll(io.NewSectionReader(file, 0, 32))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid < 1 {
		return 0
	}
	return pid
}
