// Package hasher runs bcrypt in processes of its own, which leave the processor to others:
// a flood of wrong secrets takes what is left over. Threads of this process with a low
// priority would not do, because a collection of garbage waits for every thread, and so
// the whole program for those that don't get to run.
package hasher

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"sync"

	"golang.org/x/crypto/bcrypt"
)

// Priority is how much a hasher leaves to others, and the argument that makes a program one.
type Priority string

// The priorities.
const (
	Low  Priority = "bcrypt"      // about a tenth of what others get where all cores are busy
	Idle Priority = "bcrypt-idle" // only what nobody else wants, at that moment
)

// Asked reports whether a program was called to be a hasher: its main calls [Main] then.
func Asked(args []string) bool {
	return len(args) == 2 && (Priority(args[1]) == Low || Priority(args[1]) == Idle)
}

// maxText bounds a hash and a secret, bytes; both are far shorter.
const maxText = 1 << 10

// The answers.
const (
	match = iota
	mismatch
	failed
)

// Pool runs hashers, each when it is first needed and as many as are needed at a time. It
// is safe for concurrent use.
type Pool struct {
	program string
	log     *slog.Logger

	mu     sync.Mutex // protects all below
	free   map[Priority][]*process
	closed bool
	said   string // why there was no hasher, last
}

// New is a Pool of hashers that are program, called with their priority.
func New(program string, log *slog.Logger) *Pool {
	return &Pool{program: program, log: log, free: map[Priority][]*process{}}
}

// Compare returns nil if secret is what hash was made of, else an error as
// [bcrypt.CompareHashAndPassword] does. Where no hasher can be had it runs bcrypt itself.
func (p *Pool) Compare(hash, secret string, priority Priority) error {
	h, err := p.take(priority)
	if err == nil {
		var answer byte
		if answer, err = h.ask(hash, secret); err == nil {
			p.give(h)
			return result(answer)
		}
		h.end()
	}
	p.tell(err)
	return bcrypt.CompareHashAndPassword([]byte(hash), []byte(secret))
}

// tell logs each new reason why there is no hasher, as each secret would meet it.
func (p *Pool) tell(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	level := slog.LevelDebug
	if err.Error() != p.said {
		level, p.said = slog.LevelWarn, err.Error()
	}
	p.log.Log(context.Background(), level, "bcrypt runs in this process: it has no hasher", "program", p.program, "error", err)
}

func result(answer byte) error {
	switch answer {
	case match:
		return nil
	case mismatch:
		return bcrypt.ErrMismatchedHashAndPassword
	}
	return errors.New("the hasher could not read the hash")
}

func (p *Pool) take(priority Priority) (*process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if free := p.free[priority]; len(free) > 0 {
		last := len(free) - 1
		p.free[priority] = free[:last]
		return free[last], nil
	}
	return start(p.program, priority)
}

func (p *Pool) give(h *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said = ""
	if p.closed {
		h.end()
		return
	}
	p.free[h.priority] = append(p.free[h.priority], h)
}

// Close ends the hashers; those at work end after it.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, free := range p.free {
		for _, h := range free {
			h.end()
		}
	}
	clear(p.free)
}

// process is a running hasher. It ends by itself when nobody holds its standard input any
// more, so also when this process is killed.
type process struct {
	priority Priority
	command  *exec.Cmd
	in       io.WriteCloser
	out      io.Reader
}

func start(program string, priority Priority) (*process, error) {
	command := exec.Command(program, string(priority))
	command.Env = append(os.Environ(), "GOMAXPROCS=1")
	command.Stderr = os.Stderr
	detach(command)
	in, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	return &process{priority, command, in, out}, nil
}

func (h *process) ask(hash, secret string) (byte, error) {
	if len(hash) > maxText || len(secret) > maxText {
		return failed, nil
	}
	b := binary.LittleEndian.AppendUint16(nil, uint16(len(hash)))
	b = append(binary.LittleEndian.AppendUint16(b, uint16(len(secret))), hash...)
	if _, err := h.in.Write(append(b, secret...)); err != nil {
		return 0, err
	}
	var answer [1]byte
	_, err := io.ReadFull(h.out, answer[:])
	return answer[0], err
}

func (h *process) end() {
	_ = h.in.Close()
	go func() { _ = h.command.Wait() }() // after the run that is under way
}

// Main is a hasher, called as args say: it answers what comes from in until that ends, and
// returns an exit code.
//
// A question is u16 length of the hash, u16 length of the secret, hash, secret; an answer
// is one byte.
func Main(args []string, in io.Reader, out, stderr io.Writer) int {
	runtime.LockOSThread() // priorities are those of threads
	leave(Priority(args[1]))
	if err := serve(bufio.NewReader(in), out); err != nil {
		fmt.Fprintln(stderr, "hasher:", err)
		return 1
	}
	return 0
}

func serve(in io.Reader, out io.Writer) error {
	for {
		var lengths [4]byte
		if _, err := io.ReadFull(in, lengths[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		hash, secret := binary.LittleEndian.Uint16(lengths[:]), binary.LittleEndian.Uint16(lengths[2:])
		if hash > maxText || secret > maxText {
			return fmt.Errorf("a hash of %d bytes and a secret of %d, at most %d each", hash, secret, maxText)
		}
		text := make([]byte, int(hash)+int(secret))
		if _, err := io.ReadFull(in, text); err != nil {
			return err
		}
		answer := byte(match)
		switch err := bcrypt.CompareHashAndPassword(text[:hash], text[hash:]); {
		case errors.Is(err, bcrypt.ErrMismatchedHashAndPassword):
			answer = mismatch
		case err != nil:
			answer = failed
		}
		if _, err := out.Write([]byte{answer}); err != nil {
			return err
		}
	}
}
