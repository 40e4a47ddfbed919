package chaos

import (
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
)

// waiting returns the starvation by other programs that take a share of the processors, in percent.
func waiting(percent int) *starvation {
	s := new(starvation)
	for ms := 0; ms <= 60_000; ms += 100 {
		s.samples = append(s.samples, starvationSample{at(ms), at(ms * percent / 100)})
	}
	return s
}

func TestStarvation(t *testing.T) {
	for _, tt := range []struct {
		percent, between, before int // ms of 10 s to 14 s; since when 2 s have passed until 30 s
	}{{0, 0, 28_000}, {25, 1000, 27_333}, {50, 2000, 26_000}, {100, 4000, -1}} {
		s := waiting(tt.percent)
		if got := s.between(at(10_000), at(14_000)); got != at(tt.between) {
			t.Errorf("%d %%: got %v between, want %d ms", tt.percent, got, tt.between)
		}
		got, want := s.timeBefore(at(30_000), at(2000)), at(tt.before)
		if tt.before < 0 && got > 0 || tt.before >= 0 && (got-want).Abs() > at(20) {
			t.Errorf("%d %%: got %v before, want %v", tt.percent, got, want)
		}
	}
	if s := waiting(50); s.between(at(59_000), at(61_000)) != at(1000) {
		t.Errorf("after the last sample: got %v, want as before", s.between(at(59_000), at(61_000)))
	}
	var none *starvation
	if none.between(0, at(1000)) != 0 || none.isHeavy(0, at(1000)) || !none.hasPassed(0, at(1001), at(1000)) {
		t.Error("without samples there is starvation")
	}
}

// TestCheckerOnABusyMachine: an answer may be late by the time that other programs took. Everything except bounds of
// time, and the age of an answer, is judged as on an idle machine.
func TestCheckerOnABusyMachine(t *testing.T) {
	const second = 1000
	stale := func(start int) event { return read(Read{Answer: Stale, Start: at(start), End: at(start + 1)}) }
	again := []event{put(1, 0, 1), began(5*second, true), stale(5100), stale(5102)}
	for _, tt := range []struct {
		name   string
		events []event
		rules  map[int]string // violated by the last event, by others' percent
	}{
		{"late", []event{put(1, 0, 1), put(2, 3000, 3001), hit(1, 5500, 5501)},
			map[int]string{0: "late", 10: "late", 50: "", 90: ""}},
		{"missed", []event{put(1, 0, 1), missed(2500, 2501)},
			map[int]string{0: "missed", 10: "missed", 50: "", 90: ""}},
		{"long missed", []event{put(1, 0, 1), missed(9000, 9001)},
			map[int]string{0: "missed", 50: "missed", 90: ""}},
		{"stale without a fault", []event{put(1, 0, 1), stale(9000)}, map[int]string{0: "missed", 40: "missed", 90: ""}},
		{"after a fault", []event{put(1, 0, 1), began(3000, false), ended(4000), stale(6100)},
			map[int]string{0: "missed", 50: "", 90: ""}},
		{"lost", again, map[int]string{0: "lost", 90: ""}},
		{"refused", []event{put(1, 0, 1), refused(2500, 2501)}, map[int]string{0: "good one refused", 50: ""}},
		{"too old", []event{put(1, 0, 1), put(2, 3000, 3001), hit(1, 30_000, 30_001)},
			map[int]string{0: "too old", 90: "too old"}},
		{"expired", []event{forASecond(1, 0, 1), hit(1, 30_000, 30_001)}, map[int]string{0: "expired", 90: "expired"}},
		{"wrong body", []event{put(1, 0, 1), hit(7, 100, 101)}, map[int]string{0: "wrong body", 100: "wrong body"}},
		{"backwards", []event{put(1, 0, 1), put(2, 10, 11), hit(2, 20, 21), hit(1, 30, 31)},
			map[int]string{0: "backwards", 100: "backwards"}},
	} {
		for percent, want := range tt.rules {
			c := NewChecker(1, testLimits)
			c.starvation = waiting(percent)
			var found []Violation
			for _, e := range tt.events {
				found = e.do(c)
			}
			got := ""
			if len(found) > 0 {
				got = found[0].Rule
			}
			if got != want {
				t.Errorf("%s, %d %%: got %q, want %q", tt.name, percent, got, want)
			}
		}
	}
}

// TestTakenByOthers keeps two processors busy: with a child of this process, and with a process of another parent.
func TestTakenByOthers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells who took the processors")
	}
	loop := func(t *testing.T, run string) {
		cmd := exec.Command("sh", "-c", run)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); cmd.Wait() })
	}
	before := takenByRun()
	loop(t, "while :; do :; done")
	await.Until(t, "time of a child", func() bool { return takenByRun()-before >= 300*time.Millisecond })

	then, ok := readProcessors()
	if !ok {
		t.Fatal("no times of processors")
	}
	run := takenByRun()
	loop(t, "(while :; do :; done) & exit") // whose parent ends
	await.Until(t, "time of others", func() bool {
		now, _ := readProcessors()
		return now.others-then.others >= 300*time.Millisecond && takenByRun() > run
	})
}

// TestStarvationRises: times of processes that end between two reads are missing from the second.
func TestStarvationRises(t *testing.T) {
	s := new(starvation)
	for _, tt := range [][3]int{{0, 0, 0}, {100, 50, 50}, {200, 20, 50}, {300, 400, 150}, {400, 160, 160}} {
		if s.addSample(at(tt[0]), at(tt[1])); s.samples[len(s.samples)-1].sum != at(tt[2]) {
			t.Errorf("%d ms: got %v, want %d ms", tt[0], s.samples[len(s.samples)-1].sum, tt[2])
		}
	}
}

func TestStarved(t *testing.T) {
	second := time.Duration(runtime.NumCPU()) * time.Second
	for _, tt := range []struct{ others, idle, want int }{ // percent of a second
		{0, 50, 0}, {5, 0, 5}, {5, 50, 5}, {30, 40, 30}, {30, 6, 30}, {30, 4, 100}, {100, 0, 100},
	} {
		now := processors{all: second, others: second * time.Duration(tt.others) / 100,
			idle: second * time.Duration(tt.idle) / 100}
		if got, want := now.starvedSince(processors{}), time.Second*time.Duration(tt.want)/100; got != want {
			t.Errorf("%+v: got %v, want %v", tt, got, want)
		}
	}
}
