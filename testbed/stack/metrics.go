package stack

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Metric returns a metric of the sidecar, summed over labels missing in name.
func (s *Stack) Metric(ctx context.Context, name string) (sum float64, err error) {
	text, err := Fetch(ctx, s.SidecarAdminURL()+"/metrics")
	if err != nil {
		return 0, err
	}
	sum, found, err := sumOf(text, name)
	if err == nil && !found {
		err = fmt.Errorf("the sidecar has no metric %s", name)
	}
	return sum, err
}

// EdgeMetric returns a metric of the filter or the plugin, as Prometheus reads the metric, summed over the series with
// labels, each as `name="value"`; 0 without any series.
func (s *Stack) EdgeMetric(ctx context.Context, name string, labels ...string) (int, error) {
	text, err := s.EdgeMetrics(ctx)
	if err != nil {
		return 0, err
	}
	sum, _, err := sumOf(text, name, labels...)
	return int(sum), err
}

// EdgeMetrics returns all metrics of the filter or the plugin, in the text format of Prometheus.
func (s *Stack) EdgeMetrics(ctx context.Context) (string, error) {
	path := "/stats/prometheus?filter=^wasmcustom.gatehouse"
	switch s.opts.EdgeKind {
	case NativeEdge:
		path = "/stats/prometheus?filter=^dynamicmodulescustom.gatehouse"
	case NginxEdge:
		path = "/metrics"
	}
	return Fetch(ctx, s.EnvoyAdminURL()+path)
}

// sumOf adds up the series of a metric with labels. found reports whether any series exists.
func sumOf(text, name string, labels ...string) (sum float64, found bool, err error) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != ' ' && rest[0] != '{' ||
			slices.ContainsFunc(labels, func(label string) bool { return !strings.Contains(rest, label) }) {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
		if err != nil {
			return 0, false, fmt.Errorf("metric %q: %w", line, err)
		}
		sum, found = sum+value, true
	}
	return sum, found, nil
}

// Stat returns a counter or gauge of Envoy, 0 if never used.
func (s *Stack) Stat(ctx context.Context, name string) (int, error) {
	text, err := Fetch(ctx, s.EnvoyAdminURL()+"/stats?filter=^"+name+"$")
	if _, value, found := strings.Cut(text, name+": "); found && err == nil {
		value, _, _ = strings.Cut(value, "\n")
		return strconv.Atoi(value)
	}
	return 0, err
}

// fetchPatience bounds how long a paused part may keep a test waiting.
const fetchPatience = 20 * time.Second

// Fetch returns the body of the response to a GET.
func Fetch(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}
