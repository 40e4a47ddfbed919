// Package publisher is the HTTP API for those who write objects without access to Redis. docs/publish-http.md describes
// it for them.
package publisher

import (
	"bytes"
	"context"
	"crypto/tls"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"golang.org/x/time/rate"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/internal/httpserver"
)

const (
	// maxRequests bounds the requests of one team at a time.
	maxRequests = 32
	// maxHeader bounds the headers of a request: a key, and the headers of an object twice.
	maxHeader = 16 << 10
	// redisTimeout bounds how long a write takes, with the encoding of its body.
	redisTimeout  = 10 * time.Second
	headerTimeout = 5 * time.Second
	bodyTimeout   = 30 * time.Second
	answerTimeout = 60 * time.Second
	drainTimeout  = 8 * time.Second
	// strangersRate bounds the requests a second without a team's token, strangersBurst those at once: they cost little,
	// but not nothing.
	strangersRate, strangersBurst = 100, 200
)

//go:embed openapi.json
var openAPI []byte

// Server serves writers.
type Server struct {
	p       *publish.Publisher
	teams   *Teams
	metrics *Metrics
	log     *slog.Logger

	strangers *rate.Limiter // requests without a team's token
	turns     turns         // of all teams
}

// New returns a Server that writes by p.
func New(p *publish.Publisher, teams *Teams, m *Metrics, log *slog.Logger) *Server {
	return &Server{p: p, teams: teams, metrics: m, log: log, strangers: rate.NewLimiter(strangersRate, strangersBurst),
		turns: allTurns()}
}

// problem is an answer that is no success (RFC 9457).
type problem struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail,omitempty"`

	retry time.Duration // Retry-After, if more than 0
	cause error         // for the log: it may have Redis's address
}

// maxDetail bounds the detail of a problem, in bytes: it may quote a value of the request.
const maxDetail = 500

func problemf(status int, format string, args ...any) *problem {
	return &problem{Status: status, Detail: cut(fmt.Sprintf(format, args...))}
}

// cut returns the begin of text, if it is longer than a detail.
func cut(text string) string {
	if len(text) <= maxDetail {
		return text
	}
	return strings.ToValidUTF8(text[:maxDetail], "") + "…"
}

// call is one request.
type call struct {
	s     *Server
	w     http.ResponseWriter
	r     *http.Request
	ctx   context.Context // with the trace of the request
	token string
	team  *Team
	route string
	free  func() // ends the turn of its body, if it has one
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	c := &call{s: s, w: w, r: r, route: "other"}
	c.ctx = propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	defer c.leave()
	status, p := c.serve()
	if p != nil {
		c.refuse(p)
		status = p.Status
	}
	s.metrics.Requests.WithLabelValues(c.route, result(status)).Inc()
	s.metrics.Seconds.WithLabelValues(c.route).Observe(time.Since(begin).Seconds())
}

// serve answers with a status, or returns the problem to answer with.
func (c *call) serve() (status int, p *problem) {
	path := sentPath(c.r)
	if path == "/openapi.json" {
		if p := c.stranger(); p != nil {
			return 0, p
		}
		return c.only(http.MethodGet, http.MethodHead)(func() (int, *problem) {
			return c.send(http.StatusOK, "application/json", openAPI)
		})
	}
	scheme, token, _ := strings.Cut(c.r.Header.Get("Authorization"), " ")
	token = strings.TrimLeft(token, " ") // RFC 9110, section 11.4
	if strings.EqualFold(scheme, "Bearer") {
		c.token, c.team = token, c.s.teams.of(token)
	}
	if c.team == nil {
		if p := c.stranger(); p != nil {
			return 0, p
		}
		c.w.Header().Set("WWW-Authenticate", "Bearer")
		return 0, problemf(http.StatusUnauthorized, "want Authorization: Bearer TOKEN with a token of a team")
	}
	c.r.Body = metered{c.r.Body, c}
	batch := path == "/v1/batch" && c.r.Method == http.MethodPost
	var limited *problem
	if !batch { // that waits instead
		limited = c.charge()
	}
	running := c.team.running
	select {
	case running <- struct{}{}:
		defer func() { <-running }()
	default:
		return 0, &problem{Status: http.StatusTooManyRequests, retry: time.Second,
			Detail: fmt.Sprintf("%d requests of the team are running", maxRequests)}
	}
	switch key, object := strings.CutPrefix(path, "/v1/objects/"); {
	case object:
		c.route = "objects"
		return c.object("/"+key, limited)
	case path == "/v1/batch":
		c.route = "batch"
		return c.only(http.MethodPost)(c.batch)
	case path == "/v1/purge":
		c.route = "purge"
		return c.only(http.MethodPost)(func() (int, *problem) {
			if limited != nil {
				c.done("purge", "", 0, limited)
				return 0, limited
			}
			return c.purge()
		})
	case limited != nil:
		return 0, limited
	}
	return 0, problemf(http.StatusNotFound, "want /v1/objects/KEY, /v1/batch, /v1/purge or /openapi.json")
}

// sentPath returns the path as the client sent it. EscapedPath escapes, and unescapes, all of a path with a character
// such as "|", which clients of the edge may send, too.
func sentPath(r *http.Request) string {
	if path, _, _ := strings.Cut(r.RequestURI, "?"); strings.HasPrefix(path, "/") {
		return path
	}
	return r.URL.EscapedPath() // the absolute form
}

// only lets requests with one of methods pass to what it is given.
func (c *call) only(methods ...string) func(func() (int, *problem)) (int, *problem) {
	return func(next func() (int, *problem)) (int, *problem) {
		for _, method := range methods {
			if c.r.Method == method {
				return next()
			}
		}
		c.w.Header().Set("Allow", strings.Join(methods, ", "))
		return 0, problemf(http.StatusMethodNotAllowed, "want %s", strings.Join(methods, ", "))
	}
}

// stranger takes a request off the rate of those without a team's token, and ends its connection: idle ones without a
// token would only take memory and file descriptors.
func (c *call) stranger() *problem {
	c.w.Header().Set("Connection", "close")
	if c.s.strangers.Allow() {
		return nil
	}
	return &problem{Status: http.StatusTooManyRequests, retry: time.Second,
		Detail: fmt.Sprintf("over %d requests a second without a team's token", strangersRate)}
}

// charge takes a request off the team's rate, whatever becomes of it.
func (c *call) charge() *problem {
	limited := func(detail string, seconds float64) *problem {
		return &problem{Status: http.StatusTooManyRequests, Detail: detail,
			retry: time.Duration(seconds * float64(time.Second))}
	}
	if debt := -c.team.volume.Tokens(); debt > 0 {
		return limited("the team sends and reads more bytes than it may", debt/c.team.Bytes)
	}
	if !c.team.limiter.Allow() {
		return limited("the team writes and reads more than its rate allows", 1/c.team.Rate)
	}
	return nil
}

// spend takes bytes off the team's, even more than are left: how many there are is known only when they have come.
// Requests then wait, or are refused, until the debt is paid.
func (c *call) spend(direction string, n int) {
	c.team.volume.ReserveN(time.Now(), n)
	c.s.metrics.Bytes.WithLabelValues(direction).Add(float64(n))
}

// metered is the body of a request, whose bytes are the team's.
type metered struct {
	io.ReadCloser
	c *call
}

func (m metered) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	m.c.spend("published", n)
	return n, err
}

// send answers with a body.
func (c *call) send(status int, contentType string, body []byte) (int, *problem) {
	c.w.Header().Set("Content-Type", contentType)
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(status)
	if c.r.Method != http.MethodHead {
		c.w.Write(body) // a client that is gone needs no answer
	}
	return status, nil
}

func (c *call) sendJSON(status int, value any) (int, *problem) {
	body, err := json.Marshal(value)
	if err != nil {
		return 0, &problem{Status: http.StatusInternalServerError, cause: err}
	}
	return c.send(status, "application/json", append(body, '\n'))
}

// refuse answers with a problem.
func (c *call) refuse(p *problem) {
	p.Title = http.StatusText(p.Status)
	if p.retry > 0 {
		c.w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(p.retry.Seconds()))))
	}
	body, _ := json.Marshal(p) // it has strings and a number
	c.send(p.Status, "application/problem+json", append(body, '\n'))
}

// failed returns the problem of an error of package publish.
func failed(err error) *problem {
	p := &problem{Detail: cut(err.Error())}
	var shards *contract.ShardsError
	switch {
	case errors.Is(err, publish.ErrInvalid):
		p.Status = http.StatusBadRequest
	case errors.Is(err, publish.ErrReused):
		p.Status, p.Detail = http.StatusUnprocessableEntity, keyHeader+": was used for another request: use a new one"
	case errors.Is(err, publish.ErrNotFound):
		p.Status = http.StatusNotFound
	case errors.Is(err, publish.ErrExists):
		p.Status = http.StatusPreconditionFailed
	case errors.Is(err, publish.ErrStale):
		p.Status = http.StatusConflict
	case errors.Is(err, publish.ErrFull):
		p.Status = http.StatusInsufficientStorage
	case errors.Is(err, publish.ErrCorrupt), errors.Is(err, publish.ErrOutdated), errors.As(err, &shards):
		p.Status, p.cause = http.StatusInternalServerError, err
	default:
		p.Status, p.retry, p.cause = http.StatusServiceUnavailable, time.Second, err
		p.Detail = "Redis did not answer as it should; a write may have been applied: repeat it"
	}
	return p
}

// done counts a write or read, and logs a write: key is what was written, version its new version.
func (c *call) done(operation, key string, version uint64, p *problem) {
	status := http.StatusOK
	if p != nil {
		status = p.Status
	}
	c.s.metrics.Records.WithLabelValues(operation, result(status)).Inc()
	if operation == "get" {
		return
	}
	source, _, _ := net.SplitHostPort(c.r.RemoteAddr)
	log := c.s.log.With("team", c.team.Name, "operation", operation, "key", key, "source", source)
	switch {
	case p == nil:
		log.Info("written", "version", version)
	case p.cause != nil:
		log.Error("write failed", "status", p.Status, "error", p.cause)
	default:
		log.Info("write refused", "status", p.Status, "error", p.Detail)
	}
}

// Serve serves writers on listener until ctx ends, with the certificate if it is not nil.
func (s *Server) Serve(ctx context.Context, listener net.Listener,
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) error {
	server := &http.Server{
		Handler: s, MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout,
		WriteTimeout: answerTimeout, IdleTimeout: 2 * time.Minute,
		ErrorLog: httpserver.ErrorLog(s.log),
		// More than a connection's maxRequests streams can fill: one that waits for its turn must not stop the others.
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 3 << 20},
	}
	serve := func() error { return server.Serve(listener) }
	if certificate != nil {
		server.TLSConfig = &tls.Config{GetCertificate: certificate, MinVersion: tls.VersionTLS12}
		serve = func() error { return server.ServeTLS(listener, "", "") }
	}
	s.log.Info("listening for writers", "address", listener.Addr().String())
	if err := httpserver.ServeUntil(ctx, server, serve, drainTimeout, nil); err != nil {
		return fmt.Errorf("serve writers: %w", err)
	}
	return nil
}

// read returns the body of the request, which has at most limit bytes.
func (c *call) read(ctx context.Context, limit int64) ([]byte, *problem) {
	if c.r.Header.Get("Content-Encoding") != "" {
		return nil, problemf(http.StatusUnsupportedMediaType, "content-encoding: send the body without: Gatehouse encodes it")
	}
	if c.size(limit) >= smallBody {
		if p := c.enter(ctx, c.size(limit)); p != nil {
			return nil, p
		}
	}
	var body bytes.Buffer
	body.Grow(int(c.size(limit)) + bytes.MinRead)
	if _, err := body.ReadFrom(http.MaxBytesReader(c.w, c.r.Body, limit)); err != nil {
		return nil, unread(err)
	}
	return body.Bytes(), nil
}

// unread returns the problem of a body that could not be read.
func unread(err error) *problem {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return problemf(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", large.Limit)
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return problemf(http.StatusRequestTimeout, "the body did not arrive within %v", bodyTimeout)
	}
	return problemf(http.StatusBadRequest, "the body ends early")
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// keyOf returns the key of the object at path for the request's headers.
func (c *call) keyOf(path string) (string, *problem) {
	if query := c.r.URL.RawQuery; query != "" {
		path += "?" + query
	}
	if strings.HasPrefix(path, "//") {
		return "", problemf(http.StatusBadRequest, "the key begins with //: want Gatehouse-Virtual-Host for a virtual host")
	}
	key := path
	name, host := c.r.Header.Get("Gatehouse-Virtual-Host"), c.r.Header.Get("Gatehouse-Host")
	switch {
	case name != "" && !limits.ValidVirtualHost(name):
		return "", problemf(http.StatusBadRequest, "Gatehouse-Virtual-Host: no name of a virtual host")
	case host != "" && !limits.ValidHost(strings.ToLower(host)):
		return "", problemf(http.StatusBadRequest, "Gatehouse-Host: no host without a port")
	case name != "" || host != "":
		key = publish.KeyOfVirtualHost(name, host, path)
	}
	if device := c.r.Header.Get("Gatehouse-Device"); device != "" {
		if !limits.ValidDeviceID(device) {
			return "", problemf(http.StatusBadRequest, "Gatehouse-Device: no device id")
		}
		key = "@" + device + key
	}
	if language := c.r.Header.Get("Gatehouse-Language"); language != "" {
		key = publish.KeyOfLanguage(key, language)
	}
	return key, nil
}
