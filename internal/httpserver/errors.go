package httpserver

import (
	"bytes"
	"log"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// errorWriter is the output of an ErrorLog. Write is safe for concurrent use.
type errorWriter struct {
	log  *slog.Logger
	seen rate.Sometimes // limits warnings
}

// ErrorLog returns the error log of a server. An operator must act on a panic, and if no connection can be accepted.
// All other errors are caused by clients, such as bad requests and failed TLS handshakes, and are for debugging.
func ErrorLog(to *slog.Logger) *log.Logger {
	return log.New(&errorWriter{log: to, seen: rate.Sometimes{First: 1, Interval: warnEvery}}, "", 0)
}

// warnEvery bounds how often failing connections are logged.
const warnEvery = 10 * time.Second

// Write logs one error.
func (w *errorWriter) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	switch {
	case strings.HasPrefix(text, "http: panic serving"):
		w.log.Error("a request failed: this is a bug, please report it", "error", text)
	case strings.HasPrefix(text, "http: Accept error"):
		w.seen.Do(func() { w.log.Warn("connections can't be accepted", "error", text) })
	default:
		w.log.Debug(text)
	}
	return len(line), nil
}
