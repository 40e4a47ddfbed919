package main

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/settings"
	"github.com/gatehouse/gatehouse/loadtest/stats"
	"github.com/gatehouse/gatehouse/testbed/proc"
)

// fleetSizes are the numbers of followers that TestFleet measures.
var fleetSizes = flag.String("fleet", "", "numbers of followers, such as 1,10,100,1000; empty: TestFleet's short form")

const (
	plainChannel = "plain"
	fleetRounds  = 3
	fleetSlice   = 1500 * time.Millisecond
	// fleetLate bounds the time until all edges are in step.
	fleetLate = 2 * time.Minute
	// maxWaiting bounds the events on their way: followers that are late by a second read the log.
	maxWaiting = 5_000
)

// usage is what was used so far, or between two readings.
type usage struct {
	at         time.Time
	took       time.Duration // since the first reading
	redis, own time.Duration // CPU of the server, and of this process with all followers and writers
	sent       int           // bytes, by the server
}

func (u usage) since(before usage) usage {
	return usage{u.at, u.at.Sub(before.at), u.redis - before.redis, u.own - before.own, u.sent - before.sent}
}

// without returns u without what an idle fleet uses in the same time.
func (u usage) without(idle usage) usage {
	share := u.took.Seconds() / idle.took.Seconds()
	u.redis -= time.Duration(share * float64(idle.redis))
	u.own -= time.Duration(share * float64(idle.own))
	u.sent -= int(share * float64(idle.sent))
	return u
}

// readUsage reads what was used so far.
func (f *fleet) readUsage() usage {
	f.t.Helper()
	u := usage{at: time.Now()}
	clock, err := proc.NewClock([]proc.Server{{Name: "redis", PID: f.pid}})
	require.NoError(f.t, err)
	u.redis, err = clock.Read()
	require.NoError(f.t, err)
	var own unix.Timespec
	require.NoError(f.t, unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &own))
	u.own = time.Duration(own.Nano())
	u.sent = f.readInfo("stats", "total_net_output_bytes")
	return u
}

// readInfo returns a number of Redis's INFO.
func (f *fleet) readInfo(section, name string) int {
	f.t.Helper()
	_, rest, _ := strings.Cut(f.client.Info(f.t.Context(), section).Val(), "\n"+name+":")
	value, _, _ := strings.Cut(rest, "\r")
	n, err := strconv.Atoi(value)
	require.NoError(f.t, err)
	return n
}

// pin gives Redis a core of its own, after each start.
func (f *fleet) pin() {
	f.t.Helper()
	f.pid = f.readInfo("server", "process_id")
	_, err := proc.PinServingThreads(proc.Server{Name: "redis", PID: f.pid, Workers: "redis-server"}, os.Getpid())
	require.NoError(f.t, err)
}

// write writes objects at a rate for a time, and waits until all edges have them.
func (f *fleet) write(rate float64, d time.Duration) (n int) {
	f.t.Helper()
	var running errgroup.Group
	var next, written atomic.Int64
	begin := time.Now()
	for range fleetWriters {
		running.Go(func() error {
			for {
				i := next.Add(1) - 1
				due := begin.Add(time.Duration(float64(i) / rate * float64(time.Second)))
				if due.Sub(begin) >= d || time.Since(begin) >= d {
					return nil
				}
				<-time.After(time.Until(due))
				for f.countWaiting() > maxWaiting {
					<-time.After(10 * time.Millisecond)
				}
				if err := f.put(f.t.Context(), int(i)); err != nil {
					return err
				}
				written.Add(1)
			}
		})
	}
	require.NoError(f.t, running.Wait())
	await.Until(f.t, "all events applied", func() bool { return f.countWaiting() == 0 })
	return int(written.Load())
}

// countWaiting returns the number of events that followers have not applied.
func (f *fleet) countWaiting() (n int) {
	f.mu.Lock()
	last := f.last
	f.mu.Unlock()
	for _, x := range f.followers {
		if link, _ := x.group.Applied(0); link.Seq < last {
			n += int(last - link.Seq)
		}
	}
	return n
}

// plain are subscribers to a channel that has nothing to do with Gatehouse.
type plain struct {
	conns    []net.Conn
	received atomic.Int64 // bytes
}

// Write counts what was received.
func (p *plain) Write(b []byte) (int, error) {
	p.received.Add(int64(len(b)))
	return len(b), nil
}

func (f *fleet) subscribePlain(n int) *plain {
	f.t.Helper()
	p := &plain{}
	for range n {
		conn, err := net.Dial("tcp", f.server.Address)
		require.NoError(f.t, err)
		f.t.Cleanup(func() { conn.Close() })
		_, err = fmt.Fprintf(conn, "SUBSCRIBE %s\r\n", plainChannel)
		require.NoError(f.t, err)
		go io.Copy(struct{ io.Writer }{p}, conn)
		p.conns = append(p.conns, conn)
	}
	return p
}

func (p *plain) close() {
	for _, conn := range p.conns {
		conn.Close()
	}
}

// publish publishes text at a rate for a time, and waits until all subscribers have received it.
func (f *fleet) publish(p *plain, text string, rate float64, d time.Duration) (n int) {
	f.t.Helper()
	begin, before := time.Now(), p.received.Load()
	for ; ; n++ {
		due := time.Duration(float64(n) / rate * float64(time.Second))
		if due >= d {
			break
		}
		<-time.After(due - time.Since(begin))
		require.NoError(f.t, f.client.Publish(f.t.Context(), plainChannel, text).Err())
	}
	await.Until(f.t, "all messages received", func() bool {
		return p.received.Load()-before >= int64(n*len(text)*len(p.conns))
	})
	return n
}

// readEvent returns an event of a write, of which the reference sends as many bytes.
func (f *fleet) readEvent() string {
	f.t.Helper()
	sub := f.client.Subscribe(f.t.Context(), contract.Keys{}.EventsChannel())
	defer sub.Close()
	_, err := sub.Receive(f.t.Context())
	require.NoError(f.t, err)
	require.NoError(f.t, f.put(f.t.Context(), 0))
	message, err := sub.ReceiveMessage(f.t.Context())
	require.NoError(f.t, err)
	return message.Payload
}

// costs are what an operation costs, in microseconds of CPU and bytes.
type costs struct{ redis, own, sent float64 }

func (u usage) divide(n int) costs {
	per := float64(max(n, 1))
	return costs{u.redis.Seconds() * 1e6 / per, u.own.Seconds() * 1e6 / per, float64(u.sent) / per}
}

// since returns what each of n followers adds.
func (c costs) since(alone costs, n int) costs {
	per := float64(n)
	return costs{(c.redis - alone.redis) / per, (c.own - alone.own) / per, (c.sent - alone.sent) / per}
}

// median returns the median of each field.
func median(all []costs) (m costs) {
	for _, of := range []func(*costs) *float64{
		func(c *costs) *float64 { return &c.redis }, func(c *costs) *float64 { return &c.own },
		func(c *costs) *float64 { return &c.sent },
	} {
		var values []float64
		for i := range all {
			values = append(values, *of(&all[i]))
		}
		slices.Sort(values)
		*of(&m) = values[len(values)/2]
	}
	return m
}

// costOf measures an operation and an idle fleet.
func (f *fleet) costOf(idle usage, run func() int) costs {
	f.t.Helper()
	before := f.readUsage()
	n := run()
	return f.readUsage().since(before).without(idle).divide(n)
}

// idle measures a fleet without writes.
func (f *fleet) idle() usage {
	f.t.Helper()
	before := f.readUsage()
	<-time.After(fleetSlice)
	return f.readUsage().since(before)
}

// measureCosts measures what a write costs, and a message of the same size to as many plain subscribers, in turn.
func (f *fleet) measureCosts(text string, rate float64) (idle, write, reference costs, delays string) {
	f.t.Helper()
	p := f.subscribePlain(len(f.followers))
	defer p.close()
	f.mu.Lock()
	f.delays, f.since = stats.Histogram{}, time.Now()
	f.mu.Unlock()
	var idles, writes, references []costs
	for range fleetRounds {
		u := f.idle()
		idles = append(idles, u.divide(int(1000*u.took.Seconds())))
		writes = append(writes, f.costOf(u, func() int { return f.write(rate, fleetSlice) }))
		references = append(references, f.costOf(u, func() int { return f.publish(p, text, rate, fleetSlice) }))
	}
	return median(idles), median(writes), median(references), f.describeDelays()
}

func (f *fleet) describeDelays() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := func(q float64) time.Duration { return f.delays.Quantile(q).Round(10 * time.Microsecond) }
	return fmt.Sprintf("%v, %v, %v (%d)", at(.5), at(.99), at(1), f.delays.Total())
}

// saturate writes 1,000 objects a second, or as many as can be, and returns what was the limit.
func (f *fleet) saturate() string {
	f.t.Helper()
	before := f.readUsage()
	n := f.write(1000, fleetSlice)
	u := f.readUsage().since(before)
	redis, own := u.redis.Seconds()/u.took.Seconds(), u.own.Seconds()/u.took.Seconds()
	rate, limit := float64(n)/u.took.Seconds(), "none: rate held"
	switch {
	case float64(n) > .98*1000*fleetSlice.Seconds():
	case redis > .75:
		limit = "redis"
	case own > .75*float64(runtime.GOMAXPROCS(0)):
		limit = fmt.Sprintf("followers, %.1f µs/event", u.divide(n*len(f.followers)).own)
	default:
		limit = "waiting"
	}
	return fmt.Sprintf("%.0f/s; redis %.0f %%, %.0f µs/write; this process %.0f %%; bottleneck: %s", rate, 100*redis,
		u.divide(n).redis, 100*own, limit)
}

// describeTimes returns the extremes and the median.
func describeTimes(took []time.Duration) string {
	slices.Sort(took)
	return fmt.Sprintf("first %.2f s, half %.2f s, all %.2f s", took[0].Seconds(), took[len(took)/2].Seconds(),
		took[len(took)-1].Seconds())
}

// measureStart starts followers and prints what the start takes.
func (f *fleet) measureStart(n int) {
	f.t.Helper()
	fresh := n - len(f.followers)
	connections, memory := f.readInfo("clients", "connected_clients"), f.readInfo("memory", "used_memory")
	begin := time.Now()
	f.startFollowers(n)
	before := f.readUsage()
	took := f.awaitInStep(begin, fleetLate)
	u := f.readUsage().since(before)
	c := u.divide(fresh * (f.objects + fleetDevices))
	each := func(value, before int) float64 { return float64(value-before) / float64(fresh) }
	fmt.Printf("start of %d with %d objects: in step after: %s; CPU of redis %.2f s, of followers %.2f s; "+
		"%.2f µs and %.0f B a record and follower; %.1f connections and %.0f B of redis's memory a follower\n", fresh,
		f.objects, describeTimes(took), u.redis.Seconds(), u.own.Seconds(), c.redis, c.sent,
		each(f.readInfo("clients", "connected_clients"), connections), each(f.readInfo("memory", "used_memory"), memory))
	f.check()
}

// measureStorms restarts Redis without and with a loss.
func (f *fleet) measureStorms() {
	f.t.Helper()
	for _, lose := range []bool{false, true} {
		var before usage
		f.restarted = func() { f.pin(); before = f.readUsage() }
		took := f.storm(lose, fleetLate)
		u := f.readUsage().since(before)
		fmt.Printf("restart of redis, %d followers, %d objects, loss: %t: in step after: %s; CPU of redis %.2f s, of "+
			"followers %.2f s; %.0f µs and %.0f B a follower, %.2f µs a record and follower\n", len(f.followers), f.objects,
			lose, describeTimes(took), u.redis.Seconds(), u.own.Seconds(), u.divide(len(f.followers)).redis,
			u.divide(len(f.followers)).sent, u.divide(len(f.followers)*(f.objects+fleetDevices)).redis)
	}
}

// measureReplicas measures what a write costs the master of replicas.
func (f *fleet) measureReplicas() {
	f.t.Helper()
	for n := range 3 {
		if n > 0 {
			replica := redistest.StartServer(f.t, "--replicaof", "127.0.0.1 "+f.server.Port())
			defer replica.Kill()
			await.Until(f.t, "the replica to follow", func() bool {
				return strings.Count(f.client.Info(f.t.Context(), "replication").Val(), "state=online") == n
			})
		}
		before := f.readUsage()
		written := f.write(200, 2*fleetSlice)
		fmt.Printf("%d followers at the master of %d replicas: redis %.1f µs a write\n", len(f.followers), n,
			f.readUsage().since(before).divide(written).redis)
	}
}

// measureBodies measures messages that have the body of an object, beside messages without it after which each
// subscriber reads the record; and the messages of a batch, beside one message for all.
func (f *fleet) measureBodies(subscribers int) {
	f.t.Helper()
	ctx := f.t.Context()
	client := redis.NewClient(&redis.Options{Addr: f.server.Address, PoolSize: subscribers})
	defer client.Close()
	var reads atomic.Bool
	var received atomic.Int64
	for range subscribers {
		sub := client.Subscribe(ctx, plainChannel)
		defer sub.Close()
		_, err := sub.Receive(ctx)
		require.NoError(f.t, err)
		go func() {
			for {
				if _, err := sub.ReceiveMessage(ctx); err != nil {
					return // closed
				}
				if reads.Load() {
					client.HGetAll(ctx, "record")
				}
				received.Add(1)
			}
		}()
	}
	// measure returns what each unit costs for each subscriber.
	measure := func(rounds, units, messages int, send func()) costs {
		before := f.readUsage()
		for range rounds {
			want := received.Load() + int64(messages*subscribers)
			send()
			await.Until(f.t, "all messages received", func() bool { return received.Load() >= want })
		}
		return f.readUsage().since(before).divide(rounds * units * subscribers)
	}
	// compare measures two ways in turn, and returns the medians of Redis's CPU in microseconds.
	compare := func(first, second func() costs) (float64, float64) {
		var firsts, seconds []costs
		for range fleetRounds {
			firsts, seconds = append(firsts, first()), append(seconds, second())
		}
		return median(firsts).redis, median(seconds).redis
	}
	head := strings.Repeat("h", 300)
	publish := func(text string) { require.NoError(f.t, client.Publish(ctx, plainChannel, text).Err()) }
	for _, size := range []int{1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20} {
		body := strings.Repeat("b", size)
		require.NoError(f.t, client.HSet(ctx, "record", "etag", head[:32], "version", 1, "body", body).Err())
		rounds := min(200, max(10, 100<<20/(size*subscribers)))
		whole, heads := compare(func() costs {
			reads.Store(false)
			return measure(rounds, 1, 1, func() { publish(head + body) })
		}, func() costs {
			reads.Store(true)
			return measure(rounds, 1, 1, func() { publish(head) })
		})
		fmt.Printf("%d subscribers, body of %d B: redis %.1f µs each for a message with it, %.1f µs for a head and a "+
			"read\n", subscribers, size, whole, heads)
	}
	reads.Store(false)
	const batch, batches = 100, 20
	message := strings.Repeat("m", 300+1<<10)
	write := func(script string) {
		_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for range batch {
				p.Eval(ctx, script, []string{"record"}, message)
			}
			return nil
		})
		require.NoError(f.t, err)
	}
	each, one := compare(func() costs {
		return measure(batches, batch, batch, func() {
			write("return redis.call('publish', '" + plainChannel + "', ARGV[1])")
		})
	}, func() costs {
		return measure(batches, batch, 1, func() {
			write("return ARGV[1]:len()")
			publish(strings.Repeat(message, batch))
		})
	})
	fmt.Printf("%d subscribers, batches of %d: redis %.2f µs for each write and subscriber, %.2f µs if a batch is one "+
		"message\n", subscribers, batch, each, one)
}

// TestFleet restarts Redis under followers, without and with the loss of writes. With -fleet, TestFleet measures and
// prints what followers cost: see docs/scale.md.
func TestFleet(t *testing.T) {
	if *fleetSizes != "" {
		measureFleet(t)
		return
	}
	t.Parallel()
	f := startFleet(t, 100)
	f.startFollowers(20)
	f.awaitInStep(time.Now(), time.Minute)
	f.check()
	for _, lose := range []bool{false, true} {
		f.storm(lose, time.Minute)
	}
}

func measureFleet(t *testing.T) {
	settings.LogRedis(slog.New(slog.DiscardHandler))
	before := runtime.GOMAXPROCS(max(runtime.NumCPU()-1, 1))
	defer runtime.GOMAXPROCS(before)
	defer debug.SetGCPercent(debug.SetGCPercent(25)) // a follower's limits take 3 MB, which are hardly used
	const objects = 100
	f := startFleet(t, objects)
	f.pin()
	text := f.readEvent()
	fmt.Printf("objects of %d B, events of %d B\n", fleetBody, len(text))
	f.measureReplicas()
	_, alone, plain, _ := f.measureCosts(text, 200)
	fmt.Printf("no followers: redis %.1f µs a write, %.1f µs a PUBLISH; of 1,000/s: %s\n", alone.redis, plain.redis,
		f.saturate())
	fmt.Println("| followers | writes/s | redis, µs/write | µs/event | µs/PUBLISH | µs/message | event ÷ message | " +
		"B/event | idle: redis, µs/s and follower | p50, p99, max (n) | of 1,000/s |")
	for size := range strings.SplitSeq(*fleetSizes, ",") {
		n, err := strconv.Atoi(size)
		require.NoError(t, err)
		for n-len(f.followers) > 100 { // at once, followers would wait for this process's core
			f.startFollowers(len(f.followers) + 100)
			f.awaitInStep(time.Now(), fleetLate)
		}
		f.measureStart(n)
		rate := min(200, 10_000/float64(n))
		idle, write, reference, delays := f.measureCosts(text, rate)
		event, message := write.since(alone, n), reference.since(plain, n)
		fmt.Printf("| %d | %.0f | %.1f | %.2f | %.1f | %.2f | %.2f | %.0f | %.0f | %s | %s |\n", n, rate, write.redis,
			event.redis, reference.redis, message.redis, event.redis/message.redis, event.sent,
			1000*idle.redis/float64(n), delays, f.saturate())
		f.awaitInStep(time.Now(), fleetLate)
		f.check()
		f.measureStorms()
	}
	f.close()
	for _, size := range []struct{ followers, objects int }{{10, 10_000}, {1, 100_000}} {
		f := startFleet(t, size.objects)
		f.pin()
		f.measureStart(size.followers)
		if size.followers > 1 {
			f.measureStorms()
			f.measureBodies(size.followers)
			f.measureBodies(100)
		}
		f.close()
	}
	peak, err := proc.PeakRSS(os.Getpid())
	require.NoError(t, err)
	fmt.Printf("this process: at most %d MiB\n", peak>>20)
}

// close ends the server and all followers.
func (f *fleet) close() {
	f.t.Helper()
	f.server.Kill()
	for _, x := range f.followers {
		x.stop()
	}
	f.followers, f.model = nil, model{}
	debug.FreeOSMemory()
}
