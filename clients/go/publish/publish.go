// Package publish writes objects and device credentials to Redis. All Gatehouse edges serve the objects and
// authenticate the devices. Package contract specifies the format.
//
//	p := publish.New(redis.NewClient(options))
//	_, err := p.Put(ctx, publish.Object{Key: "/v1/products/42", Body: body, ContentType: "application/json"})
//
// If ctx has a span of OpenTelemetry, the sidecars continue its trace until the edges have the change.
package publish

import (
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

// Errors for use with [errors.Is].
var (
	// ErrStale: the version is not newer than the stored version, and nothing was written. A writer that counts versions
	// should read the stored version before a retry.
	ErrStale = errors.New("stale version")
	// ErrNotFound: the object or device does not exist, or was deleted.
	ErrNotFound = errors.New("not found")
	// ErrInvalid: the contract does not allow the argument.
	ErrInvalid = errors.New("invalid")
	// ErrFull: the memory of Redis is used up, and nothing was written. Deletions and revocations still succeed.
	ErrFull = errors.New("redis is full (maxmemory): nothing was written; only deletions and revocations succeed")
	// ErrExists: an object exists at the key, or the device has a different record or was deleted within the last 24
	// hours. Nothing was written.
	ErrExists = errors.New("already exists")
	// ErrOutdated: the data in Redis needs a later release, and nothing was written: update the writer.
	ErrOutdated = errors.New("this writer is outdated")
	// ErrCorrupt: the contract does not allow the stored record. A new write replaces the record.
	ErrCorrupt = errors.New("corrupt record")
)

//go:embed write.lua
var writeSource string

var writeScript = newScript(writeSource)

// Publisher writes to all shards, and is safe for concurrent use.
type Publisher struct {
	client   redis.UniversalClient
	keyspace contract.Keyspace
	by       string      // command to publish events
	author   string      // of the audit's entries
	agreed   atomic.Bool // Redis has the same number of shards
}

// Option configures a Publisher.
type Option func(*Publisher)

// Shards sets the number of shards; the default is 1. All writers and sidecars of a namespace must have the same
// number; if Redis has a different number, writes fail with a [contract.ShardsError].
func Shards(n int) Option { return func(p *Publisher) { p.keyspace.Shards = contract.Shards(n) } }

// Namespace sets the namespace, 1 to 32 of a-z, 0-9 and -, beginning with a letter or digit; the default is "", none.
// Edges read only the sidecar's namespace and Redis database.
func Namespace(name string) Option { return func(p *Publisher) { p.keyspace.Namespace = name } }

// Author sets the author in the audit of devices: at most contract.MaxAuthor bytes of printable ASCII without a blank
// at an end, "" for nobody; the default is [DefaultAuthor]. Other bytes become ?, and long names are cut.
func Author(name string) Option { return func(p *Publisher) { p.author = name } }

// New returns a Publisher that uses client; the caller still closes client. Package redisurl makes clients for a single
// server, Sentinel or a Cluster.
func New(client redis.UniversalClient, options ...Option) *Publisher {
	p := &Publisher{client: client, by: "PUBLISH", author: DefaultAuthor(),
		keyspace: contract.Keyspace{Database: redisurl.Database(client)}}
	if _, cluster := client.(*redis.ClusterClient); cluster {
		p.by = "SPUBLISH" // PUBLISH would send events to every node of the Cluster
	}
	for _, option := range options {
		option(p)
	}
	return p
}

// Receipt identifies a recorded write.
type Receipt struct {
	// Version is the new version of the object or credential.
	Version uint64
	// Seq is the write's sequence number in its shard.
	Seq uint64
}

// Modes of the write script.
const (
	replace = "replace"
	merge   = "merge"
	add     = "add"
	purge   = "purge"
)

// mutation is a write of a record. fields has the version: 0 for the next version, =V for the version after V. A
// publish time in fields is ignored.
type mutation struct {
	mode   string
	member contract.Member
	fields map[string]string

	request string // of the caller, "" for a new id
}

// Result is the outcome of a write.
type Result struct {
	Receipt
	Err error
}

// writeRecord runs the script for m.
func (p *Publisher) writeRecord(ctx context.Context, mode string, m contract.Member,
	fields map[string]string) (Receipt, error) {
	result := p.writeAll(ctx, []mutation{{mode: mode, member: m, fields: fields}})[0]
	return result.Receipt, result.Err
}

// batchRecords is how many records are written at once: some 30 ms of Redis.
const batchRecords = 512

// writeAll runs the script for each mutation, up to a bound in one round trip to each server. Each write is atomic by
// itself. If Redis answers no write, nothing more is sent.
func (p *Publisher) writeAll(ctx context.Context, mutations []mutation) []Result {
	results := make([]Result, 0, len(mutations))
	for part := range slices.Chunk(mutations, batchRecords) {
		written, answered := p.writeBatch(ctx, part)
		if results = append(results, written...); !answered {
			err := written[len(written)-1].Err
			return append(results, slices.Repeat([]Result{{Err: err}}, len(mutations)-len(results))...)
		}
	}
	return results
}

// writeBatch is writeAll for 1 to batchRecords mutations. answered reports whether Redis answered any write.
func (p *Publisher) writeBatch(ctx context.Context, mutations []mutation) (results []Result, answered bool) {
	if err := p.ensureShards(ctx); err != nil {
		return slices.Repeat([]Result{{Err: err}}, len(mutations)), false
	}
	for _, r := range p.runAll(ctx, mutations) {
		answered = answered || r.err == nil || errors.As(r.err, new(redis.Error))
		results = append(results, p.writeResult(ctx, r))
	}
	return results, answered
}

// runAll runs the script for each mutation. Writes of devices are audited, if permitted.
func (p *Publisher) runAll(ctx context.Context, mutations []mutation) []reply {
	calls := make([]call, len(mutations))
	for i, m := range mutations {
		calls[i] = p.writeCall(ctx, m, m.member.Kind == contract.KindCredential)
	}
	replies := p.runScript(ctx, writeScript, calls...)
	var again []int
	calls = nil
	for i, m := range mutations {
		if err := replies[i].err; m.member.Kind == contract.KindCredential &&
			(redis.IsPermissionError(err) || isSlotMoving(err)) {
			// Perhaps only the audit's key is not permitted or, while a slot moves, not on this server: a revocation must not
			// need the audit.
			again, calls = append(again, i), append(calls, p.writeCall(ctx, m, false))
		}
	}
	if len(again) > 0 {
		for n, r := range p.runScript(ctx, writeScript, calls...) {
			replies[again[n]] = r
		}
	}
	return replies
}

// writeCall returns the run of the script for m, without author if the write is not audited.
func (p *Publisher) writeCall(ctx context.Context, m mutation, audited bool) call {
	return p.writeCallIn(ctx, p.keyspace.KeysOf(m.member.ID), m, audited)
}

// writeCallIn is call for a shard.
func (p *Publisher) writeCallIn(ctx context.Context, shard contract.Keys, m mutation, audited bool) call {
	expiryMS := int64(0)
	if m.fields[contract.FieldDeleted] != "" {
		expiryMS = contract.TombstoneLife.Milliseconds()
	}
	keys := []string{shard.RecordKey(m.member), shard.SeqKey(), shard.LogKey(), shard.DataEpochKey(), shard.ChainKey()}
	args := []any{m.mode, m.fields[contract.FieldVersion], cmp.Or(m.request, newDataEpoch()), m.member.String(), expiryMS,
		shard.EventsChannel(), p.by, currentTraceparent(ctx)}
	if audited {
		keys, args = append(keys, shard.AuditKey()), append(args, p.author)
	}
	for _, field := range slices.Sorted(maps.Keys(m.fields)) {
		if field != contract.FieldVersion && field != contract.FieldPublished {
			args = append(args, field, m.fields[field])
		}
	}
	return call{keys, args}
}

// writeResult returns the outcome of a run of the write script.
func (p *Publisher) writeResult(ctx context.Context, r reply) Result {
	if r.err != nil {
		return Result{Err: p.handleWriteError(ctx, r.err)}
	}
	if len(r.numbers) != 2 {
		return Result{Err: fmt.Errorf("the write script returned %d numbers, want 2", len(r.numbers))}
	}
	if r.numbers[1] == 1 {
		p.agreed.Store(false) // the shard was empty: Redis may have lost its data, and the number of shards
	}
	return Result{Receipt: Receipt{Version: uint64(r.numbers[0]), Seq: uint64(r.numbers[1])}}
}

// currentTraceparent returns the span of ctx as a traceparent (W3C Trace Context), or "".
func currentTraceparent(ctx context.Context) string {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() {
		return ""
	}
	return fmt.Sprintf("00-%s-%s-%s", span.TraceID(), span.SpanID(), span.TraceFlags())
}

// ensureShards compares the number of shards with the number in Redis before the first write, and stores the number if
// Redis has none.
func (p *Publisher) ensureShards(ctx context.Context) error {
	if p.agreed.Load() {
		return nil
	}
	stored, err := p.storedShards(ctx) // a full Redis refuses SET, also with NX
	if err == nil && stored == "" {
		key := p.keyspace.ShardsKey()
		if err := p.client.SetNX(ctx, key, p.keyspace.Count(), 0).Err(); err != nil {
			return fmt.Errorf("set %s: %w", key, scriptError(err))
		}
		stored, err = p.storedShards(ctx)
	}
	if err == nil {
		err = p.keyspace.Agree(stored)
	}
	p.agreed.Store(err == nil)
	return err
}

// storedShards returns the number of shards in Redis, "" if nothing was written yet.
func (p *Publisher) storedShards(ctx context.Context) (string, error) {
	if err := p.keyspace.Check(); err != nil {
		return "", fmt.Errorf("%w %w", ErrInvalid, err)
	}
	stored, err := p.client.Get(ctx, p.keyspace.ShardsKey()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("read %s: %w", p.keyspace.ShardsKey(), err)
	}
	return stored, nil
}

// handleWriteError converts the error of a write. In a Cluster, another server may have become the shard's master; the
// client does not look for a new master while the old master does not answer.
func (p *Publisher) handleWriteError(ctx context.Context, err error) error {
	cluster, ok := p.client.(*redis.ClusterClient)
	if ok && !errors.As(err, new(redis.Error)) {
		cluster.ReloadState(ctx)
	}
	return scriptError(err)
}

// newDataEpoch returns a data epoch for a Redis without data epoch.
func newDataEpoch() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// scriptError converts errors of Redis and of the script to this package's errors.
func scriptError(err error) error {
	if !errors.As(err, new(redis.Error)) {
		return err
	}
	code, text, _ := strings.Cut(err.Error(), " ")
	switch code {
	case "STALE":
		return fmt.Errorf("%w: %s", ErrStale, text)
	case "CONTRACT":
		return fmt.Errorf("%w: %s", ErrOutdated, text)
	case "OOM":
		return ErrFull
	case "REUSED":
		return ErrReused
	case "ABSENT":
		return ErrNotFound
	case "EXISTS":
		return fmt.Errorf("%w: %s", ErrExists, text)
	case "INVALID", "LIMIT":
		return fmt.Errorf("%w: %s", ErrInvalid, text)
	}
	return err
}

// refuse returns an [ErrInvalid] that names the value and the limit.
func refuse(format string, args ...any) error {
	return fmt.Errorf("%w "+format, append([]any{ErrInvalid}, args...)...)
}

func checkVersion(version uint64) error {
	if version > limits.MaxOwnVersion {
		return refuse("version %d: at most %d is allowed, 0 is the next one", version, uint64(limits.MaxOwnVersion))
	}
	return nil
}

// checkMember checks a key or id as contract does.
func checkMember(m contract.Member) error {
	if _, err := contract.ParseMember(m.String()); err != nil {
		return fmt.Errorf("%w %w", ErrInvalid, err)
	}
	return nil
}

// checkShards returns an error if Redis has a different number of shards.
func (p *Publisher) checkShards(ctx context.Context) error {
	stored, err := p.storedShards(ctx)
	if err != nil {
		return err
	}
	return p.keyspace.Agree(stored)
}

// visitMembers passes the members of a kind in the logs of all shards to page, in each shard the oldest write first. A
// member written meanwhile may be passed twice.
func (p *Publisher) visitMembers(ctx context.Context, kind byte, page func([]contract.Member) bool) error {
	if err := p.checkShards(ctx); err != nil {
		return err
	}
	for i := range p.keyspace.Count() {
		if more, err := p.visitShardMembers(ctx, p.keyspace.Keys(i), kind, page); err != nil || !more {
			return err
		}
	}
	return nil
}

// execPipeline runs pipe. A key with a wrong type, or a missing key, fails only its own command.
func execPipeline(ctx context.Context, pipe redis.Pipeliner) error {
	commands, err := pipe.Exec(ctx)
	for _, c := range commands {
		switch {
		case redis.HasErrorPrefix(c.Err(), "WRONGTYPE"), errors.Is(c.Err(), redis.Nil):
			err = nil
		case c.Err() != nil:
			return c.Err()
		}
	}
	return err
}

// visitShardMembers is visitMembers for a single shard. more is true if page never returned false.
func (p *Publisher) visitShardMembers(ctx context.Context, shard contract.Keys, kind byte,
	page func([]contract.Member) bool) (more bool, err error) {
	const pageSize = 256
	start := "-inf"
	for {
		entries, err := p.client.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
			Key: shard.LogKey(), Start: start, Stop: "+inf", ByScore: true, Count: pageSize,
		}).Result()
		if err != nil {
			return false, fmt.Errorf("read %s: %w", shard.LogKey(), err)
		}
		if len(entries) == 0 {
			return true, nil
		}
		var members []contract.Member
		for _, entry := range entries {
			name, _ := entry.Member.(string)
			if m, err := contract.ParseMember(name); err == nil && m.Kind == kind { // the sidecar counts bad members
				members = append(members, m)
			}
		}
		if !page(members) {
			return false, nil
		}
		// Scores are sequence numbers: unique, and exact as doubles.
		start = "(" + strconv.FormatFloat(entries[len(entries)-1].Score, 'f', -1, 64)
	}
}
