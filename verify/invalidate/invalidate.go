// Package invalidate takes invalidations of an authority's answers over HTTP, for services that can't reach Redis, and
// writes the invalidations to Redis: docs/authority.md has the contract.
package invalidate

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/internal/httpserver"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/strictjson"
)

const (
	// maxBody bounds a request's body and headers, in bytes.
	maxBody = 4 << 10
	// timeout bounds each of reading a request, and the write.
	timeout      = 5 * time.Second
	drainTimeout = 2 * time.Second
	// Rates per second, and bursts, of invalidations. An invalidation of a device stays in Redis for a day. An
	// invalidation of several devices makes each sidecar look at all its answers.
	devicesRate  = 10
	devicesBurst = 1000
	groupsRate   = 1
	groupsBurst  = 10
)

// Server takes invalidations, and is safe for concurrent use.
type Server struct {
	address         string
	listener        net.Listener      // nil before Listen
	token           [sha256.Size]byte // hash of the token
	writer          *publish.Publisher
	devices, groups *rate.Limiter
	metrics         *metrics.Metrics
	log             *slog.Logger
	logLimiter      rate.Sometimes // bounds the log of failures
}

// New returns a Server for address, host:port, and callers with the token.
func New(address string, token []byte, writer *publish.Publisher, m *metrics.Metrics, log *slog.Logger) *Server {
	return &Server{address: address, token: sha256.Sum256(token), writer: writer, metrics: m, log: log,
		devices: rate.NewLimiter(devicesRate, devicesBurst), groups: rate.NewLimiter(groupsRate, groupsBurst),
		logLimiter: rate.Sometimes{First: 1, Interval: time.Second}}
}

// Handler serves POST /v1/invalidate.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/invalidate", func(w http.ResponseWriter, r *http.Request) {
		result, status, text := s.handleInvalidate(w, r)
		s.metrics.Invalidations.WithLabelValues(result).Inc()
		if status == http.StatusNoContent {
			w.WriteHeader(status)
			return
		}
		http.Error(w, text, status)
	})
	return mux
}

// handleInvalidate handles a request, and returns the result for the metric, and status and text of the response.
func (s *Server) handleInvalidate(w http.ResponseWriter, r *http.Request) (result string, status int, text string) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(token))
	if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(sum[:], s.token[:]) != 1 {
		w.Header().Set("WWW-Authenticate", "Bearer")
		return "unauthorized", http.StatusUnauthorized, "want the token of --authority.invalidate-token-file"
	}
	write, limit, err := s.parseRequest(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return "malformed", http.StatusBadRequest, err.Error()
	}
	if !limit.Allow() {
		w.Header().Set("Retry-After", "1")
		return "limited", http.StatusTooManyRequests, "too many invalidations"
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	switch _, err := write(ctx); {
	case errors.Is(err, publish.ErrInvalid):
		return "malformed", http.StatusBadRequest, err.Error()
	case err != nil:
		s.logLimiter.Do(func() { s.log.Error("an invalidation was not written to Redis", "error", err) })
		w.Header().Set("Retry-After", "1")
		return "failed", http.StatusServiceUnavailable, "Redis did not acknowledge it: send it again"
	}
	return "written", http.StatusNoContent, ""
}

// parseRequest parses an invalidation, and returns the write and the rate limit of its kind.
func (s *Server) parseRequest(body io.Reader) (write func(context.Context) (publish.Receipt, error),
	limit *rate.Limiter, err error) {
	var request struct {
		Device *string `json:"device"`
		Label  *string `json:"label"`
		All    bool    `json:"all"`
	}
	malformed := errors.New(`want one of {"device": "ID"}, {"label": "NAME=VALUE"}, {"all": true}`)
	if strictjson.Decode(body, &request) != nil {
		return nil, nil, malformed
	}
	switch {
	case request.Device != nil && request.Label == nil && !request.All:
		return func(ctx context.Context) (publish.Receipt, error) {
			return s.writer.InvalidateDevice(ctx, *request.Device)
		}, s.devices, nil
	case request.Device == nil && request.Label != nil && !request.All:
		name, value, ok := strings.Cut(*request.Label, "=")
		if !ok {
			return nil, nil, malformed
		}
		return func(ctx context.Context) (publish.Receipt, error) {
			return s.writer.InvalidateLabel(ctx, name, value)
		}, s.groups, nil
	case request.Device == nil && request.Label == nil && request.All:
		return s.writer.InvalidateAll, s.groups, nil
	}
	return nil, nil, malformed
}

// Listen opens the address. Connections wait until Run serves them.
func (s *Server) Listen() (err error) {
	if s.listener, err = net.Listen("tcp", s.address); err != nil {
		return fmt.Errorf("invalidate: %w", err)
	}
	return nil
}

// Run serves the address of Listen until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	server := &http.Server{Handler: s.Handler(), MaxHeaderBytes: maxBody, ReadTimeout: timeout, IdleTimeout: time.Minute,
		ErrorLog: httpserver.ErrorLog(s.log)}
	s.log.Info("invalidations are taken", "address", s.listener.Addr().String())
	serve := func() error { return server.Serve(s.listener) }
	if err := httpserver.ServeUntil(ctx, server, serve, drainTimeout, nil); err != nil {
		return fmt.Errorf("invalidate: serve %s: %w", s.address, err)
	}
	return nil
}
