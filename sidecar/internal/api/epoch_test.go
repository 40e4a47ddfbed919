package api_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/api"
)

// behind is an edge that still has an older version of everything.
type behind struct{ known }

func (behind) AwaitObject(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// late is an edge that has old verdicts until over is closed.
type late struct {
	known
	over chan struct{}
}

func (e late) AwaitEpoch(ctx context.Context, device string) (uint64, error) {
	return 77, e.AwaitVerdicts(ctx, device)
}

func (e late) AwaitVerdicts(ctx context.Context, _ string) error {
	select {
	case <-e.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// newest finds every object, or none.
type newest bool

func (found newest) Fetch(context.Context, string) (contract.Object, bool, error) {
	return contract.Object{Version: 2, ETag: `"2"`, ContentType: "text/plain", Bodies: []contract.Body{{}}},
		bool(found), nil
}

// TestVerdictIsNotAheadOfTheEdge verifies a credential while a worker may use an older verdict on the device. Otherwise
// a refused device could be let in next, and an old secret after a new one.
func TestVerdictIsNotAheadOfTheEdge(t *testing.T) {
	for path, outcome := range map[string]func(body []byte) (wire.Outcome, error){
		"/v1/verify": func(body []byte) (wire.Outcome, error) {
			r, err := wire.ParseVerifyResponse(body)
			return r.Outcome, err
		},
		"/v1/session": func(body []byte) (wire.Outcome, error) {
			r, err := wire.ParseSessionResponse(body)
			return r.Outcome, err
		},
	} {
		for _, tt := range []struct {
			name, secret string
			over         bool
			want         wire.Outcome
		}{
			{"refused, in time", "wrong", true, wire.Deny},
			{"refused, too late", "wrong", false, wire.Deny},
			{"let in, in time", "right", true, wire.Allow},
			{"let in, too late", "right", false, wire.Unavailable},
		} {
			if path == "/v1/session" && tt.secret == "right" {
				continue // a token counts once another call has verified it
			}
			t.Run(path+" "+tt.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					edge := late{known{}, make(chan struct{})}
					server := api.New("", verdicts{"dev right": {Outcome: wire.Allow}}, newest(true), make(used), edge, nil,
						metrics.New(), noop.Tracer{}, discard)
					body := wire.AppendVerifyRequest(nil, &wire.VerifyRequest{DeviceID: "dev", Secret: tt.secret})
					got, answered := httptest.NewRecorder(), make(chan struct{})
					go func() {
						server.Handler().ServeHTTP(got, httptest.NewRequestWithContext(t.Context(), http.MethodPost,
							path, bytes.NewReader(body)))
						close(answered)
					}()
					synctest.Wait()
					select {
					case <-answered:
						t.Error("answered while a worker may use the older verdict")
					default:
					}
					if tt.over {
						close(edge.over)
					}
					<-answered
					if got, err := outcome(got.Body.Bytes()); err != nil || got != tt.want {
						t.Errorf("got %v, %v; want %v", got, err, tt.want)
					}
				})
			})
		}
	}
}

// TestFetchIsNotAheadOfTheEdge fetches an object of which the edge still has an older version, while Redis has a newer
// version or none. Otherwise the next answer could be the older version.
func TestFetchIsNotAheadOfTheEdge(t *testing.T) {
	for _, tt := range []struct {
		name   string
		found  newest
		memory api.Memory
		want   int
	}{
		{"behind", true, behind{}, http.StatusServiceUnavailable},
		{"behind a deletion", false, behind{}, http.StatusServiceUnavailable},
		{"up to date", true, known{}, http.StatusOK},
		{"up to date, and there is none", false, known{}, http.StatusOK},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := api.New("", verdicts{}, tt.found, make(used), tt.memory, nil, metrics.New(), noop.Tracer{}, discard)
				got := httptest.NewRecorder()
				server.Handler().ServeHTTP(got, httptest.NewRequestWithContext(t.Context(), http.MethodPost,
					"/v1/fetch", strings.NewReader("/a")))
				if got.Code != tt.want {
					t.Errorf("got %d %q, want %d", got.Code, got.Body, tt.want)
				}
			})
		})
	}
}
