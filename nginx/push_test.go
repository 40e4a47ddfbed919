package nginx_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// TestPush sends what isn't a batch to the push listener; package edge tests batches.
func TestPush(t *testing.T) {
	e := startEdge(t)
	e.push(t, testEpoch, 0, "/v1/products/1", false)
	foreign := wire.BeginBatch(nil, testEpoch, testEpoch)
	foreign[0] = wire.Layout + 1
	for _, tt := range []struct {
		name, method, path string
		body               []byte
		chunked            bool
		status             int
		want               string // part of the answer
	}{
		{"no operations", "POST", "/v1/apply", wire.BeginBatch(nil, testEpoch, testEpoch), false, 200, ""},
		{"chunked", "POST", "/v1/apply", wire.BeginBatch(nil, testEpoch, testEpoch), true, 200, ""},
		{"another epoch", "POST", "/v1/apply", wire.BeginBatch(nil, testEpoch+1, testEpoch+1), false, 409, ""},
		{"another layout", "POST", "/v1/apply", foreign, false, 400, `from "Go-http-client/1.1": `},
		{"empty", "POST", "/v1/apply", nil, false, 400, "batch"},
		{"maximum", "POST", "/v1/apply", make([]byte, 2<<20), false, 400, "batch"},
		{"too large", "POST", "/v1/apply", make([]byte, 2<<20+1), false, 413,
			"batch of more than 2097152 bytes: send smaller ones\n"},
		{"another path", "POST", "/v1/products/1", nil, false, 404,
			"POST /v1/products/1: only POST /v1/apply is served here\n"},
		{"query", "POST", "/v1/apply?a=b", nil, false, 404, "POST /v1/apply?a=b: only"},
		{"another spelling", "POST", "//v1/apply", nil, false, 404, "POST //v1/apply: only"},
		{"GET", "GET", "/v1/apply", nil, false, 404, "GET /v1/apply: only"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var body io.Reader = bytes.NewReader(tt.body)
			if tt.chunked {
				body = io.MultiReader(body)
			}
			req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://push"+tt.path, body)
			require.NoError(t, err)
			res, err := e.client("push.sock").Do(req)
			require.NoError(t, err)
			defer res.Body.Close()
			answer, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			if res.StatusCode != tt.status || !strings.Contains(string(answer), tt.want) {
				t.Errorf("got %d %.200q, want %d with %q", res.StatusCode, answer, tt.status, tt.want)
			}
			if state, err := wire.ParseState(answer); tt.want == "" && (err != nil || state.Epoch != testEpoch) {
				t.Errorf("got %x, want the state", answer)
			}
		})
	}
}
