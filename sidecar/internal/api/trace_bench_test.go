package api_test

import (
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/tracing"
	"github.com/gatehouse/gatehouse/sidecar/internal/api"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// BenchmarkVerify makes calls without traces, and with a collector that never answers while clients ask for a trace of
// each.
func BenchmarkVerify(b *testing.B) {
	body := wire.AppendVerifyRequest(nil, &wire.VerifyRequest{DeviceID: "d", Secret: "s"})
	run := func(b *testing.B, handler http.Handler) {
		for b.Loop() {
			r := httptest.NewRequest("POST", "/v1/verify", bytes.NewReader(body))
			r.Header.Set("X-Request-Id", "8a4e5a2b-6d0f-4b7f-a2bb-4c6a7e3b3f10")
			r.Header.Set("Traceparent", traceparent)
			handler.ServeHTTP(httptest.NewRecorder(), r)
		}
	}
	server := func(c tracing.Config, m *metrics.Metrics) (http.Handler, func()) {
		tracer, stop, err := tracing.New(c, m, slog.New(slog.DiscardHandler))
		require.NoError(b, err)
		return api.New("", verdicts{"d s": credential.Result{Outcome: wire.Allow}}, newest(true), make(used),
			known{}, nil, m, tracer, discard).Handler(), stop
	}
	b.Run("off", func(b *testing.B) {
		handler, _ := server(tracing.Config{}, metrics.New())
		run(b, handler)
	})
	b.Run("silent collector", func(b *testing.B) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(b, err)
		defer l.Close()
		handler, stop := server(tracing.Config{Endpoint: "http://" + l.Addr().String(), Ratio: 1}, metrics.New())
		run(b, handler)
		stop()
	})
}
