// Package authority asks a service, over HTTP or by Envoy's external authorization, whether the credential of a device
// is good: docs/authority.md has the contract. An answer that is late, too long or not as in the contract is an error,
// neither an allow nor a deny. No secret gets into logs, traces or errors.
package authority

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/internal/breaker"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/strictjson"
	"github.com/gatehouse/gatehouse/verify/credential"
)

const (
	// maxAnswer bounds the bytes of an answer's body, and separately of its headers.
	maxAnswer = 64 << 10
	// maxCalls bounds concurrent calls, maxStrangers the calls about devices that did not authenticate from their
	// network before: a flood of strangers leaves room for familiar devices.
	maxCalls     = 64
	maxStrangers = 32
	// If the calls of breakAfter devices fail in a row, calls stop for a while; for strangers, of strangersBreakAfter:
	// a single client can pose as many strangers, until its source is limited.
	breakAfter          = 5
	strangersBreakAfter = 1024
	// retryRatio is the number of retries for each call, of which maxRetries may be saved up.
	retryRatio = 0.1
	maxRetries = 10
	idleFor    = time.Minute
	// connectTimeout bounds each step of connecting; a dead connection of HTTP/2 goes unnoticed for twice as long.
	connectTimeout = 2 * time.Second
)

// Client calls the service, as a [credential.Authority].
type Client struct {
	url        *url.URL
	http       *http.Client
	protocol   protocol
	metrics    *metrics.Metrics
	log        *slog.Logger
	failureLog rate.Sometimes // bounds the log of failures
	breakers   breakers
	calls      chan struct{}
	strangers  chan struct{}
	retries    budget
}

// protocol encodes the calls and decodes the answers of the service.
type protocol struct {
	header http.Header
	// encode returns the body of a call.
	encode func(target *url.URL, id, secret string) ([]byte, error)
	// decode reads a response with a status of statuses; body has at most one byte more than maxAnswer.
	decode   func(response *http.Response, body []byte) (credential.Answer, error)
	statuses []int
}

// jsonProtocol is the protocol of docs/authority.md.
var jsonProtocol = protocol{
	header: http.Header{"Content-Type": {"application/json"}},
	encode: func(_ *url.URL, id, secret string) ([]byte, error) {
		return json.Marshal(struct {
			ID     string `json:"id"`
			Secret string `json:"secret"`
		}{id, secret})
	},
	decode: func(response *http.Response, body []byte) (credential.Answer, error) {
		if response.StatusCode != http.StatusOK {
			return credential.Answer{}, nil
		}
		return Parse(body)
	},
	statuses: []int{http.StatusOK, http.StatusUnauthorized, http.StatusForbidden},
}

// breakers are a breaker for devices that authenticated from their network before, and a breaker for strangers:
// strangers stop no calls about familiar devices. They are safe for concurrent use.
type breakers struct {
	mu  sync.Mutex // protects both
	all map[bool]*deviceBreaker
}

type deviceBreaker struct {
	breaker breaker.Breaker
	failing []string // devices whose calls failed since the last good call, each counts once
}

func newBreakers() breakers {
	return breakers{all: map[bool]*deviceBreaker{
		true: {breaker: breaker.Breaker{After: breakAfter}}, false: {breaker: breaker.Breaker{After: strangersBreakAfter}},
	}}
}

// recordResult records the result of a call about a device.
func (c *Client) recordResult(id string, familiar bool, err error) {
	c.breakers.mu.Lock()
	defer c.breakers.mu.Unlock()
	one, broke := c.breakers.all[familiar], isFailure(err)
	switch {
	case !broke:
		one.failing = nil
	case len(one.failing) == one.breaker.After: // a further attempt
	case slices.Contains(one.failing, id):
		return
	default:
		one.failing = append(one.failing, id)
	}
	if !one.breaker.RecordResult(broke, time.Now()) {
		return
	}
	broken := 0.0
	for _, other := range c.breakers.all {
		if len(other.failing) == other.breaker.After {
			broken = 1
		}
	}
	c.metrics.AuthorityBroken.Set(broken)
	if broke {
		c.log.Error("the authority fails: its devices get no new verdicts", "familiar", familiar, "error", err)
	} else {
		c.log.Info("the authority answers again", "familiar", familiar)
	}
}

// New returns a Client of the service in s. The client connects on first use.
func New(s Settings, m *metrics.Metrics, log *slog.Logger) (*Client, error) {
	if errs := s.Check(); len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	u, _ := url.Parse(s.URL)
	dialer := &net.Dialer{Timeout: connectTimeout}
	transport := &http.Transport{
		MaxIdleConnsPerHost: maxCalls, IdleConnTimeout: idleFor, MaxResponseHeaderBytes: maxAnswer,
		DisableCompression: true, ForceAttemptHTTP2: true,
		DialContext: dialer.DialContext, TLSHandshakeTimeout: connectTimeout,
		HTTP2: &http.HTTP2Config{SendPingTimeout: connectTimeout, PingTimeout: connectTimeout},
	}
	target, proto := u, jsonProtocol
	switch u.Scheme {
	case "unix":
		target = &url.URL{Scheme: "http", Host: "localhost", Path: "/"}
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", u.Path)
		}
	case "grpc", "grpcs":
		target = &url.URL{Scheme: strings.Replace(u.Scheme, "grpc", "http", 1), Host: u.Host, Path: checkMethod}
		proto, transport.Protocols = grpcProtocol, new(http.Protocols)
		transport.Protocols.SetHTTP2(u.Scheme == "grpcs")
		transport.Protocols.SetUnencryptedHTTP2(u.Scheme == "grpc")
	}
	if target.Scheme == "https" {
		config, err := s.tlsConfig()
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig = config
	}
	return &Client{
		url: target, protocol: proto, metrics: m, log: log, failureLog: rate.Sometimes{First: 10, Interval: time.Second},
		http: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // only the service may get the secret
		}},
		breakers: newBreakers(),
		calls:    make(chan struct{}, maxCalls), strangers: make(chan struct{}, maxStrangers),
		retries: budget{left: maxRetries},
	}, nil
}

// Why the authority gave no answer.
var (
	errSkipped = errors.New("calls are skipped: the authority failed lately")
	errBusy    = errors.New("too many calls of the authority")
)

// errThrottled is status 429: the service is well, and asks for fewer calls.
var errThrottled = errors.New("status 429")

// malformed is an answer that is not as in the contract. It says nothing about the service's health: the next device's
// answer may be good.
type malformed struct{ error }

// Ask implements [credential.Authority].
func (c *Client) Ask(ctx context.Context, id, secret string, familiar bool) (credential.Answer, error) {
	answer, err := c.askService(ctx, id, secret, familiar)
	result := "allow"
	switch {
	case err == nil && !answer.Allow:
		result = "deny"
	case err == nil:
	case errors.Is(err, errSkipped):
		result = "skipped"
	case errors.Is(err, errBusy):
		result = "busy"
	case errors.Is(err, context.DeadlineExceeded):
		result = "timeout"
	case errors.As(err, new(malformed)):
		result = "malformed"
	default:
		result = "error"
	}
	c.metrics.AuthorityCalls.WithLabelValues(result).Inc()
	if err != nil && !errors.Is(err, errSkipped) {
		c.failureLog.Do(func() { c.log.Warn("no answer of the authority", "device", id, "error", err) })
	}
	return answer, err
}

func (c *Client) askService(ctx context.Context, id, secret string,
	familiar bool) (answer credential.Answer, err error) {
	arrived := time.Now()
	if !familiar {
		leave, err := acquireSlot(ctx, c.strangers)
		if err != nil {
			return answer, err
		}
		defer leave()
	}
	leave, err := acquireSlot(ctx, c.calls)
	if err != nil {
		return answer, err
	}
	defer leave()
	if waitedTooLong(ctx, arrived) {
		return answer, errBusy
	}
	if !c.breakers.all[familiar].breaker.AllowCall(time.Now()) {
		return answer, errSkipped
	}
	body, err := c.protocol.encode(c.url, id, secret)
	if err != nil {
		return answer, err
	}
	c.retries.earn()
	began := time.Now()
	answer, err = c.callOnce(ctx, body)
	if isFailure(err) && ctx.Err() == nil && c.retries.spend() {
		answer, err = c.callOnce(ctx, body)
	}
	c.metrics.AuthoritySeconds.Observe(time.Since(began).Seconds())
	if err == nil && answer.ID != "" && answer.ID != id {
		answer, err = credential.Answer{}, malformed{errors.New("the answer has the id of another device")}
	}
	c.recordResult(id, familiar, err)
	if isFailure(err) {
		err = fmt.Errorf("%w: %w", credential.ErrFailed, err)
	}
	return answer, err
}

// isFailure reports whether err is a failure of the service, or of the way to the service.
func isFailure(err error) bool {
	return err != nil && !errors.As(err, new(malformed)) && !errors.Is(err, errThrottled)
}

// waitedTooLong reports whether the wait for a slot took half of the time until ctx ends: a timeout of the call would
// say nothing about the service.
func waitedTooLong(ctx context.Context, arrived time.Time) bool {
	end, ok := ctx.Deadline()
	return ok && time.Until(end) < end.Sub(arrived)/2
}

// acquireSlot waits for a free slot.
func acquireSlot(ctx context.Context, places chan struct{}) (leave func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, errBusy
	}
}

// callOnce makes a call, without a retry.
func (c *Client) callOnce(ctx context.Context, body []byte) (credential.Answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url.String(), bytes.NewReader(body))
	if err != nil {
		return credential.Answer{}, errors.New("malformed url")
	}
	maps.Copy(request.Header, c.protocol.header)
	request.Header.Set("User-Agent", "gatehouse-sidecar")
	response, err := c.http.Do(request)
	if err != nil {
		return credential.Answer{}, describeError(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return credential.Answer{}, describeError(err)
	case response.StatusCode == http.StatusTooManyRequests:
		return credential.Answer{}, errThrottled
	case response.StatusCode/100 == 5:
		return credential.Answer{}, fmt.Errorf("status %d", response.StatusCode)
	case !slices.Contains(c.protocol.statuses, response.StatusCode):
		return credential.Answer{}, malformed{fmt.Errorf("status %d", response.StatusCode)}
	}
	return c.protocol.decode(response, text)
}

// describeError returns an error of the connection without the service's text, which may quote the secret, and without
// the URL, which may have a key in its query.
func describeError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return context.DeadlineExceeded
	}
	if errors.Is(err, context.Canceled) {
		return context.Canceled
	}
	if errors.As(err, new(x509.UnknownAuthorityError)) {
		return errors.New("TLS: the certificate is of an unknown CA")
	}
	if errors.As(err, new(*tls.CertificateVerificationError)) {
		return errors.New("TLS: the certificate can't be verified: see its names and dates")
	}
	if errors.As(err, new(tls.RecordHeaderError)) {
		return errors.New("TLS: the service doesn't speak it")
	}
	if errors.As(err, new(tls.AlertError)) {
		return errors.New("TLS: the service refuses the connection, or the client certificate")
	}
	if errors.As(err, new(*net.DNSError)) {
		return errors.New("the name of the service can't be resolved")
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return fmt.Errorf("connection: %w", errno)
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return errors.New("timeout of the connection")
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the service closed the connection")
	}
	return errors.New("the answer is malformed HTTP, or the connection broke")
}

// Parse reads the body of an answer of status 200. The error doesn't quote the body.
func Parse(text []byte) (credential.Answer, error) {
	if len(text) > maxAnswer {
		return credential.Answer{}, malformed{fmt.Errorf("over %d bytes", maxAnswer)}
	}
	var reply struct {
		ID          string            `json:"id"`
		Allow       *bool             `json:"allow"`
		Permissions []string          `json:"permissions"`
		TTL         *float64          `json:"ttl"`
		NotAfter    *time.Time        `json:"not_after"`
		Labels      map[string]string `json:"labels"`
	}
	// Unknown and repeated fields are errors: a misspelt not_after must not let a device in for ever, nor a second
	// allow, which another reader takes, at all.
	if strictjson.Decode(bytes.NewReader(text), &reply) != nil || reply.Allow == nil {
		return credential.Answer{}, malformed{errors.New(`want a JSON object with allow, and nothing else than ` +
			`id, permissions, ttl, not_after (RFC 3339) and labels, each once`)}
	}
	if !*reply.Allow {
		return credential.Answer{ID: reply.ID}, nil
	}
	a := credential.Answer{ID: reply.ID, Allow: true, Permissions: reply.Permissions, Labels: reply.Labels}
	slices.Sort(a.Permissions)
	a.Permissions = slices.Compact(a.Permissions)
	for _, name := range a.Permissions {
		if !limits.ValidPermission(name) {
			return credential.Answer{}, malformed{fmt.Errorf("permissions: want names of 1 to %d letters, digits and . _ : -",
				limits.MaxPermissionName)}
		}
	}
	for name, value := range a.Labels {
		if contract.CheckLabel(name, value) != nil {
			return credential.Answer{}, malformed{errors.New("labels: a name or value has another form than in the contract")}
		}
	}
	switch {
	case len(a.Permissions) > limits.MaxPermissions:
		return credential.Answer{}, malformed{fmt.Errorf("permissions: %d names, at most %d are allowed",
			len(a.Permissions), limits.MaxPermissions)}
	case len(a.Labels) > contract.MaxLabels:
		return credential.Answer{}, malformed{fmt.Errorf("labels: %d, at most %d are allowed", len(a.Labels),
			contract.MaxLabels)}
	case reply.TTL != nil && !(*reply.TTL >= 1):
		return credential.Answer{}, malformed{errors.New("ttl: want seconds, 1 or more")}
	case reply.NotAfter != nil && reply.NotAfter.UnixMilli() < 1:
		return credential.Answer{}, malformed{errors.New("not_after: want a time after 1970")}
	}
	if reply.TTL != nil {
		a.TTL = time.Duration(min(*reply.TTL, (24*time.Hour).Seconds()*30) * float64(time.Second))
	}
	if reply.NotAfter != nil {
		a.NotAfter = *reply.NotAfter
	}
	return a, nil
}

// budget bounds retries to a part of the calls. It is safe for concurrent use.
type budget struct {
	mu   sync.Mutex // protects left
	left float64
}

func (b *budget) earn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = min(b.left+retryRatio, maxRetries)
}

func (b *budget) spend() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}
