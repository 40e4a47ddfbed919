package config

import "github.com/gatehouse/gatehouse/sidecar/internal/authority"

// Authority configures the service that decides about devices without a record in Redis.
type Authority struct {
	URL         string `env:"URL" placeholder:"URL" help:"Service that decides about devices without a record in Redis: http://…, https://…, unix:///path; by Envoy's external authorization grpc://host:port, grpcs://host:port. Default: none, they are unknown."`
	TLSCAFile   string `name:"tls-ca-file" env:"TLS_CA_FILE" placeholder:"FILE" help:"CA certificates, PEM, that verify the service, read at start; default: the system's."`
	TLSCertFile string `name:"tls-cert-file" env:"TLS_CERT_FILE" placeholder:"FILE" help:"Client certificate for the service, PEM; read at each connection."`
	TLSKeyFile  string `name:"tls-key-file" env:"TLS_KEY_FILE" placeholder:"FILE" help:"Private key of that certificate."`
}

// Settings returns the settings of the client.
func (a *Authority) Settings() authority.Settings {
	return authority.Settings{URL: a.URL, CAFile: a.TLSCAFile, CertFile: a.TLSCertFile, KeyFile: a.TLSKeyFile}
}

func (a *Authority) validate() []error {
	if *a == (Authority{}) {
		return nil
	}
	return a.Settings().Check()
}
