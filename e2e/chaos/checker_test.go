package chaos

import (
	"slices"
	"testing"
	"time"
)

// at returns a time since the start of a run from ms.
func at(ms int) time.Duration { return time.Duration(ms) * time.Millisecond }

// event is an event of a run, in the order in which the checker is called.
type event struct {
	do   func(*Checker) []Violation
	want string // the violated rule, "" if none
}

func put(version uint64, begun, acked int) event { return wrote(Put, version, begun, acked, Acked) }

func del(version uint64, begun, acked int) event { return wrote(Delete, version, begun, acked, Acked) }

func wrote(kind Kind, version uint64, begun, ended int, outcome Outcome) event {
	return event{do: func(c *Checker) []Violation {
		if got := c.Begin(0, kind, at(begun)); got != version {
			panic("a test counts versions wrongly")
		}
		c.End(0, version, outcome, at(ended))
		return nil
	}}
}

// forASecond is a put of a value that is valid for a second.
func forASecond(version uint64, begun, acked int) event {
	return event{do: func(c *Checker) []Violation {
		if got := c.BeginFor(0, Put, at(begun), time.Second); got != version {
			panic("a test counts versions wrongly")
		}
		c.End(0, version, Acked, at(acked))
		return nil
	}}
}

// rotated is a new secret; the former secret counts for another second.
func rotated(version uint64, begun, acked int) event {
	return event{do: func(c *Checker) []Violation {
		if got := c.BeginRotation(0, at(begun), time.Second); got != version {
			panic("a test counts versions wrongly")
		}
		c.End(0, version, Acked, at(acked))
		return nil
	}}
}

func refused(start, end int) event {
	return read(Read{Answer: Refused, Version: 1, Start: at(start), End: at(end)})
}

// stepped begins a fault in which a clock is wrong.
func stepped(ms int) event {
	return event{do: func(c *Checker) []Violation { c.BeginFault(at(ms), false); c.ClockStepped(false); return nil }}
}

// steppedRedis is stepped of Redis's clock only.
func steppedRedis(ms int) event {
	return event{do: func(c *Checker) []Violation { c.BeginFault(at(ms), false); c.ClockStepped(true); return nil }}
}

func began(ms int, redisDown bool) event {
	return event{do: func(c *Checker) []Violation { c.BeginFault(at(ms), redisDown); return nil }}
}

func ended(ms int) event {
	return event{do: func(c *Checker) []Violation { c.EndFault(at(ms)); return nil }}
}

func read(r Read) event {
	if r.Process == 0 {
		r.Process = 1
	}
	return event{do: func(c *Checker) []Violation { return c.JudgeRead(r) }}
}

func hit(version uint64, start, end int) event {
	return read(Read{Answer: Hit, Version: version, Start: at(start), End: at(end)})
}

func missed(start, end int) event {
	return read(Read{Answer: Miss, Start: at(start), End: at(end), Detail: "gatehouse; fwd=uri-miss"})
}

// but makes an event violate a rule.
func but(e event, rule string) event {
	e.want = rule
	return e
}

// through makes a read come through another edge process; 0: uncertain.
func through(edge int, answer Answer, version uint64, start, end int) event {
	r := Read{Answer: answer, Version: version, Start: at(start), End: at(end), Process: edge, Detail: "refused"}
	return event{do: func(c *Checker) []Violation { return c.JudgeRead(r) }}
}

var testLimits = Limits{MaxStaleness: 3 * time.Second, Slack: time.Second, Converge: 2 * time.Second,
	Hold: 1200 * time.Millisecond}

func TestChecker(t *testing.T) {
	refilling := read(Read{Answer: Miss, Start: at(30), End: at(31), Refilling: true})
	for _, tt := range []struct {
		name   string
		events []event
	}{
		{"as it should be", []event{put(1, 0, 2), hit(1, 3, 4), put(2, 5, 7), hit(1, 6, 8), hit(2, 9, 10),
			del(3, 11, 12), missed(13, 14), put(4, 15, 17), hit(4, 16, 18)}},
		{"before it is acknowledged", []event{wrote(Put, 1, 0, 0, Unknown), hit(1, 1, 2)}},
		{"never published", []event{put(1, 0, 1), but(hit(2, 2, 3), "wrong body")}},
		{"never sent", []event{wrote(Put, 1, 0, 1, Failed), but(hit(1, 2, 3), "wrong body")}},
		{"published only later", []event{put(1, 5, 6), but(hit(1, 2, 3), "wrong body")}},
		{"the version of a delete", []event{del(1, 0, 1), but(hit(1, 2, 3), "wrong body")}},
		{"version 0", []event{put(1, 0, 1), but(hit(0, 2, 3), "wrong body")}},
		{"not what was published",
			[]event{put(1, 0, 1), but(read(Read{Answer: WrongBody, Start: at(2), End: at(3)}), "wrong body")}},

		{"backwards", []event{put(1, 0, 1), put(2, 2, 3), hit(2, 4, 5), but(hit(1, 6, 7), "backwards")}},
		{"backwards, overlapping", []event{put(1, 0, 1), put(2, 2, 3), hit(2, 4, 6), hit(1, 5, 7), hit(1, 6, 8)}},
		{"backwards, and of an answer that came late", []event{put(1, 0, 1), put(2, 2, 3), hit(2, 4, 9),
			hit(1, 5, 6), but(hit(1, 10, 11), "backwards")}},
		{"backwards in another Envoy", []event{put(1, 0, 1), put(2, 2, 3), hit(2, 4, 5), through(2, Hit, 1, 6, 7),
			through(2, Hit, 2, 8, 9), but(through(2, Hit, 1, 10, 11), "backwards")}},
		{"backwards while Envoy restarts", []event{put(1, 0, 1), put(2, 2, 3), hit(2, 4, 5), through(0, Hit, 1, 6, 7)}},

		{"came back", []event{put(1, 0, 1), hit(1, 2, 3), del(2, 4, 5), missed(6, 7), but(hit(1, 8, 9), "came back")}},
		{"came back, and the delete is not acknowledged", []event{put(1, 0, 1), hit(1, 2, 3), wrote(Delete, 2, 4, 5, Unknown),
			missed(6, 7), but(hit(1, 8, 9), "came back")}},
		{"goes while it is asked for", []event{put(1, 0, 1), hit(1, 2, 3), del(2, 4, 5), missed(6, 8), hit(1, 7, 9)}},
		{"written again", []event{put(1, 0, 1), hit(1, 2, 3), del(2, 4, 5), missed(6, 7), put(3, 8, 9), hit(3, 10, 11)}},
		{"missed, but seen before", []event{put(1, 0, 1), hit(1, 2, 3), but(missed(4, 5), "missed"), hit(1, 6, 7)}},
		{"missed in a fault, but seen before", []event{began(0, false), put(1, 1, 2), hit(1, 3, 4),
			but(missed(5, 6), "missed")}},
		{"missed, and of unknown outcome", []event{wrote(Put, 1, 0, 1, Unknown), hit(1, 2, 3), but(missed(4, 5), "missed")}},
		{"missed, and never seen", []event{put(1, 0, 1), missed(2001, 2002), but(missed(2002, 2003), "missed")}},
		{"missed, and deleted before", []event{put(1, 0, 1), hit(1, 2, 3), del(2, 4, 5), missed(6, 7),
			put(3, 8, 9), missed(2009, 2010), but(missed(2010, 2011), "missed")}},
		{"missed when all had settled", []event{began(0, false), put(1, 1, 2), ended(1000), missed(3000, 3001),
			but(missed(3001, 3002), "missed")}},
		{"missed when nothing had settled", []event{began(0, false), put(1, 1, 2), ended(1000), began(2999, false),
			ended(4000), missed(6000, 6001), but(missed(6001, 6002), "missed")}},
		{"missed in a fault after all had settled", []event{put(1, 0, 1), began(2002, false),
			but(missed(2003, 2004), "missed")}},
		{"missed by an Envoy that starts", []event{put(1, 0, 1), through(0, Miss, 0, 5000, 5001)}},
		{"missed while it is written", []event{put(1, 0, 1), hit(1, 2, 3), wrote(Put, 2, 4000, 4009, Unknown),
			missed(4001, 4002)}},
		{"not in step for no reason", []event{put(1, 0, 1), but(through(1, Stale, 0, 5000, 5001), "missed")}},
		{"not in step in a fault", []event{put(1, 0, 1), began(4000, false), through(1, Stale, 0, 5000, 5001),
			ended(6000), through(1, Bypass, 0, 8000, 8001)}},
		{"a miss of an empty memory", []event{put(1, 0, 1), hit(1, 2, 3), del(2, 24, 25), refilling, hit(1, 32, 33)}},

		{"expired", []event{forASecond(1, 0, 2), hit(1, 2002, 2003), but(hit(1, 2003, 2004), "expired")}},
		{"expired in a fault", []event{began(0, false), forASecond(1, 0, 2), but(hit(1, 2003, 2004), "expired")}},
		{"expired by a clock that is wrong", []event{stepped(0), ended(1), forASecond(1, 1, 2), hit(1, 2003, 2004)}},
		{"expired by a clock that was wrong before", []event{stepped(0), ended(1), forASecond(1, 2, 3),
			but(hit(1, 2004, 2005), "expired")}},
		{"expired by Redis's clock", []event{steppedRedis(0), ended(1), forASecond(1, 1, 2), hit(1, 4002, 4003),
			but(hit(1, 4003, 4004), "expired")}},
		{"expired by Redis's clock, and a fault", []event{steppedRedis(0), forASecond(1, 1, 2), ended(3),
			began(3000, false), hit(1, 4003, 4004)}},
		{"expired by all clocks", []event{stepped(0), ended(1), steppedRedis(1), forASecond(1, 1, 2), hit(1, 4003, 4004)}},
		{"missed, but it may have expired", []event{forASecond(1, 0, 1), hit(1, 2, 3), missed(4, 5),
			hit(1, 6, 7), missed(2100, 2101)}},
		{"goes back to what expires", []event{forASecond(1, 0, 1), put(2, 2, 3), hit(2, 4, 5),
			but(hit(1, 6, 7), "backwards")}},

		{"in its overlap", []event{put(1, 0, 1), rotated(2, 3000, 3002), hit(2, 3003, 3004), hit(1, 3005, 3006),
			hit(1, 4002, 4003), hit(2, 9000, 9001)}},
		{"after its overlap", []event{put(1, 0, 1), rotated(2, 3000, 3002), hit(1, 5002, 5003),
			but(hit(1, 5003, 5004), "outlived its overlap")}},
		{"after its overlap, unsettled", []event{put(1, 0, 1), rotated(2, 3000, 3002), began(3003, false), hit(1, 5003, 5004),
			hit(1, 8002, 8003), but(hit(1, 8003, 8004), "too old")}},
		{"after its overlap, by a clock that is wrong", []event{put(1, 0, 1), rotated(2, 3000, 3002), stepped(3003),
			hit(1, 9000, 9001), refused(9002, 9003)}},
		{"refused in its overlap", []event{put(1, 0, 1), rotated(2, 3000, 3002),
			but(refused(3500, 3999), "good one refused"), refused(3999, 4000)}},
		{"again after its overlap", []event{put(1, 0, 1), rotated(2, 3000, 3002), hit(1, 3003, 3004), refused(4003, 4004),
			but(hit(1, 4005, 4006), "came back")}},
		{"after a second rotation", []event{began(0, false), put(1, 0, 1), rotated(2, 3000, 3002), rotated(3, 3100, 3102),
			hit(1, 7102, 7103), but(hit(1, 7103, 7104), "too old")}},
		{"too old", []event{began(0, false), put(1, 0, 1), put(2, 9, 10), hit(1, 4010, 4011),
			but(hit(1, 4011, 4012), "too old")}},
		{"too old, deleted", []event{began(0, false), put(1, 0, 1), del(2, 9, 10), hit(1, 4010, 4011),
			but(hit(1, 4011, 4012), "too old")}},
		{"the newer write is of unknown outcome", []event{put(1, 0, 1), wrote(Put, 2, 9, 10, Unknown), hit(1, 9000, 9001)}},
		{"late", []event{put(1, 0, 1), put(2, 9, 10), hit(1, 2010, 2011), but(hit(1, 2011, 2012), "late")}},
		{"late, during a fault", []event{put(1, 0, 1), put(2, 9, 10), began(1000, false), hit(1, 2011, 2012)}},
		{"late, just after a fault", []event{put(1, 0, 1), put(2, 9, 10), began(100, false), ended(1000),
			hit(1, 2999, 3000), but(hit(1, 3001, 3002), "late")}},

		{"an error", []event{but(through(1, Unavailable, 0, 1, 2), "error")}},
		{"a timeout", []event{but(through(1, Unavailable, 0, 1, 15_001), "error")}},
		{"a timeout of a paused Envoy", []event{began(2, false), ended(15_000), through(1, Unavailable, 0, 1, 15_001)}},
		{"an early one", []event{began(2, false), ended(14_000), but(through(1, Unavailable, 0, 1, 14_001), "error")}},
		{"an error while Envoy restarts", []event{through(0, Unavailable, 0, 1, 2)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := NewChecker(1, testLimits)
			for i, e := range tt.events {
				checkEvent(t, c, i, e)
			}
		})
	}
}

func checkEvent(t *testing.T, c *Checker, i int, e event) {
	t.Helper()
	var rules []string
	for _, v := range e.do(c) {
		rules = append(rules, v.Rule)
	}
	var want []string
	if e.want != "" {
		want = []string{e.want}
	}
	if !slices.Equal(rules, want) {
		t.Errorf("event %d: got %q, want %q", i, rules, want)
	}
}

func TestCheckerHold(t *testing.T) {
	const second = 1000
	stale := func(start int) event {
		return read(Read{Answer: Stale, Start: at(start), End: at(start + 1)})
	}
	for _, tt := range []struct {
		name   string
		events []event
	}{
		{"held", []event{put(1, 0, 1), began(5*second, true), hit(1, 5100, 5101), stale(6300), stale(6400)}},
		{"one that is stale", []event{put(1, 0, 1), began(5*second, true), stale(5100), hit(1, 5102, 5103), stale(5104)}},
		{"not in step too early", []event{put(1, 0, 1), began(5*second, true), stale(5100), but(stale(5102), "lost")}},
		{"not a fault of Redis", []event{put(1, 0, 1), began(5*second, false), stale(5100), stale(5102)}},
		{"maybe deleted", []event{put(1, 0, 1), wrote(Delete, 2, 4990, 4999, Unknown), began(5*second, true),
			missed(5100, 5101), missed(5102, 5103)}},
		{"written just before", []event{put(1, 4990, 4991), began(5*second, true), missed(5100, 5101), missed(5102, 5103)}},
		{"just after another fault", []event{put(1, 0, 1), began(3*second, false), ended(4 * second),
			began(5*second, true), stale(5100), stale(5102)}},
		{"healed", []event{put(1, 0, 1), began(5*second, true), stale(5100), ended(5101), stale(5102)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := NewChecker(1, testLimits)
			for i, e := range tt.events {
				checkEvent(t, c, i, e)
			}
		})
	}
}

// shown makes a read of a device: the version of the secret sent, which is the newest, and the answer.
func shown(version uint64, got Answer, start, end int) event {
	return read(Read{Answer: got, Version: version, Newest: true, Start: at(start), End: at(end)})
}

func TestCheckerOfDevices(t *testing.T) {
	const second = 1000
	token := read(Read{Answer: Refused, Version: 1, Token: true, Start: at(6000), End: at(6001)})
	between := read(Read{Answer: Hit, Version: 1, BetweenEras: true, Start: at(50), End: at(51)})
	former := func(start int) event {
		return read(Read{Answer: Unverified, Version: 1, Start: at(start), End: at(start + 1)})
	}
	for _, tt := range []struct {
		name   string
		events []event
	}{
		{"as it should be", []event{put(1, 0, 1), shown(1, Hit, 2, 3), del(2, 4, 5), shown(1, Hit, 6, 7),
			shown(1, Refused, 8, 9), put(3, 10, 11), shown(3, Hit, 12, 13), shown(1, Refused, 14, 15)}},
		{"authenticated with a secret that was never given", []event{put(1, 0, 1), but(shown(2, Hit, 2, 3), "wrong body")}},
		{"authenticated again", []event{put(1, 0, 1), shown(1, Hit, 2, 3), del(2, 4, 5), shown(1, Refused, 6, 7),
			but(shown(1, Hit, 8, 9), "came back")}},
		{"authenticated again after another Envoy", []event{put(1, 0, 1), shown(1, Hit, 2, 3), del(2, 4, 5),
			shown(1, Refused, 6, 7), through(2, Hit, 1, 8, 9)}},
		{"authenticated between two eras", []event{put(1, 0, 1), shown(1, Hit, 2, 3), del(2, 4, 5),
			shown(1, Refused, 6, 7), between}},
		{"authenticated with an old secret after a new one", []event{put(1, 0, 1), put(2, 2, 3), shown(2, Hit, 4, 5),
			but(shown(1, Hit, 6, 7), "backwards")}},
		{"revoked and authenticated late", []event{put(1, 0, 1), del(2, 9, 10), shown(1, Hit, 2010, 2011),
			but(shown(1, Hit, 2011, 2012), "late")}},
		{"revoked and authenticated too late during a fault", []event{began(0, true), put(1, 0, 1),
			del(2, 9, 10), shown(1, Hit, 4010, 4011), but(shown(1, Hit, 4011, 4012), "too old")}},
		{"a good one is refused", []event{put(1, 0, 1), but(shown(1, Refused, 2002, 2003), "good one refused")}},
		{"a good one is refused in a fault", []event{put(1, 0, 1), began(3*second, true),
			but(shown(1, Refused, 4000, 4001), "good one refused")}},
		{"refused because it may have ended", []event{forASecond(1, 0, 1), shown(1, Refused, 2002, 2003)}},
		{"refused before it is there", []event{put(1, 0, 1), shown(1, Refused, 2000, 2001)}},
		{"refused because it came in a fault", []event{began(0, true), put(1, 10, 11), shown(1, Refused, 4000, 4001)}},
		{"refused as it ends", []event{put(1, 0, 1), wrote(Delete, 2, 3000, 3001, Unknown), shown(1, Refused, 3002, 3003)}},
		{"a token is refused while nothing is broken", []event{put(1, 0, 1), but(token, "good one refused")}},
		{"a token is refused in a fault", []event{put(1, 0, 1), began(5*second, false), token}},
		{"not verified while nothing is broken", []event{put(1, 0, 1), shown(1, Unverified, 3000, 3001),
			but(shown(1, Unverified, 3002, 3003), "not verified")}},
		{"not verified now and then", []event{put(1, 0, 1), shown(1, Unverified, 3000, 3001), shown(1, Hit, 3002, 3003),
			shown(1, Unverified, 3004, 3005)}},
		{"a former secret is throttled, and right again", []event{put(1, 0, 1), wrote(Put, 2, 2, 3, Failed),
			former(3000), former(3002), former(3004)}},
		{"not verified in a fault", []event{put(1, 0, 1), began(3*second, false), shown(1, Unverified, 4000, 4001)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := NewChecker(1, testLimits)
			for i, e := range tt.events {
				checkEvent(t, c, i, e)
			}
		})
	}
}

// Two writers of one key: the write that begins first may be acknowledged last, or be refused because the second write
// was first.
func TestCheckerOfTwoWriters(t *testing.T) {
	for _, tt := range []struct {
		name          string
		second, first Outcome // of version 2, acknowledged or not at 2, and of version 1, at 4
		then          []event
	}{
		{"acknowledged in the other order", Acked, Acked, []event{hit(2, 5, 6), but(hit(1, 7, 8), "backwards")}},
		{"the older one is late", Acked, Acked, []event{hit(1, 2002, 2003), but(hit(1, 2003, 2004), "late")}},
		{"refused because it was overtaken", Acked, Failed, []event{hit(2, 5, 6), but(hit(1, 7, 8), "wrong body")}},
		{"the newer one is of unknown outcome", Unknown, Acked,
			[]event{hit(1, 5000, 5001), hit(2, 5002, 5003), but(hit(1, 5004, 5005), "backwards")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := NewChecker(1, testLimits)
			first := c.Begin(0, Put, at(0))
			second := c.Begin(0, Put, at(1))
			c.End(0, second, tt.second, at(2))
			if !c.MayBeOvertaken(0, first, at(3)) || c.MayBeOvertaken(0, second, at(3)) {
				t.Error("want the first one overtaken, and only that")
			}
			c.End(0, first, tt.first, at(4))
			for i, e := range tt.then {
				checkEvent(t, c, i, e)
			}
		})
	}
}

func TestNewest(t *testing.T) {
	c := NewChecker(1, testLimits)
	for i, e := range []event{wrote(Put, 1, 0, 1, Failed), put(2, 2, 3), wrote(Delete, 3, 4, 5, Failed)} {
		if got, found := c.NewestKind(0); i < 2 && found {
			t.Errorf("before write %d: got %v, want none", i+1, got)
		}
		e.do(c)
	}
	if got, found := c.NewestKind(0); !found || got != Put {
		t.Errorf("got %v %v, want the put, since the delete was never sent", got, found)
	}
}

func TestSecret(t *testing.T) {
	c := NewChecker(1, testLimits)
	for _, tt := range []struct {
		next           event
		newest, former uint64 // secrets
	}{{put(1, 0, 1), 1, 0}, {put(2, 2, 3), 2, 1}, {del(3, 4, 5), 2, 1}, {put(4, 6, 7), 4, 2}} {
		tt.next.do(c)
		last, _ := c.NewestKind(0)
		if got, newest := c.SecretVersion(0, false); got != tt.newest || newest != (last == Put) {
			t.Errorf("got %d, newest: %v; want %d", got, newest, tt.newest)
		}
		if got, newest := c.SecretVersion(0, true); got != tt.former || newest {
			t.Errorf("the former one: got %d, newest: %v; want %d", got, newest, tt.former)
		}
	}
}

func TestResembling(t *testing.T) {
	c := NewChecker(1, testLimits)
	for version := range uint64(permissionNames + 2) {
		put(version+1, 0, 1).do(c)
	}
	del(permissionNames+3, 2, 3).do(c)
	for modulo, want := range map[uint64]uint64{0: permissionNames, 1: permissionNames + 1, 2: permissionNames + 2, 3: 3} {
		if got := c.VersionWithPermission(0, modulo); got != want {
			t.Errorf("permission %s: got version %d, want %d", permissionOf(modulo), got, want)
		}
	}
}

// All devices that may be registered are revoked.
func TestBeginRevoking(t *testing.T) {
	c := NewChecker(3, testLimits)
	put(1, 0, 1).do(c)
	c.Begin(1, Delete, at(0))
	if got := c.BeginRevoking(at(2)); len(got) != 1 || got[0] != 2 {
		t.Errorf("got %v, want version 2 of device 0", got)
	}
	checkEvent(t, c, 0, shown(1, Refused, 5000, 5001))
}

// A write acknowledged just before a failover may be lost: the version before it is not too old.
func TestUnsure(t *testing.T) {
	c := NewChecker(2, testLimits)
	for i, e := range []event{began(0, false), put(1, 0, 1), put(2, 5000, 5001)} {
		checkEvent(t, c, i, e)
	}
	if got := c.AckedSince(at(2000)); len(got) != 1 || got[0] != 2 {
		t.Errorf("acknowledged since: got %v, want version 2 of key 0", got)
	}
	if got := c.ForgetAcks(at(2000)); !slices.Equal(got, []int{0}) {
		t.Errorf("unsure are %v, want key 0", got)
	}
	checkEvent(t, c, 0, hit(1, 20000, 20001))
	checkEvent(t, c, 1, hit(2, 20002, 20003)) // or it is not lost
}

// A lost revocation is excused; an earlier acknowledged revocation is not.
func TestUnsureRevocation(t *testing.T) {
	for since, want := range map[int]string{5001: "", 5002: "late"} {
		c := NewChecker(1, testLimits)
		checkEvent(t, c, 0, put(1, 0, 1))
		checkEvent(t, c, 1, del(2, 5000, 5001))
		c.ForgetAcks(at(since))
		checkEvent(t, c, 2, but(shown(1, Hit, 7002, 7003), want))
	}
}

func TestReached(t *testing.T) {
	history := []event{put(1, 0, 1), del(2, 2, 3), put(3, 4, 5), wrote(Delete, 4, 6, 7, Unknown), forASecond(5, 8, 9)}
	read := func(a Answer, version uint64, end int) Read {
		return Read{Answer: a, Version: version, Start: at(end - 1), End: at(end)}
	}
	for _, tt := range []struct {
		name   string
		target uint64
		read   Read
		want   bool
	}{
		{"that version", 1, read(Hit, 1, 10), true},
		{"a newer one", 1, read(Hit, 3, 10), true},
		{"an older one", 3, read(Hit, 1, 10), false},
		{"deleted", 2, read(Miss, 0, 10), true},
		{"older than the delete", 2, read(Hit, 1, 10), false},
		{"maybe deleted", 3, read(Miss, 0, 10), true},
		{"deleted only later", 3, read(Miss, 0, 5), false},
		{"maybe expired", 5, read(Stale, 0, 10), true},
		{"what came after a delete may have expired", 2, read(Stale, 0, 10), true},
		{"what may have expired came later", 2, read(Stale, 0, 7), false},
		{"never written", 0, read(Miss, 0, 10), true},
		{"not in step", 1, read(Stale, 0, 7), false},
		{"no answer", 2, read(Unavailable, 0, 10), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := NewChecker(1, testLimits)
			for _, e := range history {
				e.do(c)
			}
			if got := c.HasReached(tt.target, tt.read); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// purged is a purge of key 0 with the given version, 0 if the purge affects no object.
func purged(version uint64, soft bool, begun, ended int, outcome Outcome) event {
	return event{do: func(c *Checker) []Violation {
		versions := c.BeginPurge(func(key int) bool { return key == 0 }, soft, at(begun))
		if versions[0] != version {
			panic("a test counts versions wrongly")
		}
		c.EndPurge(versions, outcome, at(ended))
		return nil
	}}
}

func TestCheckerOfPurges(t *testing.T) {
	const hard, soft, late = false, true, int(latePurge / time.Millisecond)
	stale := func(start int) event { return through(1, Stale, 0, start, start+1) }
	for _, tt := range []struct {
		name   string
		events []event
	}{
		{"as it should be", []event{put(1, 0, 1), hit(1, 2, 3), purged(2, hard, 4, 5, Acked), missed(6, 7),
			put(3, 8, 9), hit(3, 10, 11)}},
		{"what was purged is answered late", []event{put(1, 0, 1), purged(2, hard, 9, 10, Acked), hit(1, 2010, 2011),
			but(hit(1, 2011, 2012), "late")}},
		{"what was purged is answered too late in a fault", []event{began(0, false), put(1, 0, 1),
			purged(2, hard, 9, 10, Acked), hit(1, 4010, 4011), but(hit(1, 4011, 4012), "too old")}},
		{"what was purged softly is answered", []event{put(1, 0, 1), purged(2, soft, 9, 10, Acked), hit(1, 2010, 2011),
			but(hit(1, 2011, 2012), "late")}},
		{"it comes back", []event{put(1, 0, 1), hit(1, 2, 3), purged(2, hard, 4, 5, Acked), missed(6, 7),
			but(hit(1, 8, 9), "came back")}},
		{"nothing to purge", []event{purged(0, hard, 0, 1, Acked), put(1, 2, 3), but(missed(2004, 2005), "missed")}},
		{"deleted before", []event{put(1, 0, 1), del(2, 2, 3), purged(0, hard, 4, 5, Acked), missed(6, 7)}},
		{"what was published after it is gone", []event{put(1, 0, 1), purged(2, hard, 2, 3, Acked), put(3, 4, 5),
			hit(3, 6, 7), but(missed(8, 9), "missed")}},
		{"one that was never sent", []event{put(1, 0, 1), hit(1, 2, 3), purged(2, hard, 4, 5, Failed),
			but(missed(6, 7), "missed"), hit(1, 9000, 9001)}},
		{"of unknown outcome, before what is published", []event{put(1, 0, 1), hit(1, 2, 3),
			purged(2, hard, 4, 5, Unknown), put(3, 6, 7), hit(3, 8, 9), missed(10, 11)}},
		{"of unknown outcome, and it comes back", []event{put(1, 0, 1), hit(1, 2, 3), purged(2, hard, 4, 5, Unknown),
			missed(6, 7), but(hit(1, 8, 9), "came back")}},
		{"of unknown outcome, long before", []event{put(1, 0, 1), purged(2, hard, 4, 5, Unknown),
			put(3, 5+late, 5+late), hit(3, 6+late, 7+late), but(missed(8+late, 9+late), "missed")}},
		{"of unknown outcome, not as long before", []event{put(1, 0, 1), purged(2, hard, 4, 5, Unknown),
			put(3, 3+late, 4+late), hit(3, 6+late, 7+late), missed(8+late, 9+late)}},
		{"of unknown outcome, when there was no object", []event{put(1, 0, 1), del(2, 2, 3), purged(0, soft, 4, 5, Unknown),
			put(3, 6, 7), hit(3, 8, 9), stale(5000)}},
		{"after a write of unknown outcome, which may come later", []event{put(1, 0, 1), wrote(Put, 2, 2, 3, Unknown),
			purged(3, hard, 4, 5, Acked), hit(2, 5000, 5001)}},
		{"after a write of unknown outcome that was replaced", []event{wrote(Put, 1, 0, 1, Unknown), put(2, 2, 3),
			purged(3, hard, 4, 5, Acked), but(hit(2, 3000, 3001), "late")}},
		{"expired softly", []event{put(1, 0, 1), purged(2, soft, 2, 3, Acked), stale(5000), stale(5001)}},
		{"softly, after one of unknown outcome", []event{put(1, 0, 1), purged(2, hard, 2, 3, Unknown),
			purged(3, soft, 4, 5, Acked), stale(5000)}},
		{"after one softly", []event{put(1, 0, 1), purged(2, soft, 2, 3, Acked), purged(3, hard, 4, 5, Acked),
			missed(6, 7)}},
		{"expired for no reason", []event{put(1, 0, 1), purged(2, soft, 2, 3, Acked), put(3, 4, 5),
			but(stale(5000), "missed")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := NewChecker(2, testLimits)
			for i, e := range tt.events {
				checkEvent(t, c, i, e)
			}
		})
	}
}

// TestReachedPurge: a purge is in force once there is no object; a soft purge also once the object counts as expired.
func TestReachedPurge(t *testing.T) {
	for _, tt := range []struct {
		soft bool
		read Read
		want bool
	}{
		{false, Read{Answer: Miss, End: at(10)}, true},
		{false, Read{Answer: Stale, End: at(10)}, false},
		{false, Read{Answer: Hit, Version: 1, End: at(10)}, false},
		{true, Read{Answer: Miss, End: at(10)}, true},
		{true, Read{Answer: Stale, End: at(10)}, true},
		{true, Read{Answer: Stale, End: at(1)}, false},
		{true, Read{Answer: Hit, Version: 1, End: at(10)}, false},
	} {
		c := NewChecker(1, testLimits)
		put(1, 0, 1).do(c)
		purged(2, tt.soft, 2, 3, Acked).do(c)
		if got := c.HasReached(2, tt.read); got != tt.want {
			t.Errorf("soft: %v, %+v: got %v", tt.soft, tt.read, got)
		}
	}
}

func TestTargetsAndSummary(t *testing.T) {
	c := NewChecker(2, testLimits)
	for _, e := range []event{put(1, 0, 1), put(2, 2, 3), wrote(Put, 3, 4, 5, Unknown), hit(1, 20, 21),
		through(0, Unavailable, 0, 1, 2), hit(2, 22, 23)} {
		e.do(c)
	}
	for _, tt := range []struct {
		ms   int
		want []uint64
	}{{0, []uint64{0, 0}}, {1, []uint64{1, 0}}, {2, []uint64{1, 0}}, {9, []uint64{2, 0}}} {
		if got := c.TargetsAt(at(tt.ms)); !slices.Equal(got, tt.want) {
			t.Errorf("at %d ms: got %v, want %v", tt.ms, got, tt.want)
		}
	}
	if got, want := c.Summary(), (Summary{Oldest: at(17), Inert: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestOverdue(t *testing.T) {
	for _, tt := range []struct {
		start int
		want  bool
	}{{100, false}, {2100, false}, {2101, true}} {
		_, got := checkOverdue(Read{Start: at(tt.start)}, 1, at(100), 2*time.Second)
		if got != tt.want {
			t.Errorf("asked at %d ms: got %v, want %v", tt.start, got, tt.want)
		}
	}
}
