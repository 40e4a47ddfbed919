//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/sync/errgroup"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/loadtest/openloop"
	"github.com/gatehouse/gatehouse/loadtest/report"
	"github.com/gatehouse/gatehouse/loadtest/stats"
	"github.com/gatehouse/gatehouse/loadtest/workload"
)

// registerDevices publishes n devices, named after prefix, with one hash of one secret, so that the publisher hashes
// once. Each device has its own record, and so costs the sidecar a run of bcrypt.
func registerDevices(ctx context.Context, p *publish.Publisher, prefix string, n, cost int) error {
	hash, err := bcrypt.GenerateFromPassword([]byte(workload.Secret), cost)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for i := range n {
		group.Go(func() error {
			d := publish.Device{ID: fmt.Sprint(prefix, i), Hashes: []string{string(hash)},
				Permissions: []string{"telemetry.write"}}
			_, err := p.PutDevice(ctx, d)
			return err
		})
	}
	return group.Wait()
}

// registerFleet publishes n devices of the fleet with the read permission and one hash of the lowest allowed cost, and
// returns the hash.
func registerFleet(ctx context.Context, b *bench, n int) (hash string, err error) {
	made, err := bcrypt.GenerateFromPassword([]byte(workload.Secret), bcrypt.MinCost)
	if err != nil {
		return "", err
	}
	group, ctx := errgroup.WithContext(ctx)
	const writers = 32
	for i := range writers {
		group.Go(func() error {
			for j := i; j < n; j += writers {
				// The version is given, because a verdict applies to one version.
				d := publish.Device{ID: workload.FleetDevice(j), Hashes: []string{string(made)},
					Permissions: []string{"read"}, Version: 1}
				if _, err := b.publisher.PutDevice(ctx, d); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return string(made), group.Wait()
}

// shareVerdicts publishes shared verdicts for sidecars with the fleet's secret: the secret of each of n devices matches
// the hash in version 1 of the device's record.
func shareVerdicts(ctx context.Context, redisURL, secretFile string, n int, hash string) error {
	var devices strings.Builder
	for i := range n {
		fmt.Fprintln(&devices, workload.FleetDevice(i), workload.Secret)
	}
	cmd := exec.CommandContext(ctx, "build/gatehouse-share-verdicts", redisURL, secretFile, hash)
	cmd.Stdin = strings.NewReader(devices.String())
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("share verdicts: %w: %s", err, text)
	}
	return nil
}

// loopbackAddress returns a loopback address: 127.network.x.y for host number i.
func loopbackAddress(network byte, i int) [4]byte {
	return [4]byte{127, network, byte(i / 250), byte(1 + i%250)}
}

// postTelemetry posts telemetry with a credential and returns the response's status.
func (c *conn) postTelemetry(id, secret string) (int, error) {
	c.buf = appendTelemetry(c.buf[:0], c.host, id, secret)
	status, _, err := c.send(c.buf)
	return status, err
}

// appendTelemetry appends a request that posts telemetry with a credential.
func appendTelemetry(dst []byte, host, id, secret string) []byte {
	return fmt.Appendf(dst, "POST /v1/telemetry HTTP/1.1\r\nHost: %s\r\nx-device-id: %s\r\nx-device-token: "+
		"%s\r\nContent-Length: 0\r\n\r\n", host, id, secret)
}

// sample is one request of a device.
type sample struct {
	at     time.Time // due time
	took   time.Duration
	status int
}

// fleet is the devices at work: each sends a request a second, on its own connection and from its own address, evenly
// spread over the second. A device skips a second while a response is outstanding.
type fleet struct {
	cancel context.CancelFunc
	done   chan error

	mu      sync.Mutex // protects the fields below
	samples []sample
	firstOK map[int64]time.Time // time of a device's first 200
}

// startFleet starts the devices, registered as good0, good1, ….
func startFleet(ctx context.Context, url string) *fleet {
	ctx, cancel := context.WithCancel(ctx)
	f := &fleet{cancel: cancel, done: make(chan error, 1), firstOK: make(map[int64]time.Time)}
	host := strings.TrimPrefix(url, "http://")
	next := func(dst []byte, i int64) []byte {
		return appendTelemetry(dst, host, fmt.Sprint("good", i%workingDevices), workload.Secret)
	}
	go func() {
		result, err := openloop.Run(ctx, url, next, openloop.Load{
			Rate: workingDevices, Duration: time.Hour, Connections: workingDevices, OwnConnections: true,
			From: func(i int) [4]byte {
				return loopbackAddress(1, i)
			},
			Answered: func(a openloop.Answer) { f.addSample(a.Request%workingDevices, sample{a.Due, a.Took, a.Status}) },
		})
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		if lost := result.Errors["closed"]; lost > 0 && err == nil {
			err = fmt.Errorf("%d connections of devices were closed while they waited for an answer", lost)
		}
		f.done <- err
	}()
	return f
}

func (f *fleet) addSample(device int64, s sample) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.samples = append(f.samples, s)
	if s.status == http.StatusOK && f.firstOK[device].IsZero() {
		f.firstOK[device] = s.at.Add(s.took)
	}
}

// awaitAuthenticated waits until all devices are authenticated, and returns the time of the last device's first 200.
func (f *fleet) awaitAuthenticated(ctx context.Context) (time.Time, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		f.mu.Lock()
		in := len(f.firstOK)
		var last time.Time
		for _, t := range f.firstOK {
			if t.After(last) {
				last = t
			}
		}
		f.mu.Unlock()
		if in == workingDevices {
			return last, nil
		}
		select {
		case err := <-f.done:
			f.done <- err
			return last, errors.Join(errors.New("the devices have stopped"), err)
		case <-ctx.Done():
			return last, fmt.Errorf("%d of %d devices were let in: %w", in, workingDevices, ctx.Err())
		case <-tick.C:
		}
	}
}

// takeSamples removes and returns the samples so far.
func (f *fleet) takeSamples() []sample {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.samples
	f.samples = nil
	return s
}

func (f *fleet) stop() error {
	f.cancel()
	return <-f.done
}

// measureRow measures the fleet on t for d. The client's CPU is the CPU of the loadtest process.
func (f *fleet) measureRow(
	ctx context.Context, t target, name string, d time.Duration,
) (row report.Row, samples []sample, err error) {
	row = report.Row{Workload: name, Loop: report.Open, Bytes: -1, Connections: workingDevices, Asked: workingDevices}
	row, err = measureRow(ctx, t, row, func(row *report.Row) (client, error) {
		f.takeSamples()
		begin, cpu := time.Now(), ownCPU()
		if err := sleep(ctx, d); err != nil {
			return client{}, err
		}
		row.Seconds = time.Since(begin).Seconds()
		samples = f.takeSamples()
		var h stats.Histogram
		row.Errors = map[string]int64{}
		for _, s := range samples {
			h.Add(s.took)
			if s.status != http.StatusOK {
				row.Errors[fmt.Sprint(s.status)]++
			}
		}
		row.Achieved, row.Latency = float64(len(samples))/row.Seconds, report.LatencyPoints(&h)
		cores := (ownCPU() - cpu) / row.Seconds
		return client{answers: int64(len(samples)), cores: cores, busy: cores / float64(runtime.NumCPU()),
			held: row.Achieved >= 0.99*row.Asked}, nil
	})
	return row, samples, err
}

// formatQuantiles returns the latencies at shares, and the maximum, as text.
func formatQuantiles(h *stats.Histogram, shares ...float64) string {
	var text strings.Builder
	for _, q := range shares {
		fmt.Fprintf(&text, "p%g %s, ", 100*q, h.Quantile(q).Round(time.Microsecond))
	}
	return text.String() + "max " + h.Quantile(1).Round(time.Microsecond).String()
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
