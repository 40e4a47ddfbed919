package follow

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/internal/snapshot"
)

// openedSnapshot is the snapshot of a Group's start.
type openedSnapshot struct {
	*snapshot.File
	users atomic.Int32 // followers that have not used the snapshot yet
}

func (s *openedSnapshot) release() {
	if s.users.Add(-1) == 0 {
		s.Close()
	}
}

// snapshotReads is what a catch-up from a snapshot's position reads besides the changes.
type snapshotReads struct{ devices []string }

// snapshotKeyspace returns an error unless the snapshot is one of k.
func snapshotKeyspace(of snapshot.Contents, k contract.Keyspace) error {
	switch {
	case of.Namespace != k.Namespace:
		return fmt.Errorf("it is foreign: of namespace %q, and redis.namespace is %q", of.Namespace, k.Namespace)
	case len(of.Shards) != k.Count():
		return fmt.Errorf("it is foreign: of %d shards, and redis.shards is %d", len(of.Shards), k.Count())
	}
	return nil
}

// openSnapshot opens the snapshot for the followers; close closes it. Without a snapshot that can be read, everything
// is read from Redis.
func (g *Group) openSnapshot(ctx context.Context) (close func()) {
	none := func() {}
	if g.source == "" {
		return none
	}
	began := time.Now()
	file, err := snapshot.Open(ctx, g.source)
	if err == nil {
		if err = snapshotKeyspace(file.Contents, g.keyspace); err != nil {
			file.Close()
		}
	}
	if err != nil {
		g.followers[0].refuseSnapshot(err)
		return none
	}
	g.log.Info("a snapshot was read", "sha256", file.SHA256, "duration", time.Since(began))
	g.startBytes.Store(file.Size() * 3 / 2)
	opened := &openedSnapshot{File: file}
	for _, f := range g.followers {
		if f.keys.Namespace == g.keyspace.Namespace {
			f.snapshot = opened
			opened.users.Add(1)
		}
	}
	return file.Close
}

// refuseSnapshot logs and counts that the snapshot is not used.
func (s *shard) refuseSnapshot(err error) {
	s.metrics.Snapshots.WithLabelValues("refused").Inc()
	s.log.Warn("the snapshot is not used: everything is read from redis", "error", err)
}

// StartBytes returns about how much memory the objects of the snapshot will take, with bodies of 1 KiB, until
// everything in Redis was applied; 0: unknown, or done.
func (g *Group) StartBytes() int64 {
	select {
	case <-g.synced:
		return 0
	default:
		return g.startBytes.Load()
	}
}

// useSnapshot applies the shard's part of the snapshot, and moves the follower to its position, if Redis has registered
// the snapshot, and so has its history: the catch-up continues from there. Otherwise everything is read. Devices come
// from Redis in any case; the snapshot only has their ids, so that the whole log needn't be read for them.
func (f *Follower) useSnapshot(ctx context.Context, server server) error {
	s := f.snapshot
	if s == nil {
		return nil
	}
	if f.resync.tried { // an empty shard was followed meanwhile
		f.snapshot = nil
		s.release()
		return nil
	}
	from := s.Shards[f.Shard]
	p, err := f.readPosition(ctx, server, position{seq: from.Seq})
	if err != nil {
		return err
	}
	if p.dataEpoch == "" || f.nameLostKeys(p) != "" {
		return nil // until the shard can be followed, see confirmNotLost
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	registered, err := server.HMGet(ctx, f.keys.SnapshotsKey(), s.SHA256).Result()
	if err != nil && !isWithheld(err, nil) {
		return fmt.Errorf("read %s: %w", f.keys.SnapshotsKey(), err)
	}
	f.snapshot = nil
	defer s.release()
	p.link = contract.Link{Seq: from.Seq, Digest: from.Digest}
	now := p.at
	if !p.vitals.clock.IsZero() {
		now = p.vitals.clock
	}
	age := now.Sub(time.UnixMilli(from.TakenMS))
	if err == nil {
		err = judgeSnapshot(from, s.SHA256, p, age, registered[0] != nil)
	}
	if err != nil {
		f.refuseSnapshot(err)
		return nil
	}
	began := time.Now()
	f.Purges.BeginResync()
	f.Credentials.BeginResync()
	f.resync.tried = true
	devices, count, err := f.applySnapshot(s)
	if err != nil { // the full resync drops what was applied
		f.refuseSnapshot(err)
		return nil
	}
	f.dataEpoch, f.chain.readable = p.dataEpoch, p.chained
	f.setLast(from.Seq, from.Digest)
	f.setHistory(p)
	f.historyAt = p.at.Add(-age)
	f.synced, f.fromSnapshot = true, &snapshotReads{devices}
	f.metrics.Snapshots.WithLabelValues("applied").Inc()
	f.log.Info("the snapshot was applied", "records", count, "seq", from.Seq, "redis_seq", p.seq,
		"duration", time.Since(began))
	return nil
}

// parsedRecord is an object of a snapshot, or the fields of another record.
type parsedRecord struct {
	contract.Member
	object *contract.Object // nil: fields count
	fields map[string]string
}

// applySnapshot applies the shard's objects and purges, count records, and returns the ids of its devices. Another
// goroutine parses the records: parsing takes as long as applying.
func (f *Follower) applySnapshot(s *openedSnapshot) (devices []string, count int, err error) {
	f.Objects.Grow(s.Shards[f.Shard].Objects)
	batches := make(chan []parsedRecord, 4)
	go func() {
		defer close(batches)
		var batch []parsedRecord
		err = s.Visit(f.Shard, func(m contract.Member, fields map[string]string) bool {
			switch {
			case !f.follows(m.Kind):
				return m.Kind != contract.KindObject // the last kind
			case m.Kind == contract.KindCredential:
				devices = append(devices, m.ID)
				return true
			}
			r := parsedRecord{Member: m}
			if o, err := contract.ParseObject(fields); m.Kind == contract.KindObject && err == nil {
				o.Key, r.object = m.ID, &o
			} else {
				r.fields = make(map[string]string, len(fields))
				for name, value := range fields {
					r.fields[strings.Clone(name)] = strings.Clone(value)
				}
			}
			if batch = append(batch, r); len(batch) == pipelineSize {
				batches <- batch
				batch = nil
			}
			return true
		})
		batches <- batch
	}()
	for batch := range batches {
		for _, r := range batch {
			if r.object != nil {
				f.Objects.Apply(*r.object)
			} else {
				f.applyRecord(r.Member, r.fields)
			}
		}
		count += len(batch)
	}
	return devices, count, err
}

// judgeSnapshot returns why the part from of a snapshot may not be used at Redis's position p; nil: it may be. Who
// registered the snapshot did so after all its reads, and over the same connection: a server that has the registration
// has all that is in the snapshot, however much was written since. The other reasons tell operators more.
func judgeSnapshot(from snapshot.Shard, sum string, p position, age time.Duration, registered bool) error {
	switch {
	case from.DataEpoch != p.dataEpoch:
		return fmt.Errorf("it is foreign: of data epoch %.64q, and redis has %q; it is of another redis, or of before redis "+
			"lost its data", from.DataEpoch, p.dataEpoch)
	case p.hasOtherWrite():
		return fmt.Errorf("it is foreign: redis has another write %d than the snapshot", from.Seq)
	case p.seq < from.Seq:
		return fmt.Errorf("it is foreign: redis is at write %d, before the snapshot's %d", p.seq, from.Seq)
	case from.Seq < p.floor:
		return fmt.Errorf("it is too old: of write %d, and the log begins at %d", from.Seq, p.floor)
	case age > snapshot.MaxAge:
		return fmt.Errorf("it is too old: %v, at most %v are allowed", age.Round(time.Second), snapshot.MaxAge)
	case !registered:
		return fmt.Errorf("redis doesn't know its SHA-256 %s: it was forged or damaged, or is older than many others, or "+
			"redis lost its last writes", sum)
	}
	return nil
}
