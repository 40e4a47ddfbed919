package conformance

import (
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// The edge without a sidecar: at first the edge answers from memory; then the objects are too old; after a restart of
// Envoy the memory is empty. Requests that need a credential then get a 503.
var (
	lately = []testCase{
		{"9111 4", "what the edge has, it gives", "GET /p/42", 200, "hit", ""},
		{"9110 15.6.4", "a device that was never verified", "POST /w\nx-device-id: late\nx-device-token: secret",
			503, "edge", "retry-after ~ [1-9][0-9]*\ncache-control: no-store"},
		{"9211 2.8", "what can't be fetched goes upstream", "GET /f/none", 200, "fwd=uri-miss; detail=fetch-failed", ""},
	}
	notInStep = []testCase{
		{"9111 4.2.4", "what may be stale goes upstream", "GET /p/42", 200, "fwd=stale; detail=not-in-step", ""},
		{"9111 4.2.4", "with a precondition, too", "GET /p/42\nif-none-match: \"42\"", 200,
			"fwd=stale; detail=not-in-step", ""},
		{"9110 15.6.4", "a wrong secret may have become a good one", "POST /w\nx-device-id: dev\nx-device-token: wrong",
			503, "edge", "retry-after ~ [1-9][0-9]*"},
		{"9110 15.5.2", "no credential is a 401 all the same", "POST /w", 401, "edge", ""},
	}
	noState = []testCase{
		{"9111 4.2.4", "an edge that knows nothing sends upstream", "GET /p/42", 200, "fwd=stale; detail=no-state", ""},
		{"9110 15.6.4", "and lets nobody in", "POST /w\nx-device-id: dev\nx-device-token: secret",
			503, "edge", "retry-after ~ [1-9][0-9]*\n!x-upstream"},
		{"9110 15.5.2", "without a credential it is a 401", "POST /w", 401, "edge", ""},
	}
)

// checkWithoutSidecar kills the sidecar, and then restarts Envoy.
func (s *server) checkWithoutSidecar(t *testing.T) {
	s.put(t, object{Object: publish.Object{Key: "/p/brief", ETag: `"brief"`, Body: []byte("brief"),
		ContentType: "text/plain", TTL: time.Second}})
	s.await(t, "GET /p/brief", func(r *response) bool { return r.source() == "hit" })
	s.await(t, "GET /p/brief", func(r *response) bool {
		return r.source() == "fwd=stale; detail=expired" || r.source() == "fwd=uri-miss"
	})
	require.NoError(t, s.KillSidecar())
	once := func(name string, cases []testCase) {
		t.Run(name, func(t *testing.T) { runCases(t, s, cases, func(c testCase) string { return c.name }) })
	}
	once("lately", lately)
	s.await(t, "GET /p/42", func(r *response) bool { return r.source() == "fwd=stale; detail=not-in-step" })
	once("not in step", notInStep)
	require.NoError(t, s.KillEdge())
	require.NoError(t, s.StartEdge(t.Context()))
	once("no state", noState)
}
