package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
	"github.com/gatehouse/gatehouse/testbed/link"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// Config is the configuration of a run.
type Config struct {
	// Seed determines the schedule of faults and the bodies.
	Seed uint64
	// Duration is how long faults begin. The run ends after the last fault.
	Duration time.Duration
	// Keys are written at Writes a second by Writers, and read at Reads a second by Readers.
	Keys, Writes, Writers, Reads, Readers int
	// Devices get new secrets and are revoked, one device every DeviceWrite, and send their secrets every Login.
	Devices            int
	DeviceWrite, Login time.Duration
	// RedisServerPath is the redis-server to run.
	RedisServerPath string
	// Agent adds two edges to the first edge's sidecar.
	Agent bool
	// Stack has the paths of the tested programs; the run sets addresses and everything else.
	Stack stack.Options
	// ClockPath is the library that steps clocks.
	ClockPath string
	// Redis is the deployment.
	Redis Deployment
	// Only limits the faults to these kinds, alone and in pairs; empty: all kinds.
	Only []FaultKind
	// FailFast ends the run at the first violation.
	FailFast bool
	// Out gets the run's report.
	Out io.Writer
}

const (
	// maxStaleness is short, so that every longer cut exceeds it.
	maxStaleness = 3 * time.Second
	rules        = `
sidecar: {cluster: gatehouse-sidecar, timeout: 1s}
max_staleness: 3s
max_auth_staleness: 3s
credentials: {id_header: x-device-id, secret_header: x-device-token}
session: {metadata: gatehouse}
rules:
- match: {path: /chaos/session, methods: [POST]}
  session: issue
- match: {prefix: /chaos/device/}
  auth: {}
- match: {prefix: /chaos/own/}
  auth: {}
  cache: {scope: device, on_miss: fetch}
- match: {prefix: /chaos/fetch/}
  cache: {on_miss: fetch}
- match: {prefix: /chaos/}
  cache: {}
`
	// forEver is longer than any run.
	forEver = 365 * 24 * time.Hour
	// tightMemory is half of the objects' size.
	tightMemory = "2MiB"
	// bulkKeys is the number of keys with bulky bodies.
	bulkKeys = 12
	// maxPrinted bounds the printed violations; all violations are counted.
	maxPrinted = 20
)

// promised are the README's promises. The sidecar asks for Redis's position once a second, and the position has to
// reach the edge, so Hold is shorter than max_staleness by that time.
var promised = Limits{MaxStaleness: maxStaleness, Slack: time.Second, Converge: 2 * time.Second,
	Hold: maxStaleness - 1800*time.Millisecond}

// run is a running run.
type run struct {
	Config
	limits      Limits
	world       *world
	starvation  *starvation
	content     Content
	checker     *Checker
	devices     *Checker // of devices
	authority   *authority
	imports     *imports
	breaker     breaker
	urls        []string // of the edges
	stacks      []*stack.Stack
	options     stack.Options // of the first
	writing     sync.RWMutex  // see writer
	failed      func()        // ends the run
	redisURL    string
	rules       string
	bulk        *writer // of bulky objects
	purger      *purger
	snapshots   snapshots
	registrar   *deviceWriter
	counters    [counterWriters]*counter
	deviceSlots []deviceSlot // of devices
	// acknowledged writes that Redis has lost
	lostWrites, lostRevocations int
	counting                    sync.WaitGroup // counts them
	counts                      counts
	faults                      map[FaultKind]int
	longest                     convergence
	slowest                     string // the fault with the longest recovery

	mu         sync.Mutex // protects Out and the rest
	violations int
	violated   map[string]bool // rules
	gathering  sync.WaitGroup  // of evidence
}

// errFailed ends a run with FailFast.
var errFailed = errors.New("there was a violation")

// Run runs a stack under load and faults and returns the number of violations. It returns an error if the run itself
// failed, or if a part exited by itself.
func Run(ctx context.Context, c Config) (violations int, err error) {
	r := &run{
		Config: c, limits: promised, content: Content{Seed: c.Seed, Bulk: c.Keys},
		checker: NewChecker(c.Keys+bulkKeys, promised), faults: map[FaultKind]int{}, violated: map[string]bool{},
		deviceSlots: make([]deviceSlot, c.Devices+otherSlots),
	}
	r.rules = rules
	ofDevices := promised
	ofDevices.Announced = promised.Converge
	if c.Seed%4 == 0 {
		r.rules = strings.Replace(rules, "max_auth_staleness: 3s\n", "", 1)
		ofDevices.MaxStaleness = forEver
	}
	r.devices = NewChecker(len(r.deviceSlots)*generations, ofDevices)
	redis.SetLogger(quietLogger{})
	r.imports = newImports(r)
	if r.authority, err = newAuthority(r); err != nil {
		return 0, err
	}
	running, err := r.startStack(ctx)
	if err != nil {
		return 0, err
	}
	r.world = newWorld()
	r.starvation = new(starvation)
	r.checker.starvation, r.devices.starvation = r.starvation, r.starvation
	r.world.tight = c.Seed/4%2 == 0
	r.breaker.stack, r.breaker.world = running, r.world
	r.breaker.emptyRedis = r.emptyRedis
	r.breaker.revokeAll = r.revokeAll
	r.breaker.writeBulk = r.writeBulk
	r.redisURL = running.RedisURL()
	r.stacks = []*stack.Stack{running}
	if err := r.startOthers(ctx); err != nil {
		err = errors.Join(err, r.stop())
		r.breaker.close()
		return 0, err
	}
	for _, s := range r.stacks {
		r.urls = append(r.urls, s.EdgeURL())
	}
	ctx, cancel := context.WithCancelCause(ctx)
	r.failed = func() { cancel(errFailed) }
	var watching sync.WaitGroup
	watching.Go(func() { r.starvation.takeSamples(ctx, r.world.now) })
	for _, s := range r.stacks {
		watching.Go(func() { // a part that exits by itself ends the run
			if err := s.Wait(ctx); err != nil {
				cancel(err)
			}
		})
	}
	err = r.runLoad(ctx)
	if cause := context.Cause(ctx); err == nil && cause != nil && cause != errFailed {
		err = cause
	}
	cancel(nil)
	watching.Wait()
	r.gathering.Wait()
	err = errors.Join(err, r.stop())
	r.breaker.close()
	if err == nil {
		r.printSummary()
	}
	return r.violations, err
}

// stop stops all stacks, the first one last.
func (r *run) stop() error {
	var errs []error
	for _, s := range slices.Backward(r.stacks) {
		errs = append(errs, s.Stop())
	}
	return errors.Join(errs...)
}

// startOthers starts the other edges.
func (r *run) startOthers(ctx context.Context) error {
	second, err := r.startSecond(ctx)
	if err != nil {
		return err
	}
	r.stacks = append(r.stacks, second)
	if !r.Agent {
		return nil
	}
	for i := len(r.stacks); i < maxEdges; i++ {
		opts := r.options
		opts.Name, opts.Agent = fmt.Sprint(opts.Name, "-", i+1), r.stacks[0]
		opts.Dir = filepath.Join(opts.Dir, opts.Name)
		opts.Redis, opts.RedisServerPath, opts.Concurrency = "", "", 1
		s, err := stack.Start(ctx, opts)
		if err != nil {
			return err
		}
		r.stacks = append(r.stacks, s)
	}
	return nil
}

// startStack starts the stack and its Redis.
func (r *run) startStack(ctx context.Context) (*stack.Stack, error) {
	opts := r.Stack
	opts.Rules = r.rules
	if r.Agent {
		opts.EdgesDir = filepath.Join(opts.Dir, "edges")
	}
	if err := r.configureSecrets(&opts); err != nil {
		return nil, err
	}
	r.snapshots.path = filepath.Join(opts.Dir, "snapshot")
	opts.SidecarArgs = append(opts.SidecarArgs, "--redis.snapshot="+r.snapshots.path)
	err := r.deployRedis(ctx, &opts)
	r.options = opts
	var running *stack.Stack
	if err == nil {
		running, err = stack.Start(ctx, opts)
	}
	if err == nil && r.breaker.clocks != nil {
		if err = r.breaker.clocks.verifyPrograms(ctx, running); err != nil {
			err = errors.Join(err, running.Stop())
		}
	}
	if err != nil {
		r.breaker.close()
	}
	return running, err
}

// startSecond starts another edge with the same Redis and no other faults. The sidecars share verdicts.
func (r *run) startSecond(ctx context.Context) (*stack.Stack, error) {
	opts := r.Stack
	opts.Name, opts.Dir, opts.Rules = opts.Name+"-2", filepath.Join(opts.Dir, "second"), r.rules
	opts.RedisURL, opts.Concurrency = r.redisURL, 1
	opts.SidecarArgs = append(slices.Clone(opts.SidecarArgs), r.readArgs()...)
	if r.world.tight {
		opts.SidecarArgs = append(slices.Clone(opts.SidecarArgs), "--memory.bytes="+tightMemory)
	}
	if err := os.Mkdir(opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of the second edge: %w", err)
	}
	if err := r.configureSecrets(&opts); err != nil {
		return nil, err
	}
	opts.SidecarArgs = append(opts.SidecarArgs, "--authority.invalidate-address="+r.authority.invalidationAddress,
		"--authority.invalidate-token-file="+filepath.Join(opts.Dir, "token"))
	if err := os.WriteFile(filepath.Join(opts.Dir, "token"), []byte(invalidationToken), 0o600); err != nil {
		return nil, fmt.Errorf("token of invalidations: %w", err)
	}
	return stack.Start(ctx, opts)
}

// deployRedis makes the stack use the deployment's Redis. A single server keeps acknowledged writes after kill -9, and
// the sidecar has its own link to the server.
func (r *run) deployRedis(ctx context.Context, opts *stack.Options) (err error) {
	if r.Redis != Single {
		random := rand.New(rand.NewPCG(r.Seed, 1))
		r.breaker.servers, err = r.Redis.startServers(ctx, opts.Dir, random.IntN)
		if err != nil {
			return err
		}
		opts.RedisURL = r.breaker.redisURL()
		opts.SidecarArgs = append(opts.SidecarArgs, r.readArgs()...)
		return nil
	}
	redisAddress, err := freeport.FindAddress()
	if err != nil {
		return err
	}
	linkAddress, err := freeport.FindAddress()
	if err != nil {
		return err
	}
	if r.breaker.link, err = link.New(linkAddress, redisAddress); err != nil {
		return err
	}
	r.breaker.link.SetFilter(r.breaker.losses.filterReplies)
	opts.Redis, opts.SidecarRedisURL = redisAddress, "redis://"+linkAddress
	opts.RedisServerPath = r.RedisServerPath
	opts.RedisArgs = append(opts.RedisArgs, "--appendonly", "yes", "--appendfsync", "always")
	r.breaker.clocks, err = newClocks(r.ClockPath, opts)
	return err
}

// readArgs returns the sidecars' arguments for where they read objects.
func (r *run) readArgs() []string {
	if r.Redis != Replica {
		return nil
	}
	return []string{"--redis.read=" + r.breaker.replica.replica.Address}
}

// shards returns the number of shards.
func (r *run) shards() contract.Shards {
	if r.Redis == Cluster {
		return clusterShards
	}
	return 1
}

// configureSecrets enables sessions in the shipped configuration, and shared verdicts, with secrets that outlive the
// sidecar.
func (r *run) configureSecrets(opts *stack.Options) error {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	shipped, err := os.ReadFile(filepath.Join(root, "envoy", "envoy.yaml"))
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	opts.ConfigPath = filepath.Join(opts.Dir, "sessions.yaml")
	secret := filepath.Join(opts.Dir, "secret")
	opts.Seed = stack.AcceptLoss(contract.Keyspace{Shards: r.shards()})
	opts.SidecarArgs = append(opts.SidecarArgs, "--session.secret-file", secret, "--verdict.secret-file", secret,
		fmt.Sprintf("--redis.shards=%d", r.shards()), "--authority.url=http://"+r.authority.address,
		"--credential.pepper-file="+secret, "--credential.upgrade")
	return errors.Join(
		os.WriteFile(opts.ConfigPath, bytes.ReplaceAll(shipped, []byte("#session "), nil), 0o600),
		os.WriteFile(secret, []byte("a secret of thirty-two bytes or more\n"), 0o600))
}

// runLoad writes, reads and breaks things until the time is over, and then waits until the edge has the last write to
// every key.
func (r *run) runLoad(ctx context.Context) error {
	client, err := newRedis(r.redisURL)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	publisher := publish.New(client, publish.Shards(int(r.shards())))
	writing, stopWriting := context.WithCancel(ctx)
	defer stopWriting()
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	var writers, readers sync.WaitGroup
	registrar := &deviceWriter{
		client: client, shards: r.shards(),
		world: r.world, checker: r.devices, writing: &r.writing, publisher: publisher, slots: r.deviceSlots,
		counts: &r.counts, report: r.reportViolation, repeats: r.Redis == Cluster,
	}
	r.registrar = registrar
	if err := registrar.registerOwners(ctx); err != nil { // readers need the owners
		return err
	}
	readers.Go(func() { registrar.keepOwners(reading) })
	for i, w := range r.newWriters(publisher) {
		for _, key := range w.keys {
			if i%writersOfKey == 0 {
				w.writeNext(key)
			}
		}
		writers.Go(func() { w.run(writing, time.Duration(r.Writers)*time.Second/time.Duration(r.Writes)) })
	}
	for i := range r.counters {
		c := &counter{index: i, world: r.world, writing: &r.writing, publisher: publisher, counts: &r.counts,
			report: r.reportViolation, repeats: r.Redis == Cluster}
		r.counters[i] = c
		writers.Go(func() { repeat(writing, countEvery, c.increment) })
	}
	for i := range r.Readers {
		edge := 0
		if i%4 == 3 { // every fourth one at another edge
			edge = 1 + i/4%(len(r.urls)-1)
		}
		readers.Go(func() { r.readAll(reading, edge) })
	}
	r.bulk = r.newWriter(publisher)
	for key := range bulkKeys {
		r.bulk.keys = append(r.bulk.keys, r.Keys+key)
	}
	r.writeBulk()
	r.purger = &purger{writer: r.newWriter(publisher), redis: client, shards: r.shards()}
	for key := range r.Keys {
		r.purger.keys = append(r.purger.keys, key)
	}
	writers.Go(func() { r.purger.run(writing) })
	s := &r.snapshots
	s.client, s.keyspace, s.writing = client, contract.Keyspace{Shards: r.shards()}, &r.writing
	writers.Go(func() { repeat(writing, snapshotEvery, func() { s.writeNext(writing) }) })
	newLogin := func(device int) *login {
		return newLogin(r.world, r.devices, registrar.deviceClass(device), r.urls, device)
	}
	for i := range r.deviceSlots {
		slot := &r.deviceSlots[i]
		slot.Store(int64(i))
		if registrar.deviceClass(i) == racing {
			writers.Go(func() {
				registrar.raceRevocations(writing, slot, newLogin, func(l *login, version uint64, newest bool) {
					r.judgeLogin(reading, l, version, newest)
				})
			})
			continue
		}
		registrar.writeNext(slot)
		readers.Go(func() { r.loginAll(reading, slot, newLogin) })
	}
	writers.Go(func() {
		repeat(writing, steadyEvery, func() { registrar.writeNext(registrar.pickSlot(steady)) })
	})
	writers.Go(func() {
		repeat(writing, mortalEvery, func() { registrar.writeNext(registrar.pickSlot(mortal)) })
	})
	writers.Go(func() {
		repeat(writing, mortalEvery, func() { registrar.writeNext(registrar.pickSlot(rotating)) })
	})
	writers.Go(func() { registrar.run(writing, writersOfKey*r.DeviceWrite) })
	r.authority.startLoad(writing, reading, publisher, &writers, &readers)
	r.imports.startImports(writing, reading, publisher, &writers)
	err = r.faultsUntil(ctx, r.world.now()+r.Duration)
	stopWriting()
	writers.Wait()
	if err == nil {
		for _, c := range r.counters {
			c.increment() // checks the last one
		}
		r.awaitConvergence(ctx, "the end", r.world.now())
	}
	stopReading()
	readers.Wait()
	return err
}

const (
	// Each steady device is written about every six seconds: between writes, a mistake stays visible.
	steadyEvery = 250 * time.Millisecond
	// Each mortal or rotating device gets a secret about every six seconds, which is valid for some seconds.
	mortalEvery = 1500 * time.Millisecond
)

// writeBulk writes all bulky objects.
func (r *run) writeBulk() {
	var writing sync.WaitGroup
	for i := range writersOfKey {
		writing.Go(func() {
			for j := i; j < bulkKeys; j += writersOfKey {
				r.bulk.writeKind(r.bulk.keys[j], Put)
			}
		})
	}
	writing.Wait()
}

// writersOfKey is how many writers each key has.
const writersOfKey = 2

// newWriters returns the writers, which share the keys.
func (r *run) newWriters(publisher *publish.Publisher) []*writer {
	writers := make([]*writer, r.Writers)
	for i := range writers {
		writers[i] = r.newWriter(publisher)
	}
	for key := range r.Keys {
		first := key % (len(writers) / writersOfKey) * writersOfKey
		for _, w := range writers[first : first+writersOfKey] {
			w.keys = append(w.keys, key)
		}
	}
	return writers
}

func (r *run) newWriter(publisher *publish.Publisher) *writer {
	return &writer{
		world: r.world, checker: r.checker, writing: &r.writing, content: r.content, publisher: publisher,
		counts: &r.counts, report: r.reportViolation, repeats: r.Redis == Cluster,
	}
}

// readAll requests random keys until ctx ends.
func (r *run) readAll(ctx context.Context, edge int) {
	reader := newReader(r.world, r.content, edge, r.urls[edge])
	defer reader.close()
	repeat(ctx, time.Duration(r.Readers)*time.Second/time.Duration(r.Reads), func() {
		r.judgeRead(ctx, reader, r.pickKey())
	})
}

// loginAll has a slot's device send its secrets until ctx ends: mostly the newest, sometimes an earlier secret.
func (r *run) loginAll(ctx context.Context, slot *deviceSlot, newLogin func(device int) *login) {
	login := newLogin(int(slot.Load()))
	defer func() { login.close() }()
	repeat(ctx, r.Login, func() {
		if device := int(slot.Load()); device != login.device {
			login.close()
			login = newLogin(device)
		}
		former := login.class == changing && rand.IntN(4) == 0 || login.class == rotating && rand.IntN(2) == 0
		version, newest := r.devices.SecretVersion(login.device, former)
		if version > 0 {
			r.judgeLogin(ctx, login, version, newest)
		}
	})
}

// judgeLogin sends a device's secret and has the checker judge the answer.
func (r *run) judgeLogin(ctx context.Context, login *login, version uint64, newest bool) {
	got := login.showSecret(ctx, version, newest)
	if ctx.Err() != nil {
		return
	}
	r.counts.logins[got.Answer].Add(1)
	for _, v := range r.devices.JudgeRead(got) {
		v.Rule = deviceRulePrefix + v.Rule
		r.reportViolation(v)
	}
}

// pickKey returns a random key: every second time a last key of a writer, every eighth time a bulky key.
func (r *run) pickKey() int {
	if rand.IntN(8) == 0 {
		return r.Keys + rand.IntN(bulkKeys)
	}
	if rand.IntN(2) == 0 {
		return r.Keys - 1 - rand.IntN(r.Writers/writersOfKey)
	}
	return rand.IntN(r.Keys)
}

// judgeRead sends one request and has the checker judge the answer.
func (r *run) judgeRead(ctx context.Context, through *reader, key int) Read {
	got := through.readKey(ctx, key)
	if ctx.Err() != nil {
		return got // the run is over
	}
	r.counts.answers[got.Answer].Add(1)
	for _, v := range r.checker.JudgeRead(got) {
		r.reportViolation(v)
	}
	return got
}

// faultsUntil breaks and restores things by the schedule.
func (r *run) faultsUntil(ctx context.Context, end time.Duration) error {
	r.awaitConvergence(ctx, "the start", r.world.now())
	schedule := NewScheduleFor(r.Duration, r.Seed, r.Redis, r.Only)
	for {
		all := schedule.IsDense() && r.Duration >= time.Minute // each kind once, also on a slow machine
		f := schedule.Next()
		if !all && r.world.now()+f.Wait > end || !wait(ctx, f.Wait) {
			return nil
		}
		now := r.world.now()
		if !f.isHarmless() {
			r.checker.BeginFault(now, len(f.Kinds) == 1 && redisDown[f.Kinds[0]])
			r.devices.BeginFault(now, false)
		}
		if err := r.breakAll(ctx, f); err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		if len(f.Kinds) == 1 && f.Kinds[0] == SlowAnswers {
			r.devices.OnlySlow(r.world.now())
		}
		wait(ctx, f.Last)
		if err := r.healAll(ctx, f); err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
	}
}

func (r *run) breakAll(ctx context.Context, f Fault) error {
	for i, kind := range f.Kinds {
		if i > 0 {
			wait(ctx, f.Between)
		}
		r.faults[kind]++
		begin := r.world.now()
		if err := r.breaker.beginFault(kind, &f); err != nil {
			return err
		}
		if losing[kind] {
			r.takeBack(ctx, begin-lag)
		}
		if stepping[kind] {
			onlyRedis := kind == StepRedis && len(f.Kinds) == 1
			r.checker.ClockStepped(onlyRedis)
			r.devices.ClockStepped(onlyRedis)
		}
		if behind[kind] && f.Last > r.limits.MaxStaleness+r.limits.Slack {
			r.writeBulk() // much to catch up with, all of it older than any answer may be
		}
	}
	return nil
}

// emptyRedis empties Redis while no write is under way, and for long enough that the sidecars notice. Meanwhile nothing
// may change at the edges. Afterwards either the loss is accepted, or the next writes come at once.
func (r *run) emptyRedis(ctx context.Context) error {
	client, err := newRedis(r.redisURL)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	r.writing.Lock()
	defer r.writing.Unlock()
	r.imports.forgetDevices()
	if err := client.FlushAll(ctx).Err(); err != nil {
		return fmt.Errorf("empty Redis: %w", err)
	}
	wait(ctx, comparisonTime)
	for shard := range int(r.shards()) {
		keys := contract.Keyspace{Shards: r.shards()}.Keys(shard)
		n, err := client.Exists(ctx, keys.DataEpochKey(), keys.SeqKey()).Result()
		if err != nil {
			return fmt.Errorf("look for writes to the emptied Redis: %w", err)
		}
		if n > 0 {
			r.reportViolation(Violation{wroteAfterLoss, 0, r.world.now(), fmt.Sprint(client.ZRange(ctx, keys.LogKey(), 0, -1))})
		}
	}
	now := r.world.now()
	r.checker.RecordEmptied(now)
	for _, c := range r.counters {
		c.reset()
	}
	r.devices.RecordEmptied(now)
	if rand.IntN(2) == 0 {
		if _, err := r.registrar.publisher.AcceptLoss(ctx); err != nil {
			return fmt.Errorf("accept the loss: %w", err)
		}
	}
	return nil
}

// revokeAll revokes all devices while no write is under way.
func (r *run) revokeAll() error {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.imports.forgetDevices()
	versions := r.devices.BeginRevoking(r.world.now())
	_, err := r.registrar.publisher.RevokeAll(context.Background())
	for device, version := range versions {
		r.devices.End(device, version, outcomeOf(err), r.world.now())
	}
	if err != nil {
		return fmt.Errorf("revoke all devices: %w", err)
	}
	return nil
}

// healAll ends all kinds of a fault, concurrently because a part may need another part to become ready, and waits for
// the edge to catch up after the last.
func (r *run) healAll(ctx context.Context, f Fault) error {
	if slices.Contains(f.Kinds, LoseLast) { // silence, so that no next write shows that one was missed
		r.writing.Lock()
		defer r.writing.Unlock()
	}
	var healing, ending sync.WaitGroup
	ended := make([]time.Duration, len(f.Kinds))
	errs := make([]error, len(f.Kinds))
	for i, kind := range f.Kinds {
		if i > 0 {
			wait(ctx, f.Between)
		}
		ending.Add(1)
		healing.Go(func() {
			errs[i] = r.breaker.endFault(ctx, kind, func(at time.Duration) {
				ended[i] = at
				ending.Done()
			})
		})
	}
	ending.Wait()
	latest := slices.Max(ended)
	if !f.isHarmless() {
		r.checker.EndFault(latest)
		r.devices.EndFault(latest)
	}
	if ctx.Err() == nil {
		r.awaitConvergence(ctx, f.String(), latest)
	}
	healing.Wait()
	r.counting.Wait()
	return errors.Join(errs...)
}

// awaitConvergence waits until the edge has caught up with the writes acknowledged at since.
func (r *run) awaitConvergence(ctx context.Context, after string, since time.Duration) {
	got := r.probeConvergence(ctx, since)
	if ctx.Err() != nil {
		return
	}
	setOdd(&r.world.refills, false)
	setOdd(&r.world.traps, false)
	if r.world.eras.Load()%2 == 1 { // the edge may still have newer, lost versions
		wait(ctx, since+r.limits.Converge+r.starvation.between(since, r.world.now())-r.world.now())
		setOdd(&r.world.eras, false)
	}
	text := fmt.Sprintf("caught up in %.3f s", got.took.Seconds())
	if got.never > 0 {
		text = fmt.Sprintf("%d keys did not catch up in %v", got.never, giveUp)
	}
	if got.took > r.longest.took {
		r.longest, r.slowest = got, after
	}
	r.printf("%8.3f s  %s: %s\n", since.Seconds(), after, text)
}

// reportViolation prints a violation and counts it.
func (r *run) reportViolation(v Violation) {
	r.mu.Lock()
	r.violations++
	print, first := r.violations <= maxPrinted, !r.violated[v.Rule]
	r.violated[v.Rule] = true
	r.mu.Unlock()
	if print {
		r.printf("VIOLATION %s (seed %d)\n", v, r.Seed)
	}
	if first {
		r.gathering.Go(func() { r.saveEvidence(v) })
	}
	if r.FailFast {
		r.failed()
	}
}

func (r *run) printf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintf(r.Out, format, args...)
}

// printSummary prints the end of the report.
func (r *run) printSummary() {
	var faults []string
	for _, kind := range FaultKinds {
		if r.faults[kind] == 0 {
			continue
		}
		faults = append(faults, fmt.Sprintf("%s %d", kind, r.faults[kind]))
	}
	count := func(n *atomic.Int64) int64 { return n.Load() }
	w, a := &r.counts.writes, &r.counts.answers
	seconds := r.world.now().Seconds()
	s := r.checker.Summary()
	if r.breaker.link != nil {
		faults = append(faults, fmt.Sprintf("%d messages", r.breaker.losses.lost.Load()))
	}
	r.printf("faults: %s\n", strings.Join(faults, ", "))
	r.printf("operations: %d acknowledged (%.0f/s), %d of unknown outcome, %d overtaken by another writer's, %d not "+
		"sent, %d batches; lost by Redis: %d writes of objects, %d revocations\n",
		count(&w[Acked]), float64(count(&w[Acked]))/seconds, count(&w[Unknown]), count(&r.counts.overtaken),
		count(&w[Failed]), count(&r.counts.batches), r.lostWrites, r.lostRevocations)
	r.printf("counter: %d increments acknowledged, %d refused because another came first\n", count(&r.counts.counters),
		count(&r.counts.conflicts))
	if p := r.purger; p != nil {
		r.printf("purges: %d acknowledged, %d of them soft\n", count(&p.purges[0])+count(&p.purges[1]), count(&p.purges[1]))
	}
	applied, refused := r.snapshots.countStarts()
	r.printf("snapshots: %d written, %d of them forged; %d starts of the first sidecar applied one, %d refused one\n",
		r.snapshots.written, r.snapshots.forged, applied, refused)
	r.printf("reads: %d (%.0f/s): %d hits, %d misses, %d stale to upstream, %d others to upstream, %d without an answer "+
		"while Envoy or a VM was down; %d answers of no certain Envoy\n",
		sumAnswers(a), float64(sumAnswers(a))/seconds, count(&a[Hit]), count(&a[Miss]), count(&a[Stale]), count(&a[Bypass]),
		count(&a[Unavailable]), s.Inert)
	d, l := &r.counts.devices, &r.counts.logins
	r.printf("devices: %d secrets and revocations acknowledged, %d of unknown outcome; shown %d times: %d let in, %d "+
		"refused, %d not verified, %d without an answer while Envoy or a VM was down\n",
		count(&d[Acked]), count(&d[Unknown]), sumAnswers(l), count(&l[Hit]), count(&l[Refused]), count(&l[Unverified]),
		count(&l[Unavailable]))
	r.printf("%s%s", r.authority.summary(), r.imports.summary())
	r.printf("longest use of a secret that had ended: %.3f s (max_auth_staleness %v)\n",
		r.devices.Summary().Oldest.Seconds(), maxStaleness)
	r.printf("oldest answer: %.3f s (max_staleness %v)\n", s.Oldest.Seconds(), maxStaleness)
	r.printf("longest convergence: %.3f s (%s)\n", r.longest.took.Seconds(), r.slowest)
	r.printf("other programs kept the run from the processors for %s; bounds of time were as much longer\n", r.starvation)
	r.printf("violations: %d\n", r.violations)
}

// repeat calls f at every tick until ctx ends.
func repeat(ctx context.Context, every time.Duration, f func()) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f()
		}
	}
}

// wait waits for d, and reports whether ctx goes on.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
