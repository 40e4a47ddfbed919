package api_test

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/api"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
	"github.com/gatehouse/gatehouse/verify/credential"
)

const (
	traceID     = "0af7651916cd43dd8448eb211c80319c"
	traceparent = "00-" + traceID + "-b7ad6b7169203331-01"
)

// TestTrace makes calls as an edge forwards them, and compares the spans and the log.
func TestTrace(t *testing.T) {
	verify := wire.AppendVerifyRequest(nil, &wire.VerifyRequest{DeviceID: "sensor", Secret: "hunter2"})
	v := verdicts{"sensor hunter2": credential.Result{Outcome: wire.Deny, Reason: "bcrypt"}}
	f := start(t, v)
	for _, tt := range []struct {
		name, path         string
		body               []byte
		id, parent         string
		wantID, wantParent string
		want               map[attribute.Key]string
		log                string
	}{
		{"verify", "verify", verify, "r-1", traceparent, "r-1", traceID,
			map[attribute.Key]string{"gatehouse.outcome": "deny", "gatehouse.reason": "bcrypt"},
			`msg="call answered" call=verify outcome=deny reason=bcrypt request_id=r-1 trace_id=` + traceID},
		{"session", "session", verify, "r-2", traceparent, "r-2", traceID,
			map[attribute.Key]string{"gatehouse.outcome": "deny", "gatehouse.reason": "bcrypt"}, "request_id=r-2"},
		{"fetch", "fetch", []byte("/secret/path"), "r-3", traceparent, "r-3", traceID,
			map[attribute.Key]string{"gatehouse.outcome": "absent", "gatehouse.found_in": "absent"},
			"call=fetch outcome=absent"},
		{"no trace", "verify", verify, "", "", "", "", map[attribute.Key]string{"gatehouse.outcome": "deny"},
			`request_id=""`},
		{"malformed trace", "verify", verify, "r-4", "00-" + traceID, "r-4", "", nil, "request_id=r-4"},
		{"malformed id", "verify", verify, strings.Repeat("x", 129), "", "", "", nil, `request_id=""`},
		{"malformed call", "verify", nil, "r-5", traceparent, "r-5", traceID, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			recorder := tracetest.NewSpanRecorder()
			tracer := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder)).Tracer("")
			var log logbuffer.Buffer
			server := api.New("", v, f.fetcher, f.used, known{}, f.sessions, f.metrics, tracer,
				slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
			r := httptest.NewRequest("POST", "/v1/"+tt.path, bytes.NewReader(tt.body))
			for name, value := range map[string]string{"X-Request-Id": tt.id, "Traceparent": tt.parent} {
				if value != "" {
					r.Header.Set(name, value)
				}
			}
			server.Handler().ServeHTTP(httptest.NewRecorder(), r)
			var span sdk.ReadOnlySpan
			for _, s := range recorder.Ended() {
				if s.Name() == tt.path {
					span = s
				}
				for _, a := range s.Attributes() {
					if v := a.Value.String(); strings.Contains(v, "sensor") || strings.Contains(v, "hunter2") ||
						strings.Contains(v, "secret/path") {
						t.Errorf("%s has %s=%s", s.Name(), a.Key, v)
					}
				}
			}
			if span == nil || span.SpanKind() != trace.SpanKindServer {
				t.Fatalf("got the spans %v, want one of the call", recorder.Ended())
			}
			if got := span.SpanContext().TraceID().String(); span.Parent().IsValid() != (tt.wantParent != "") ||
				tt.wantParent != "" && got != tt.wantParent {
				t.Errorf("got the trace %s, want %q", got, tt.wantParent)
			}
			got := map[attribute.Key]string{}
			for _, a := range span.Attributes() {
				got[a.Key] = a.Value.String()
			}
			if got["gatehouse.request_id"] != tt.wantID {
				t.Errorf("got the request id %q, want %q", got["gatehouse.request_id"], tt.wantID)
			}
			for key, want := range tt.want {
				if got[key] != want {
					t.Errorf("got %s=%q, want %q", key, got[key], want)
				}
			}
			if !strings.Contains(log.String(), tt.log) {
				t.Errorf("got the log %q, want %q in it", log.String(), tt.log)
			}
			if text := log.String(); strings.Contains(text, "hunter2") {
				t.Errorf("the log contains a secret: %s", text)
			}
		})
	}
}
