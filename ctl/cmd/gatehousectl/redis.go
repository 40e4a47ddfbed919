package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/propagation"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/internal/devicelog"
	"github.com/gatehouse/gatehouse/internal/snapshot"
)

// redisFlags select Redis and the user. The environment variables are the sidecar's; $GATEHOUSE_REDIS precedes
// $GATEHOUSE_REDIS_URL.
type redisFlags struct {
	URL                  string `name:"redis" default:"redis://127.0.0.1:6379" variable:"GATEHOUSE_REDIS,GATEHOUSE_REDIS_URL" placeholder:"URL" help:"Redis to write to and read from: redis://[user:password@]host:port[/db], unix:///path, redis+sentinel://host:26379,host/MASTER, redis+cluster://host:port,host; rediss… for TLS."`
	Shards               int    `name:"shards" variable:"GATEHOUSE_REDIS_SHARDS" placeholder:"N" help:"Number of shards, the same for all writers and sidecars. 0 is 1."`
	Namespace            string `name:"namespace" variable:"GATEHOUSE_REDIS_NAMESPACE" placeholder:"NAME" help:"Namespace of the keys and channels, the same for all writers and sidecars."`
	Username             string `name:"redis-username" variable:"GATEHOUSE_REDIS_USERNAME" placeholder:"NAME" help:"User, instead of one in the URL."`
	PasswordFile         string `name:"redis-password-file" variable:"GATEHOUSE_REDIS_PASSWORD_FILE" placeholder:"FILE" help:"Password, instead of one in the URL."`
	SentinelUsername     string `name:"redis-sentinel-username" variable:"GATEHOUSE_REDIS_SENTINEL_USERNAME" placeholder:"NAME" help:"User for the sentinels."`
	SentinelPasswordFile string `name:"redis-sentinel-password-file" variable:"GATEHOUSE_REDIS_SENTINEL_PASSWORD_FILE" placeholder:"FILE" help:"Password for the sentinels."`
	TLSCAFile            string `name:"redis-tls-ca-file" variable:"GATEHOUSE_REDIS_TLS_CA_FILE" placeholder:"FILE" help:"CA certificates that verify servers, instead of the system's."`
	TLSCertFile          string `name:"redis-tls-cert-file" variable:"GATEHOUSE_REDIS_TLS_CERT_FILE" placeholder:"FILE" help:"Client certificate."`
	TLSKeyFile           string `name:"redis-tls-key-file" variable:"GATEHOUSE_REDIS_TLS_KEY_FILE" placeholder:"FILE" help:"Private key of the client certificate."`
	oneConnection        bool   // to each server
	TLSServerName        string `name:"redis-tls-server-name" variable:"GATEHOUSE_REDIS_TLS_SERVER_NAME" placeholder:"NAME" help:"Name that servers' certificates must have, instead of their hosts."`
}

// checkFlags checks the flags that need no connection.
func (r *redisFlags) checkFlags() error {
	if err := contract.CheckNamespace(r.Namespace); err != nil {
		return usagef("--namespace, GATEHOUSE_REDIS_NAMESPACE: %w", err)
	}
	if err := contract.Shards(r.Shards).Check(); err != nil {
		return usagef("--shards, GATEHOUSE_REDIS_SHARDS: %w", err)
	}
	return nil
}

// connectionSettings returns the settings of the connection. Commands are never sent twice: a write that was applied,
// but not answered, would conflict with its own version.
func (r *redisFlags) connectionSettings() redisurl.Settings {
	connections := max(2, r.Shards) // audit --follow waits at each shard
	if r.oneConnection {
		connections = 1
	}
	return redisurl.Settings{
		URL: r.URL, Username: r.Username, PasswordFile: r.PasswordFile,
		SentinelUsername: r.SentinelUsername, SentinelPasswordFile: r.SentinelPasswordFile,
		TLSCAFile: r.TLSCAFile, TLSCertFile: r.TLSCertFile, TLSKeyFile: r.TLSKeyFile, TLSServerName: r.TLSServerName,
		PoolSize:   connections,
		ClientName: "gatehousectl", Once: true,
	}
}

// keyspace returns the keyspace that client reads.
func (r *redisFlags) keyspace(client redis.UniversalClient) contract.Keyspace {
	return contract.Keyspace{
		Namespace: r.Namespace, Database: redisurl.Database(client), Shards: contract.Shards(r.Shards),
	}
}

// withPublisher calls command with a publisher. Errors never contain the URL, because of its password.
func (c *console) withPublisher(command func(context.Context, *publish.Publisher) error) error {
	return c.withClientAndPublisher(func(ctx context.Context, _ redis.UniversalClient, p *publish.Publisher) error {
		return command(ctx, p)
	})
}

func (c *console) deviceLog(client redis.UniversalClient) *devicelog.Log {
	return &devicelog.Log{Client: client, Keyspace: c.redis.keyspace(client)}
}

// withClientAndPublisher calls command with a client and a publisher on the client.
func (c *console) withClientAndPublisher(
	command func(context.Context, redis.UniversalClient, *publish.Publisher) error) error {
	return c.withClient(func(ctx context.Context, client redis.UniversalClient) error {
		options := []publish.Option{publish.Shards(c.redis.Shards), publish.Namespace(c.redis.Namespace)}
		if c.device {
			author := c.author
			if author == "" {
				author = defaultAuthor(ctx, client)
			}
			options = append(options, publish.Author(author))
		}
		return command(ctx, client, publish.New(client, options...))
	})
}

// defaultAuthor returns user@host, and the name of the Redis user if Redis answers ACL WHOAMI.
func defaultAuthor(ctx context.Context, client redis.UniversalClient) string {
	author := publish.DefaultAuthor()
	name, err := client.Do(ctx, "acl", "whoami").Text()
	if with := author + " as " + name; err == nil && name != "default" && len(with) <= contract.MaxAuthor {
		return with
	}
	return author
}

// withClient calls command with a client.
func (c *console) withClient(command func(context.Context, redis.UniversalClient) error) error {
	settings := c.redis.connectionSettings()
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
	return addHint(command(ctx, client))
}

// addHint adds advice to an error of Redis. Errors of files and stores are like those of a connection.
func addHint(err error) error {
	_, ofFile := errors.AsType[*fs.PathError](err)
	_, ofStore := errors.AsType[*snapshot.StoreError](err)
	if ofFile || ofStore {
		return err
	}
	if _, unreachable := errors.AsType[net.Error](err); unreachable {
		return fmt.Errorf("%w\n--redis or $GATEHOUSE_REDIS tells which Redis: see gatehousectl --help-redis", err)
	}
	if redis.IsAuthError(err) {
		return fmt.Errorf("%w\n--redis-username and --redis-password-file tell who you are: see gatehousectl --help-redis",
			err)
	}
	if redis.IsPermissionError(err) {
		return fmt.Errorf("%w\nThe permissions that a user of Redis needs are in docs/redis-contract.md", err)
	}
	return err
}
