package chaos

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// Clock is the clock of one machine, which can be stepped: the machine's programs map a file into memory and add the
// offset in the file to the real time.
type Clock struct{ file *os.File }

// NewClock returns a clock that equals the real time.
func NewClock(name string) (*Clock, error) {
	file, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("clock: %w", err)
	}
	c := &Clock{file}
	return c, c.Step(0)
}

// Step sets the clock's difference from the real time.
func (c *Clock) Step(by time.Duration) error {
	if _, err := c.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(by)), 0); err != nil {
		return fmt.Errorf("step the clock by %v: %w", by, err)
	}
	return nil
}

// Environment returns the variables that make C programs use the clock, through a preloaded library. Go programs are
// built to use the clock.
func (c *Clock) Environment(library string) []string {
	return []string{"CHAOS_CLOCK=" + c.file.Name(), "LD_PRELOAD=" + library}
}

// clocks are the clock of the first edge, which its sidecar shares, and the clock of Redis.
type clocks struct{ edge, redis *Clock }

// newClocks sets the clocks of a stack's programs.
func newClocks(library string, opts *stack.Options) (c *clocks, err error) {
	library, err = filepath.Abs(library)
	if err == nil {
		_, err = os.Stat(library)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: library of clocks: %w; run: scripts/chaos-build.sh", stack.ErrUsage, err)
	}
	c = &clocks{}
	if c.edge, err = NewClock(filepath.Join(opts.Dir, "edge.clock")); err != nil {
		return nil, err
	}
	if c.redis, err = NewClock(filepath.Join(opts.Dir, "redis.clock")); err != nil {
		return nil, errors.Join(err, c.edge.file.Close())
	}
	opts.EnvoyEnv, opts.RedisEnv = c.edge.Environment(library), c.redis.Environment(library)
	opts.SidecarEnv = append(opts.SidecarEnv, opts.EnvoyEnv[0])
	return c, nil
}

func (c *clocks) close() {
	_ = c.edge.file.Close()
	_ = c.redis.file.Close()
}

// verifyPrograms steps the clocks of a stack and returns an error unless the programs follow.
func (c *clocks) verifyPrograms(ctx context.Context, s *stack.Stack) error {
	const step = time.Minute
	for _, part := range []struct {
		name string
		*Clock
		now func() (time.Time, error)
	}{
		{"envoy", c.edge, func() (time.Time, error) { return dateOf(s.EnvoyAdminURL()) }},
		{"the sidecar", c.edge, func() (time.Time, error) { return dateOf(s.SidecarAdminURL()) }},
		{"redis", c.redis, func() (time.Time, error) { return timeOf(ctx, s.RedisURL()) }},
	} {
		if err := part.Step(step); err != nil {
			return err
		}
		deadline := time.Now().Add(giveUp) // Envoy's date may be half a second old
		for {
			now, err := part.now()
			if err == nil && time.Until(now) > step/2 {
				break
			}
			if time.Now().After(deadline) || !wait(ctx, 20*time.Millisecond) {
				return errors.Join(fmt.Errorf("the clock of %s can't be stepped: it says %v", part.name, now), err)
			}
		}
		if err := part.Step(0); err != nil {
			return err
		}
	}
	return nil
}

// dateOf returns the time of a server, to the second.
func dateOf(url string) (time.Time, error) {
	response, err := http.Get(url)
	if err != nil {
		return time.Time{}, err
	}
	_ = response.Body.Close()
	return http.ParseTime(response.Header.Get("Date"))
}

// timeOf returns the time of Redis.
func timeOf(ctx context.Context, url string) (time.Time, error) {
	client, err := newRedis(url)
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = client.Close() }()
	return client.Time(ctx).Result()
}
