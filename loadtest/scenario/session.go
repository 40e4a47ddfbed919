//go:build linux

package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// sessionRules are the rules of the session scenario.
const sessionRules = `{credentials: {id_header: x-device-id, secret_header: x-device-token}, session: {metadata: gatehouse}, rules: [
	{match: {path: /v1/session, methods: [POST]}, session: issue}, {match: {prefix: /v1/private/}, auth: {permissions: [read]}, cache: {}}]}`

// session compares the CPU per request with a token and with the device's credential: auth and a 304, in alternating
// slices. For both, the lines of the shipped envoy.yaml for sessions are enabled.
func session(ctx context.Context, o *Options, out *Recorder) (err error) {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	shipped, err := os.ReadFile(filepath.Join(root, "envoy", "envoy.yaml"))
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gatehouse-loadtest-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	config := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(config, []byte(strings.ReplaceAll(string(shipped), "#session ", "")), 0o600); err != nil {
		return err
	}
	b, err := startBench(ctx, stack.Options{
		Name: "session", Concurrency: o.Workers, ConfigPath: config, Rules: sessionRules,
	}, seedSingles)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	token, err := b.sessionToken(ctx)
	if err != nil {
		return err
	}
	credential := authorized304()
	tokened := credential
	tokened.Name = "auth by token + 304"
	tokened.Headers = append(slices.DeleteFunc(slices.Clone(credential.Headers), func(h string) bool {
		return strings.HasPrefix(h, "x-device-")
	}), "Authorization: Bearer "+token)
	subject, reference := b.edgeTarget(), b.edgeTarget()
	reference.name = "credential"
	pair, err := o.measurePair(ctx, dir, o.Pairs, loaded{subject, tokened}, loaded{reference, credential})
	if err != nil {
		return err
	}
	out.Pairs = append(out.Pairs, pair)
	return nil
}

// sessionToken returns a token that Envoy accepts: Envoy may first have to fetch the keys.
func (b *bench) sessionToken(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var answer struct{ Token string }
	for {
		if answer.Token == "" {
			body, err := b.fetchBody(ctx, http.MethodPost, "/v1/session", "x-device-id", workload.Device,
				"x-device-token", workload.Secret)
			if err != nil {
				return "", err
			}
			_ = json.Unmarshal(body, &answer) // no token yet: the device may be unknown
		} else if body, err := b.fetchBody(ctx, http.MethodGet, workload.Private1K, "authorization", "Bearer "+
			answer.Token); err != nil {
			return "", err
		} else if len(body) == workload.Sizes[workload.Private1K] {
			return answer.Token, nil
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return "", err
		}
	}
}

// fetchBody sends a request with headers, names and values in turn, and reads the response's body.
func (b *bench) fetchBody(ctx context.Context, method, path string, headers ...string) ([]byte, error) {
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
