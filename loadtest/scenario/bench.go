//go:build linux

package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/testbed/proc"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// bench is a stack with a client of the stack's Redis.
type bench struct {
	*stack.Stack
	client    redis.UniversalClient
	publisher *publish.Publisher
	dir       string
	workers   int // of the edge
}

// startBench starts a stack with its own redis-server. seed may write to Redis before the sidecar starts.
func startBench(ctx context.Context, o stack.Options,
	seed func(ctx context.Context, p *publish.Publisher) error) (*bench, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("%w: it measures with a real Redis; install redis-server", err)
	}
	if o.Concurrency == 0 {
		o.Concurrency = 2
	}
	b := &bench{workers: o.Concurrency}
	parent := ""
	if cmp.Or(o.EdgeKind, stack.EdgeKind(os.Getenv("EDGE_KIND"))) == stack.NginxEdge {
		parent = "/dev/shm" // a disk would write the memory file back, and make writers wait
	}
	if b.dir, err = os.MkdirTemp(parent, "gatehouse-loadtest-"); err != nil {
		return nil, err
	}
	o.Dir, o.RedisServerPath = b.dir, path
	modify := o.ModifyNginx
	o.ModifyNginx = func(config string) string {
		if modify != nil {
			config = modify(config)
		}
		// By default nginx closes a connection after 1,000 requests, even with a request on its way.
		return strings.Replace(config, "http {\n", "http {\n  keepalive_requests 1000000000;\n", 1)
	}
	o.Seed = func(ctx context.Context, url string) error {
		var err error
		if b.client, err = redisurl.Connect(url); err != nil {
			return err
		}
		b.publisher = publish.New(b.client)
		if seed == nil {
			return nil
		}
		return seed(ctx, b.publisher)
	}
	if b.Stack, err = stack.Start(ctx, o); err != nil {
		return nil, errors.Join(err, os.RemoveAll(b.dir))
	}
	return b, nil
}

func (b *bench) stop() error {
	return errors.Join(b.client.Close(), b.Stop(), os.RemoveAll(b.dir))
}

// proxy returns Envoy or nginx, for CPU measurements of any listener.
func (b *bench) proxy() proc.Server {
	if b.EdgeKind() == stack.NginxEdge {
		return proc.Server{Name: "nginx", PID: b.EdgePID(), Cores: b.workers, Forks: true}
	}
	return proc.Server{Name: "envoy", PID: b.EdgePID(), Cores: b.workers, Workers: "wrk:worker_"}
}

// gatehouseServers returns Gatehouse's processes.
func (b *bench) gatehouseServers() []proc.Server {
	return []proc.Server{b.proxy(), {Name: "sidecar", PID: b.SidecarPID()}, {Name: "redis", PID: b.RedisPID(), Cores: 1}}
}

// capacity is the capacity of the edge's memory: objects of 1 KiB, and verdicts; 0: the defaults.
type capacity struct{ objects, verdicts int }

// sidecarArgs returns the sidecar's arguments for the capacity.
func (r capacity) sidecarArgs() (args []string) {
	if r.objects > 0 {
		args = append(args, fmt.Sprint("--memory.objects=", r.maxObjects()), fmt.Sprint("--memory.bytes=", r.memoryMiB()<<20))
	}
	if r.verdicts > 0 {
		args = append(args, fmt.Sprint("--memory.verdicts=", r.maxVerdicts()))
	}
	return args
}

// limitNginx returns nginx.conf with the same limits.
func (r capacity) limitNginx(config string) string {
	limits := ""
	if r.objects > 0 {
		limits += fmt.Sprintf("memory_mib = %d, objects = %d, ", r.memoryMiB(), r.maxObjects())
	}
	if r.verdicts > 0 {
		limits += fmt.Sprintf("verdicts = %d, ", r.maxVerdicts())
	}
	if r.objects > 0 {
		config = memoryLimit.ReplaceAllString(config, "")
	}
	return strings.Replace(config, "memory = ", limits+"memory = ", 1)
}

func (r capacity) maxObjects() int  { return r.objects*5/4 + 100 }
func (r capacity) memoryMiB() int   { return 64 + r.objects/256 }
func (r capacity) maxVerdicts() int { return r.verdicts + 100 }

var memoryLimit = regexp.MustCompile(`memory_mib = [0-9]+,`)

// publishObjects publishes the n objects of [workload.ObjectReads], with random bytes.
func publishObjects(ctx context.Context, p *publish.Publisher, n int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	const batch = 100
	for from := 0; from < n; from += batch {
		group.Go(func() error {
			random := rand.New(rand.NewPCG(uint64(from), 0))
			body := make([]byte, workload.ObjectBytes)
			for i := from; i < min(from+batch, n); i++ {
				for j := range body {
					body[j] = byte(random.Uint32())
				}
				// The publisher doesn't compress images: an object has one encoding, of ObjectBytes.
				o := publish.Object{Key: workload.ObjectPath(i), Body: body, ContentType: "image/png", ETag: workload.ObjectETag(i)}
				if _, err := p.Put(ctx, o); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}
