package publisher

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/publish"
)

// idempotencyHeader names a request: if the request is repeated after a lost answer or a 503, nothing is written again
// (draft-ietf-httpapi-idempotency-key-header).
const idempotencyHeader = "Idempotency-Key"

// maxIdempotencyKey bounds an Idempotency-Key, in bytes.
const maxIdempotencyKey = 255

// checkIdempotencyKey returns the problem of an Idempotency-Key.
func checkIdempotencyKey(h http.Header) *problem {
	keys := h.Values(idempotencyHeader)
	if len(keys) == 0 || len(keys) == 1 && keys[0] != "" && len(keys[0]) <= maxIdempotencyKey {
		return nil
	}
	return problemf(http.StatusBadRequest, "%s: want one, of 1 to %d bytes", idempotencyHeader, maxIdempotencyKey)
}

// identifyWrite identifies a write of the team by the Idempotency-Key and the line number in a batch, otherwise 0.
// content is everything that distinguishes requests with the same key.
func (c *call) identifyWrite(idempotencyKey string, line int, content string) publish.Request {
	return publish.RequestOf(strings.Join([]string{c.team.Name, strconv.Itoa(line), idempotencyKey}, "\n"), content)
}

// withRequest returns ctx with the request's identity, if the request has an Idempotency-Key.
func (c *call) withRequest(ctx context.Context, operation, key string, body []byte) context.Context {
	idempotencyKey := c.r.Header.Get(idempotencyHeader)
	if idempotencyKey == "" { // the body is neither copied nor hashed
		return ctx
	}
	var lines []string
	for name, values := range c.r.Header {
		condition := slices.Contains([]string{"Content-Type", "If-Match", "If-None-Match"}, name)
		if condition || strings.HasPrefix(name, "Gatehouse-") {
			lines = append(lines, name+": "+strings.Join(values, ","))
		}
	}
	slices.Sort(lines)
	content := strings.Join(append(lines, operation+" "+key, string(body)), "\n")
	return publish.WithRequests(ctx, c.identifyWrite(idempotencyKey, 0, content))
}

// withLineRequests is withRequest for lines of a batch.
func (c *call) withLineRequests(ctx context.Context, run []batchWrite) context.Context {
	if c.r.Header.Get(idempotencyHeader) == "" {
		return ctx
	}
	requests := make([]publish.Request, len(run))
	for i, w := range run {
		requests[i] = w.request
	}
	return publish.WithRequests(ctx, requests...)
}
