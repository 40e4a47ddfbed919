package service

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gatehouse/gatehouse/loadtest/workload"
)

func TestHandler(t *testing.T) {
	etag := workload.ETag(workload.JSONBody(workload.Sizes[workload.Private1K]))
	good := map[string]string{"x-device-id": workload.Device, "x-device-token": workload.Secret}
	with := func(more map[string]string, name, value string) map[string]string {
		headers := map[string]string{name: value}
		for k, v := range more {
			if k != name {
				headers[k] = v
			}
		}
		return headers
	}
	for _, test := range []struct {
		name, kind, path string
		headers          map[string]string
		status, bytes    int
	}{
		{"object", Origin, workload.Public48K, nil, 200, 48 << 10},
		{"object that the client has", Origin, workload.Private1K, map[string]string{"If-None-Match": etag}, 304, 0},
		{"elsewhere", Origin, "/v2/x", nil, 200, len(otherBody)},
		{"auth lets in", Auth, "/any", good, 200, 0},
		{"auth refuses", Auth, "/any", with(good, "x-device-token", "wrong"), 401, 0},
		{"cached lets in", Cached, workload.Private1K, good, 200, 1024},
		{"cached, the client has it", Cached, workload.Private1K, with(good, "If-None-Match", etag), 304, 0},
		{"cached refuses a wrong secret", Cached, workload.Private1K, with(good, "x-device-token", "wrong"), 401, 0},
		{"cached refuses an unknown device", Cached, workload.Private1K, with(good, "x-device-id", "other"), 401, 0},
		{"bcrypt lets in", Bcrypt, workload.Telemetry, good, 200, len(otherBody)},
		{"bcrypt refuses a wrong secret", Bcrypt, workload.Telemetry, with(good, "x-device-token", "wrong"), 401, 0},
	} {
		handler, err := NewHandler(test.kind)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // without and with a cached verdict
			r := httptest.NewRequest(http.MethodGet, test.path, nil)
			for name, value := range test.headers {
				r.Header.Set(name, value)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != test.status || w.Body.Len() != test.bytes {
				t.Errorf("%s: got %d, %d bytes; want %d, %d", test.name, w.Code, w.Body.Len(), test.status, test.bytes)
			}
		}
	}
}
