package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/e2e/stack"
	"github.com/gatehouse/gatehouse/sidecar/publish"
)

// session measures Envoy's CPU per request that is let in by a token, against the same
// request with the device's credential: auth and a 304, in turn, slice by slice.
func session(ctx context.Context, o *options, out io.Writer) (err error) {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	shipped, err := os.ReadFile(filepath.Join(root, "envoy", "envoy.yaml"))
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gatehouse-session-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	config := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(config, []byte(strings.ReplaceAll(string(shipped), "#session ", "")), 0o600); err != nil {
		return err
	}
	b, err := start(ctx, stack.Options{
		Name: "session", Concurrency: 1, ConfigPath: config,
		Rules: `{credentials: {id_header: x-device-id, secret_header: x-device-token}, session: {metadata: gatehouse}, rules: [
			{match: {path: /v1/session, methods: [POST]}, session: issue}, {match: {prefix: /v1/private/}, auth: {permissions: [read]}, cache: {}}]}`,
	}, seedRatio)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	token, err := b.token(ctx)
	if err != nil {
		return err
	}
	common := []string{"User-Agent: device/1.0", "Accept: application/json", "If-None-Match: " + publish.ETag(ratioBody(1<<10))}
	credential := workload{"credential", "/v1/private/1", append(slices.Clone(common), "x-device-id: "+benchDevice, "x-device-token: "+benchSecret)}
	session := workload{"token", "/v1/private/1", append(slices.Clone(common), "Authorization: Bearer "+token)}
	var ratios, with, without []float64
	for range o.Pairs {
		t, err := b.slice(ctx, b.EdgeURL(), session)
		if err != nil {
			return err
		}
		c, err := b.slice(ctx, b.EdgeURL(), credential)
		if err != nil {
			return err
		}
		ratios, with, without = append(ratios, t/c), append(with, t), append(without, c)
	}
	slices.Sort(ratios)
	fmt.Fprintf(out, "session: Envoy's CPU per request (auth + 304) with a token against the credential, the same lines of envoy.yaml on; 1 worker, wrk -t1 -c%d, %d pairs of slices of %s, median (min – max)\n", wrkConns, o.Pairs, slice)
	fmt.Fprintf(out, "%.2f (%.2f – %.2f)   token %.1f µs, credential %.1f µs\n", median(ratios), ratios[0], ratios[len(ratios)-1], median(with), median(without))
	return nil
}

// token is one that Envoy takes: it may still have to fetch the keys.
func (b *bench) token(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var answer struct{ Token string }
	for {
		if answer.Token == "" {
			body, err := b.ask(ctx, http.MethodPost, "/v1/session", "x-device-id", benchDevice, "x-device-token", benchSecret)
			if err != nil {
				return "", err
			}
			_ = json.Unmarshal(body, &answer) // nothing yet: the device may not be known
		} else if body, err := b.ask(ctx, http.MethodGet, "/v1/private/1", "authorization", "Bearer "+answer.Token); err != nil {
			return "", err
		} else if len(body) == 1<<10 {
			return answer.Token, nil
		}
	}
}

// ask sends a request with headers, name and value each, and reads the answer's body.
func (b *bench) ask(ctx context.Context, method, path string, headers ...string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, b.EdgeURL()+path, nil)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	return io.ReadAll(response.Body)
}
