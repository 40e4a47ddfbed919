// Package httpserver serves HTTP until a context ends.
package httpserver

import (
	"context"
	"net/http"
	"time"
)

// ServeUntil runs serve, which is Serve or ServeTLS of server, until ctx ends. Then ServeUntil waits for running
// requests, for drain at most; if requests have to be aborted, aborted gets the reason, unless nil. ServeUntil returns
// the error of a server that ended by itself.
func ServeUntil(ctx context.Context, server *http.Server, serve func() error, drain time.Duration,
	aborted func(error)) error {
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			server.Close()
			if aborted != nil {
				aborted(err)
			}
		}
	})
	err := serve()
	if stop() { // ctx had not ended before
		return err
	}
	<-stopped
	return nil
}
