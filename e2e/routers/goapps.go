package routers

import (
	"fmt"
	"io"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/gorilla/mux"
)

// newGoRouters returns the resources in Go's routers.
func newGoRouters() map[string]http.Handler {
	return map[string]http.Handler{
		"servemux": newServeMux(),
		"rewrite":  believeRewrites(newServeMux()),
		"gorilla":  newGorilla(),
		"chi":      newChi(),
	}
}

func serveResource(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("x-served", name)
		w.Header().Set("x-saw", r.Method+" "+r.URL.EscapedPath())
		w.Header().Set("x-saw-device", r.Header.Get("x-gatehouse-device"))
		_, _ = io.WriteString(w, fmt.Sprintf("served %s\n", name))
	}
}

// routes are patterns with the methods served; none means all.
var routes = []struct {
	name, path string
	methods    []string
}{
	{"products", "/v1/products/{id}", []string{"GET", "HEAD"}},
	{"telemetry", "/v1/telemetry", []string{"POST"}},
	{"telemetry", "/v1/telemetry/{stream}", []string{"POST"}},
	{"telemetry-read", "/v1/telemetry", []string{"GET", "HEAD"}},
	{"telemetry-read", "/v1/telemetry/{stream}", []string{"GET", "HEAD"}},
	{"fleet-config", "/v1/fleet/config", nil},
	{"me-config", "/v1/me/config", nil},
	{"health", "/v1/admin/health", nil},
	{"users", "/v1/admin/users", nil},
	{"users", "/v1/admin/users/{id}", nil},
	{"device-read", "/v1/devices/{id}", []string{"GET", "HEAD"}},
	{"device", "/v1/devices/{id}", []string{"PUT", "DELETE"}},
}

func newServeMux() http.Handler {
	router := http.NewServeMux()
	for _, r := range routes {
		if r.methods == nil {
			router.HandleFunc(r.path, serveResource(r.name))
		}
		for _, method := range r.methods {
			if method != "HEAD" { // GET's pattern includes it
				router.HandleFunc(method+" "+r.path, serveResource(r.name))
			}
		}
	}
	router.HandleFunc("/files/", serveResource("files"))
	return router
}

// believeRewrites takes the path from the headers that IIS front ends set and that Symfony and Zend Framework read.
func believeRewrites(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"X-Original-Url", "X-Rewrite-Url"} {
			if target, err := r.URL.Parse(r.Header.Get(name)); err == nil && r.Header.Get(name) != "" {
				r.URL = target
			}
		}
		next.ServeHTTP(w, r)
	})
}

func newGorilla() http.Handler {
	router := mux.NewRouter().StrictSlash(true)
	for _, r := range routes {
		route := router.HandleFunc(r.path, serveResource(r.name))
		if r.methods != nil {
			route.Methods(r.methods...)
		}
	}
	router.PathPrefix("/files/").HandlerFunc(serveResource("files"))
	return router
}

func newChi() http.Handler {
	router := chi.NewRouter()
	for _, r := range routes {
		if r.methods == nil {
			router.HandleFunc(r.path, serveResource(r.name))
		}
		for _, method := range r.methods {
			router.Method(method, r.path, serveResource(r.name))
		}
	}
	router.HandleFunc("/files/*", serveResource("files"))
	return router
}
