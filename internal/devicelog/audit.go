// Package devicelog reads from Redis what is known of devices besides their records: the audit of writes, which writers
// keep, and last authentications and wrong secrets, which sidecars keep.
package devicelog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/publish"
)

// Log reads from Redis.
type Log struct {
	Client   redis.UniversalClient
	Keyspace contract.Keyspace
}

// checkShards returns an error if the keyspace is invalid or Redis has another number of shards.
func (l *Log) checkShards(ctx context.Context) error {
	if err := l.Keyspace.Check(); err != nil {
		return fmt.Errorf("%w %w", publish.ErrInvalid, err)
	}
	stored, err := l.Client.Get(ctx, l.Keyspace.ShardsKey()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("read %s: %w", l.Keyspace.ShardsKey(), err)
	}
	return l.Keyspace.Agree(stored)
}

// Change is an entry of the audit: a write of a device's record. A Redis user with write permission can also write
// without an entry, or write a false entry.
type Change struct {
	// Time is the time of the write, by Redis's clock, in milliseconds; times after the year 9999 become its end.
	Time time.Time `json:"time"`
	// Device is the device id.
	Device string `json:"device"`
	// Version is the record's.
	Version uint64 `json:"version"`
	// Change is put (a new record), changed, revoked, disabled, enabled (again), or deleted.
	Change string `json:"change"`
	// Fields are the names of the changed fields, except for put and deleted.
	Fields []string `json:"fields"`
	// Author is the writer; "" if unknown.
	Author string `json:"author"`
}

const (
	// auditPage is the number of a shard's entries in one read.
	auditPage = 256
	// auditBlock is how long a call waits for entries. The next call may find another master.
	auditBlock = 2 * time.Second
	auditRetry = time.Second
	// maxID is the highest id of an entry; Redis refuses to look beyond.
	maxID = "18446744073709551615-18446744073709551615"
)

// auditShard reads the entries of a shard.
type auditShard struct {
	key  string
	last string // id of the last entry read
	page []redis.XMessage
	done bool
}

// Audit yields the entries of all shards from since on, the oldest first. An error ends the list.
func (l *Log) Audit(ctx context.Context, since time.Time) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		shards, err := l.auditFrom(ctx, since)
		if err == nil {
			err = l.mergeEntries(ctx, shards, func(c Change) bool { return yield(c, nil) })
		}
		if err != nil {
			yield(Change{}, fmt.Errorf("read the audit: %w", err))
		}
	}
}

// FollowAudit passes the entries to visit as [Log.Audit] yields them, and then new entries, of each shard in
// order, until ctx ends, visit returns an error, or Redis refuses the command. While Redis is unreachable, FollowAudit
// retries, and passes the first error to trouble. The client needs a connection for each shard.
func (l *Log) FollowAudit(ctx context.Context, since time.Time, visit func(Change) error,
	trouble func(error)) error {
	var refused error
	shards, err := l.auditFrom(ctx, since)
	if err == nil {
		err = l.mergeEntries(ctx, shards, func(c Change) bool {
			refused = visit(c)
			return refused == nil
		})
	}
	if err = errors.Join(err, refused); err != nil {
		return fmt.Errorf("read the audit: %w", err)
	}
	var mu sync.Mutex // for the functions
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range shards {
		group.Go(func() error {
			return s.followEntries(ctx, l.Client, func(c Change) error {
				mu.Lock()
				defer mu.Unlock()
				return visit(c)
			}, func(err error) {
				mu.Lock()
				defer mu.Unlock()
				trouble(err)
			})
		})
	}
	return group.Wait()
}

// auditFrom returns readers from since on.
func (l *Log) auditFrom(ctx context.Context, since time.Time) (shards []*auditShard, err error) {
	if err := l.checkShards(ctx); err != nil {
		return nil, err
	}
	last := "0-0"
	if ms := since.UnixMilli(); ms > 0 {
		last = fmt.Sprintf("%d-%d", ms-1, uint64(math.MaxUint64))
	}
	for i := range l.Keyspace.Count() {
		shards = append(shards, &auditShard{key: l.Keyspace.Keys(i).AuditKey(), last: last})
	}
	return shards, nil
}

// mergeEntries passes the entries of all shards to yield, ordered by time, until yield returns false.
func (l *Log) mergeEntries(ctx context.Context, shards []*auditShard, yield func(Change) bool) error {
	for {
		var first *auditShard
		for _, s := range shards {
			if err := s.fillPage(ctx, l.Client); err != nil {
				return err
			}
			if len(s.page) > 0 && (first == nil || compareIDs(s.page[0].ID, first.page[0].ID) < 0) {
				first = s
			}
		}
		if first == nil {
			return nil
		}
		entry := first.page[0]
		first.page = first.page[1:]
		if !yield(parseChange(entry)) {
			return nil
		}
	}
}

// fillPage reads the next page if all entries of the last page are used.
func (s *auditShard) fillPage(ctx context.Context, client redis.UniversalClient) (err error) {
	if len(s.page) > 0 || s.done {
		return nil
	}
	if s.page, err = client.XRangeN(ctx, s.key, "("+s.last, "+", auditPage).Result(); err != nil {
		return err
	}
	if len(s.page) > 0 {
		s.last = s.page[len(s.page)-1].ID
	}
	s.done = len(s.page) == 0 || s.last == maxID
	return nil
}

// followEntries passes new entries to visit.
func (s *auditShard) followEntries(ctx context.Context, client redis.UniversalClient, visit func(Change) error,
	trouble func(error)) error {
	for away := false; ; {
		streams, err := client.XRead(ctx, &redis.XReadArgs{
			Streams: []string{s.key, s.last}, Count: auditPage, Block: auditBlock,
		}).Result()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case redis.IsPermissionError(err), redis.HasErrorPrefix(err, "WRONGTYPE"):
			return fmt.Errorf("read %s: %w", s.key, err)
		case err != nil && !errors.Is(err, redis.Nil):
			if !away {
				trouble(fmt.Errorf("read %s: %w", s.key, err))
			}
			away = true
			select {
			case <-ctx.Done():
			case <-time.After(auditRetry):
			}
			continue
		}
		away = false
		for _, stream := range streams {
			for _, entry := range stream.Messages {
				s.last = entry.ID
				if err := visit(parseChange(entry)); err != nil {
					return err
				}
			}
		}
	}
}

// compareIDs compares ids of entries: milliseconds, -, number.
func compareIDs(a, b string) int {
	parse := func(id string) (ms, n uint64) {
		before, after, _ := strings.Cut(id, "-")
		ms, _ = strconv.ParseUint(before, 10, 64)
		n, _ = strconv.ParseUint(after, 10, 64)
		return ms, n
	}
	aMS, aN := parse(a)
	bMS, bN := parse(b)
	return cmp.Or(cmp.Compare(aMS, bMS), cmp.Compare(aN, bN))
}

// parseChange parses an entry. Anyone may have written the entry: its texts can have any bytes.
func parseChange(entry redis.XMessage) Change {
	text := func(field string) string {
		value, _ := entry.Values[field].(string)
		return value
	}
	ms, _, _ := strings.Cut(entry.ID, "-")
	at, _ := strconv.ParseInt(ms, 10, 64)
	c := Change{Time: time.UnixMilli(min(at, limits.MaxTime)).UTC(), Device: text("device"), Change: text("change"),
		Author: text("author"), Fields: []string{}}
	c.Version, _ = strconv.ParseUint(text("version"), 10, 64)
	if fields := text("fields"); fields != "" {
		c.Fields = strings.Split(fields, ",")
	}
	return c
}
