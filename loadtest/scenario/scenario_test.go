//go:build linux

package scenario

import (
	"errors"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/loadtest/peers"
)

func TestParseLimits(t *testing.T) {
	const good = `{"tolerance": 0.1, "pairs": 5, "retry_pairs": 12, "limits": [{"workload": "304", "wasm": 1.6, "native": 1.3, "native_to_floor": 1.1}]}`
	for _, test := range []struct {
		name, text string
		ok         bool
	}{
		{"good", good, true},
		{"no JSON", "", false},
		{"no pairs", strings.Replace(good, `"pairs": 5`, `"pairs": 0`, 1), false},
		{"no retry", strings.Replace(good, "12", "0", 1), false},
		{"tolerance that allows anything", strings.Replace(good, "0.1", "10", 1), false},
		{"unknown workload", strings.Replace(good, `"304"`, `"none"`, 1), false},
		{"no limit", strings.Replace(good, "1.6", "0", 1), false},
		{"no limit of the dynamic module", strings.Replace(good, `"native": 1.3, `, "", 1), true},
		{"limit below 0", strings.Replace(good, `"native": 1.3`, `"native": -1`, 1), false},
		{"unknown limit", strings.Replace(good, `"native":`, `"native_to_wasm": 0.8, "native":`, 1), false},
		{"no limit to the floor", strings.Replace(good, `, "native_to_floor": 1.1`, "", 1), false},
		{"no limits", `{"tolerance": 0.1, "pairs": 5, "retry_pairs": 12}`, false},
	} {
		if _, err := ParseLimits([]byte(test.text)); (err == nil) != test.ok {
			t.Errorf("%s: got %v", test.name, err)
		}
	}
}

func TestHitRatioIsOfWhatWasAskedSince(t *testing.T) {
	first := cacheCounts{hits: 10, all: 20}
	for _, test := range []struct {
		last cacheCounts
		want float64
	}{{first, -1}, {cacheCounts{hits: 13, all: 24}, .75}, {cacheCounts{hits: 10, all: 24}, 0}} {
		if got := test.last.hitRatio(first); got != test.want {
			t.Errorf("%v: got %v, want %v", test.last, got, test.want)
		}
	}
}

func TestPeerThatIsNotInstalledIsReported(t *testing.T) {
	rec, w := &Recorder{}, &world{}
	if err := w.keepStarted(nil, &peers.MissingError{Program: "nginx"}, rec); err != nil || len(w.others) != 0 {
		t.Errorf("got %v and %d programs, want the run to continue without it", err, len(w.others))
	}
	if text := rec.Text(); !strings.Contains(text, "not run: nginx is not installed") {
		t.Errorf("got %q, want the missing program", text)
	}
	broken := errors.New("broken")
	if err := w.keepStarted(nil, broken, rec); !errors.Is(err, broken) {
		t.Errorf("got %v, want the error of the installed program", err)
	}
}
