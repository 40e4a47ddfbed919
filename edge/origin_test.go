package edge

import (
	"strings"
	"testing"
)

// TestCallsHaveAnOrigin: a call has the id and the trace of its request, unless malformed.
func TestCallsHaveAnOrigin(t *testing.T) {
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	id := [2]string{"x-request-id", "8a4e5a2b-6d0f-4b7f-a2bb-4c6a7e3b3f10"}
	tests := []struct {
		name    string
		headers [][2]string
		want    Origin
	}{
		{"both", [][2]string{id, {"traceparent", traceparent}}, Origin{id[1], traceparent}},
		{"none", nil, Origin{}},
		{"an id", [][2]string{id}, Origin{RequestID: id[1]}},
		{"longest id", [][2]string{{id[0], strings.Repeat("x", 128)}}, Origin{RequestID: strings.Repeat("x", 128)}},
		{"too long an id", [][2]string{{id[0], strings.Repeat("x", 129)}}, Origin{}},
		{"an id with a space", [][2]string{{id[0], "a b"}}, Origin{}},
		{"not sampled", [][2]string{{"traceparent", traceparent[:53] + "00"}}, Origin{Traceparent: traceparent[:53] + "00"}},
		{"twice", [][2]string{{"traceparent", traceparent}, {"traceparent", traceparent}}, Origin{}},
		{"short", [][2]string{{"traceparent", traceparent[:54]}}, Origin{}},
		{"long", [][2]string{{"traceparent", traceparent + "-"}}, Origin{}},
		{"another version", [][2]string{{"traceparent", "01" + traceparent[2:]}}, Origin{}},
		{"upper case", [][2]string{{"traceparent", strings.ToUpper(traceparent)}}, Origin{}},
		{"no hex", [][2]string{{"traceparent", strings.Replace(traceparent, "0af", "0ag", 1)}}, Origin{}},
		{"a dash elsewhere", [][2]string{{"traceparent", strings.Replace(traceparent, "c-b", "-cb", 1)}}, Origin{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := emulate(t, rules)
			request := append([][2]string{{":method", "POST"}, {":path", "/v1/telemetry"}, {"x-device-id", "dev"},
				{"x-device-token", "s3cret"}}, tt.headers...)
			e.begin(request, true)
			if len(e.calls) != 1 || e.calls[0].from != tt.want {
				t.Errorf("got %+v, want one call with %+v", e.calls, tt.want)
			}
		})
	}
}

// TestCoalescedCallHasFirstOrigin: a call has the origin of the first request, not of requests that join the call. A
// second call for a request has the request's own origin.
func TestCoalescedCallHasFirstOrigin(t *testing.T) {
	e := emulate(t, rules)
	for _, id := range []string{"first", "second"} {
		e.begin([][2]string{{":method", "GET"}, {":path", "/v1/both/1"}, {"x-device-id", "dev"}, {"x-device-token", "s3cret"},
			{"x-request-id", id}}, true)
	}
	if len(e.calls) != 1 || e.calls[0].from.RequestID != "first" {
		t.Fatalf("got %+v, want one call for the first request", e.calls)
	}
	e.answered(e.calls[0], allow())
	if len(e.calls) != 2 || e.calls[1].path != fetchPath || e.calls[1].from.RequestID != "first" {
		t.Errorf("got %+v, want a fetch for the first request", e.calls[1:])
	}
}

// TestHitsReadNoMoreHeaders: answers from memory read neither the id nor the trace.
func TestHitsReadNoMoreHeaders(t *testing.T) {
	e := emulate(t, rules)
	putVerdict(e, e.clock+60_000)
	putObject(e, "/v1/private/1", 1024)
	q := &counting{emulator: e}
	e.vm.host = q
	for _, headers := range [][][2]string{device("/none"), device("/v1/telemetry"), device("/v1/private/1"),
		device("/v1/private/1", [2]string{"if-none-match", `"a"`})} {
		e.begin(headers, true)
	}
	if q.reads != 0 || len(e.calls) != 0 {
		t.Errorf("got %d reads of a header and %d calls, want none", q.reads, len(e.calls))
	}
}

// counting counts reads of single headers.
type counting struct {
	*emulator
	reads int
}

func (c *counting) RequestHeader(name string) string {
	c.reads++
	return c.emulator.RequestHeader(name)
}
