package settings

import (
	"fmt"
	"io"
	"log/slog"
)

// Log configures logging.
type Log struct {
	Level  string `env:"LEVEL" default:"info" placeholder:"LEVEL" help:"debug, info, warn or error. Default: ${default}."`
	Format string `env:"FORMAT" default:"text" placeholder:"FORMAT" help:"text or json. Default: ${default}."`
}

// Check returns all errors.
func (l *Log) Check() (errs []error) {
	if new(slog.LevelVar).UnmarshalText([]byte(l.Level)) != nil {
		errs = append(errs, fmt.Errorf("log.level: %q: want debug, info, warn or error", l.Level))
	}
	if l.Format != "text" && l.Format != "json" {
		errs = append(errs, fmt.Errorf("log.format: %q: want text or json", l.Format))
	}
	return errs
}

// NewLogger returns a logger to w as configured.
func (l *Log) NewLogger(w io.Writer) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	level.UnmarshalText([]byte(l.Level)) // Check has checked it
	options := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options)), level
	}
	return slog.New(slog.NewTextHandler(w, options)), level
}
