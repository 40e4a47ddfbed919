package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/propagation"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

const defaultRedis = "redis://127.0.0.1:6379"

// redisFlags say which Redis. The variables are the sidecar's, and for the URL one more, which goes first.
type redisFlags struct {
	URL                  string `name:"redis" placeholder:"URL" help:"Redis to write to and read from: redis://[user:password@]host:port[/db], unix:///path, redis+sentinel://host:26379,host/MASTER, redis+cluster://host:port,host; rediss… for TLS. Default: $$GATEHOUSE_REDIS, then $$GATEHOUSE_REDIS_URL, then redis://127.0.0.1:6379."`
	Shards               int    `name:"shards" placeholder:"N" help:"Number of shards, the same for all writers and sidecars. Default: $$GATEHOUSE_REDIS_SHARDS, then 1."`
	Namespace            string `name:"namespace" placeholder:"NAME" help:"Namespace of the keys and channels, the same for all writers and sidecars. Default: $$GATEHOUSE_REDIS_NAMESPACE, then none."`
	Username             string `name:"redis-username" placeholder:"NAME" help:"User, instead of one in the URL. Default: $$GATEHOUSE_REDIS_USERNAME."`
	PasswordFile         string `name:"redis-password-file" placeholder:"F" help:"Password, instead of one in the URL. Default: $$GATEHOUSE_REDIS_PASSWORD_FILE."`
	SentinelUsername     string `name:"redis-sentinel-username" placeholder:"NAME" help:"User for the sentinels. Default: $$GATEHOUSE_REDIS_SENTINEL_USERNAME."`
	SentinelPasswordFile string `name:"redis-sentinel-password-file" placeholder:"F" help:"Password for the sentinels. Default: $$GATEHOUSE_REDIS_SENTINEL_PASSWORD_FILE."`
	TLSCAFile            string `name:"redis-tls-ca-file" placeholder:"F" help:"CA certificates that verify servers. Default: $$GATEHOUSE_REDIS_TLS_CA_FILE, then the system's."`
	TLSCertFile          string `name:"redis-tls-cert-file" placeholder:"F" help:"Client certificate. Default: $$GATEHOUSE_REDIS_TLS_CERT_FILE."`
	TLSKeyFile           string `name:"redis-tls-key-file" placeholder:"F" help:"Private key of the client certificate. Default: $$GATEHOUSE_REDIS_TLS_KEY_FILE."`
	TLSServerName        string `name:"redis-tls-server-name" placeholder:"NAME" help:"Name that servers' certificates must have. Default: $$GATEHOUSE_REDIS_TLS_SERVER_NAME, then their hosts."`
}

// complete takes from the environment what no flag sets.
func (r *redisFlags) complete(env func(string) string) error {
	for _, setting := range []struct {
		value    *string
		variable string
	}{
		{&r.URL, "GATEHOUSE_REDIS"}, {&r.URL, "GATEHOUSE_REDIS_URL"},
		{&r.Namespace, "GATEHOUSE_REDIS_NAMESPACE"}, {&r.Username, "GATEHOUSE_REDIS_USERNAME"},
		{&r.PasswordFile, "GATEHOUSE_REDIS_PASSWORD_FILE"},
		{&r.SentinelUsername, "GATEHOUSE_REDIS_SENTINEL_USERNAME"},
		{&r.SentinelPasswordFile, "GATEHOUSE_REDIS_SENTINEL_PASSWORD_FILE"},
		{&r.TLSCAFile, "GATEHOUSE_REDIS_TLS_CA_FILE"}, {&r.TLSCertFile, "GATEHOUSE_REDIS_TLS_CERT_FILE"},
		{&r.TLSKeyFile, "GATEHOUSE_REDIS_TLS_KEY_FILE"}, {&r.TLSServerName, "GATEHOUSE_REDIS_TLS_SERVER_NAME"},
	} {
		if *setting.value == "" {
			*setting.value = env(setting.variable)
		}
	}
	if r.URL == "" {
		r.URL = defaultRedis
	}
	if text := env("GATEHOUSE_REDIS_SHARDS"); r.Shards == 0 && text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			return usagef("--shards, GATEHOUSE_REDIS_SHARDS: %q is no number", text)
		}
		r.Shards = n
	}
	if err := contract.CheckNamespace(r.Namespace); err != nil {
		return usagef("--namespace, GATEHOUSE_REDIS_NAMESPACE: %w", err)
	}
	if err := contract.Shards(r.Shards).Check(); err != nil {
		return usagef("--shards, GATEHOUSE_REDIS_SHARDS: %w", err)
	}
	return nil
}

// settings is how to connect. Nothing is sent twice: a write that was applied, but not
// answered, would meet its own version.
func (r *redisFlags) settings() redisurl.Settings {
	return redisurl.Settings{
		URL: r.URL, Username: r.Username, PasswordFile: r.PasswordFile,
		SentinelUsername: r.SentinelUsername, SentinelPasswordFile: r.SentinelPasswordFile,
		TLSCAFile: r.TLSCAFile, TLSCertFile: r.TLSCertFile, TLSKeyFile: r.TLSKeyFile, TLSServerName: r.TLSServerName,
		PoolSize:   max(2, r.Shards), // audit --follow waits at each shard
		ClientName: "gatehousectl", Once: true,
	}
}

// keyspace returns what commands that use client read.
func (r *redisFlags) keyspace(client redis.UniversalClient) contract.Keyspace {
	return contract.Keyspace{
		Namespace: r.Namespace, Database: redisurl.Database(client), Shards: contract.Shards(r.Shards),
	}
}

// connect gives command a publisher. An error never has the URL in it, for its password.
func (c *console) connect(command func(context.Context, *publish.Publisher) error) error {
	return c.client(func(ctx context.Context, client redis.UniversalClient) error {
		options := []publish.Option{publish.Shards(c.redis.Shards), publish.Namespace(c.redis.Namespace)}
		if c.device {
			author := c.author
			if author == "" {
				author = defaultAuthor(ctx, client)
			}
			options = append(options, publish.Author(author))
		}
		return command(ctx, publish.New(client, options...))
	})
}

// defaultAuthor returns user@host, and Redis's name of the user if it tells.
func defaultAuthor(ctx context.Context, client redis.UniversalClient) string {
	author := publish.DefaultAuthor()
	name, err := client.Do(ctx, "acl", "whoami").Text()
	if with := author + " as " + name; err == nil && name != "default" && len(with) <= contract.MaxAuthor {
		return with
	}
	return author
}

// client gives command a client.
func (c *console) client(command func(context.Context, redis.UniversalClient) error) error {
	settings := c.redis.settings()
	var problems []error
	for _, err := range settings.Check() {
		name := "--redis-" + strings.ReplaceAll(err.Setting, "_", "-")
		if err.Setting == "url" {
			name = "--redis, GATEHOUSE_REDIS"
		}
		problems = append(problems, fmt.Errorf("%s: %w", name, err))
	}
	if err := errors.Join(problems...); err != nil {
		return usagef("%w", err)
	}
	client, err := settings.Connect()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": c.traceparent})
	return command(ctx, client)
}
