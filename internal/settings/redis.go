package settings

import (
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

// RedisServer configures the connection to Redis.
type RedisServer struct {
	URL                  string `env:"URL" default:"redis://127.0.0.1:6379/0" placeholder:"URL" help:"Redis: redis://[user:password@]host:port/db, unix:///path, redis+sentinel://host:26379,host/MASTER, redis+cluster://host:port,host; rediss… for TLS. Default: redis://127.0.0.1:6379/0."`
	Shards               int    `env:"SHARDS" default:"1" placeholder:"N" help:"Number of shards, 1 to 64, the same for all writers. Default: ${default}."`
	Namespace            string `env:"NAMESPACE" placeholder:"NAME" help:"Namespace of the keys and channels, the same for all writers: 1 to 32 of a-z, 0-9 and -, beginning with a letter or digit. Default: none."`
	Username             string `env:"USERNAME" placeholder:"NAME" help:"User, instead of one in the URL."`
	PasswordFile         string `env:"PASSWORD_FILE" placeholder:"FILE" help:"Password, read at each connection, instead of one in the URL."`
	SentinelUsername     string `env:"SENTINEL_USERNAME" placeholder:"NAME" help:"User for the sentinels."`
	SentinelPasswordFile string `env:"SENTINEL_PASSWORD_FILE" placeholder:"FILE" help:"Password for the sentinels, read at start."`
	TLSCAFile            string `name:"tls-ca-file" env:"TLS_CA_FILE" placeholder:"FILE" help:"CA certificates, PEM, that verify servers; default: the system's."`
	TLSCertFile          string `name:"tls-cert-file" env:"TLS_CERT_FILE" placeholder:"FILE" help:"Client certificate, PEM; read at each connection."`
	TLSKeyFile           string `name:"tls-key-file" env:"TLS_KEY_FILE" placeholder:"FILE" help:"Private key of the client certificate."`
	TLSServerName        string `name:"tls-server-name" env:"TLS_SERVER_NAME" placeholder:"NAME" help:"Name that servers' certificates must have; default: their hosts."`
	PoolSize             int    `env:"POOL_SIZE" default:"16" placeholder:"N" help:"Maximum number of connections to one server, besides a subscription and a catch-up for each shard. Default: ${default}."`
}

// Settings returns the settings of the connection of a client with this name.
func (r *RedisServer) Settings(client string) redisurl.Settings {
	return redisurl.Settings{
		URL: r.URL, Username: r.Username, PasswordFile: r.PasswordFile,
		SentinelUsername: r.SentinelUsername, SentinelPasswordFile: r.SentinelPasswordFile,
		TLSCAFile: r.TLSCAFile, TLSCertFile: r.TLSCertFile, TLSKeyFile: r.TLSKeyFile, TLSServerName: r.TLSServerName,
		PoolSize: r.PoolSize, ClientName: client, Deadlines: true,
	}
}

// Keyspace returns the keyspace that client follows; client was made from the settings.
func (r *RedisServer) Keyspace(client redis.UniversalClient) contract.Keyspace {
	return contract.Keyspace{
		Namespace: r.Namespace, Database: redisurl.Database(client), Shards: contract.Shards(r.Shards),
	}
}

// Check returns all errors, without any part of the URL.
func (r *RedisServer) Check() (errs []error) {
	for _, err := range r.Settings("").Check() {
		errs = append(errs, fmt.Errorf("redis.%s: %w", err.Setting, err))
	}
	if r.PoolSize == 0 {
		errs = append(errs, fmt.Errorf("redis.pool_size: 0 is out of 1 to %d", redisurl.MaxPoolSize))
	}
	if r.Shards < 1 || r.Shards > limits.MaxShards {
		errs = append(errs, fmt.Errorf("redis.shards: %d is out of 1 to %d", r.Shards, limits.MaxShards))
	}
	if err := contract.CheckNamespace(r.Namespace); err != nil {
		errs = append(errs, fmt.Errorf("redis.namespace: %w", err))
	}
	return errs
}
