package hasher

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/passhash"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
)

// TestMain runs the test program as a hasher if started as a hasher.
func TestMain(m *testing.M) {
	if IsHasher(os.Args) {
		os.Exit(Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func hashOf(t *testing.T, secret string) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(secret), bcrypt.MinCost)
	require.NoError(t, err)
	return string(hash)
}

func newPool(t *testing.T) (*Pool, *bytes.Buffer) {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	var logs bytes.Buffer
	p := New(program, metrics.New(), slog.New(slog.NewTextHandler(&logs, nil)))
	t.Cleanup(p.Close)
	return p, &logs
}

func TestCompare(t *testing.T) {
	p, logs := newPool(t)
	right := hashOf(t, "right")
	tests := []struct {
		name, hash, secret string
		ok                 func(error) bool
	}{
		{"right", right, "right", func(err error) bool { return err == nil }},
		{"wrong", right, "wrong", func(err error) bool { return errors.Is(err, bcrypt.ErrMismatchedHashAndPassword) }},
		{"bytes", hashOf(t, "\xff\n\x01"), "\xff\n\x01", func(err error) bool { return err == nil }},
		{"no secret", right, "", func(err error) bool { return errors.Is(err, bcrypt.ErrMismatchedHashAndPassword) }},
		{"no hash", "hash", "secret", func(err error) bool {
			return err != nil && !errors.Is(err, bcrypt.ErrMismatchedHashAndPassword)
		}},
		{"too long", right, strings.Repeat("s", maxText+1), func(err error) bool { return err != nil }},
		{"and goes on", right, "right", func(err error) bool { return err == nil }},
	}
	for _, tt := range tests {
		if err := p.Compare(tt.hash, tt.secret, nil); !tt.ok(err) {
			t.Errorf("%s: got %v", tt.name, err)
		}
	}
	if len(p.freeHashers[Low]) != 1 || logs.Len() > 0 {
		t.Errorf("got %d hashers and logs %s, want one and none", len(p.freeHashers[Low]), logs)
	}
}

// TestConcurrent: each caller gets its own answer.
func TestConcurrent(t *testing.T) {
	p, _ := newPool(t)
	right := hashOf(t, "right")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 20 {
				secret := []string{"right", "wrong"}[i%2]
				if err := p.Compare(right, secret, []chan bool{nil, make(chan bool)}[i/2]); (err == nil) != (secret == "right") {
					t.Errorf("%s: got %v", secret, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestKilled verifies although the hasher dies, and afterwards with a new hasher.
func TestKilled(t *testing.T) {
	p, logs := newPool(t)
	right := hashOf(t, "right")
	require.NoError(t, p.Compare(right, "right", nil))
	require.NoError(t, p.freeHashers[Low][0].command.Process.Kill())
	for range 2 {
		if err := p.Compare(right, "right", nil); err != nil {
			t.Errorf("got %v, want the right secret to be right", err)
		}
	}
	if !strings.Contains(logs.String(), "bcrypt runs elsewhere") || len(p.freeHashers[Low]) != 1 {
		t.Errorf("got %d hashers and logs %s, want one, and a word on the other", len(p.freeHashers[Low]), logs)
	}
}

// TestNoProgram verifies although no hasher can start, which is logged once.
func TestNoProgram(t *testing.T) {
	var logs bytes.Buffer
	p := New("/no/such/program", metrics.New(), slog.New(slog.NewTextHandler(&logs, nil)))
	for range 2 {
		if err := p.Compare(hashOf(t, "right"), "right", make(chan bool)); err != nil {
			t.Errorf("got %v, want the right secret to be right", err)
		}
	}
	if got := strings.Count(logs.String(), "/no/such/program"); got != 2 { // its name, and in the reason, in one line
		t.Errorf("got %s, want one line", &logs)
	}
}

// TestEndsWithItsInput: a hasher ends with its input.
func TestEndsWithItsInput(t *testing.T) {
	p, _ := newPool(t)
	h, err := startProcess(p.program, Low)
	require.NoError(t, err)
	require.NoError(t, h.in.Close())
	done := make(chan error, 1)
	go func() { done <- h.command.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("got %v, want exit code 0", err)
		}
	case <-time.After(20 * time.Second):
		_ = syscall.Kill(h.command.Process.Pid, syscall.SIGKILL)
		t.Error("it is still there")
	}
}

func TestMalformedQuestion(t *testing.T) {
	for name, question := range map[string]string{"too long": "\xff\xff\x00\x00", "cut": "\x05\x00\x05\x00hash",
		"cut lengths": "\x05"} {
		if err := serveQuestions(strings.NewReader(question), &bytes.Buffer{}); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

// TestNoAnswer stops hashers, like a frozen machine or a broken disk: the hashers are killed, the right secret is still
// right, and the next run gets a new hasher.
func TestNoAnswer(t *testing.T) {
	for name, pace := range map[string]chan bool{"low": nil, "idle": make(chan bool)} {
		t.Run(name, func(t *testing.T) {
			p, logs := newPool(t)
			right := hashOf(t, "right")
			require.NoError(t, p.Compare(right, "right", pace))
			priority := Low
			if pace != nil {
				priority = Idle
			}
			stuck := p.freeHashers[priority][0]
			require.NoError(t, stuck.command.Process.Signal(syscall.SIGSTOP))
			p.deadline = func(string, Priority) time.Duration { return 100 * time.Millisecond }
			done := make(chan error, 1)
			go func() { done <- p.Compare(right, "right", pace) }()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("got %v, want the right secret to be right", err)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("no answer, long after the deadline")
			}
			p.deadline = answerDeadline
			if n := metricstest.Value(t, p.metrics, "gatehouse_hashers_killed_total"); n == 0 ||
				!strings.Contains(logs.String(), "no answer in time") {
				t.Errorf("got %v killed and logs %s, want at least one, and a word on it", n, logs)
			}
			if err := p.Compare(right, "right", pace); err != nil ||
				len(p.freeHashers[priority]) != 1 || p.freeHashers[priority][0] == stuck {
				t.Errorf("got %v and hashers %v, want a new one", err, p.freeHashers[priority])
			}
		})
	}
}

// TestManyDying starts no more hashers while killed ones have not ended.
func TestManyDying(t *testing.T) {
	p, logs := newPool(t)
	p.dying = maxDying
	if err := p.Compare(hashOf(t, "right"), "right", nil); err != nil || len(p.freeHashers[Low]) != 0 ||
		!strings.Contains(logs.String(), "8 killed hashers have not exited") {
		t.Errorf("got %v, %d hashers and logs %s", err, len(p.freeHashers[Low]), logs)
	}
}

func TestDeadline(t *testing.T) {
	for cost, want := range map[int][2]time.Duration{
		4: {4500 * time.Millisecond, 30 * time.Second}, 11: {4500 * time.Millisecond, 30 * time.Second},
		12: {9 * time.Second, time.Minute}, 14: {36 * time.Second, 4 * time.Minute},
	} {
		hash := fmt.Sprintf("$2a$%02d$%s", cost, strings.Repeat("a", 53))
		if low, idle := answerDeadline(hash, Low), answerDeadline(hash, Idle); low != want[0] || idle != want[1] {
			t.Errorf("cost %d: got %v and %v, want %v", cost, low, idle, want)
		}
	}
	slow := "$scrypt$ln=17,r=8,p=16$" + strings.Repeat("s", 22) + "$" + strings.Repeat("k", 43)
	if got := answerDeadline(slow, Low); got < 4*time.Minute || got > 5*time.Minute {
		t.Errorf("the slowest scrypt: got %v, want 36 times its 6.7 s", got)
	}
}

// TestMemory: after a run of 128 MiB, an idle hasher has given the memory back.
func TestMemory(t *testing.T) {
	hash := "$argon2id$v=19$m=131072,t=1,p=4$" + strings.Repeat("s", 22) + "$" + strings.Repeat("k", 43)
	question := string(binary.LittleEndian.AppendUint16(nil, uint16(len(hash)))) + "\x01\x00" + hash + "s"
	var answer bytes.Buffer
	if err := serveQuestions(strings.NewReader(question+question), &answer); err != nil || answer.String() != "\x01\x01" {
		t.Fatalf("got %q, %v, want two mismatches", answer.String(), err)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if held := m.HeapSys - m.HeapReleased; m.HeapSys < 128<<20 || held > 64<<20 {
		t.Errorf("%d MiB of %d are held, want at most 64", held>>20, m.HeapSys>>20)
	}
}

// TestMemoryOfRuns: a run that needs much memory waits while earlier runs of its priority hold the memory; bcrypt
// doesn't wait.
func TestMemoryOfRuns(t *testing.T) {
	p, _ := newPool(t)
	require.NoError(t, p.memory[Low].Acquire(t.Context(), maxMemory))
	big := "$argon2id$v=19$m=131072,t=1,p=4$" + strings.Repeat("s", 22) + "$" + strings.Repeat("k", 43)
	done := make(chan error, 1)
	go func() { done <- p.Compare(big, "s", nil) }()
	if err := p.Compare(hashOf(t, "right"), "right", nil); err != nil {
		t.Error(err)
	}
	select {
	case err := <-done:
		t.Errorf("a run of 128 MiB didn't wait: %v", err)
	default:
	}
	p.memory[Low].Release(maxMemory)
	if err := <-done; !errors.Is(err, passhash.ErrMismatch) {
		t.Errorf("got %v, want a mismatch", err)
	}
}
