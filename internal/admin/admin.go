// Package admin serves metrics, health, readiness, profiles and the operator's page. It must not be reachable for
// others.
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

// Check is one condition of readiness: nil, or why not.
type Check struct {
	// Name begins the line that says why not.
	Name string
	// Ready is called at each request.
	Ready func() error
}

// Reasons returns a line for each check that fails.
func Reasons(checks []Check) (reasons []string) {
	for _, check := range checks {
		if err := check.Ready(); err != nil {
			reasons = append(reasons, check.Name+": "+err.Error())
		}
	}
	return reasons
}

// Server serves the admin address.
type Server struct {
	address  string
	listener net.Listener // nil before Listen
	registry *prometheus.Registry
	checks   []Check
	operator http.Handler
	log      *slog.Logger
	blocking sync.Mutex // held while a block profile is taken
}

// New is a Server for address, host:port. operator serves all other paths; nil: neither them nor profiles are served.
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
	mux.HandleFunc("GET /readyz", s.ready)
	if s.operator == nil {
		return mux
	}
	operators := http.NewServeMux()
	operators.HandleFunc("GET /debug/pprof/", pprof.Index)
	operators.HandleFunc("GET /debug/pprof/block", s.block)
	// Without pprof.Cmdline: flags may have a password.
	operators.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	operators.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	operators.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	operators.Handle("/", s.operator)
	mux.Handle("/", local(operators))
	return sameOrigin(mux)
}

// sameOrigin refuses what a browser asks for on behalf of another site's page, also by GET: a profile or a page that
// stays open has a cost. A link to the operator's page works.
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

// local refuses requests for other names than an address or localhost: a page that a browser loaded elsewhere could
// otherwise read the answers by a name that resolves to this address (DNS rebinding).
func local(next http.Handler) http.Handler {
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

// block answers with where goroutines were blocked in the seconds asked for (?seconds=).
// Only then is it recorded, and one such profile at a time: recording costs every
// verification.
func (s *Server) block(w http.ResponseWriter, r *http.Request) {
	s.blocking.Lock()
	defer s.blocking.Unlock()
	runtime.SetBlockProfileRate(int(blockRate.Nanoseconds()))
	defer runtime.SetBlockProfileRate(0)
	pprof.Handler("block").ServeHTTP(w, r)
}

// ready answers 200, or 503 with a line for each reason why not.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	reasons := Reasons(s.checks)
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

// Run serves what Listen opened until ctx ends.
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
	if err := httpserver.Serve(ctx, server, serve, drainTimeout, nil); err != nil { // a profile may take longer
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
