// Package redisurl parses the URL and settings of a Redis, and connects to it. All programs of Gatehouse use it.
//
//	redis://[user:password@]host[:6379][/db]                          one server
//	unix://[user:password@]/path[?db=N]                               one server, by its socket
//	redis+sentinel://[user:password@]host[:26379],host,…/MASTER[/db]  the master that these sentinels name
//	redis+cluster://[user:password@]host[:6379],host,…                a Cluster, found through any of its servers
//
// rediss://, rediss+sentinel:// and rediss+cluster:// are the same over TLS. User and
// password are those of the servers, in percent-encoding. No replica is ever read.
package redisurl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// DefaultPoolSize is the most connections to one server that wait for an answer.
	// Subscriptions have connections of their own.
	DefaultPoolSize = 16
	// MaxPoolSize bounds what can be asked for.
	MaxPoolSize = 1024

	dialTimeout = 2 * time.Second
	callTimeout = 5 * time.Second
	// connectionLife is after how long a connection is made anew, so that a name that has
	// moved to another server and a password that has changed are followed.
	connectionLife = 15 * time.Second
	// topologyLife is how old the known masters of a Cluster may be when one is used. The
	// client looks for another only when it is told so by the old one, which may be dead.
	topologyLife = time.Second
)

// Settings are a URL and what is better not, or can't be, in it. Only URL is required.
type Settings struct {
	// URL is of one of the forms above.
	URL string
	// Username and PasswordFile are for the servers, instead of those in the URL. The file
	// is read whenever a connection is made, so that a password can be changed.
	Username, PasswordFile string
	// SentinelUsername and SentinelPasswordFile are for the sentinels. The file is read once.
	SentinelUsername, SentinelPasswordFile string
	// TLSCAFile has the certificates, PEM, that servers are verified by, instead of the system's.
	TLSCAFile string
	// TLSCertFile and TLSKeyFile are shown to servers that ask. They are read at each connection.
	TLSCertFile, TLSKeyFile string
	// TLSServerName is what a server's certificate must be for, instead of its host.
	TLSServerName string
	// PoolSize is the most connections to a server, 0 for [DefaultPoolSize].
	PoolSize int
	// ClientName is shown by CLIENT LIST, where the server permits to set it.
	ClientName string
	// Once sends no command again after an error: what became of a write must be known, or
	// known to be unknown. Redirections of a Cluster are followed, and there the client sends
	// what isn't marked otherwise (package publish does that) again.
	Once bool
	// Deadlines makes the deadline of a call's context end it while it waits for the server;
	// else the call ends by the limits of this package.
	Deadlines bool
}

// Error is what is wrong with a setting. It never has a password in it, nor any part of
// a URL, which could be one.
type Error struct {
	// Setting is "url", "username", "password_file", and so on.
	Setting string
	text    string
}

// Error says what is wrong, without the setting's name: programs have their own.
func (e *Error) Error() string { return e.text }

func refuse(setting, format string, args ...any) *Error {
	return &Error{Setting: setting, text: fmt.Sprintf(format, args...)}
}

// Connect is a client for a URL alone; it connects when it is used.
func Connect(url string) (redis.UniversalClient, error) {
	client, err := Settings{URL: url}.Connect()
	if err != nil {
		return nil, fmt.Errorf("redis url: %w", err)
	}
	return client, nil
}

// Check lists all that is wrong.
func (s Settings) Check() []*Error {
	t, refused := parse(s.URL)
	if refused != nil {
		return []*Error{refused} // the rest depends on it
	}
	errs := append(s.checkCredentials(&t), s.checkTLS(&t)...)
	if s.PoolSize < 0 || s.PoolSize > MaxPoolSize {
		errs = append(errs, refuse("pool_size", "%d is out of 1 to %d", s.PoolSize, MaxPoolSize))
	}
	return errs
}

// Connect is a client; it connects when it is used. It has been checked, and the files
// have been read, but for those that are read again.
func (s Settings) Connect() (redis.UniversalClient, error) {
	var errs []error
	for _, err := range s.Check() {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	t, _ := parse(s.URL)
	options, err := s.options(&t)
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

func (s Settings) options(t *target) (*redis.UniversalOptions, error) {
	o := &redis.UniversalOptions{
		Addrs: t.addresses, MasterName: t.master, DB: t.db,
		DialTimeout: dialTimeout, ReadTimeout: callTimeout, WriteTimeout: callTimeout,
		DialerRetries: 1, MaxRetries: 1, // callers have their own patience
		PoolSize: s.PoolSize, ConnMaxLifetime: connectionLife, ContextTimeoutEnabled: s.Deadlines,
		// Hand-overs of a hosted Redis would make subscriptions anew behind our back.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if o.PoolSize == 0 {
		o.PoolSize = DefaultPoolSize
	}
	if s.Once {
		o.MaxRetries = -1
	} else if t.kind == cluster {
		o.MaxRetries = 0 // redirections do it
	}
	if s.ClientName != "" {
		// The client's own option would refuse a connection that may not set its name.
		o.OnConnect = func(ctx context.Context, conn *redis.Conn) error {
			err := conn.ClientSetName(ctx, s.ClientName).Err()
			if _, refused := errors.AsType[redis.Error](err); refused {
				return nil
			}
			return err
		}
	}
	if err := s.credentials(o, t); err != nil {
		return nil, err
	}
	if !t.tls {
		return o, nil
	}
	var err error
	o.TLSConfig, err = s.tlsConfig()
	return o, err
}
