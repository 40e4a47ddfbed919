package publisher

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// TestTake: requests of teams "a", "b" and "c" come in their order, a millisecond apart, and each takes 1 for a second.
// Team a gives up early in its place where the letter is A.
func TestTake(t *testing.T) {
	for _, tt := range []struct {
		name      string
		all, team int64
		come      string
		served    string // in their order, those of the same second in alphabetical order
		seconds   int    // until the last has ended
	}{
		{"one", 3, 2, "a", "a", 1},
		{"a team waits for itself", 3, 2, "aaaa", "aaaa", 2},
		{"another doesn't wait for it", 3, 2, "aaaaaab", "aabaaaa", 3},
		{"another's share is as large", 3, 2, "aaaaaabb", "aabbaaaa", 3},
		{"three", 3, 2, "aaaabbbbcccc", "aabbccaabbcc", 4},
		{"who gives up takes nothing", 3, 2, "aaAAAAa", "aaa", 2},
		{"who gives up while all wait", 2, 2, "bbAAAa", "bba", 2},
		{"over the time", 1, 1, strings.Repeat("a", 25), strings.Repeat("a", 21), 21},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all, teams := semaphore.NewWeighted(tt.all), map[rune]*semaphore.Weighted{}
				for _, team := range "abc" {
					teams[team] = semaphore.NewWeighted(tt.team)
				}
				var mu sync.Mutex
				var served strings.Builder
				var group sync.WaitGroup
				begin := time.Now()
				last := begin
				for _, team := range tt.come {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					gone := team == 'A'
					if gone {
						team = 'a'
						time.AfterFunc(500*time.Millisecond, cancel)
					}
					group.Go(func() {
						free, p := takeTurns(ctx, 1, teams[team], all)
						if p != nil {
							if p.Status != http.StatusTooManyRequests || p.retry <= 0 ||
								!gone && time.Since(begin).Round(time.Second) != turnTimeout {
								t.Errorf("%d %q after %v", p.Status, p.Detail, time.Since(begin))
							}
							return
						}
						mu.Lock()
						served.WriteRune(team)
						mu.Unlock()
						time.Sleep(time.Second)
						free()
						mu.Lock()
						last = time.Now()
						mu.Unlock()
					})
					time.Sleep(time.Millisecond)
				}
				group.Wait()
				if got := served.String(); got != tt.served {
					t.Errorf("served %s, want %s", got, tt.served)
				}
				if got := int(last.Sub(begin).Round(time.Second) / time.Second); got != tt.seconds {
					t.Errorf("%d seconds, want %d", got, tt.seconds)
				}
				for team, own := range teams {
					if !own.TryAcquire(tt.team) {
						t.Errorf("team %c has some left", team)
					}
				}
				if !all.TryAcquire(tt.all) {
					t.Error("some are left")
				}
			})
		})
	}
}

// TestSlowSenders: large bodies that don't arrive take only their team's turns, and only until their end. Small bodies,
// and batches with little received, take none.
func TestSlowSenders(t *testing.T) {
	s := start(t)
	turns := s.teams.findTeam(tokenOf("shop")).turns
	none := func() bool {
		free := turns.bodies.TryAcquire(8<<20) && s.server.turns.bodies.TryAcquire(32<<20)
		if free {
			turns.bodies.Release(8 << 20)
			s.server.turns.bodies.Release(32 << 20)
		}
		return free
	}
	const target = "/v1/objects/v1/products/1"
	large := strings.Repeat("x", limits.MaxBody)
	for _, tt := range []struct {
		name, request string
		full          bool // of the team's turns
	}{
		{"large", "PUT " + target + " HTTP/1.1\r\nContent-Length: 1048576", true},
		{"of unknown size", "PUT " + target + " HTTP/1.1\r\nTransfer-Encoding: chunked", true},
		{"small", "PUT " + target + " HTTP/1.1\r\nContent-Length: 16383", false},
		{"batch", "POST /v1/batch HTTP/1.1\r\nTransfer-Encoding: chunked", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			running := s.teams.findTeam(tokenOf("shop")).running
			var conns []net.Conn
			for range 9 {
				conn, err := net.Dial("tcp", s.address)
				require.NoError(t, err)
				defer conn.Close()
				kind := "text/plain"
				if tt.name == "batch" {
					kind = "application/x-ndjson"
				}
				fmt.Fprintf(conn, "%s\r\nHost: a\r\nAuthorization: %s\r\nContent-Type: %s\r\n\r\n", tt.request,
					shop["Authorization"], kind)
				conns = append(conns, conn)
			}
			await.Until(t, "the requests to run", func() bool { return len(running) == len(conns) })
			if tt.full {
				await.Until(t, "the team's turns to be taken", func() bool { return !turns.bodies.TryAcquire(1) })
			} else if !none() {
				t.Error("they take turns")
			}
			if got := s.do(t, "PUT", target, shop.with(text), "small"); got.status/100 != 2 {
				t.Errorf("a small one: %d", got.status)
			}
			fleet := hosts.with(text).with(headers{"Gatehouse-Virtual-Host": "fleet"})
			if got := s.do(t, "PUT", "/v1/objects/a", fleet, large); got.status/100 != 2 {
				t.Errorf("another team's large one: %d", got.status)
			}
			for _, conn := range conns {
				conn.Close()
			}
			await.Until(t, "the turns to end", none)
			if got := s.do(t, "PUT", target, shop.with(text), large); got.status/100 != 2 {
				t.Errorf("a large one afterwards: %d", got.status)
			}
		})
	}
}

// TestTurnsEnd: whatever becomes of a large request, nothing of its turns is left.
func TestTurnsEnd(t *testing.T) {
	s := start(t)
	team := s.teams.findTeam(tokenOf("shop"))
	team.volume = rate.NewLimiter(maxBytes, maxBytes)
	const target = "/v1/objects/v1/products/1"
	ndjson := headers{"Content-Type": "application/x-ndjson"}
	large := strings.Repeat("x", limits.MaxBody)
	line := `{"op": "put", "key": "/v1/products/1", "content_type": "a", "body": "` + large + `"}` + "\n"
	for _, tt := range []struct {
		name, method, target string
		h                    headers
		body                 string
		want                 int
	}{
		{"put", "PUT", target, text, large, 201},
		{"too large", "PUT", target, text, large + "x", 413},
		{"a condition", "PUT", target, text.with(headers{"If-Match": `"x"`}), large, 412},
		{"get", "GET", target, nil, "", 200},
		{"get nothing", "GET", target + "x", nil, "", 404},
		{"batch", "POST", "/v1/batch", ndjson, strings.Repeat(line, 5), 200},
		{"batch with a long line", "POST", "/v1/batch", ndjson, line + strings.Repeat("x", maxLine+1), 207},
		{"batch of a long line", "POST", "/v1/batch", ndjson, strings.Repeat("x", maxLine+1), 413},
	} {
		got := s.do(t, tt.method, tt.target, shop.with(tt.h), tt.body)
		if got.status != tt.want {
			t.Errorf("%s: %d %.300s, want %d", tt.name, got.status, got.body, tt.want)
		}
		await.Until(t, "all turns", func() bool {
			for _, turn := range []struct {
				of   *semaphore.Weighted
				most int64
			}{
				{s.server.turns.bodies, 32 << 20}, {s.server.turns.writes, 3}, {s.server.turns.reads, 6},
				{team.turns.bodies, 8 << 20}, {team.turns.writes, 2}, {team.turns.reads, 3},
			} {
				if !turn.of.TryAcquire(turn.most) {
					return false
				}
				turn.of.Release(turn.most)
			}
			return true
		})
	}
}

// TestTurnsOfBatch: a part of a batch takes a turn as soon as the part is large, for the part's largest possible
// memory.
func TestTurnsOfBatch(t *testing.T) {
	s := start(t)
	team := s.teams.findTeam(tokenOf("shop"))
	long := `{"op": "put", "key": "/v1/products/1", "body": "` + strings.Repeat("x", 1000) + `"}` + "\n"
	for _, tt := range []struct {
		lines int
		size  int64 // the request's; -1: unknown
		want  int64
	}{
		{1, -1, 0}, {15, -1, 0}, {16, -1, maxPart}, {16, 20_000, 20_000}, {5000, 10 << 20, maxPart}, {5000, -1, maxPart},
	} {
		c := &call{s: s.server, team: team, r: &http.Request{ContentLength: tt.size}}
		lines := bufio.NewReader(strings.NewReader(strings.Repeat(long, tt.lines)))
		if _, _, p := c.readPart(t.Context(), lines, 0); p != nil {
			t.Fatal(p)
		}
		rest := int64(8<<20) - tt.want
		if !team.turns.bodies.TryAcquire(rest) || team.turns.bodies.TryAcquire(1) {
			t.Errorf("%d lines of a request of %d bytes: want a turn of %d", tt.lines, tt.size, tt.want)
		} else {
			team.turns.bodies.Release(rest)
		}
		c.releaseBodyTurn()
	}
}

// TestWrite: large bodies wait for their turn to be written, small ones don't.
func TestWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &call{s: &Server{turns: allTurns()}, team: &Team{turns: teamTurns()}}
		others, _ := takeTurns(t.Context(), 2, c.team.turns.writes, c.s.turns.writes)
		for _, tt := range []struct {
			size    int
			written bool
		}{{smallBody - 1, true}, {smallBody, false}} {
			written, begin := false, time.Now()
			p := c.writeInTurn(t.Context(), tt.size, func() { written = true })
			if (p == nil) != tt.written || written != tt.written {
				t.Errorf("%d bytes: %v, written: %v", tt.size, p, written)
			}
			if waited := time.Since(begin) > 0; waited == tt.written {
				t.Errorf("%d bytes: waited %v", tt.size, waited)
			}
		}
		time.AfterFunc(time.Second, others)
		begin, written := time.Now(), false
		if p := c.writeInTurn(t.Context(), smallBody, func() { written = true }); p != nil || !written ||
			time.Since(begin) != time.Second {
			t.Errorf("%v after %v", p, time.Since(begin))
		}
	})
}

// TestTurnsStay: a change of the file gives a team no more turns.
func TestTurnsStay(t *testing.T) {
	text := "teams: [{name: a, tokens: [" + sum("a") + "], prefixes: [/], rate: %d}]"
	before, err := parseTeams(fmt.Appendf(nil, text, 1), nil)
	require.NoError(t, err)
	after, err := parseTeams(fmt.Appendf(nil, text, 2), before)
	require.NoError(t, err)
	for token, team := range before {
		if after[token].turns != team.turns {
			t.Error("other turns")
		}
	}
}
