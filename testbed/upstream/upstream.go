// Package upstream is the demo upstream. Every answer describes the request as received. The upstream counts requests,
// to show which requests Envoy answered alone.
package upstream

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
)

// CountPath is the path at which a GET returns the count of all other requests.
const CountPath = "/debug/requests"

// Request headers that choose the status of the answer, and the entity-tag.
const (
	StatusHeader = "x-upstream-status"
	ETagHeader   = "x-upstream-etag"
)

// Seen is the answer to a request: the request as received.
type Seen struct {
	Method string `json:"method"`
	// Path is the request target as received, query included.
	Path string `json:"path"`
	// Headers holds all values by lower-case name, also "host".
	Headers map[string][]string `json:"headers"`
}

// Handler is the demo upstream. The zero value is ready to use, and safe for concurrent use.
type Handler struct {
	requests atomic.Int64
}

// Requests returns the number of requests received, except requests for [CountPath].
func (h *Handler) Requests() int64 { return h.requests.Load() }

// ServeHTTP answers with a [Seen], or on [CountPath] with {"requests": N}.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && r.URL.Path == CountPath {
		writeJSON(w, map[string]int64{"requests": h.Requests()})
		return
	}
	h.requests.Add(1)
	// Read the whole body of any size: the connection can be reused.
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		http.Error(w, "read body: "+err.Error(), http.StatusBadRequest)
		return
	}
	seen := Seen{Method: r.Method, Path: r.RequestURI, Headers: map[string][]string{"host": {r.Host}}}
	for name, values := range r.Header {
		seen.Headers[strings.ToLower(name)] = values
	}
	if tag := r.Header.Get(ETagHeader); tag != "" {
		w.Header().Set("ETag", tag)
	}
	w.Header().Set("Content-Type", contentType)
	if status, err := strconv.Atoi(r.Header.Get(StatusHeader)); err == nil && 200 <= status && status < 600 {
		w.WriteHeader(status)
	}
	writeJSON(w, seen)
}

const contentType = "application/json"

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", contentType)
	// On an error the client has gone.
	_ = json.NewEncoder(w).Encode(v)
}
