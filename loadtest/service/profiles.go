package service

import (
	"net/http"
	"net/http/pprof"
	"runtime"
)

// blockRate is how long, in ns, a goroutine has to be blocked on average to be seen once.
const blockRate = 10_000

// profiles serves net/http/pprof. Blocking is recorded only while a profile of it is
// taken (?seconds=), since recording costs every request.
func profiles(mux *http.ServeMux) {
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/block", func(w http.ResponseWriter, r *http.Request) {
		runtime.SetBlockProfileRate(blockRate)
		defer runtime.SetBlockProfileRate(0)
		pprof.Handler("block").ServeHTTP(w, r)
	})
}
