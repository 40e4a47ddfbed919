package redisurl

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Replicas finds replicas of the Redis of [Settings].
type Replicas struct {
	settings Settings
	target   target
	address  string // host:port; "": the sentinels name the replicas
}

// FindReplicas returns the replicas of the Redis of s: the replica at address, HOST or HOST:PORT, which has the login,
// TLS and database of the URL; or, if address is "", the replicas that the URL's sentinels name.
func (s Settings) FindReplicas(address string) (*Replicas, error) {
	t, refused := parseURL(s.URL)
	switch {
	case refused != nil:
		return nil, refused
	case t.kind == cluster:
		return nil, errors.New("a Cluster sends events past replication, so its replicas announce writes that they lack: " +
			"want master")
	case address == "" && t.kind != sentinel:
		return nil, errors.New("replica: the url names no sentinels, which know the replicas: want HOST:PORT of a replica")
	case address == "":
		return &Replicas{s, t, ""}, nil
	}
	complete, ok := hostPort(address, redisPort)
	if !ok {
		return nil, fmt.Errorf("%q: want a name or address, [address] for IPv6, and after a : a port of 1 to 65535", address)
	}
	return &Replicas{s, t, complete}, nil
}

// Pick returns a client of a single replica, which the caller closes: all connections of the client are to one address.
// Each call may return another replica.
func (r *Replicas) Pick(ctx context.Context) (*redis.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	settings, one := r.settings, r.target
	one.kind = single
	if r.address == "" {
		address, err := r.askSentinels(ctx)
		if err != nil {
			return nil, err
		}
		one.addresses = []string{address}
	} else {
		host, port, _ := net.SplitHostPort(r.address)
		addresses, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			return nil, fmt.Errorf("find a replica: %w", err)
		}
		one.addresses = []string{net.JoinHostPort(addresses[rand.IntN(len(addresses))], port)}
		if one.tls && settings.TLSServerName == "" {
			settings.TLSServerName = host
		}
	}
	options, err := settings.buildOptions(&one)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(options.Simple()), nil
}

// askSentinels returns the address of one of the replicas that are up, as the first sentinel that answers knows them.
func (r *Replicas) askSentinels(ctx context.Context) (string, error) {
	o, err := r.settings.buildOptions(&r.target)
	if err != nil {
		return "", err
	}
	var failed []error
	for _, i := range rand.Perm(len(o.Addrs)) {
		client := redis.NewSentinelClient(&redis.Options{
			Addr: o.Addrs[i], Username: o.SentinelUsername, Password: o.SentinelPassword, Dialer: o.Dialer,
			DialTimeout: dialTimeout, ReadTimeout: callTimeout, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		replicas, err := client.Replicas(ctx, r.target.master).Result()
		client.Close()
		if err != nil {
			failed = append(failed, fmt.Errorf("sentinel %s: %w", o.Addrs[i], err))
			continue
		}
		var up []string
		for _, replica := range replicas {
			if !strings.Contains(replica["flags"], "down") && !strings.Contains(replica["flags"], "disconnected") &&
				replica["master-link-status"] == "ok" {
				up = append(up, net.JoinHostPort(replica["ip"], replica["port"]))
			}
		}
		if len(up) == 0 {
			return "", fmt.Errorf("the sentinels know %d replicas of %s, and none is up and linked to its master", len(replicas),
				r.target.master)
		}
		return up[rand.IntN(len(up))], nil
	}
	return "", fmt.Errorf("find a replica: %w", errors.Join(failed...))
}
