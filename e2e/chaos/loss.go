package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// losePower ends Redis like a loss of power with appendfsync everysec. After a kill alone, Redis's writes remain in the
// kernel's memory. So losePower also truncates Redis's log to its length of up to lag before, which the disk may have
// had.
func (b *breaker) losePower() error {
	client, err := newRedis(b.stack.RedisURL())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if err := client.ConfigSet(context.Background(), "appendfsync", "everysec").Err(); err != nil { // until the restart
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
	if last, _, err := b.appendOnlyFile(); err != nil || last != synced { // this file is synced, and another one begun
		return err
	}
	return os.Truncate(synced, size)
}

// appendOnlyFile returns the name and the size of the file to which Redis appends.
func (b *breaker) appendOnlyFile() (name string, size int64, err error) {
	names, err := filepath.Glob(filepath.Join(b.stack.Dir(), "appendonlydir", "*.incr.aof"))
	var newest time.Time
	for _, found := range names {
		info, err := os.Stat(found)
		if err == nil && info.ModTime().After(newest) { // otherwise it was removed meanwhile
			name, size, newest = found, info.Size(), info.ModTime()
		}
	}
	if name == "" {
		err = errors.Join(err, errors.New("redis has no append-only file"))
	}
	return name, size, err
}

// takeBack revokes the acknowledgements from since on, and begins to count the lost writes. A device whose write may be
// lost gets no more writes, because Redis counts the device's versions differently afterwards.
func (r *run) takeBack(ctx context.Context, since time.Duration) {
	r.writing.Lock() // all acknowledgements have been recorded
	defer r.writing.Unlock()
	objects, devices := r.checker.AckedSince(since), r.devices.AckedSince(since)
	for device := range devices {
		if kind, _ := r.devices.NewestKind(device); kind != Delete {
			delete(devices, device)
		}
	}
	r.checker.ForgetAcks(since)
	for _, c := range r.counters {
		c.forgetAcks(since)
	}
	r.authority.forgetAcks(since)
	r.imports.forgetDevices()
	for _, device := range r.devices.ForgetAcks(since) {
		for i := range r.deviceSlots {
			r.deviceSlots[i].CompareAndSwap(int64(device), int64(device+len(r.deviceSlots)))
		}
	}
	r.counting.Go(func() {
		writes, revocations, err := 0, 0, error(nil)
		for begun := r.world.now(); r.world.now() < begun+giveUp && wait(ctx, 20*time.Millisecond); {
			if writes, revocations, err = r.countLost(ctx, objects, devices); err == nil {
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

// countLost counts the acknowledged writes that Redis has lost: versions of objects, and revocations of devices.
func (r *run) countLost(ctx context.Context, objects, devices map[int]uint64) (writes, revocations int, err error) {
	client, err := newRedis(r.redisURL)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = client.Close() }()
	keys := contract.Keys{}
	for key, version := range objects {
		stored, err := client.HGet(ctx, keys.ObjectKey(storedKey(key)), contract.FieldVersion).Uint64()
		if err != nil && err != redis.Nil {
			return 0, 0, fmt.Errorf("look for what was lost: %w", err)
		}
		if stored < version {
			writes++
		}
	}
	for device := range devices {
		ended, err := client.HMGet(ctx, keys.CredentialKey(deviceID(device)), contract.FieldDisabled,
			contract.FieldDeleted).Result()
		if err != nil {
			return 0, 0, fmt.Errorf("look for what was lost: %w", err)
		}
		if ended[0] == nil && ended[1] == nil {
			revocations++
		}
	}
	return writes, revocations, nil
}
