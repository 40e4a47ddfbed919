// Package admin serves metrics, health, readiness, profiles and the operator's page. The address must be reachable only
// for operators.
package admin

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gatehouse/gatehouse/internal/httpserver"
)

const (
	drainTimeout = 2 * time.Second
	// blockRate is how long goroutines have to be blocked, on average, to be seen once in a
	// block profile.
	blockRate = 10 * time.Microsecond
)

// Check is a condition of readiness.
type Check struct {
	// Name begins the line with the reason.
	Name string
	// Ready is called at each request.
	Ready func() error
}

// FailedReasons returns a line for each failing check.
func FailedReasons(checks []Check) (reasons []string) {
	for _, check := range checks {
		if err := check.Ready(); err != nil {
			reasons = append(reasons, check.Name+": "+err.Error())
		}
	}
	return reasons
}

// Server serves the admin address.
type Server struct {
	address   string
	listener  net.Listener // nil before Listen
	registry  *prometheus.Registry
	checks    []Check
	operator  http.Handler
	log       *slog.Logger
	profileMu sync.Mutex // held while a block profile is taken
}

// New returns a Server for address, host:port. operator serves all other paths; if nil, the Server serves only metrics
// and health.
func New(address string, registry *prometheus.Registry, checks []Check, operator http.Handler,
	log *slog.Logger) *Server {
	return &Server{address: address, registry: registry, checks: checks, operator: operator, log: log}
}

// Handler serves the endpoints.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics",
		promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{Registry: s.registry, EnableOpenMetrics: true}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.handleReady)
	if s.operator == nil {
		return mux
	}
	operators := http.NewServeMux()
	operators.HandleFunc("GET /debug/pprof/", pprof.Index)
	operators.HandleFunc("GET /debug/pprof/block", s.handleBlockProfile)
	// Without pprof.Cmdline: flags may have a password.
	operators.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	operators.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	operators.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	operators.Handle("/", s.operator)
	mux.Handle("/", requireLocalHost(operators))
	return sameOrigin(mux)
}

// sameOrigin refuses requests that a browser makes for another site's page, also by GET: a profile or a page that stays
// open has a cost. A link to the operator's page works.
func sameOrigin(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		link := r.Method == http.MethodGet && r.URL.Path == "/" && r.Header.Get("Sec-Fetch-Dest") == "document"
		judged := *r
		judged.Method = http.MethodPost // the protection lets any GET pass
		if err := protection.Check(&judged); err != nil && !link {
			http.Error(w, "another site's page asks for this: open this address itself", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// requireLocalHost refuses requests unless the host is an address or localhost. Otherwise a page that a browser loaded
// elsewhere could read the answers by a name that resolves to the admin address (DNS rebinding).
func requireLocalHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err != nil && host != "localhost" {
			http.Error(w, "use an IP address or localhost", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// handleBlockProfile answers with the places at which goroutines were blocked in the requested seconds (?seconds=).
// Blocking is recorded only during a request, and for one profile at a time: recording costs every verification.
func (s *Server) handleBlockProfile(w http.ResponseWriter, r *http.Request) {
	s.profileMu.Lock()
	defer s.profileMu.Unlock()
	runtime.SetBlockProfileRate(int(blockRate.Nanoseconds()))
	defer runtime.SetBlockProfileRate(0)
	pprof.Handler("block").ServeHTTP(w, r)
}

// handleReady answers 200, or 503 with a line for each reason why not.
func (s *Server) handleReady(w http.ResponseWriter, _ *http.Request) {
	reasons := FailedReasons(s.checks)
	if len(reasons) == 0 {
		fmt.Fprintln(w, "ok")
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusServiceUnavailable)
	for _, reason := range reasons {
		fmt.Fprintln(w, reason)
	}
}

// Listen opens the address. Connections wait until Run serves them.
func (s *Server) Listen() (err error) {
	if s.listener, err = net.Listen("tcp", s.address); err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	return nil
}

// Run serves the address of Listen until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	server := &http.Server{
		Handler:           s.Handler(),
		BaseContext:       func(net.Listener) context.Context { return ctx }, // ends pages that are open
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          httpserver.ErrorLog(s.log),
	}
	s.log.Info("admin is listening", "address", s.listener.Addr().String())
	spared := httpserver.KeepAccepting(s.listener, s.log)
	defer spared.Close()
	serve := func() error { return server.Serve(spared) }
	if err := httpserver.ServeUntil(ctx, server, serve, drainTimeout, nil); err != nil { // a profile may take longer
		return fmt.Errorf("admin: serve %s: %w", s.address, err)
	}
	return nil
}

// BuildInfo returns the metric that names the program's version.
func BuildInfo(version string) prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "gatehouse_build_info", Help: "1, labelled with the versions of the sidecar and of Go.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	info.Set(1)
	return info
}
