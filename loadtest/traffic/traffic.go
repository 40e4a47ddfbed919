// Package traffic sends a few requests of every kind to a stack with the demo's data, and publishes an object every
// second, for `make observe`: `loadtest traffic`. Nothing is measured.
package traffic

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

const (
	// timeout bounds a request.
	timeout      = 5 * time.Second
	sendEvery    = 50 * time.Millisecond
	publishEvery = time.Second
)

// Command is the command line.
type Command struct {
	URL   string `required:"" help:"The edge."`
	Redis string `required:"" help:"URL of its Redis."`
}

// request is a kind of request; %d in the path stands for the number of the request.
type request struct {
	method, path, id, secret string
	validator                string // If-None-Match
}

// requestKinds are sent in turn, and use the data of gatehouse-demo.
var requestKinds = []request{
	{method: "GET", path: "/v1/products/1"},
	{method: "GET", path: "/v1/products/1", validator: "*"},
	{method: "GET", path: "/v1/products/2", validator: `"another"`},
	{method: "GET", path: "/v1/products/0"}, // not published: a miss
	{method: "GET", path: "/v1/fleet/config", id: "demo-device", secret: "demo-secret"},
	{method: "GET", path: "/v1/fleet/config?absent=%d", id: "demo-device", secret: "demo-secret"}, // asks the sidecar
	{method: "POST", path: "/v1/telemetry", id: "demo-device", secret: "demo-secret"},
	{method: "POST", path: "/v1/telemetry", id: "demo-device", secret: "wrong"},
	{method: "POST", path: "/v1/telemetry", id: "read-only", secret: "read-only-secret"}, // lacks the permission
	{method: "POST", path: "/v1/telemetry", id: "unknown", secret: "any"},
	{method: "GET", path: "/elsewhere"}, // no rule
}

// Run sends and publishes until ctx ends. Parts of the stack may be down meanwhile.
func (c Command) Run(ctx context.Context) error {
	client, err := redisurl.Connect(c.Redis)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	publisher := publish.New(client)
	var running sync.WaitGroup
	running.Go(func() {
		repeatEvery(ctx, sendEvery, func(i int) { sendRequest(ctx, c.URL, requestKinds[i%len(requestKinds)], i) })
	})
	running.Go(func() {
		repeatEvery(ctx, publishEvery, func(i int) {
			body := fmt.Appendf(nil, "{\"id\": 1, \"publication\": %d}\n", i)
			_, _ = publisher.Put(ctx, publish.Object{Key: "/v1/products/1", Body: body, ContentType: "application/json"})
		})
	})
	running.Wait()
	return nil
}

// repeatEvery calls do at an interval until ctx ends. Calls never overlap.
func repeatEvery(ctx context.Context, interval time.Duration, do func(i int)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do(i)
		}
	}
}

// sendRequest sends one request, and ignores the response: the edge's metrics show the result.
func sendRequest(ctx context.Context, url string, kind request, i int) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	path := strings.ReplaceAll(kind.path, "%d", fmt.Sprint(i))
	r, err := http.NewRequestWithContext(ctx, kind.method, url+path, nil)
	if err != nil {
		return
	}
	for name, value := range map[string]string{"x-device-id": kind.id, "x-device-token": kind.secret,
		"If-None-Match": kind.validator} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
}
