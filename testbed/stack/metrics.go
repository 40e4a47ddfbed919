package stack

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Metric returns a metric of the sidecar, summed over the labels that name doesn't have.
func (s *Stack) Metric(ctx context.Context, name string) (sum float64, err error) {
	text, err := Fetch(ctx, s.SidecarAdminURL()+"/metrics")
	if err != nil {
		return 0, err
	}
	found := false
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == ' ' || rest[0] == '{') {
			value, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
			if err != nil {
				return 0, fmt.Errorf("metric %q: %w", line, err)
			}
			sum, found = sum+value, true
		}
	}
	if !found {
		return 0, fmt.Errorf("the sidecar has no metric %s", name)
	}
	return sum, nil
}

// Stat returns a counter or gauge of Envoy, 0 if it was never used; of nginx, the counter of the same name.
func (s *Stack) Stat(ctx context.Context, name string) (int, error) {
	if s.opts.EdgeKind == NginxEdge {
		text, err := Fetch(ctx, s.EnvoyAdminURL()+"/metrics")
		_, value, _ := strings.Cut(text, "\n"+strings.ReplaceAll(strings.TrimPrefix(name, "wasmcustom."), ".", "_")+" ")
		value, _, found := strings.Cut(value, "\n")
		if err != nil || !found {
			return 0, err
		}
		return strconv.Atoi(value)
	}
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
