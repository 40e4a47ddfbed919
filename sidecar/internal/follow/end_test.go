package follow

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// atEnd is a clock that records the time of being in step.
type atEnd struct {
	noClock
	at time.Time
}

func (c *atEnd) SetInStep(t time.Time) { c.at = t }

// TestJudgeEnd: what the end of the master's chain says to a follower at write 5 of the data epoch beef, which was at
// write 4 at the time noted.
func TestJudgeEnd(t *testing.T) {
	noted := time.Now()
	before, after := noted.Add(-time.Second), noted.Add(time.Second)
	for _, test := range []struct {
		name                     string
		end                      chainEnd
		reached, inStep, foreign bool
	}{
		{"equal", chainEnd{"beef", 5, "d5", after}, true, true, false},
		{"behind the follower", chainEnd{"beef", 4, "d4", before}, true, true, false},
		{"ahead", chainEnd{"beef", 6, "d6", after}, false, false, false},
		{"of another data epoch", chainEnd{"dead", 5, "d5", after}, false, false, false},
		{"another write", chainEnd{"beef", 5, "x", after}, false, false, true},
		{"another earlier write", chainEnd{"beef", 4, "x", after}, false, false, true},
		{"without a chain", chainEnd{"beef", 5, "", after}, true, true, false},
		{"a write that the follower no longer knows", chainEnd{"beef", 3, "d3", before}, true, false, false},
		{"behind what the replica had before", chainEnd{"beef", 3, "d3", after}, false, false, true},
	} {
		f, _, _ := idle(t, &redis.Options{Addr: "127.0.0.1:1"})
		clock := new(atEnd)
		f.board.clock = clock
		f.dataEpoch, f.chain.readable = "beef", true
		f.setLast(4, "d4")
		f.setLast(5, "d5")
		f.replica.ours, f.replica.oursAt = 4, noted
		reached, err := f.judgeEnd(test.end)
		_, foreign := errors.AsType[*foreignError](err)
		if reached != test.reached || foreign != test.foreign || (clock.at == test.end.at) != test.inStep {
			t.Errorf("%s: got %v, %v, in step as of %v", test.name, reached, err, clock.at)
		}
	}
}

// TestDigestAt: after a catch-up only the digest of the last write is known.
func TestDigestAt(t *testing.T) {
	f, _, _ := idle(t, &redis.Options{Addr: "127.0.0.1:1"})
	f.chain.readable, f.seq, f.chain.digest = true, 7, "d7"
	f.chain.recent[3] = contract.Link{Seq: 3, Digest: "d3"}
	for seq, want := range map[uint64]string{7: "d7", 3: "d3", 6: "", 3 + recentLinks: ""} {
		if got := f.digestAt(seq); got != want {
			t.Errorf("%d: got %q, want %q", seq, got, want)
		}
	}
}
