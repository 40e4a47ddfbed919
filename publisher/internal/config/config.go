// Package config has the settings of gatehouse-publisher.
package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/gatehouse/gatehouse/internal/settings"
)

// Config has every setting.
type Config struct {
	settings.Program `embed:""`

	Redis  settings.RedisServer `embed:"" prefix:"redis." envprefix:"GATEHOUSE_REDIS_"`
	Listen Listen               `embed:"" prefix:"listen." envprefix:"GATEHOUSE_LISTEN_"`
	Teams  Teams                `embed:"" prefix:"teams." envprefix:"GATEHOUSE_TEAMS_"`
	Admin  HealthAdmin          `embed:"" prefix:"admin." envprefix:"GATEHOUSE_ADMIN_"`
	Log    settings.Log         `embed:"" prefix:"log." envprefix:"GATEHOUSE_LOG_"`
}

// Listen configures the server for writers.
type Listen struct {
	Address     string `env:"ADDRESS" default:"127.0.0.1:8070" placeholder:"HOST:PORT" help:"Address to serve writers on. Default: ${default}."`
	TLSCertFile string `name:"tls-cert-file" env:"TLS_CERT_FILE" placeholder:"FILE" help:"Certificate chain, PEM; read at each connection. Default: none, HTTP without TLS."`
	TLSKeyFile  string `name:"tls-key-file" env:"TLS_KEY_FILE" placeholder:"FILE" help:"Private key of the certificate."`
}

// Teams configures who may write.
type Teams struct {
	File string `env:"FILE" placeholder:"FILE" help:"YAML file of teams with their tokens and prefixes; read again when it changes. Required."`
}

// HealthAdmin configures the server for metrics and health.
type HealthAdmin struct {
	Address string `env:"ADDRESS" default:"127.0.0.1:9091" placeholder:"HOST:PORT" help:"Address to serve metrics and health on. Default: ${default}."`
}

var about = settings.About{Name: "gatehouse-publisher",
	Does: "Writes objects to Redis for those who ask by HTTP with a token."}

// Load reads the flags in args, the environment, and the file that they name, see [settings.Load].
func Load(args []string) (*Config, error) { return settings.Load(new(Config), about, args) }

// Usage writes the list of flags.
func Usage(w io.Writer) error { return about.PrintUsage(w, new(Config)) }

// CheckValues returns all errors of the values, joined.
func (c *Config) CheckValues() error {
	errs := append(c.Redis.Check(), c.Log.Check()...)
	for name, address := range map[string]string{"listen": c.Listen.Address, "admin": c.Admin.Address} {
		if _, _, err := net.SplitHostPort(address); err != nil {
			errs = append(errs, fmt.Errorf("%s.address: %q: want host:port", name, address))
		}
	}
	if c.Listen.TLSCertFile != "" || c.Listen.TLSKeyFile != "" {
		if _, err := tls.LoadX509KeyPair(c.Listen.TLSCertFile, c.Listen.TLSKeyFile); err != nil {
			errs = append(errs, fmt.Errorf("listen.tls_cert_file, listen.tls_key_file: %w", err))
		}
	}
	if c.Teams.File == "" {
		errs = append(errs, errors.New("teams.file: missing, want the file of teams"))
	}
	return errors.Join(errs...)
}
