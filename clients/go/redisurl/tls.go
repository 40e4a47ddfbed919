package redisurl

import (
	"crypto/tls"
	"crypto/x509"
	"os"
)

func (s Settings) checkTLS(t *target) (errs []*Error) {
	if !t.tls {
		for _, given := range []struct{ setting, value string }{
			{"tls_ca_file", s.TLSCAFile}, {"tls_cert_file", s.TLSCertFile}, {"tls_key_file", s.TLSKeyFile},
			{"tls_server_name", s.TLSServerName},
		} {
			if given.value != "" {
				errs = append(errs,
					refuse(given.setting, "the url is not of TLS, where it has a use: want rediss://, rediss+sentinel:// or "+
						"rediss+cluster://"))
			}
		}
		return errs
	}
	if s.TLSCAFile != "" {
		if _, err := readCertificates(s.TLSCAFile); err != nil {
			errs = append(errs, err)
		}
	}
	switch {
	case (s.TLSCertFile == "") != (s.TLSKeyFile == ""):
		missing := map[bool]string{true: "tls_cert_file", false: "tls_key_file"}[s.TLSCertFile == ""]
		errs = append(errs, refuse(missing, "not given: a certificate and its key come together"))
	case s.TLSCertFile != "":
		if _, err := tls.LoadX509KeyPair(s.TLSCertFile, s.TLSKeyFile); err != nil {
			errs = append(errs, refuse("tls_cert_file", "with tls_key_file: %v", err))
		}
	}
	return errs
}

// tlsConfig returns the TLS configuration. Servers are verified by host or, if given, by TLSServerName.
func (s Settings) tlsConfig() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.TLSServerName}
	if s.TLSCAFile != "" {
		pool, err := readCertificates(s.TLSCAFile)
		if err != nil {
			return nil, err
		}
		c.RootCAs = pool
	}
	if s.TLSCertFile != "" {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(s.TLSCertFile, s.TLSKeyFile)
			return &pair, err
		}
	}
	return c, nil
}

func readCertificates(name string) (*x509.CertPool, *Error) {
	pem, err := os.ReadFile(name)
	if err != nil {
		return nil, refuse("tls_ca_file", "%v", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, refuse("tls_ca_file", "%s: has no certificate in PEM", name)
	}
	return pool, nil
}
