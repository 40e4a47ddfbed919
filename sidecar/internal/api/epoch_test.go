package api_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/api"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
)

// behind is an edge that still holds an older version of everything.
type behind struct{ known }

func (behind) AwaitObject(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// newest finds every object.
type newest struct{}

func (newest) Fetch(context.Context, string) (contract.Object, bool, error) {
	return contract.Object{Version: 2, ETag: `"2"`, ContentType: "text/plain", Bodies: []contract.Body{{}}}, true, nil
}

// TestFetchIsNotAheadOfTheEdge asks for an object of which the edge still holds an older
// version: the next answer would be that one.
func TestFetchIsNotAheadOfTheEdge(t *testing.T) {
	for _, tt := range []struct {
		name  string
		image api.Image
		want  int
	}{
		{"behind", behind{}, http.StatusServiceUnavailable},
		{"up to date", known(0), http.StatusOK},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := api.New("", verdicts{}, newest{}, make(used), tt.image, nil, metrics.New(), discard)
				got := httptest.NewRecorder()
				server.Handler().ServeHTTP(got, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/fetch", strings.NewReader("/a")))
				if got.Code != tt.want {
					t.Errorf("got %d %q, want %d", got.Code, got.Body, tt.want)
				}
			})
		})
	}
}
