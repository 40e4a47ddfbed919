package publish

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// batchBodies bounds the bodies of a batch, in bytes. With all encodings, a batch has at most 4 MiB.
const batchBodies = 1 << 20

// PutAll publishes objects as [Publisher.Put] does, and returns the results in the same order. PutAll encodes on all
// cores (at most three bodies of 16 KiB or more at once), and writes 512 objects, 4 MiB at most, in a round trip to
// each server. Each write is atomic by itself, and independent of the failure of other writes. Objects of the same key
// are written in order, except while a Cluster moves the key's slot. If Redis answers no write of a round trip, nothing
// more is sent, and the remaining objects get the same error.
func (p *Publisher) PutAll(ctx context.Context, objects []Object) []Result {
	encoding, gone := context.WithCancelCause(ctx)
	defer gone(nil)
	batches := make(chan []prepared) // a batch is encoded while the batch before is written
	go func() {
		defer close(batches)
		for from := 0; from < len(objects); {
			n := batchOf(objects[from:])
			batches <- prepareAll(encoding, objects[from:from+n], from)
			from += n
		}
	}()
	var results []Result
	for batch := range batches {
		if err := context.Cause(encoding); err != nil {
			for i := range batch {
				batch[i].fail(err)
			}
		} else if err := p.putBatch(ctx, batch); err != nil {
			gone(err)
		}
		for _, b := range batch {
			results = append(results, b.result)
		}
	}
	return results
}

// DeleteAll deletes the objects at keys as [Publisher.Delete] does with version 0, and returns the results in the same
// order. Writes are batched as by [Publisher.PutAll].
func (p *Publisher) DeleteAll(ctx context.Context, keys []string) []Result {
	return p.deleteAll(ctx, keys, func(int) map[string]string { return contract.Object{Deleted: true}.Fields() })
}

// DeleteAllIf is DeleteAll for listed objects. An object written since the listing stays, with the result [ErrStale].
func (p *Publisher) DeleteAllIf(ctx context.Context, entries []Entry) []Result {
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = e.Key
	}
	return p.deleteAll(ctx, keys, func(i int) map[string]string {
		return requireVersion(contract.Object{Deleted: true}.Fields(), entries[i].Version)
	})
}

// deleteAll writes tombstones. fields returns the fields of tombstone i.
func (p *Publisher) deleteAll(ctx context.Context, keys []string, fields func(i int) map[string]string) []Result {
	results := make([]Result, len(keys))
	var mutations []mutation
	var of []int // keys
	for i, key := range keys {
		key, err := canonicalKey(key)
		if err != nil {
			results[i].Err = fmt.Errorf("delete object: %w", err)
			continue
		}
		mutations = append(mutations, mutation{replace, contract.ObjectMember(key), fields(i), requestOf(ctx, i)})
		of = append(of, i)
	}
	for n, r := range p.writer.writeAll(ctx, mutations) {
		if r.Err != nil {
			r.Err = fmt.Errorf("delete %q: %w", mutations[n].member.ID, r.Err)
		}
		results[of[n]] = r
	}
	return results
}

// batchOf returns how many of objects are written at once.
func batchOf(objects []Object) int {
	bytes := 0
	for n, o := range objects {
		if bytes += len(o.Body); n > 0 && bytes > batchBodies || n == batchRecords {
			return n
		}
	}
	return len(objects)
}

// prepared is an object ready for writing.
type prepared struct {
	mutation
	absent bool // IfAbsent
	done   bool
	result Result
}

// fail ends the write with an error.
func (b *prepared) fail(err error) {
	if !b.done {
		b.done, b.result.Err = true, fmt.Errorf("put %q: %w", b.member.ID, err)
	}
}

// prepareAll encodes objects, or fails invalid objects. from is the number of the first object.
func prepareAll(ctx context.Context, objects []Object, from int) []prepared {
	batch := make([]prepared, len(objects))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(objects)) {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for i := next.Add(1) - 1; i < int64(len(objects)); i = next.Add(1) - 1 {
				batch[i] = newPrepared(ctx, objects[i], requestOf(ctx, from+int(i)))
			}
		}()
	}
	workers.Wait()
	return batch
}

func newPrepared(ctx context.Context, o Object, request string) prepared {
	if err := o.checkObject(); err != nil {
		return prepared{done: true, result: Result{Err: fmt.Errorf("put object: %w", err)}}
	}
	b := prepared{absent: o.IfAbsent,
		mutation: mutation{mode: replace, member: contract.ObjectMember(o.Key), request: request}}
	if err := context.Cause(ctx); err != nil {
		b.fail(err)
		return b
	}
	bodies, err := encodeBody(o.Body, o.ContentType)
	if err != nil {
		b.fail(err)
		return b
	}
	b.fields = contract.Object{
		Version: o.Version, ETag: o.EntityTag(), ContentType: o.ContentType, TTLMS: o.TTL.Milliseconds(), Bodies: bodies,
		Status: o.Status, Headers: contract.JoinHeaders(o.Headers), Tags: distinctNames(o.Tags),
	}.Fields()
	if o.IfVersion != 0 {
		requireVersion(b.fields, o.IfVersion)
	}
	return b
}

// requireVersion makes a write of fields succeed only if the stored version is version, 0 for none; the write gets the
// next version. A record that Redis has lost is not written.
func requireVersion(fields map[string]string, version uint64) map[string]string {
	fields[contract.FieldVersion] = "=" + strconv.FormatUint(version, 10)
	return fields
}

// putBatch writes batch. If Redis answers no write, an error is returned.
func (p *Publisher) putBatch(ctx context.Context, batch []prepared) error {
	for range attempts {
		if err := p.findAbsent(ctx, batch); err != nil {
			return err
		}
		var mutations []mutation
		var of []*prepared
		for i := range batch {
			if b := &batch[i]; !b.done {
				mutations, of = append(mutations, b.mutation), append(of, b)
			}
		}
		if len(of) == 0 {
			return nil
		}
		written, answered := p.writer.writeBatch(ctx, mutations)
		for n, r := range written {
			b := of[n]
			if b.result = r; b.absent && errors.Is(r.Err, ErrStale) {
				continue // written or deleted meanwhile
			}
			if r.Err != nil {
				b.fail(r.Err)
			}
			b.done = true
		}
		if !answered {
			return written[0].Err
		}
	}
	for i := range batch {
		batch[i].fail(batch[i].result.Err)
	}
	return nil
}

// findAbsent prepares writes with IfAbsent: the version after the stored version, or a failure. If the read fails,
// findAbsent returns an error and fails the whole batch.
func (p *Publisher) findAbsent(ctx context.Context, batch []prepared) error {
	var of []*prepared
	var members []contract.Member
	for i := range batch {
		if b := &batch[i]; b.absent && !b.done {
			of, members = append(of, b), append(members, b.member)
		}
	}
	if len(of) == 0 {
		return nil
	}
	states, err := p.reader.readStates(ctx, members...)
	var purged map[string]bool
	if err == nil {
		var there []contract.Member
		for n, s := range states {
			if s.exists {
				there = append(there, members[n])
			}
		}
		purged, err = p.reader.purgedKeys(ctx, there)
	}
	if err != nil {
		for i := range batch {
			batch[i].fail(err)
		}
		return err
	}
	for n, s := range states {
		if s.exists && !purged[of[n].member.ID] {
			if of[n].result.Receipt, err = p.reader.readReceipt(ctx, members[n].ID, of[n].request); err == nil {
				of[n].done = true
			} else if errors.Is(err, ErrNotFound) {
				of[n].fail(ErrExists)
			} else {
				of[n].fail(err)
			}
		} else {
			requireVersion(of[n].fields, s.version)
		}
	}
	return nil
}
