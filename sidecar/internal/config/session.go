package config

import (
	"fmt"
	"time"

	"github.com/gatehouse/gatehouse/verify/token"
)

// Session configures tokens.
type Session struct {
	SecretFile string        `env:"SECRET_FILE" placeholder:"FILE" help:"Secret from which the keys of tokens are derived, the same for all sidecars; read at start. Default: a random one, for a single sidecar."`
	TTL        time.Duration `env:"TTL" default:"10m" placeholder:"D" help:"Lifetime of a token, at most session.rotate. Default: ${default}."`
	Rotate     time.Duration `env:"ROTATE" default:"24h" placeholder:"D" help:"How long one key signs. Default: ${default}."`
	Issuer     string        `env:"ISSUER" default:"gatehouse" placeholder:"NAME" help:"Issuer of the tokens, as in Envoy's jwt_authn. Default: ${default}."`
}

// Bounds of the times. Envoy's keys may be a minute old, and clocks differ, so a period must be some minutes long.
const (
	minTokenTTL = time.Minute
	minRotate   = 10 * time.Minute
	maxRotate   = 30 * 24 * time.Hour
	maxIssuer   = 255
)

// validate returns all errors, without any part of a secret.
func (s *Session) validate() (errs []error) {
	if s.SecretFile != "" {
		if _, err := token.ReadSecrets(s.SecretFile); err != nil {
			errs = append(errs, fmt.Errorf("session.secret_file: %w", err))
		}
	}
	if s.Rotate < minRotate || s.Rotate > maxRotate || s.Rotate%time.Second != 0 {
		errs = append(errs, fmt.Errorf("session.rotate: %v, want whole seconds of %v to 720h", s.Rotate, minRotate))
	}
	if s.TTL < minTokenTTL || s.TTL > s.Rotate {
		errs = append(errs, fmt.Errorf("session.ttl: %v is out of %v to session.rotate, %v", s.TTL, minTokenTTL, s.Rotate))
	}
	if s.Issuer == "" || len(s.Issuer) > maxIssuer {
		errs = append(errs, fmt.Errorf("session.issuer: %d bytes, want 1 to %d", len(s.Issuer), maxIssuer))
	}
	return errs
}

// Settings returns the settings of tokens.
func (s *Session) Settings() (c token.Config, err error) {
	c = token.Config{Secrets: []string{token.RandomSecret()}, TTL: s.TTL, Rotate: s.Rotate, Issuer: s.Issuer}
	if s.SecretFile != "" {
		if c.Secrets, err = token.ReadSecrets(s.SecretFile); err != nil {
			return token.Config{}, fmt.Errorf("session.secret_file: %w", err)
		}
	}
	return c, nil
}
