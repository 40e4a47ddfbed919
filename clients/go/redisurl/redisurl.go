// Package redisurl parses the URL and settings of a Redis, and connects. All programs of Gatehouse use redisurl.
//
//	redis://[user:password@]host[:6379][/db]                          one server
//	unix://[user:password@]/path[?db=N]                               one server, by its socket
//	redis+sentinel://[user:password@]host[:26379],host,…/MASTER[/db]  the sentinels' master
//	redis+cluster://[user:password@]host[:6379],host,…                a Cluster, found through any server
//
// rediss://, rediss+sentinel:// and rediss+cluster:// use TLS. User and password are for the servers, in
// percent-encoding. Replicas are read only through [Settings.FindReplicas].
package redisurl

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// DefaultPoolSize is the maximum number of connections to a server for calls. Subscriptions have separate connections.
	DefaultPoolSize = 16
	// MaxPoolSize is the largest valid PoolSize.
	MaxPoolSize = 1024

	dialTimeout = 2 * time.Second
	callTimeout = 5 * time.Second
	// connectionLife is the maximum age of a connection. Younger connections follow a name that moved to another server,
	// and a changed password.
	connectionLife = 15 * time.Second
	// topologyLife is the maximum age of the known masters of a Cluster. By itself, the client looks for new masters only
	// after a redirection by an old master, which may be dead.
	topologyLife = time.Second
)

// Settings are a URL, and settings that should not or can't be part of a URL. Only URL is required.
type Settings struct {
	// URL is a URL in a form from above.
	URL string
	// Username and PasswordFile are for the servers, instead of a login in the URL. The file is read for every connection,
	// so that a password can be changed.
	Username, PasswordFile string
	// SentinelUsername and SentinelPasswordFile are for the sentinels. The file is read once.
	SentinelUsername, SentinelPasswordFile string
	// TLSCAFile has the CA certificates (PEM) that verify servers, instead of the system's.
	TLSCAFile string
	// TLSCertFile and TLSKeyFile are the client certificate for servers that require a certificate. Both are read for
	// every connection.
	TLSCertFile, TLSKeyFile string
	// TLSServerName is the name in servers' certificates, instead of the server's host.
	TLSServerName string
	// PoolSize is the maximum number of connections to a server, 0 for [DefaultPoolSize].
	PoolSize int
	// ClientName is the name in CLIENT LIST, if the server permits to set a name.
	ClientName string
	// Once disables retries after an error, so that callers know whether the outcome of a write is uncertain. Redirections
	// of a Cluster are followed. In a Cluster, the client retries all commands except commands that package publish marks.
	Once bool
	// Deadlines ends a call at its context's deadline, also while waiting for the server. Without Deadlines, only this
	// package's timeouts do.
	Deadlines bool
}

// Error is a problem of a setting. The text never contains a password, nor any part of a URL, since any part could be a
// password.
type Error struct {
	// Setting is "url", "username", "password_file", ….
	Setting string
	text    string
}

// Error returns the problem without the setting's name: programs have their own names.
func (e *Error) Error() string { return e.text }

func refuse(setting, format string, args ...any) *Error {
	return &Error{Setting: setting, text: fmt.Sprintf(format, args...)}
}

// Connect returns a client for a URL alone, which connects on first use.
func Connect(url string) (redis.UniversalClient, error) {
	client, err := Settings{URL: url}.Connect()
	if err != nil {
		return nil, fmt.Errorf("redis url: %w", err)
	}
	return client, nil
}

// Check returns all problems.
func (s Settings) Check() []*Error {
	t, refused := parseURL(s.URL)
	if refused != nil {
		return []*Error{refused} // later checks depend on the URL
	}
	errs := append(s.checkCredentials(&t), s.checkTLS(&t)...)
	if s.PoolSize < 0 || s.PoolSize > MaxPoolSize {
		errs = append(errs, refuse("pool_size", "%d is out of 1 to %d", s.PoolSize, MaxPoolSize))
	}
	return errs
}

// Connect returns a client, which connects on first use. Connect checks the settings, and reads the files of the
// sentinels' password and the CA certificates.
func (s Settings) Connect() (redis.UniversalClient, error) {
	var errs []error
	for _, err := range s.Check() {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	t, _ := parseURL(s.URL)
	options, err := s.buildOptions(&t)
	if err != nil {
		return nil, err
	}
	switch t.kind {
	case sentinel:
		return redis.NewFailoverClient(options.Failover()), nil
	case cluster:
		o := options.Cluster()
		o.ClusterStateReloadInterval = topologyLife
		return redis.NewClusterClient(o), nil
	}
	return redis.NewClient(options.Simple()), nil
}

// Database returns the number of the client's database, 0 in a Cluster.
func Database(client redis.UniversalClient) int {
	if single, ok := client.(interface{ Options() *redis.Options }); ok {
		return single.Options().DB
	}
	return 0
}

// FindMaster returns a client of the server that has a key: in a Cluster the master of its slot, otherwise client.
func FindMaster(ctx context.Context, client redis.UniversalClient, key string) (*redis.Client, error) {
	switch client := client.(type) {
	case *redis.Client:
		return client, nil
	case *redis.ClusterClient:
		node, err := client.MasterForKey(ctx, key)
		if err != nil {
			return nil, fmt.Errorf("find the master of %s: %w", key, err)
		}
		return node, nil
	}
	return nil, fmt.Errorf("client %T: want one of a server or of a Cluster", client)
}

// OwnConnection returns a client with a single connection of its own. The connection is new: an old connection may be
// to a server that had the name before. timeout bounds each read and write.
func OwnConnection(client *redis.Client, timeout time.Duration) *redis.Client {
	options := *client.Options()
	options.PoolSize, options.MaxRetries = 1, -1 // Options has 0 for -1
	options.ReadTimeout, options.WriteTimeout = timeout, timeout
	options.PushNotificationProcessor = nil // each client has its own processor
	// The client's notification settings change while it connects.
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(&options)
}

// Subscribe subscribes to a channel, in a Cluster to a shard channel of the name's slot.
func Subscribe(ctx context.Context, client redis.UniversalClient, channel string) *redis.PubSub {
	if cluster, ok := client.(*redis.ClusterClient); ok {
		return cluster.SSubscribe(ctx, channel)
	}
	return client.Subscribe(ctx, channel)
}

func (s Settings) buildOptions(t *target) (*redis.UniversalOptions, error) {
	o := &redis.UniversalOptions{
		Addrs: t.addresses, MasterName: t.master, DB: t.db,
		DialTimeout: dialTimeout, ReadTimeout: callTimeout, WriteTimeout: callTimeout,
		DialerRetries: 1, MaxRetries: 1, // callers have their own patience
		PoolSize: s.PoolSize, ConnMaxLifetime: connectionLife, ContextTimeoutEnabled: s.Deadlines,
		// Hand-overs of a hosted Redis would replace subscriptions without notice.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if o.PoolSize == 0 {
		o.PoolSize = DefaultPoolSize
	}
	if s.Once {
		o.MaxRetries = -1
	} else if t.kind == cluster {
		o.MaxRetries = 0 // a Cluster's retries are redirections
	}
	if s.ClientName != "" {
		// The client's own option would fail on a connection without the permission for CLIENT SETNAME.
		o.OnConnect = func(ctx context.Context, conn *redis.Conn) error {
			err := conn.ClientSetName(ctx, s.ClientName).Err()
			if errors.As(err, new(redis.Error)) {
				return nil
			}
			return err
		}
	}
	if err := s.setCredentials(o, t); err != nil {
		return nil, err
	}
	var config *tls.Config
	if t.tls {
		var err error
		if config, err = s.tlsConfig(); err != nil {
			return nil, err
		}
	}
	o.Dialer = newDialer(config)
	return o, nil
}

// ExecPipeline runs pipe. A key with a wrong type, or a missing key, fails only its own command.
func ExecPipeline(ctx context.Context, pipe redis.Pipeliner) error {
	commands, err := pipe.Exec(ctx)
	for _, c := range commands {
		switch {
		case redis.HasErrorPrefix(c.Err(), "WRONGTYPE"), errors.Is(c.Err(), redis.Nil):
			err = nil
		case c.Err() != nil:
			return c.Err()
		}
	}
	return err
}

// Withheld reports whether err is the server's refusal of the command itself: unknown, or not permitted to the user.
func Withheld(err error) bool {
	return errors.As(err, new(redis.Error)) &&
		(strings.HasPrefix(err.Error(), "NOPERM") || strings.HasPrefix(err.Error(), "ERR "))
}
