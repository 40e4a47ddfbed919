package authority

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
)

// Settings have the address of the service and the files for TLS. Only URL is required.
type Settings struct {
	// URL is http://…, https://… or unix:///path of a socket; for Envoy's external authorization grpc://host:port or
	// grpcs://host:port.
	URL string
	// CAFile has the CA certificates, PEM, that verify the service, instead of the system's.
	CAFile string
	// CertFile and KeyFile are the client certificate, PEM, and are read at each connection.
	CertFile, KeyFile string
}

// Check returns all problems. They contain no part of the URL, which may have a key.
func (s Settings) Check() (errs []error) {
	u, err := url.Parse(s.URL)
	switch {
	case err != nil || u.User != nil || u.Fragment != "" || u.Opaque != "":
		err = errors.New("want http://…, https://…, unix:///path, grpc://… or grpcs://…, without a user")
	case u.Scheme == "unix" && (u.Host != "" || u.Path == "" || u.RawQuery != ""):
		err = errors.New("want unix:///path of a socket")
	case u.Scheme == "unix":
	case (u.Scheme == "grpc" || u.Scheme == "grpcs") && (u.Port() == "" || u.Path != "" || u.RawQuery != ""):
		err = fmt.Errorf("want %s://host:port", u.Scheme)
	case !slices.Contains([]string{"http", "https", "grpc", "grpcs"}, u.Scheme) || u.Host == "":
		err = errors.New("want http://…, https://…, unix:///path, grpc://… or grpcs://…")
	}
	if err != nil {
		return []error{fmt.Errorf("authority.url: %w", err)}
	}
	if u.Scheme != "https" && u.Scheme != "grpcs" {
		if s.CAFile+s.CertFile+s.KeyFile != "" {
			errs = append(errs,
				errors.New("authority.tls_…: the url is not of TLS, where they have a use: want https:// or grpcs://"))
		}
		return errs
	}
	if _, err := s.tlsConfig(); err != nil {
		errs = append(errs, err)
	}
	switch {
	case (s.CertFile == "") != (s.KeyFile == ""):
		errs = append(errs, errors.New("authority.tls_cert_file, authority.tls_key_file: come together"))
	case s.CertFile != "":
		if _, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile); err != nil {
			errs = append(errs, fmt.Errorf("authority.tls_cert_file, with tls_key_file: %w", err))
		}
	}
	return errs
}

func (s Settings) tlsConfig() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.CAFile != "" {
		pem, err := os.ReadFile(s.CAFile)
		if err != nil {
			return nil, fmt.Errorf("authority.tls_ca_file: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("authority.tls_ca_file: %s: has no certificate in PEM", s.CAFile)
		}
	}
	if s.CertFile != "" {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
			return &pair, err
		}
	}
	return c, nil
}
