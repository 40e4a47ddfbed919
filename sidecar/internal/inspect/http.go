package inspect

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/internal/operatorapi"
	"github.com/gatehouse/gatehouse/internal/strictjson"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// maxQuestion bounds the body of a call, bytes: rules can be long.
const maxQuestion = 1 << 20

// Server serves an Inspector to operators by HTTP. Calls return JSON; an error is a line of text.
type Server struct {
	inspector *Inspector
	actions   bool
	level     *slog.LevelVar
	log       *slog.Logger
}

// NewServer returns a Server. Without actions, operators can change only the log's level.
func NewServer(i *Inspector, actions bool, level *slog.LevelVar, log *slog.Logger) *Server {
	return &Server{i, actions, level, log}
}

// Handler serves the calls and the page.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { s.writeJSON(w, s.inspector.Status()) })
	mux.HandleFunc("GET /v1/held", func(w http.ResponseWriter, _ *http.Request) {
		s.writeJSON(w, s.inspector.listHolds())
	})
	mux.HandleFunc("GET /v1/top", func(w http.ResponseWriter, _ *http.Request) { s.writeJSON(w, s.inspector.Top()) })
	mux.HandleFunc("POST /v1/explain", s.handleExplain)
	mux.HandleFunc("POST /v1/log-level", s.handleLogLevel)
	mux.HandleFunc("POST /v1/release", s.requireActions(s.handleRelease))
	mux.HandleFunc("POST /v1/resync", s.requireActions(s.handleResync))
	s.registerPage(mux)
	return mux
}

func (s *Server) writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		s.log.Debug("answer not delivered", "error", err)
	}
}

// readJSON reads the call's body into v, and answers a malformed body with 400.
func readJSON(w http.ResponseWriter, r *http.Request, v any) bool {
	err := strictjson.Decode(http.MaxBytesReader(w, r.Body, maxQuestion), v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
	return err == nil
}

func (s *Server) handleExplain(w http.ResponseWriter, r *http.Request) {
	var q operatorapi.Question
	if !readJSON(w, r, &q) {
		return
	}
	e, err := s.inspector.Explain(r.Context(), q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.writeJSON(w, e)
}

func (s *Server) handleLogLevel(w http.ResponseWriter, r *http.Request) {
	var to operatorapi.LogLevel
	if !readJSON(w, r, &to) {
		return
	}
	if !slices.Contains([]slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}, to.Level) {
		http.Error(w, "level: want DEBUG, INFO, WARN or ERROR", http.StatusBadRequest)
		return
	}
	before := s.level.Level()
	s.level.Set(min(before, slog.LevelWarn)) // or it would hide the next line
	s.log.Warn("an operator changes the log's level", "from", before, "to", to.Level)
	s.level.Set(to.Level)
	s.writeJSON(w, to)
}

func (s *Server) handleRelease(w http.ResponseWriter, r *http.Request) {
	var what operatorapi.Release
	if !readJSON(w, r, &what) {
		return
	}
	n, err := s.releaseNetwork(what.Network, what.Device)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.writeJSON(w, operatorapi.Released{Released: n})
}

// requireActions returns h, or without permission a refusal.
func (s *Server) requireActions(h http.HandlerFunc) http.HandlerFunc {
	if s.actions {
		return h
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the sidecar only shows: set --admin.actions to release a network, and to resync", http.StatusForbidden)
	}
}

func (s *Server) handleResync(w http.ResponseWriter, _ *http.Request) {
	if s.startResync(w) {
		s.writeJSON(w, operatorapi.Resyncing{Resyncing: true})
	}
}

// startResync begins a resync, and answers 409 if a resync runs already.
func (s *Server) startResync(w http.ResponseWriter) bool {
	started := s.inspector.Resync.Start()
	if !started {
		http.Error(w, "a resync runs", http.StatusConflict)
	}
	return started
}

// releaseNetwork releases a network, an address or a prefix in text form, and logs it.
func (s *Server) releaseNetwork(network, device string) (int, error) {
	address, _, whole := strings.Cut(network, "/")
	prefix, ok := credential.NetworkOf(address)
	if !ok || whole && prefix.String() != network {
		return 0, fmt.Errorf("network %q: want an address, or a network that held lists", network)
	}
	n := s.inspector.Verifier.ReleaseHold(prefix, device)
	s.log.Warn("an operator released a network that the limits held back", "network", prefix,
		"device", device, "released", n)
	return n, nil
}
