package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

type jaeger struct{ api, otlp string } // URLs

func startJaeger(t *testing.T) jaeger {
	t.Helper()
	binary, err := exec.CommandContext(t.Context(), "../scripts/install-jaeger.sh").Output()
	if err != nil {
		t.Fatalf("install-jaeger.sh: %v", err)
	}
	api, otlp := redistest.FreeAddress(t), redistest.FreeAddress(t)
	log, err := os.Create(filepath.Join(t.TempDir(), "jaeger.log"))
	require.NoError(t, err)
	cmd := exec.Command(strings.TrimSpace(string(binary)), "--config", "../scripts/jaeger.yaml")
	// It would trace itself.
	cmd.Env = append(os.Environ(), "JAEGER_API="+api, "JAEGER_OTLP="+otlp, "OTEL_TRACES_SAMPLER=always_off")
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("the end of jaeger.log:\n%s", text[max(0, len(text)-4000):])
		}
	})
	j := jaeger{"http://" + api, "http://" + otlp}
	await(t, "Jaeger answers", patience, func() error {
		_, err := j.spansOf(t.Context(), strings.Repeat("1", 32))
		return err
	})
	return j
}

// span is a span in the form of Jaeger's API.
type span struct {
	Name string `json:"operationName"`
	ID   string `json:"spanID"`
	Tags []struct {
		Key   string
		Value any
	}
}

func (s *span) tag(key string) string {
	for _, t := range s.Tags {
		if t.Key == key {
			return fmt.Sprint(t.Value)
		}
	}
	return ""
}

// spansOf returns the spans of a trace by name; none if Jaeger doesn't have the trace.
func (j jaeger) spansOf(ctx context.Context, id string) (map[string]*span, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, j.api+"/api/traces/"+id, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusNotFound {
		return nil, nil
	}
	var answer struct {
		Data []struct {
			TraceID string
			Spans   []*span
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || len(answer.Data) != 1 ||
		answer.Data[0].TraceID != id {
		return nil, fmt.Errorf("trace %s: %s, %+v, %v", id, response.Status, answer, err)
	}
	spans := map[string]*span{}
	for _, s := range answer.Data[0].Spans {
		spans[s.Name] = s
	}
	return spans, nil
}

// awaitSpans waits until a trace has these spans, and returns all spans of the trace.
func (j jaeger) awaitSpans(t *testing.T, id string, want ...string) (spans map[string]*span) {
	t.Helper()
	await(t, fmt.Sprintf("the spans %q", want), patience, func() (err error) {
		spans, err = j.spansOf(t.Context(), id)
		for _, name := range want {
			if spans[name] == nil {
				return fmt.Errorf("no %s among %v: %v", name, slices.Collect(maps.Keys(spans)), err)
			}
		}
		return err
	})
	return spans
}

// TestTraces sends requests and writes with a sampled traceparent, and finds their traces in Jaeger.
func TestTraces(t *testing.T) {
	leaveToLongForm(t, "TestTrace of packages api, credential, follow, push; TestCallsHaveAnOrigin, testEdgeOrigin. "+
		".ci/run has a stage for it, for Jaeger takes minutes to build")
	t.Parallel()
	j := startJaeger(t)
	e := start(t, stack.Options{Name: "traces", EnvoyArgs: []string{"--file-flush-interval-msec", "10"},
		SidecarArgs: []string{
			"--trace.endpoint=" + j.otlp, "--trace.ratio=0", "--log.level=debug", "--verdict.secret-file=" +
				writeFile(t, "fleet", fleetSecret),
		}})
	id := func(n int) string { return fmt.Sprintf("0af7651916cd43dd8448eb211c8031%02x", n) }
	parent := func(id string) string { return "traceparent: 00-" + id + "-00f067aa0ba902b7-01" }

	e.put("/v1/products/1", `{}`)
	e.putDevice("traced", "right", 4, "telemetry.write", "config.read")
	e.awaitAnswer("a hit", hasBody(`{}`), "GET /v1/products/1")
	await(t, "the device", patience, func() error {
		if got := e.metric("gatehouse_credentials"); got != 1 {
			return fmt.Errorf("got %v", got)
		}
		return nil
	})

	refusal := id(6)
	if a := e.send("POST /v1/telemetry", append(credential("traced", "wrong"), parent(refusal))...); a.status != 401 {
		t.Fatalf("got %d, want 401", a.status)
	}
	requestID := j.awaitSpans(t, refusal, "verify")["verify"].tag("gatehouse.request_id")
	for name, log := range map[string]func() string{"access log": e.edgeLog, "sidecar's log": func() string {
		return e.readLog("sidecar")
	}} {
		await(t, "the request in the "+name, patience, func() error {
			if requestID == "" || !strings.Contains(log(), requestID) {
				return fmt.Errorf("no request id %q", requestID)
			}
			return nil
		})
	}

	verified := id(1)
	answer := e.send("POST /v1/telemetry", append(credential("traced", "right"), parent(verified))...)
	if answer.status != 200 {
		t.Fatalf("got %d, want the upstream's answer", answer.status)
	}
	spans := j.awaitSpans(t, verified, "verify", "verification", "queue", "bcrypt", "redis PIPELINE")
	verify := spans["verify"]
	if verify.tag("gatehouse.outcome") != "allow" || verify.tag("gatehouse.reason") != "bcrypt" {
		t.Errorf("got the tags %v", verify.Tags)
	}
	// The upstream gets Envoy's id; nginx has its own.
	if got, sent := verify.tag("gatehouse.request_id"), answer.seenByUpstream(t).Headers["x-request-id"]; got == "" ||
		!onNginx() && !slices.Equal(sent, []string{got}) {
		t.Errorf("got the request id %q, want %q", got, sent)
	}
	for name, s := range spans {
		if text := fmt.Sprint(s.Tags); strings.Contains(text, "traced") || strings.Contains(text, "right") {
			t.Errorf("%s has the device or its secret: %s", name, text)
		}
	}

	fetched := id(2)
	e.send("GET /v1/fleet/config", append(credential("traced", "right"), parent(fetched))...)
	if got := j.awaitSpans(t, fetched, "fetch", "redis PIPELINE")["fetch"].tag("gatehouse.found_in"); got != "absent" {
		t.Errorf("found in %q, want absent", got)
	}

	written := id(3)
	ctl := exec.CommandContext(t.Context(), "../build/gatehousectl", "put", "/v1/products/1", "--file",
		writeFile(t, "new", "new"), "--redis", e.RedisURL())
	ctl.Env = append(os.Environ(), "TRACEPARENT="+strings.TrimPrefix(parent(written), "traceparent: "))
	if out, err := ctl.CombinedOutput(); err != nil {
		t.Fatalf("gatehousectl put: %v: %s", err, out)
	}
	j.awaitSpans(t, written, "apply", "push")

	hit, refused := id(4), id(5)
	e.awaitAnswer("the new version", hasBody("new"), "GET /v1/products/1", parent(hit))
	e.send("POST /v1/telemetry", append(credential("traced", "right"), "traceparent: 00-"+refused+
		"-00f067aa0ba902b7-00")...)
	for _, none := range []string{hit, refused} {
		if spans, err := j.spansOf(t.Context(), none); len(spans) != 0 || err != nil {
			t.Errorf("got spans %v (%v) of a hit or an unsampled request, want none", spans, err)
		}
	}
}

// TestTraceOfTrial sends a request that an enforced rule would refuse, and finds why in Envoy's own span in Jaeger.
func TestTraceOfTrial(t *testing.T) {
	leaveToLongForm(t, "TestTrialUpstream of package edge, TestTrials. .ci/run has a stage for it, as for TestTraces")
	t.Parallel()
	j := startJaeger(t)
	shipped, err := os.ReadFile("../envoy/envoy.yaml")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(j.otlp, "http://"))
	require.NoError(t, err)
	config := strings.NewReplacer("#spans ", "", "port_value: 4318", "port_value: "+port,
		"random_sampling: {value: 1}", "random_sampling: {value: 100}").Replace(string(shipped))
	e := start(t, stack.Options{Name: "trial-traces", ConfigPath: writeFile(t, "envoy.yaml", config),
		Rules: fmt.Sprintf(trialRules, ", enforce: false", "enforce: false", "pass")})
	for path, want := range map[string][2]string{
		"/write":     {"write", "gatehouse_would_deny_no_credential"},
		"/elsewhere": {"", ""},
	} {
		id := fmt.Sprintf("0af7651916cd43dd8448eb211c80%04x", len(path))
		if a := e.send("GET "+path, "traceparent: 00-"+id+"-00f067aa0ba902b7-01"); a.status != 200 {
			t.Fatalf("%s: got %d, want the upstream's answer", path, a.status)
		}
		span := j.awaitSpans(t, id, "ingress")["ingress"]
		if got := [2]string{span.tag("gatehouse.rule"), span.tag("gatehouse.trial")}; got != want {
			t.Errorf("%s: got %q, want %q, among %v", path, got, want, span.Tags)
		}
	}
}
