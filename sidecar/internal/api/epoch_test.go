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

// takeover is an edge in which some workers use an earlier epoch for a while.
type takeover struct {
	known
	over chan struct{}
}

func (e takeover) AwaitTakeover(ctx context.Context) error {
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

// TestRefusalIsNotAheadOfTheEdge verifies a wrong credential while a worker may still authenticate it by an earlier
// epoch. Otherwise a refused client could be authenticated next.
func TestRefusalIsNotAheadOfTheEdge(t *testing.T) {
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
		for name, over := range map[string]bool{"over in time": true, "not over": false} {
			t.Run(path+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					edge := takeover{known{}, make(chan struct{})}
					server := api.New("", verdicts{}, newest(true), make(used), edge, nil, metrics.New(), noop.Tracer{}, discard)
					body := wire.AppendVerifyRequest(nil, &wire.VerifyRequest{DeviceID: "dev", Secret: "wrong"})
					got, answered := httptest.NewRecorder(), make(chan struct{})
					go func() {
						server.Handler().ServeHTTP(got, httptest.NewRequestWithContext(t.Context(), http.MethodPost,
							path, bytes.NewReader(body)))
						close(answered)
					}()
					synctest.Wait()
					select {
					case <-answered:
						t.Error("answered while a worker may let it in")
					default:
					}
					if over {
						close(edge.over)
					}
					<-answered
					if got, err := outcome(got.Body.Bytes()); err != nil || got != wire.Deny {
						t.Errorf("got %v, %v; want that it is refused", got, err)
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
