// Package hasher runs bcrypt, and other slow schemes, in child processes of low priority. A flood of wrong secrets then
// uses only spare CPU. Threads of low priority in this process would not work: garbage collection waits for every
// thread, so the whole program would wait for threads without CPU.
//
// A hasher without an answer in time is killed, and the run is repeated elsewhere. So a slow hasher never causes the
// refusal of a right secret.
package hasher

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/gatehouse/gatehouse/clients/go/passhash"
	"github.com/gatehouse/gatehouse/internal/metrics"
)

// Priority is a hasher's scheduling priority, and the argument that starts a program as a hasher.
type Priority string

// The priorities.
const (
	Low  Priority = "bcrypt"      // about a tenth of the CPU of others if all cores are busy
	Idle Priority = "bcrypt-idle" // only spare CPU
)

// IsHasher reports whether the program was started as a hasher; main must then call [Main].
func IsHasher(args []string) bool {
	return len(args) == 2 && (Priority(args[1]) == Low || Priority(args[1]) == Idle)
}

// maxText bounds a hash and a secret, in bytes; both are far shorter.
const maxText = 1 << 10

// The answers.
const (
	match = iota
	mismatch
	failed
)

// maxDying bounds the killed hashers that have not ended, for example because of a broken disk. Beyond the bound no
// hasher is started.
const maxDying = 8

// maxMemory bounds the memory that the hashes of all runs of a priority take, in bytes.
const maxMemory = 256 << 20

// Pool starts hashers on demand, as many as run concurrently, and is safe for concurrent use.
type Pool struct {
	program string
	metrics *metrics.Metrics
	log     *slog.Logger
	// deadline returns the maximum time for an answer: [answerDeadline], except in tests.
	deadline func(hash string, p Priority) time.Duration
	// memory is the memory for the runs of each priority. Paused runs keep their memory, so the priorities are
	// separate: runs of [Low] priority don't wait for suspects.
	memory map[Priority]*semaphore.Weighted

	mu          sync.Mutex // protects all below
	freeHashers map[Priority][]*process
	dying       int
	closed      bool
	lastReason  string // the last reason for having no hasher
}

// New returns a Pool of hashers that run program with their priority as the argument.
func New(program string, m *metrics.Metrics, log *slog.Logger) *Pool {
	return &Pool{program: program, metrics: m, log: log, deadline: answerDeadline, freeHashers: map[Priority][]*process{},
		memory: map[Priority]*semaphore.Weighted{
			Low: semaphore.NewWeighted(maxMemory), Idle: semaphore.NewWeighted(maxMemory),
		}}
}

// Compare returns nil if hash is a hash of secret, otherwise an error like [passhash.Compare]. With a pace, a hasher of
// [Idle] priority runs the comparison, and is stopped while the last value of pace was true. If that hasher fails, a
// hasher of [Low] priority runs the comparison. If the second hasher fails or can't start, this process does.
func (p *Pool) Compare(hash, secret string, pace <-chan bool) error {
	takes := passhash.Memory(hash)
	if pace != nil {
		give := p.reserveMemory(Idle, takes)
		answer, err := p.askHasher(hash, secret, Idle, pace)
		give()
		if err == nil {
			return answerError(answer)
		}
	}
	defer p.reserveMemory(Low, takes)()
	answer, err := p.askHasher(hash, secret, Low, nil)
	if err == nil {
		return answerError(answer)
	}
	return passhash.Compare(hash, secret)
}

// reserveMemory waits until a run may take some bytes, and returns the function that releases them. bcrypt needs no
// memory and never waits.
func (p *Pool) reserveMemory(priority Priority, bytes int64) (give func()) {
	if bytes == 0 {
		return func() {}
	}
	_ = p.memory[priority].Acquire(context.Background(), bytes) // fails only if the context ends
	return func() { p.memory[priority].Release(bytes) }
}

// askHasher returns a hasher's answer, or the reason for having no answer.
func (p *Pool) askHasher(hash, secret string, priority Priority, pace <-chan bool) (answer byte, err error) {
	h, err := p.takeHasher(priority)
	if err == nil {
		if answer, err = h.compareHash(hash, secret, pace, p.deadline(hash, priority)); err == nil {
			p.returnHasher(h)
			return answer, nil
		}
		if p.killHasher(h, err) {
			return 0, err
		}
	}
	p.logMissing(err, priority)
	return 0, err
}

// killHasher kills a failed hasher. late: the reason was a timeout, and is logged.
func (p *Pool) killHasher(h *process, why error) (late bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if took, ok := errors.AsType[*lateError](why); ok {
		late = true
		p.metrics.HashersKilled.Inc()
		p.log.Warn("a hasher gave no answer in time: killed, bcrypt runs elsewhere", "pid", h.command.Process.Pid,
			"priority", h.priority, "deadline", took.after)
	}
	p.dying++
	_ = h.command.Process.Kill()
	_ = h.in.Close()
	go func() {
		_ = h.command.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.dying--
	}()
	return late
}

// logMissing logs each new reason for having no hasher, once and not for every secret.
func (p *Pool) logMissing(err error, priority Priority) {
	p.mu.Lock()
	defer p.mu.Unlock()
	level := slog.LevelDebug
	if err.Error() != p.lastReason {
		level, p.lastReason = slog.LevelWarn, err.Error()
	}
	p.log.Log(context.Background(), level, "bcrypt runs elsewhere: it has no hasher of its priority",
		"program", p.program, "priority", priority, "error", err)
}

func answerError(answer byte) error {
	switch answer {
	case match:
		return nil
	case mismatch:
		return passhash.ErrMismatch
	}
	return errors.New("the hasher could not read the hash")
}

func (p *Pool) takeHasher(priority Priority) (*process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if free := p.freeHashers[priority]; len(free) > 0 {
		h := free[len(free)-1]
		p.freeHashers[priority] = slices.Delete(free, len(free)-1, len(free))
		return h, nil
	}
	if p.dying >= maxDying {
		return nil, fmt.Errorf("%d killed hashers have not exited", p.dying)
	}
	return startProcess(p.program, priority)
}

func (p *Pool) returnHasher(h *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastReason = ""
	if p.closed {
		h.closeInput()
		return
	}
	p.freeHashers[h.priority] = append(p.freeHashers[h.priority], h)
}

// Close ends the hashers; running ones end after their work.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, free := range p.freeHashers {
		for _, h := range free {
			h.closeInput()
		}
	}
	clear(p.freeHashers)
}

// process is a running hasher, which ends when its standard input is closed, so also when the sidecar is killed.
type process struct {
	priority Priority
	command  *exec.Cmd
	in       io.WriteCloser
	out      io.Reader
}

func startProcess(program string, priority Priority) (*process, error) {
	command := exec.Command(program, string(priority))
	command.Env = append(os.Environ(), "GOMAXPROCS=1")
	command.Stderr = os.Stderr
	detachProcess(command)
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

func (h *process) compareHash(hash, secret string, pace <-chan bool, deadline time.Duration) (byte, error) {
	if len(hash) > maxText || len(secret) > maxText {
		return failed, nil
	}
	b := binary.LittleEndian.AppendUint16(nil, uint16(len(hash)))
	b = append(binary.LittleEndian.AppendUint16(b, uint16(len(secret))), hash...)
	if _, err := h.in.Write(append(b, secret...)); err != nil { // the pipe has room
		return 0, err
	}
	type read struct {
		answer byte
		err    error
	}
	answered := make(chan read, 1)
	go func() {
		var answer [1]byte
		_, err := io.ReadFull(h.out, answer[:])
		answered <- read{answer[0], err}
	}()
	left := deadline
	timer, since, paused := time.NewTimer(left), time.Now(), false
	defer timer.Stop()
	for {
		select {
		case r := <-answered: // even if it was stopped too late
			if paused {
				h.setPaused(false)
			}
			return r.answer, r.err
		case <-timer.C:
			return 0, &lateError{deadline}
		case pause := <-pace:
			if pause == paused {
				break
			}
			paused = pause
			h.setPaused(pause)
			if pause { // the deadline does not run while it is stopped
				timer.Stop()
				left -= time.Since(since)
			} else {
				since = time.Now()
				timer.Reset(max(left, 0))
			}
		}
	}
}

// lateError means that a hasher did not answer in time.
type lateError struct{ after time.Duration }

func (e *lateError) Error() string { return fmt.Sprintf("no answer within %v", e.after) }

// answerDeadline returns the maximum time for an answer: 9 s at bcrypt's cost 12, and 60 s for a hasher that gets only
// spare CPU. For other costs and schemes the deadline is in proportion to the estimated time; below cost 11, half of
// the above.
func answerDeadline(hash string, p Priority) time.Duration {
	times := 9 * time.Second
	if p == Idle {
		times = 60 * time.Second
	}
	const unit = passhash.Unit
	return time.Duration(float64(times) * float64(max(passhash.Time(hash), unit/2)) / float64(unit))
}

func (h *process) closeInput() {
	_ = h.in.Close()
	go func() { _ = h.command.Wait() }() // after the current run
}

// Main runs a hasher with the priority in args: it answers questions from in until in ends, and returns an exit code.
//
// A question is u16 length of the hash, u16 length of the secret, hash, secret; an answer
// is one byte.
func Main(args []string, in io.Reader, out, stderr io.Writer) int {
	runtime.LockOSThread() // priorities belong to threads
	lowerPriority(Priority(args[1]))
	if err := serveQuestions(bufio.NewReader(in), out); err != nil {
		fmt.Fprintln(stderr, "hasher:", err)
		return 1
	}
	return 0
}

func serveQuestions(in io.Reader, out io.Writer) error {
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
		switch err := passhash.Compare(string(text[:hash]), string(text[hash:])); {
		case errors.Is(err, passhash.ErrMismatch):
			answer = mismatch
		case err != nil:
			answer = failed
		}
		if _, err := out.Write([]byte{answer}); err != nil {
			return err
		}
		if !bytes.HasPrefix(text[:hash], []byte("$2")) { // a run can take 128 MiB, which a waiting process must not keep
			debug.FreeOSMemory()
		}
	}
}
