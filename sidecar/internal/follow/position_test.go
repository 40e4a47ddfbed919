package follow

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
)

func TestHistory(t *testing.T) {
	const master = "# Server\r\nrun_id:abc\r\ntcp_port:7000\r\n# Replication\r\nrole:master\r\nmaster_replid:def\r\n"
	for second, want := range map[string]history{
		"master_replid2:fed\r\n":                             {"abc", "def", false}, // had the same ID as a replica
		"master_replid2:" + strings.Repeat("0", 40) + "\r\n": {"abc", "def", true},
		"": {"abc", "def", false}, // a server without INFO
	} {
		if got, _, err := parseInfo(master+second, ""); got != want || err != nil {
			t.Errorf("%q: got %v, %v, want %v", second, got, err, want)
		}
	}
	if got, _, err := parseInfo("", "x"); got != (history{}) || err != nil {
		t.Errorf("nothing: got %v, %v", got, err)
	}
	replica := strings.Replace(master, "role:master", "role:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:7001", 1)
	for server, named := range map[string]string{"": "at port 7000", "10.0.0.2:7000": "10.0.0.2:7000"} {
		_, _, err := parseInfo(replica, server)
		if !needsOperator(err) {
			t.Fatalf("a replica: %v", err)
		}
		for _, want := range []string{named, "role slave, of 10.0.0.1:7001", "redis+sentinel://"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: want %q", err, want)
			}
		}
	}
}

// TestMemory: the used part of a server's memory limit.
func TestMemory(t *testing.T) {
	for text, want := range map[string]float64{
		"used_memory:900\r\nmaxmemory:1000\r\n": 0.9,
		"used_memory:900\r\nmaxmemory:0\r\n":    0, // no limit
		"used_memory:900\r\n":                   0,
	} {
		if _, got, err := parseInfo("role:master\r\nmaxmemory_policy:noeviction\r\n"+text, ""); got.fillRatio() != want ||
			got.policy != "noeviction" || err != nil {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
}

// TestClockAhead: a difference counts only beyond the duration of the answer, and is logged once.
func TestClockAhead(t *testing.T) {
	begin := time.Now()
	end := begin.Add(100 * time.Millisecond)
	for clock, want := range map[time.Duration]time.Duration{
		0: 0, 100 * time.Millisecond: 0, 40 * time.Millisecond: 0, time.Hour: time.Hour - 100*time.Millisecond,
		-time.Minute: -time.Minute,
	} {
		if got := clockAhead(begin.Add(clock), begin, end); got != want {
			t.Errorf("%v after the question: got %v, want %v", clock, got, want)
		}
	}
	if got := clockAhead(time.Time{}, begin, end); got != 0 {
		t.Errorf("not told: got %v", got)
	}
	_, v, err := parseInfo("role:master\r\nserver_time_usec:1700000000000001\r\n", "")
	if want := time.UnixMicro(1700000000000001); v.clock != want || err != nil {
		t.Errorf("got %v, %v, want %v", v.clock, err, want)
	}
	log, m := new(logbuffer.Buffer), metrics.New()
	b := newBoard(2, nil, m)
	for _, step := range []struct {
		shard       int
		ahead, want time.Duration
		warnings    int
	}{
		{0, time.Second, time.Second, 0},
		{0, -time.Minute, -time.Minute, 1},
		{0, -time.Second, -time.Second, 1},
		{0, -time.Minute, -time.Minute, 1},
		{1, time.Second / 2, -time.Minute, 1},
		{0, 0, time.Second / 2, 1},
		{0, time.Minute, time.Minute, 2},
	} {
		b.setVitals(step.shard, vitals{ahead: step.ahead}, slog.New(slog.NewTextHandler(log, nil)))
		if got := metricstest.Value(t, m, "gatehouse_redis_clock_ahead_seconds"); got != step.want.Seconds() {
			t.Errorf("shard %d by %v: got %v s, want %v", step.shard, step.ahead, got, step.want)
		}
		if got := strings.Count(log.String(), "the clock of redis"); got != step.warnings {
			t.Errorf("shard %d by %v: got %d warnings, want %d", step.shard, step.ahead, got, step.warnings)
		}
	}
}

func TestContinues(t *testing.T) {
	known := history{"abc", "def", true}
	for _, test := range []struct {
		name            string
		h               history
		same, continues bool
	}{
		{"the same", history{"abc", "def", false}, true, true},
		{"another line, begun there", history{"abc", "xyz", true}, false, true},
		{"another line, of a promoted replica", history{"abc", "xyz", false}, false, false},
		{"another process", history{"abd", "xyz", true}, false, false},
		{"another process of the same line", history{"abd", "def", true}, false, false},
		{"not told", history{}, false, false},
	} {
		same, continues := test.h.isSame(known), test.h.continues(known)
		if same != test.same || continues != test.continues {
			t.Errorf("%s: got %v, %v, want %v, %v", test.name, same, continues, test.same, test.continues)
		}
	}
	if never := (history{}); !never.isSame(never) || (history{"", "x", true}).continues(history{"", "y", true}) {
		t.Error("without INFO all are the same, and without a process none continues another")
	}
}

type answer string

func (a answer) Error() string { return string(a) }
func (a answer) RedisError()   {}

func TestWithheld(t *testing.T) {
	for _, test := range []struct {
		name        string
		info, epoch error
		want        bool
	}{
		{"answered", nil, nil, false},
		{"empty", nil, redis.Nil, false},
		{"no permission", answer("NOPERM this user"), nil, true},
		{"no such section", answer("section (server) is not supported"), redis.Nil, true},
		{"loading", answer("LOADING Redis is loading"), answer("LOADING Redis is loading"), false},
		{"moved", answer("MOVED 1 b:1"), answer("MOVED 1 b:1"), false},
		{"moving", answer("ASK 1 b:1"), nil, false},
		{"cut", errors.New("EOF"), errors.New("EOF"), false},
	} {
		if got := isWithheld(test.info, test.epoch); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
