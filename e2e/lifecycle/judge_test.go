package lifecycle

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatehouse/gatehouse/testbed/upstream"
)

// request is what a stream asks for. Its id is in a header, which the upstream shows.
type request struct {
	method, path string
	device       string // "": without a credential
	secret       string
	right        bool // the credential
	id           string
}

// headers returns the headers besides the pseudo-headers.
func (q *request) headers() [][2]string {
	all := [][2]string{{"x-lifecycle", q.id}}
	if q.device != "" {
		all = append(all, [2]string{"x-device-id", q.device}, [2]string{"x-device-token", q.secret})
	}
	return all
}

func deviceName(i int) string { return fmt.Sprintf("device-%d", i) }

func bodyOf(key string) string { return "the object of " + key }

// refusals are the statuses of answers without data of a request: by the filter (401, 403, 503), and by the proxy.
var refusals = []int{400, 401, 403, 408, 413, 426, 499, 502, 503, 504}

// judge returns what is wrong with an answer.
func (q *request) judge(status int, body string) error {
	switch {
	case status == 401 && q.right:
		return fmt.Errorf("%+v: a right credential got 401", *q)
	case slices.Contains(refusals, status):
		return nil
	case status != 200:
		return fmt.Errorf("%+v: got %d %.200q", *q, status, body)
	case q.device != "" && !q.right:
		return fmt.Errorf("%+v: a wrong credential got 200", *q)
	case q.path == "/session":
		return q.judgeToken(body)
	case body == bodyOf(q.path) && !strings.HasPrefix(q.path, "/who/"):
		return nil
	}
	var got upstream.Seen
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		return fmt.Errorf("%+v: got 200 with %.200q", *q, body)
	}
	if got.Path != q.path || !slices.Equal(got.Headers["x-lifecycle"], []string{q.id}) {
		return fmt.Errorf("%+v: got the answer to %s %s", *q, got.Path, got.Headers["x-lifecycle"])
	}
	if q.device != "" && !slices.Equal(got.Headers["x-gatehouse-device"], []string{q.device}) {
		return fmt.Errorf("%+v: the upstream saw device %s", *q, got.Headers["x-gatehouse-device"])
	}
	return nil
}

// judgeToken returns an error unless the token is the device's.
func (q *request) judgeToken(body string) error {
	var answer struct {
		Token string `json:"token"`
	}
	var claims struct {
		Device string `json:"sub"`
	}
	err := json.Unmarshal([]byte(body), &answer)
	if parts := strings.Split(answer.Token, "."); err == nil && len(parts) == 3 {
		text, decodeErr := base64.RawURLEncoding.DecodeString(parts[1])
		if err = decodeErr; err == nil {
			err = json.Unmarshal(text, &claims)
		}
	}
	if err != nil || claims.Device != q.device {
		return fmt.Errorf("%+v: got a token of %q, %v", *q, claims.Device, err)
	}
	return nil
}

type seen struct {
	streams, canary, excused atomic.Uint64
	mu                       sync.Mutex // protects the following
	answers                  map[int]int
	faults                   map[string]int
}

func (s *seen) answer(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answers == nil {
		s.answers = map[int]int{}
	}
	s.answers[status]++
}

func (s *seen) fault(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults == nil {
		s.faults = map[string]int{}
	}
	s.faults[name]++
}

// listStatuses returns the number of answers by status, 0 for streams without one.
func (s *seen) listStatuses() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, status := range slices.Sorted(maps.Keys(s.answers)) {
		all = append(all, fmt.Sprintf("%d: %d", status, s.answers[status]))
	}
	return strings.Join(all, ", ")
}

// excuse tells when the edge may refuse the canary.
type excuse struct {
	mu    sync.Mutex // protects the following
	open  int        // faults that have not ended
	until time.Time
}

// begin begins a fault. The returned function ends the fault; afterwards the edge may refuse for some time.
func (e *excuse) begin() (end func(after time.Duration)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open++
	return func(after time.Duration) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.open--
		if until := time.Now().Add(after); until.After(e.until) {
			e.until = until
		}
	}
}

// covers reports whether there was a fault since a time.
func (e *excuse) covers(since time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.open > 0 || since.Before(e.until)
}
