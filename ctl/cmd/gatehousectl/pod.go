package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Commands of a pod's probes and hooks, for images without a shell. Admin addresses of sidecar and Envoy are on
// loopback, reachable only within the pod.

const (
	podTimeout = 3 * time.Second
	// maxReason bounds the printed part of an answer, in bytes.
	maxReason = 4096
)

type readyCmd struct {
	URL string `placeholder:"URL" help:"URL to request. Default: /readyz of --sidecar."`

	sidecarFlag `embed:""`
}

// Run succeeds if the answer is 200. Otherwise the error has the answer.
func (cmd *readyCmd) Run(c *console) error {
	at := cmp.Or(cmd.URL, "http://"+cmd.Sidecar+"/readyz")
	return c.printResponse(http.MethodGet, at, "--sidecar, $GATEHOUSE_SIDECAR or --url")
}

type drainCmd struct {
	Admin string        `default:"127.0.0.1:9901" variable:"GATEHOUSE_EDGE_ADMIN" placeholder:"HOST:PORT" help:"Admin address of the edge, Envoy or nginx."`
	For   time.Duration `placeholder:"TIME" help:"How long the command then waits, for a hook that must not end before."`
}

// Run makes the edge close each connection after the next answer, and fail its health check. The edge still answers
// requests. nginx.conf serves the path of Envoy's admin.
func (cmd *drainCmd) Run(c *console) error {
	defer time.Sleep(cmd.For)
	return c.printResponse(http.MethodPost, "http://"+cmd.Admin+"/healthcheck/fail", "--admin or $GATEHOUSE_EDGE_ADMIN")
}

// printResponse prints the answer. A status other than 200 is an error. If nobody answers, the error names the flags
// that set the address (by).
func (c *console) printResponse(method, address, by string) error {
	body, err := fetchBody(method, address, nil, maxReason)
	if _, unreachable := errors.AsType[*url.Error](err); unreachable {
		return fmt.Errorf("%w\nSay where it is by %s", err, by)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.stdout, "%s\n", bytes.TrimSpace(body))
	return err
}

// fetchBody returns the answer's body, cut to most bytes. A status other than 200 is an error with the body's begin.
func fetchBody(method, url string, body io.Reader, most int64) ([]byte, error) {
	request, err := http.NewRequest(method, url, body)
	if err != nil {
		return nil, usagef("%w", err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	client := &http.Client{Timeout: podTimeout}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, most))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, url, err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s: %s", method, url, answer.Status,
			strings.TrimSpace(string(text[:min(len(text), maxReason)])))
	}
	return text, nil
}
