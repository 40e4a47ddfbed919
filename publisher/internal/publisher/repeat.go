package publisher

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/publish"
)

// keyHeader names a request, so that its repetition after a lost answer or a 503 writes nothing
// (draft-ietf-httpapi-idempotency-key-header).
const keyHeader = "Idempotency-Key"

// maxIdempotencyKey bounds an Idempotency-Key, in bytes.
const maxIdempotencyKey = 255

// wrongKey returns the problem of an Idempotency-Key.
func wrongKey(h http.Header) *problem {
	keys := h.Values(keyHeader)
	if len(keys) == 0 || len(keys) == 1 && keys[0] != "" && len(keys[0]) <= maxIdempotencyKey {
		return nil
	}
	return problemf(http.StatusBadRequest, "%s: want one, of 1 to %d bytes", keyHeader, maxIdempotencyKey)
}

// request identifies a write of the team by Idempotency-Key and the number of the line in a batch, otherwise 0; found
// is false without an Idempotency-Key. content is all that makes it another request.
func (c *call) request(line int, content string) (r publish.Request, found bool) {
	key := c.r.Header.Get(keyHeader)
	return publish.RequestOf(strings.Join([]string{c.team.Name, strconv.Itoa(line), key}, "\n"), content), key != ""
}

// identify returns ctx with what identifies the request, if its writer has said so.
func (c *call) identify(ctx context.Context, operation, key string, body []byte) context.Context {
	var lines []string
	for name, values := range c.r.Header {
		condition := slices.Contains([]string{"Content-Type", "If-Match", "If-None-Match"}, name)
		if condition || strings.HasPrefix(name, "Gatehouse-") {
			lines = append(lines, name+": "+strings.Join(values, ","))
		}
	}
	slices.Sort(lines)
	content := strings.Join(append(lines, operation+" "+key, string(body)), "\n")
	r, found := c.request(0, content)
	if !found {
		return ctx
	}
	return publish.WithRequests(ctx, r)
}

// identifyLines is identify for lines of a batch.
func identifyLines(ctx context.Context, run []write) context.Context {
	var requests []publish.Request
	for _, w := range run {
		if w.identified {
			requests = append(requests, w.request)
		}
	}
	if len(requests) < len(run) {
		return ctx
	}
	return publish.WithRequests(ctx, requests...)
}
