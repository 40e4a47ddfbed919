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
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

//go:embed write.lua
var writeSource string

var writeScript = newScript(writeSource)

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

// writer writes records by the script.
type writer struct {
	*store
	by     string // command to publish events
	author string // of the audit's entries
}

// writeRecord runs the script for m.
func (w *writer) writeRecord(ctx context.Context, mode string, m contract.Member,
	fields map[string]string) (Receipt, error) {
	result := w.writeAll(ctx, []mutation{{mode: mode, member: m, fields: fields}})[0]
	return result.Receipt, result.Err
}

// batchRecords is how many records are written at once: some 30 ms of Redis.
const batchRecords = 512

// writeAll runs the script for each mutation, up to a bound in one round trip to each server. Each write is atomic by
// itself. If Redis answers no write, nothing more is sent.
func (w *writer) writeAll(ctx context.Context, mutations []mutation) []Result {
	results := make([]Result, 0, len(mutations))
	for part := range slices.Chunk(mutations, batchRecords) {
		written, answered := w.writeBatch(ctx, part)
		if results = append(results, written...); !answered {
			err := written[len(written)-1].Err
			return append(results, slices.Repeat([]Result{{Err: err}}, len(mutations)-len(results))...)
		}
	}
	return results
}

// writeBatch is writeAll for 1 to batchRecords mutations. answered reports whether Redis answered any write.
func (w *writer) writeBatch(ctx context.Context, mutations []mutation) (results []Result, answered bool) {
	if err := w.ensureShards(ctx); err != nil {
		return slices.Repeat([]Result{{Err: err}}, len(mutations)), false
	}
	for _, r := range w.runAll(ctx, mutations) {
		answered = answered || r.err == nil || errors.As(r.err, new(redis.Error))
		results = append(results, w.writeResult(ctx, r))
	}
	return results, answered
}

// runAll runs the script for each mutation. Writes of devices are audited, if permitted.
func (w *writer) runAll(ctx context.Context, mutations []mutation) []reply {
	calls := make([]call, len(mutations))
	for i, m := range mutations {
		calls[i] = w.writeCall(ctx, m, m.member.Kind == contract.KindCredential)
	}
	replies := writeScript.runCalls(ctx, w.client, calls...)
	var again []int
	calls = nil
	for i, m := range mutations {
		if err := replies[i].err; m.member.Kind == contract.KindCredential &&
			(redis.IsPermissionError(err) || isSlotMoving(err)) {
			// Perhaps only the audit's key is not permitted or, while a slot moves, not on this server: a revocation must not
			// need the audit.
			again, calls = append(again, i), append(calls, w.writeCall(ctx, m, false))
		}
	}
	if len(again) > 0 {
		for n, r := range writeScript.runCalls(ctx, w.client, calls...) {
			replies[again[n]] = r
		}
	}
	return replies
}

// writeCall returns the run of the script for m, without author if the write is not audited.
func (w *writer) writeCall(ctx context.Context, m mutation, audited bool) call {
	return w.writeCallIn(ctx, w.keyspace.KeysOf(m.member.ID), m, audited)
}

// writeCallIn is writeCall for a shard.
func (w *writer) writeCallIn(ctx context.Context, shard contract.Keys, m mutation, audited bool) call {
	expiryMS := int64(0)
	if m.fields[contract.FieldDeleted] != "" {
		expiryMS = contract.TombstoneLife.Milliseconds()
	}
	keys := []string{shard.RecordKey(m.member), shard.SeqKey(), shard.LogKey(), shard.DataEpochKey(), shard.ChainKey()}
	args := []any{m.mode, m.fields[contract.FieldVersion], cmp.Or(m.request, newDataEpoch()), m.member.String(), expiryMS,
		shard.EventsChannel(), w.by, currentTraceparent(ctx)}
	if audited {
		keys, args = append(keys, shard.AuditKey()), append(args, w.author)
	}
	for _, field := range slices.Sorted(maps.Keys(m.fields)) {
		if field != contract.FieldVersion && field != contract.FieldPublished {
			args = append(args, field, m.fields[field])
		}
	}
	return call{keys, args}
}

// writeResult returns the outcome of a run of the write script.
func (w *writer) writeResult(ctx context.Context, r reply) Result {
	if r.err != nil {
		return Result{Err: w.handleWriteError(ctx, r.err)}
	}
	if len(r.numbers) != 2 {
		return Result{Err: fmt.Errorf("the write script returned %d numbers, want 2", len(r.numbers))}
	}
	if r.numbers[1] == 1 {
		w.agreed.Store(false) // the shard was empty: Redis may have lost its data, and the number of shards
	}
	return Result{Receipt: Receipt{Version: uint64(r.numbers[0]), Seq: uint64(r.numbers[1])}}
}

// handleWriteError converts the error of a write. In a Cluster, another server may have become the shard's master; the
// client does not look for a new master while the old master does not answer.
func (w *writer) handleWriteError(ctx context.Context, err error) error {
	cluster, ok := w.client.(*redis.ClusterClient)
	if ok && !errors.As(err, new(redis.Error)) {
		cluster.ReloadState(ctx)
	}
	return scriptError(err)
}

// deleteVersion deletes an object, unless the object is written meanwhile, or version is invalid.
func (w *writer) deleteVersion(ctx context.Context, m contract.Member, version string) (bool, error) {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil || n > math.MaxInt64/2 {
		return false, nil
	}
	fields := contract.Object{Deleted: true}.Fields()
	fields[contract.FieldVersion] = "~" + strconv.FormatUint(n, 10) // a publisher's next version may be version + 1
	_, err = w.writeRecord(ctx, replace, m, fields)
	if errors.Is(err, ErrStale) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("delete %q: %w", m.ID, err)
	}
	return true, nil
}

// currentTraceparent returns the span of ctx as a traceparent (W3C Trace Context), or "".
func currentTraceparent(ctx context.Context) string {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() {
		return ""
	}
	return fmt.Sprintf("00-%s-%s-%s", span.TraceID(), span.SpanID(), span.TraceFlags())
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
