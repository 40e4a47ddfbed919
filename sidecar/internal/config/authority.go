package config

import (
	"errors"
	"fmt"
	"net"

	"github.com/gatehouse/gatehouse/verify/authority"
)

// Authority configures the service that decides about devices without a record in Redis.
type Authority struct {
	URL         string `env:"URL" placeholder:"URL" help:"Service that decides about devices without a record in Redis: http://…, https://…, unix:///path; by Envoy's external authorization grpc://host:port, grpcs://host:port. Default: none, they are unknown."`
	TLSCAFile   string `name:"tls-ca-file" env:"TLS_CA_FILE" placeholder:"FILE" help:"CA certificates, PEM, that verify the service, read at start; default: the system's."`
	TLSCertFile string `name:"tls-cert-file" env:"TLS_CERT_FILE" placeholder:"FILE" help:"Client certificate for the service, PEM; read at each connection."`
	TLSKeyFile  string `name:"tls-key-file" env:"TLS_KEY_FILE" placeholder:"FILE" help:"Private key of that certificate."`

	InvalidateAddress   string `env:"INVALIDATE_ADDRESS" placeholder:"HOST:PORT" help:"Address to take invalidations of the service on, by HTTP, for a service that can't reach Redis. Needs permission to write to Redis. Default: none."`
	InvalidateTokenFile string `env:"INVALIDATE_TOKEN_FILE" placeholder:"FILE" help:"Token that the service sends with invalidations, at least 32 bytes; read at start."`
}

// ReadInvalidateToken returns the token of invalidations, nil if none are taken.
func (a *Authority) ReadInvalidateToken() ([]byte, error) { return readSecret(a.InvalidateTokenFile) }

// Settings returns the settings of the client.
func (a *Authority) Settings() authority.Settings {
	return authority.Settings{URL: a.URL, CAFile: a.TLSCAFile, CertFile: a.TLSCertFile, KeyFile: a.TLSKeyFile}
}

func (a *Authority) validate() []error {
	if *a == (Authority{}) {
		return nil
	}
	errs := a.Settings().Check()
	if (a.InvalidateAddress == "") != (a.InvalidateTokenFile == "") {
		errs = append(errs, errors.New("authority.invalidate_address, authority.invalidate_token_file: come together"))
	}
	if _, _, err := net.SplitHostPort(a.InvalidateAddress); err != nil && a.InvalidateAddress != "" {
		errs = append(errs, fmt.Errorf("authority.invalidate_address: %q: want host:port", a.InvalidateAddress))
	}
	if _, err := a.ReadInvalidateToken(); err != nil {
		errs = append(errs, fmt.Errorf("authority.invalidate_token_file: %w", err))
	}
	return errs
}
