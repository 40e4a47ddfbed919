// Package httpserver serves HTTP until a context ends.
package httpserver

import (
	"context"
	"net/http"
	"time"
)

// Serve runs serve, which is Serve or ServeTLS of server, until ctx ends. Then it waits for running requests, for drain
// at most; aborted, unless it is nil, learns why they had to be aborted. Serve returns the error of a server that ended
// by itself.
func Serve(ctx context.Context, server *http.Server, serve func() error, drain time.Duration,
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
