// Package api answers the edge's calls over a unix socket: verify, session, keys, fetch and hits.
package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/objectkey"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/httpserver"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/verify/credential"
)

const (
	// callsTimeout bounds the running calls when the sidecar stops.
	callsTimeout = 5 * time.Second
	// awaitTimeout bounds how long an answer waits until the edge has the current epoch, and no older version of an object
	// or verdict on a device.
	awaitTimeout = 250 * time.Millisecond
	maxVerify    = 5 + limits.MaxDeviceID + limits.MaxSecret + wire.MaxSource
	maxHits      = 64 << 10
)

// Verifier decides on credentials.
type Verifier interface {
	Verify(ctx context.Context, id, secret, source string) credential.Result
	VerifySession(id, session string) credential.Result
	// SessionValid reports whether session identifies the device's current record, and the record can authenticate the
	// device.
	SessionValid(id, session string) bool
}

// Fetcher finds objects; callers must not change the object's bodies.
type Fetcher interface {
	Fetch(ctx context.Context, key string) (o contract.Object, found bool, err error)
}

// Uses receives the keys of objects that the edge served, one key for each sampled hit.
type Uses interface {
	RecordUses(keys []string)
}

// Memory is the part of the edge's memory that the API needs.
type Memory interface {
	Epoch() uint64
	AwaitEpoch(ctx context.Context, device string) (uint64, error)
	AwaitObject(ctx context.Context, key string) error
	AwaitVerdicts(ctx context.Context, device string) error
}

// Server serves the API.
type Server struct {
	socket     string
	everybody  bool         // who can enter the socket's directory may call
	ready      func() error // nil: GET /readyz isn't served
	listener   net.Listener // nil before Listen
	verifier   Verifier
	fetcher    Fetcher
	uses       Uses
	memory     Memory
	sessions   Sessions
	metrics    *metrics.Metrics
	tracer     trace.Tracer
	log        *slog.Logger
	logLimiter *rate.Limiter // bounds the log of decisions
}

// New returns a Server for the unix socket at path.
func New(path string, v Verifier, f Fetcher, u Uses, im Memory, se Sessions, m *metrics.Metrics,
	tracer trace.Tracer, log *slog.Logger) *Server {
	return &Server{socket: path, verifier: v, fetcher: f, uses: u, memory: im, sessions: se, metrics: m, tracer: tracer,
		log: log, logLimiter: rate.NewLimiter(maxLogged, maxLogged)}
}

// AllowAll lets everybody call who can enter the socket's directory.
func (s *Server) AllowAll() *Server {
	s.everybody = true
	return s
}

// ServeReady answers GET /readyz, of a proxy's probe, with what ready returns.
func (s *Server) ServeReady(ready func() error) *Server {
	s.ready = ready
	return s
}

// Handler serves the calls.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	if s.ready != nil {
		mux.HandleFunc("GET /readyz", s.handleReady)
	}
	mux.HandleFunc("POST /v1/verify", s.traceCall("verify", s.handleVerify))
	mux.HandleFunc("POST /v1/session", s.traceCall("session", s.handleSession))
	mux.HandleFunc("GET /v1/session/jwks", s.handleKeys)
	mux.HandleFunc("POST /v1/fetch", s.traceCall("fetch", s.handleFetch))
	mux.HandleFunc("POST /v1/hits", s.handleHits)
	return mux
}

// Listen opens the socket. Connections wait until Run serves them.
func (s *Server) Listen() (err error) {
	if s.listener, err = Listen(s.socket, s.everybody); err != nil {
		return fmt.Errorf("api: %w", err)
	}
	return nil
}

// Run serves the socket of Listen until ctx ends, and then finishes running calls.
func (s *Server) Run(ctx context.Context) error {
	server := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      60 * time.Second, // a verification may wait for a worker
		IdleTimeout:       10 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          httpserver.ErrorLog(s.log),
	}
	s.log.Info("api is listening", "socket", s.socket)
	serve := func() error { return server.Serve(s.listener) }
	err := httpserver.ServeUntil(ctx, server, serve, callsTimeout, func(err error) {
		s.log.Warn("calls aborted: the sidecar stops", "error", err)
	})
	if err != nil {
		return fmt.Errorf("api: serve %s: %w", s.socket, err)
	}
	return nil
}

// refuseMalformed answers a malformed call.
func (s *Server) refuseMalformed(w http.ResponseWriter, call string, err error) {
	s.metrics.Requests.WithLabelValues(call, "malformed").Inc()
	s.log.Debug("malformed call", "call", call, "error", err)
	status := http.StatusBadRequest
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		status = http.StatusRequestEntityTooLarge
	}
	http.Error(w, err.Error(), status)
}

func (s *Server) writeAnswer(w http.ResponseWriter, call, result string, body []byte) {
	s.writeResponse(w, call, result, "application/octet-stream", body)
}

func (s *Server) writeResponse(w http.ResponseWriter, call, result, contentType string, body []byte) {
	s.metrics.Requests.WithLabelValues(call, result).Inc()
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	if _, err := w.Write(body); err != nil {
		s.log.Debug("answer not delivered", "call", call, "error", err)
	}
}

func (s *Server) handleReady(w http.ResponseWriter, _ *http.Request) {
	if err := s.ready(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

func (s *Server) handleVerify(w http.ResponseWriter, r *http.Request) {
	started := time.Now()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxVerify))
	if err != nil {
		s.refuseMalformed(w, "verify", err)
		return
	}
	request, err := wire.ParseVerifyRequest(body)
	if err != nil {
		s.refuseMalformed(w, "verify", err)
		return
	}
	var result credential.Result
	if request.Session != "" {
		result = s.verifier.VerifySession(request.DeviceID, request.Session)
	} else {
		result = s.verifier.Verify(r.Context(), request.DeviceID, request.Secret, request.Source)
	}
	response := wire.VerifyResponse{Outcome: result.Outcome, Permissions: result.Permissions,
		RetryAfterS: ceilSeconds(result.RetryAfter), ThrottleMS: ceilMilliseconds(result.ThrottleFor)}
	label := "ok"
	// An edge with another epoch doesn't use an allow, and answers 503; an edge with a verdict on an older record could
	// use that once more. Waits are rare: only the start of an epoch and a changed record are late.
	ctx, cancel := context.WithTimeout(r.Context(), awaitTimeout)
	defer cancel()
	switch result.Outcome {
	case wire.Allow:
		response.Epoch, err = s.memory.AwaitEpoch(ctx, request.DeviceID)
		// The record may have changed meanwhile.
		if err != nil || !s.verifier.SessionValid(request.DeviceID, result.Session) {
			label = "unavailable"
			response = wire.VerifyResponse{Outcome: wire.Unavailable, RetryAfterS: 1, Epoch: response.Epoch}
		}
	case wire.Deny:
		// Otherwise an older verdict, perhaps of an earlier epoch, could let in the device that was just refused.
		_ = s.memory.AwaitVerdicts(ctx, request.DeviceID)
		response.Epoch = s.memory.Epoch()
	default:
		label = "unavailable"
		response.Epoch = s.memory.Epoch()
	}
	s.metrics.VerificationSeconds.WithLabelValues(response.Outcome.String()).Observe(time.Since(started).Seconds())
	s.recordDecision(r, "verify", response.Outcome.String(), string(result.Reason))
	s.writeAnswer(w, "verify", label, wire.AppendVerifyResponse(nil, &response))
}

// ceilSeconds returns d in seconds, rounded up, for Retry-After.
func ceilSeconds(d time.Duration) uint16 {
	return uint16(min((d+time.Second-1)/time.Second, math.MaxUint16))
}

// ceilMilliseconds returns d in milliseconds, rounded up.
func ceilMilliseconds(d time.Duration) uint32 {
	return uint32(min((d+time.Millisecond-1)/time.Millisecond, math.MaxUint32))
}

func (s *Server) handleFetch(w http.ResponseWriter, r *http.Request) {
	started := time.Now()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limits.MaxKey))
	if err != nil {
		s.refuseMalformed(w, "fetch", err)
		return
	}
	key := string(body)
	if _, err := contract.ParseMember(contract.ObjectMember(key).String()); err != nil {
		s.refuseMalformed(w, "fetch", err)
		return
	}
	defer func() { s.metrics.FetchSeconds.Observe(time.Since(started).Seconds()) }()
	unavailable := func(why string, err error) {
		s.metrics.Requests.WithLabelValues("fetch", "unavailable").Inc()
		s.log.Debug("fetch failed", "error", err)
		s.recordDecision(r, "fetch", "unavailable", "")
		http.Error(w, why, http.StatusServiceUnavailable)
	}
	o, found, why, err := s.findObject(r.Context(), key)
	if plain, language := objectkey.CutLanguage(key); err == nil && !found && language != "" {
		o, found, why, err = s.findObject(r.Context(), plain)
	}
	if err != nil {
		unavailable(why, err)
		return
	}
	s.recordDecision(r, "fetch", map[bool]string{true: "found", false: "absent"}[found], "")
	s.writeAnswer(w, "fetch", "ok", appendFetchResponse(s.memory.Epoch(), &o, found))
}

// findObject returns the object at key, once the edge has no older version; or why not.
func (s *Server) findObject(ctx context.Context, key string) (o contract.Object, found bool, why string, err error) {
	if o, found, err = s.fetcher.Fetch(ctx, key); err != nil {
		return o, false, "redis can't be asked now, or what it has can't be read", err
	}
	// The found version, or its absence, may not have reached the edge yet. If the answer came first, the client's next
	// request could get an older version from shared memory.
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	return o, found, "the edge still holds an older version", s.memory.AwaitObject(ctx, key)
}

func (s *Server) handleHits(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxHits))
	if err != nil {
		s.refuseMalformed(w, "hits", err)
		return
	}
	keys, err := wire.ParseHits(body)
	if err != nil {
		s.refuseMalformed(w, "hits", err)
		return
	}
	s.uses.RecordUses(keys)
	s.writeAnswer(w, "hits", "ok", nil)
}

func appendFetchResponse(epoch uint64, o *contract.Object, found bool) []byte {
	if !found {
		return wire.AppendFetchResponse(nil, epoch, nil, nil)
	}
	object := wire.Object{
		Key: o.Key, Version: o.Version, PublishedMS: o.PublishedMS, TTLMS: uint64(o.TTLMS),
		ETag: o.ETag, ContentType: o.ContentType, Status: uint16(o.Status), Headers: string(o.Headers),
	}
	object.Stale = o.Stale
	bodies := make([][]byte, len(o.Bodies))
	for i, body := range o.Bodies {
		object.AddVariant(wire.Variant{Encoding: body.Encoding, Length: uint32(len(body.Bytes))})
		bodies[i] = body.Bytes
	}
	return wire.AppendFetchResponse(nil, epoch, &object, bodies)
}
