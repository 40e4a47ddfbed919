// Package publisher is the HTTP API for writers without access to Redis. docs/publish-http.md describes the API for
// writers.
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
	// maxRequests bounds the concurrent requests of a team.
	maxRequests = 32
	// maxHeader bounds the headers of a request: a key, and the headers of an object twice.
	maxHeader = 16 << 10
	// redisTimeout bounds the time of a write, with the encoding of the body.
	redisTimeout  = 10 * time.Second
	headerTimeout = 5 * time.Second
	bodyTimeout   = 30 * time.Second
	answerTimeout = 60 * time.Second
	drainTimeout  = 8 * time.Second
	// anonymousRate bounds the requests a second without a team's token, anonymousBurst the requests at once: cheap, but
	// not free.
	anonymousRate, anonymousBurst = 100, 200
)

//go:embed openapi.json
var openAPI []byte

// Server serves writers.
type Server struct {
	p       *publish.Publisher
	teams   *Teams
	metrics *Metrics
	log     *slog.Logger

	anonymous *rate.Limiter // requests without a team's token
	turns     turns         // of all teams
}

// New returns a Server. Objects are written by p.
func New(p *publish.Publisher, teams *Teams, m *Metrics, log *slog.Logger) *Server {
	return &Server{p: p, teams: teams, metrics: m, log: log, anonymous: rate.NewLimiter(anonymousRate, anonymousBurst),
		turns: allTurns()}
}

// problem is an unsuccessful answer (RFC 9457).
type problem struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail,omitempty"`

	retry time.Duration // Retry-After, if more than 0
	cause error         // for the log only: may have Redis's address
}

// maxDetail bounds the detail of a problem, in bytes: a detail may quote a value of the request.
const maxDetail = 500

func problemf(status int, format string, args ...any) *problem {
	return &problem{Status: status, Detail: truncateDetail(fmt.Sprintf(format, args...))}
}

// truncateDetail truncates text to the maximum of a detail.
func truncateDetail(text string) string {
	if len(text) <= maxDetail {
		return text
	}
	return strings.ToValidUTF8(text[:maxDetail], "") + "…"
}

// call is a request with its answer.
type call struct {
	s     *Server
	w     http.ResponseWriter
	r     *http.Request
	ctx   context.Context // with the trace of the request
	token string
	team  *Team
	route string
	free  func() // ends the body's turn; nil without a turn
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	c := &call{s: s, w: w, r: r, route: "other"}
	c.ctx = propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	defer c.releaseBodyTurn()
	status, p := c.serveRequest()
	if p != nil {
		c.sendProblem(p)
		status = p.Status
	}
	s.metrics.Requests.WithLabelValues(c.route, resultLabel(status)).Inc()
	s.metrics.Seconds.WithLabelValues(c.route).Observe(time.Since(begin).Seconds())
}

// serveRequest answers with a status, or returns the problem to answer with.
func (c *call) serveRequest() (status int, p *problem) {
	path := sentPath(c.r)
	if path == "/openapi.json" {
		if p := c.admitAnonymous(); p != nil {
			return 0, p
		}
		return c.allowMethods(http.MethodGet, http.MethodHead)(func() (int, *problem) {
			return c.sendBody(http.StatusOK, "application/json", openAPI)
		})
	}
	scheme, token, _ := strings.Cut(c.r.Header.Get("Authorization"), " ")
	token = strings.TrimLeft(token, " ") // RFC 9110, section 11.4
	if strings.EqualFold(scheme, "Bearer") {
		c.token, c.team = token, c.s.teams.findTeam(token)
	}
	if c.team == nil {
		if p := c.admitAnonymous(); p != nil {
			return 0, p
		}
		c.w.Header().Set("WWW-Authenticate", "Bearer")
		return 0, problemf(http.StatusUnauthorized, "want Authorization: Bearer TOKEN with a token of a team")
	}
	c.r.Body = metered{c.r.Body, c}
	batch := path == "/v1/batch" && c.r.Method == http.MethodPost
	var limited *problem
	if !batch { // a batch waits instead
		limited = c.chargeRequest()
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
		return c.handleObject("/"+key, limited)
	case path == "/v1/batch":
		c.route = "batch"
		return c.allowMethods(http.MethodPost)(c.handleBatch)
	case path == "/v1/purge":
		c.route = "purge"
		return c.allowMethods(http.MethodPost)(func() (int, *problem) {
			if limited != nil {
				c.recordResult("purge", "", 0, limited)
				return 0, limited
			}
			return c.handlePurge()
		})
	case limited != nil:
		return 0, limited
	}
	return 0, problemf(http.StatusNotFound, "want /v1/objects/KEY, /v1/batch, /v1/purge or /openapi.json")
}

// sentPath returns the path as sent by the client. EscapedPath would escape, and unescape, all of a path with a
// character such as "|", which clients of the edge may send, too.
func sentPath(r *http.Request) string {
	if path, _, _ := strings.Cut(r.RequestURI, "?"); strings.HasPrefix(path, "/") {
		return path
	}
	return r.URL.EscapedPath() // the absolute form
}

// allowMethods returns a function that calls next for requests with the given methods only.
func (c *call) allowMethods(methods ...string) func(func() (int, *problem)) (int, *problem) {
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

// admitAnonymous charges a request without a team's token, and closes the connection after the answer: idle connections
// without a token would only take memory and file descriptors.
func (c *call) admitAnonymous() *problem {
	c.w.Header().Set("Connection", "close")
	if c.s.anonymous.Allow() {
		return nil
	}
	return &problem{Status: http.StatusTooManyRequests, retry: time.Second,
		Detail: fmt.Sprintf("over %d requests a second without a team's token", anonymousRate)}
}

// chargeRequest charges a request to the team's rate, whatever the result.
func (c *call) chargeRequest() *problem {
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

// chargeBytes charges bytes to the team's volume, even beyond the limit: the number of bytes is known only after their
// arrival. Later requests wait, or are refused, until the debt is paid.
func (c *call) chargeBytes(direction string, n int) {
	c.team.volume.ReserveN(time.Now(), n)
	c.s.metrics.Bytes.WithLabelValues(direction).Add(float64(n))
}

// metered is the body of a request. Bytes read are charged to the team.
type metered struct {
	io.ReadCloser
	c *call
}

func (m metered) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	m.c.chargeBytes("published", n)
	return n, err
}

// sendBody answers with a body.
func (c *call) sendBody(status int, contentType string, body []byte) (int, *problem) {
	c.w.Header().Set("Content-Type", contentType)
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(status)
	if c.r.Method != http.MethodHead {
		c.w.Write(body) // errors mean that the client has gone
	}
	return status, nil
}

func (c *call) sendJSON(status int, value any) (int, *problem) {
	body, err := json.Marshal(value)
	if err != nil {
		return 0, &problem{Status: http.StatusInternalServerError, cause: err}
	}
	return c.sendBody(status, "application/json", append(body, '\n'))
}

// sendProblem answers with a problem.
func (c *call) sendProblem(p *problem) {
	p.Title = http.StatusText(p.Status)
	if p.retry > 0 {
		c.w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(p.retry.Seconds()))))
	}
	body, _ := json.Marshal(p) // has only strings and a number
	c.sendBody(p.Status, "application/problem+json", append(body, '\n'))
}

// problemOf returns the problem of an error of package publish.
func problemOf(err error) *problem {
	p := &problem{Detail: truncateDetail(err.Error())}
	var shards *contract.ShardsError
	switch {
	case errors.Is(err, publish.ErrInvalid):
		p.Status = http.StatusBadRequest
	case errors.Is(err, publish.ErrReused):
		p.Status, p.Detail = http.StatusUnprocessableEntity, idempotencyHeader+": was used for another request: use a new one"
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

// recordResult counts a write or read, and logs a write. version is the object's new version.
func (c *call) recordResult(operation, key string, version uint64, p *problem) {
	status := http.StatusOK
	if p != nil {
		status = p.Status
	}
	c.s.metrics.Records.WithLabelValues(operation, resultLabel(status)).Inc()
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

// Serve serves writers on listener until ctx ends, by TLS if certificate is not nil.
func (s *Server) Serve(ctx context.Context, listener net.Listener,
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) error {
	server := &http.Server{
		Handler: s, MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout,
		WriteTimeout: answerTimeout, IdleTimeout: 2 * time.Minute,
		ErrorLog: httpserver.ErrorLog(s.log),
		// More than the maxRequests streams of a connection can fill: a stream that waits for its turn must not stop other
		// streams.
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

// readBody returns the body of the request, at most limit bytes.
func (c *call) readBody(ctx context.Context, limit int64) ([]byte, *problem) {
	if c.r.Header.Get("Content-Encoding") != "" {
		return nil, problemf(http.StatusUnsupportedMediaType, "content-encoding: send the body without: Gatehouse encodes it")
	}
	if c.maxBodySize(limit) >= smallBody {
		if p := c.takeBodyTurn(ctx, c.maxBodySize(limit)); p != nil {
			return nil, p
		}
	}
	var body bytes.Buffer
	body.Grow(int(c.maxBodySize(limit)) + bytes.MinRead)
	if _, err := body.ReadFrom(http.MaxBytesReader(c.w, c.r.Body, limit)); err != nil {
		return nil, bodyProblem(err)
	}
	return body.Bytes(), nil
}

// bodyProblem returns the problem of an unreadable body.
func bodyProblem(err error) *problem {
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
