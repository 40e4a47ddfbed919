package stack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// stopGrace is a child's time to exit after SIGTERM, before SIGKILL.
	stopGrace = 5 * time.Second
	// tailBytes and tailLines bound the part of a dead child's log in an error.
	tailBytes = 8 << 10
	tailLines = 20
)

// ExitError reports that a child exited unexpectedly.
type ExitError struct {
	Name   string // "envoy", "sidecar" or "redis-server"
	PID    int
	Status string // for example "exit status 1" or "signal: killed"
	Log    string // path of the log
	Tail   string // last lines of the log, at most 20
}

// Error names the child, the status, and the last output.
func (e *ExitError) Error() string {
	if e.Tail == "" {
		return fmt.Sprintf("%s (pid %d) ended: %s; it wrote nothing to %s", e.Name, e.PID, e.Status, e.Log)
	}
	return fmt.Sprintf("%s (pid %d) ended: %s; last lines of %s:\n%s", e.Name, e.PID, e.Status, e.Log, e.Tail)
}

// program describes a child to start.
type program struct {
	name string
	path string
	args []string
	env  []string // beside the parent's
	log  string   // file for stdout and stderr, appended to
	// group: signals that end or stop the child go to the whole process group, except SIGTERM: on SIGTERM, the child ends
	// its own processes. The child gets a SIGTERM, too, when this process dies.
	group bool
}

// process is a child, running or exited.
type process struct {
	program
	pid      int
	stopping atomic.Bool   // set before we end the child, so that the exit is expected
	done     chan struct{} // closed when the child has exited and been awaited
	status   string        // valid after done is closed
	logStart int64         // size of the log at the start
	signal   func(os.Signal) error
}

// start runs p. If the child exits by itself, onExit is called once, after done is closed.
func start(p program, onExit func(error)) (*process, error) {
	log, err := os.OpenFile(p.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", p.name, err)
	}
	defer func() { _ = log.Close() }() // the child has its own descriptor
	info, err := log.Stat()
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", p.name, err)
	}
	cmd := exec.Command(p.path, p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttr(p.group)

	child := &process{program: p, done: make(chan struct{}), logStart: info.Size()}
	started := make(chan error, 1)
	go func() {
		// The kernel's signal to a child on its parent's death is bound to the thread that started the child: keep the thread
		// until the child has exited.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- fmt.Errorf("start %s: %w", p.name, err)
			return
		}
		child.pid, child.signal = cmd.Process.Pid, cmd.Process.Signal
		if p.group {
			child.signal = func(s os.Signal) error { return signalGroup(cmd.Process, s) }
		}
		started <- nil
		_ = cmd.Wait() // the result is in ProcessState
		child.status = cmd.ProcessState.String()
		close(child.done)
		if !child.stopping.Load() {
			onExit(child.exitError())
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return child, nil
}

// signalGroup sends a signal to all processes of p's group or, for SIGTERM, only to p.
func signalGroup(p *os.Process, signal os.Signal) error {
	s, ok := signal.(syscall.Signal)
	if !ok || s == syscall.SIGTERM {
		return p.Signal(signal)
	}
	if err := syscall.Kill(-p.Pid, s); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return os.ErrProcessDone
}

// stop ends the child by SIGTERM, and by SIGKILL after grace. stop returns when the child has exited.
func (p *process) stop(grace time.Duration) error {
	p.stopping.Store(true)
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGCONT} { // SIGCONT: for a stopped child
		if err := p.signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("stop %s: %w", p.name, err)
		}
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(grace):
	}
	if err := p.kill(); err != nil {
		return err
	}
	return fmt.Errorf("%s (pid %d) did not end within %s of SIGTERM and was killed", p.name, p.pid, grace)
}

// kill ends the child by SIGKILL and returns when the child has exited.
func (p *process) kill() error {
	p.stopping.Store(true)
	if err := p.signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	<-p.done
	return nil
}

// exitError describes the child's exit; done must be closed.
func (p *process) exitError() error {
	return &ExitError{Name: p.name, PID: p.pid, Status: p.status, Log: p.log, Tail: readTail(p.log, p.logStart)}
}

// readTail returns the last lines of a file, from offset at the earliest.
func readTail(path string, offset int64) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return ""
	}
	cut := info.Size()-tailBytes > offset // the first line is incomplete
	text, err := io.ReadAll(io.NewSectionReader(file, max(offset, info.Size()-tailBytes), tailBytes))
	if err != nil {
		return ""
	}
	if _, rest, found := bytes.Cut(text, []byte("\n")); cut && found {
		text = rest
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
