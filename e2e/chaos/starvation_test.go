package chaos

import (
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
)

// waiting returns the starvation of parts that wait for a share of the time, in percent.
func waiting(percent int) *starvation {
	s := new(starvation)
	for ms := 0; ms <= 60_000; ms += 100 {
		s.samples = append(s.samples, starved{at(ms), at(ms * percent / 100)})
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
		got, want := s.before(at(30_000), at(2000)), at(tt.before)
		if tt.before < 0 && got > 0 || tt.before >= 0 && (got-want).Abs() > at(20) {
			t.Errorf("%d %%: got %v before, want %v", tt.percent, got, want)
		}
	}
	if s := waiting(50); s.between(at(59_000), at(61_000)) != at(1000) {
		t.Errorf("after the last sample: got %v, want as before", s.between(at(59_000), at(61_000)))
	}
	var none *starvation
	if none.between(0, at(1000)) != 0 || none.heavy(0, at(1000)) || !none.passed(0, at(1001), at(1000)) {
		t.Error("without samples there is starvation")
	}
}

// TestCheckerOnABusyMachine: what has waited for a processor may be late by as much. All that isn't a bound of time,
// and the age of an answer, is judged as on an idle machine.
func TestCheckerOnABusyMachine(t *testing.T) {
	const second = 1000
	stale := func(start int) event { return read(Read{Answer: Stale, Start: at(start), End: at(start + 1)}) }
	again := []event{put(1, 0, 1), began(5*second, true), stale(5100), stale(5102)}
	for _, tt := range []struct {
		name   string
		events []event
		rules  map[int]string // violated by the last event, by percent of waiting
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
		{"refused", []event{put(1, 0, 1), refused(1, 2500, 2501)}, map[int]string{0: "good one refused", 50: ""}},
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

// TestWaits measures a busy machine: of more processes than there are processors, each waits.
func TestWaits(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells how long threads wait")
	}
	waited := map[string]time.Duration{}
	if got := waits(waited); len(got) != 0 {
		t.Errorf("at first: got %v, want nothing, since nothing is known of before", got)
	}
	for range 2*runtime.NumCPU() + 1 {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	}
	sum := time.Duration(0)
	await.Until(t, "waiting processes", func() bool {
		for _, wait := range waits(waited) {
			sum += wait
		}
		return sum > 100*time.Millisecond
	})
}
