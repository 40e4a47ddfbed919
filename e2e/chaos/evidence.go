package chaos

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// saveEvidence writes the state of the sidecars and Redis at the first violation of a rule: the logs have only part of
// it.
func (r *run) saveEvidence(v Violation) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s %v\n", time.Now().Format(time.RFC3339Nano), v, r.world.moment())
	for _, s := range r.stacks {
		question := fmt.Sprintf(`{"method": "GET", "url": %q}`, pathOf(v.Key))
		for _, of := range [][2]string{{"/v1/explain", question}, {"/v1/status"}, {"/metrics"},
			{"/debug/pprof/goroutine?debug=1"}} {
			url := s.SidecarAdminURL() + of[0]
			fmt.Fprintf(&b, "\n# %s\n%s\n", url, queryAdmin(url, of[1]))
		}
	}
	if client, err := newRedis(r.redisURL); err == nil {
		defer func() { _ = client.Close() }()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		for shard := range int(r.shards()) {
			keys := contract.Keyspace{Shards: r.shards()}.Keys(shard)
			fmt.Fprintf(&b, "\n# Redis\n%v\n%v\n", client.Get(ctx, keys.DataEpochKey()), client.Get(ctx, keys.SeqKey()))
		}
		fmt.Fprintln(&b, client.Info(ctx))
	}
	name := strings.NewReplacer(" ", "-", ":", "").Replace(v.Rule) + ".txt"
	if err := os.WriteFile(filepath.Join(r.Stack.Dir, name), []byte(b.String()), 0o600); err != nil {
		r.printf("evidence: %v\n", err)
	}
}

// queryAdmin returns a sidecar's answer to a GET, or to a POST of a question, or the reason why there is none.
func queryAdmin(url, question string) string {
	client, ask := http.Client{Timeout: time.Second}, (*http.Client).Get
	if question != "" {
		ask = func(c *http.Client, url string) (*http.Response, error) {
			return c.Post(url, "application/json", strings.NewReader(question))
		}
	}
	response, err := ask(&client, url)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return fmt.Sprintln(string(text), err)
}
