//go:build linux

package edge

import (
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// costly is a request of the search: each part is repeated.
type costly struct {
	method string
	path   []repeated
	lines  []repeatedLine
}

type repeated struct {
	text string
	n    int
}

type repeatedLine struct {
	name  string
	value repeated
	n     int
}

// Limits of Envoy on a request's headers, in bytes and lines; see envoy.yaml.
const (
	limitBytes = 16 << 10
	limitLines = 100
)

// headers returns the request, truncated to Envoy's limits.
func (c *costly) headers() [][2]string {
	var path strings.Builder
	for _, p := range c.path {
		path.WriteString(strings.Repeat(p.text, p.n))
	}
	left := limitBytes - 200
	text := path.String()[:min(left, path.Len())]
	left -= len(text)
	headers := [][2]string{{":method", c.method}, {":path", text}, {":authority", "edge"}, {":scheme", "http"}}
	for _, l := range c.lines {
		value := strings.Repeat(l.value.text, l.value.n)
		for range l.n {
			value = value[:min(len(value), max(left-len(l.name), 0))]
			if left -= len(l.name) + len(value); left <= 0 || len(headers) == limitLines {
				return headers
			}
			headers = append(headers, [2]string{l.name, value})
		}
	}
	return headers
}

// Parts of the search's requests.
var (
	costlyPaths = []string{"/", "/v1/", "/v1/products/", "/v1/private/1", "/v1/telemetry", "/files/",
		"a", "/a", "a;/", ";", "%3b", "%20", "%2520", "%61", "%2561",
		"%25", "%ff", "%c0%af", "%c0%ae", "%c1%a3", "%e0%b8%81", "%0a/v1/products/", ".", "./", "..", "%2e",
		`\`, "//", "?", "a=b&", "%6cang=x&", "lang=", "&"}
	costlyNames = []string{"if-none-match", "accept-encoding", "x-device-id", "x-device-token",
		"x-gatehouse-device", "x!gatehouse-device", "x-gatehouse-permissionz",
		"x-http-method-override", "authorization", "if-match", "content-type", "x-filler", "a"}
	costlyValues = []string{"a", `"",`, `W/"a", `, ",", " ", "gzip;q=0.5,", "*", "dev", "s3cret",
		`"`, "Basic ", "=", "\xff"}
	costlyMethods = []string{"GET", "HEAD", "POST", "post", "get", strings.Repeat("x", 64)}
)

func one[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

// change returns a copy of c with few changes.
func (c *costly) change(r *rand.Rand) *costly {
	times := func() int { return 1 << r.IntN(13) }
	next := &costly{method: c.method, path: append([]repeated(nil), c.path...),
		lines: append([]repeatedLine(nil), c.lines...)}
	for range 1 + r.IntN(3) {
		switch r.IntN(7) {
		case 0:
			next.method = one(r, costlyMethods)
		case 1, 2:
			next.path = append(next.path, repeated{one(r, costlyPaths), times()})
		case 3:
			at := r.IntN(len(next.path))
			next.path[at] = repeated{one(r, costlyPaths), times()}
		case 4:
			if at := r.IntN(len(next.path)); len(next.path) > 1 {
				next.path = append(next.path[:at:at], next.path[at+1:]...)
			}
		case 5:
			next.lines = append(next.lines,
				repeatedLine{one(r, costlyNames), repeated{one(r, costlyValues), times()}, 1 << r.IntN(7)})
		case 6:
			if at := len(next.lines) - 1; at >= 0 {
				next.lines = append(next.lines[:at:at],
					repeatedLine{one(r, costlyNames), repeated{one(r, costlyValues), times()}, 1 << r.IntN(7)})
			}
		}
	}
	return next
}

// cpu returns the CPU time of f in this thread, the minimum of some runs.
func cpu(f func()) time.Duration {
	least := time.Hour
	var before, after unix.Timespec
	for range 5 {
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before)
		f()
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after)
		least = min(least, time.Duration(after.Nano()-before.Nano()))
	}
	return least
}

var sinkSum uint64

// TestNothingCostsMuch searches for requests that cost the filter much. The measure is a loop over as many bytes as a
// request can have, with some work on each, on the same machine; the end-to-end test of the same name compares what was
// found with the CPU time of a real Envoy.
func TestNothingCostsMuch(t *testing.T) {
	const seed, tries, most = 18, 1500, 25 // found: 5, with -race 12; with segments read without a bound 85
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	e := emulate(t, rules)
	raiseGuard(e)
	putVerdict(e, e.clock+60_000)
	putObject(e, "/v1/products/1", 1024)
	putObject(e, "/v1/private/1", 1024)
	q := &quiet{emulator: e}
	e.vm.host = q
	bytes := []byte(strings.Repeat("x", limitBytes))
	unit := cpu(func() {
		sum := uint64(14695981039346656037) // FNV-1a
		for _, c := range bytes {
			sum = (sum ^ uint64(c)) * 1099511628211
		}
		sinkSum += sum
	})
	r := rand.New(rand.NewPCG(seed, 0))
	cost := func(c *costly) float64 {
		e.streams[2] = &exchange{request: c.headers()}
		run := func() { q.show(2) }
		run()
		shown := cpu(func() { e.RequestHeaders() }) // what the emulator itself takes for the headers
		return float64(cpu(run)-shown) / float64(unit)
	}
	worst := &costly{method: "post", path: []repeated{{"/v1/telemetry/", 1}, {"a;/", 1290}}}
	highest := cost(worst)
	for range tries {
		next := one(r, []*costly{worst, {method: "GET", path: []repeated{{one(r, costlyPaths), 1}}}}).change(r)
		if c := cost(next); c > highest {
			worst, highest = next, c
		}
	}
	for range 4 { // other programs only add to it
		highest = min(highest, cost(worst))
	}
	t.Logf("the worst that was found costs %.1f walks of %d bytes: %+v", highest, limitBytes, *worst)
	if highest > most {
		t.Errorf("%+v costs %.1f walks of %d bytes, want at most %d", *worst, highest, limitBytes, most)
	}
}
