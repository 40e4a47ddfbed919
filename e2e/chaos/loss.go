package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// losePower ends Redis as a loss of power does with appendfsync everysec. Killing it is not enough: what it has written
// stays in the memory of the kernel. So its log is cut off where it was up to lag before, which is what the disk may have had.
func (b *breaker) losePower() error {
	client, err := newRedis(b.stack.RedisURL())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if err := client.ConfigSet(context.Background(), "appendfsync", "everysec").Err(); err != nil { // until it is started again
		return fmt.Errorf("set appendfsync: %w", err)
	}
	synced, size, err := b.appendOnlyFile()
	if err != nil {
		return err
	}
	wait(context.Background(), lag/2)
	if err := b.stack.KillRedis(); err != nil {
		return err
	}
	if last, _, err := b.appendOnlyFile(); err != nil || last != synced { // it has begun another one, and synced this one
		return err
	}
	return os.Truncate(synced, size)
}

// appendOnlyFile is the file to which Redis appends, and its size.
func (b *breaker) appendOnlyFile() (name string, size int64, err error) {
	names, err := filepath.Glob(filepath.Join(b.stack.Dir(), "appendonlydir", "*.incr.aof"))
	var newest time.Time
	for _, found := range names {
		info, err := os.Stat(found)
		if err == nil && info.ModTime().After(newest) { // else it was removed in between
			name, size, newest = found, info.Size(), info.ModTime()
		}
	}
	if name == "" {
		err = errors.Join(err, errors.New("redis has no append-only file"))
	}
	return name, size, err
}

// takeBack takes back what was acknowledged from since on, and begins to count what of it is lost. A device of which a write may be
// lost is written no more, because Redis counts its versions otherwise than we do.
func (r *run) takeBack(ctx context.Context, since time.Duration) {
	r.writing.Lock() // all that was acknowledged is noted
	defer r.writing.Unlock()
	objects, devices := r.checker.AckedSince(since), r.devices.AckedSince(since)
	for device := range devices {
		if kind, _ := r.devices.Newest(device); kind != Delete {
			delete(devices, device)
		}
	}
	r.checker.Unsure(since)
	for _, device := range r.devices.Unsure(since) {
		for i := range r.places {
			r.places[i].CompareAndSwap(int64(device), int64(device+len(r.places)))
		}
	}
	r.counting.Go(func() {
		writes, revocations, err := 0, 0, error(nil)
		for begun := r.world.now(); r.world.now() < begun+giveUp && wait(ctx, 20*time.Millisecond); {
			if writes, revocations, err = r.lost(ctx, objects, devices); err == nil {
				break
			}
		}
		if err != nil {
			r.printf("what was lost is not known: %v\n", err)
		}
		r.lostWrites += writes
		r.lostRevocations += revocations
	})
}

// lost counts what was acknowledged and Redis doesn't have any more: versions of objects, and revocations of devices.
func (r *run) lost(ctx context.Context, objects, devices map[int]uint64) (writes, revocations int, err error) {
	client, err := newRedis(r.redisURL)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = client.Close() }()
	keys := contract.ShardKeys(0)
	for key, version := range objects {
		stored, err := client.HGet(ctx, keys.ObjectKey(path(key)), contract.FieldVersion).Uint64()
		if err != nil && err != redis.Nil {
			return 0, 0, fmt.Errorf("look for what was lost: %w", err)
		}
		if stored < version {
			writes++
		}
	}
	for device := range devices {
		disabled, err := client.HGet(ctx, keys.CredentialKey(deviceID(device)), contract.FieldDisabled).Result()
		if err != nil && err != redis.Nil {
			return 0, 0, fmt.Errorf("look for what was lost: %w", err)
		}
		if disabled != "1" {
			revocations++
		}
	}
	return writes, revocations, nil
}
