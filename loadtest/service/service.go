// Package service has the Go services that users run instead of Gatehouse, and the origin behind all services. Each
// service runs in its own process: `loadtest serve KIND`.
package service

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/loadtest/workload"
)

// Kinds of service.
const (
	Origin = "origin" // objects with ETags, telemetry; needs no credential
	Auth   = "auth"   // 200 or 401 with a cached verdict, whatever the path: for ext_authz and auth_request
	Cached = "cached" // Origin that checks credentials itself, with cached verdicts
	Bcrypt = "bcrypt" // Origin that runs bcrypt for each request, at the default cost
)

// Command is the command line of a service.
type Command struct {
	Kind    string `arg:"" enum:"origin,auth,cached,bcrypt" help:"origin, auth, cached or bcrypt."`
	Address string `required:"" help:"Where to listen, host:port."`
}

// Run serves until ctx ends.
func (c Command) Run(ctx context.Context) error {
	handler, err := NewHandler(c.Kind)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.Address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(os.Stderr, "", 0)}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// NewHandler returns a service of a kind, with one device.
func NewHandler(kind string) (http.Handler, error) {
	objects, err := newObjects()
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	if kind == Origin {
		mux.Handle("/", objects)
		return mux, nil
	}
	cost := bcrypt.MinCost // cached verdicts: bcrypt runs rarely
	if kind == Bcrypt {
		cost = bcrypt.DefaultCost
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(workload.Secret), cost)
	if err != nil {
		return nil, err
	}
	checker := &checker{hashes: map[string][]byte{workload.Device: hash}}
	verify := checker.allowsCached
	if kind == Bcrypt {
		verify = checker.allowsByBcrypt
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if !verify(r.Header.Get("x-device-id"), r.Header.Get("x-device-token")) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if kind == Auth {
			// nginx caches a verdict as long as the service.
			w.Header().Set("Cache-Control", "max-age=30")
			return
		}
		objects.ServeHTTP(w, r)
	})
	return mux, nil
}

// objects serves bodies from a map.
type objects struct{ byPath map[string]object }

type object struct {
	etag          string
	body, gzipped []byte
}

func newObjects() (*objects, error) {
	o := &objects{map[string]object{}}
	for path, size := range workload.Sizes {
		body := workload.JSONBody(size)
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, err := w.Write(body)
		if err = errors.Join(err, w.Close()); err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		o.byPath[path] = object{workload.ETag(body), body, b.Bytes()}
	}
	return o, nil
}

// otherBody is the response on an unknown path.
var otherBody = []byte(`{"ok":true}`)

func (o *objects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header["Content-Type"] = []string{workload.ContentType}
	found, ok := o.byPath[r.URL.Path]
	if !ok {
		header["Content-Length"] = []string{strconv.Itoa(len(otherBody))}
		_, _ = w.Write(otherBody) // an error means that the client has gone
		return
	}
	header["Etag"] = []string{found.etag}
	header["Cache-Control"] = []string{"max-age=3600"}
	header["Vary"] = []string{"Accept-Encoding"}
	if r.Header.Get("If-None-Match") == found.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := found.body
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		body = found.gzipped
		header["Content-Encoding"] = []string{"gzip"}
	}
	header["Content-Length"] = []string{strconv.Itoa(len(body))}
	_, _ = w.Write(body)
}
