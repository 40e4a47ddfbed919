// Gatehouse-publisher writes objects to Redis for HTTP clients with a token. See docs/publish-http.md.
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	// Authorities for Redis over TLS where the system has none, as in an image from scratch.
	_ "golang.org/x/crypto/x509roots/fallback"
	"golang.org/x/sync/errgroup"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/internal/admin"
	"github.com/gatehouse/gatehouse/internal/settings"
	"github.com/gatehouse/gatehouse/internal/version"
	"github.com/gatehouse/gatehouse/publisher/internal/config"
	"github.com/gatehouse/gatehouse/publisher/internal/publisher"
)

const name = "gatehouse-publisher"

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// run is the program, with everything of the process given.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c, err := config.Load(args)
	m := publisher.NewMetrics()
	var teams *publisher.Teams
	var log *slog.Logger
	problems := func() []error {
		found := settings.FindProblems(err, c)
		if len(found) == 0 {
			log, _ = c.Log.NewLogger(stderr)
			if teams, err = publisher.ReadTeams(c.Teams.File, m, log); err != nil {
				found = append(found, fmt.Errorf("teams.file: %w", err))
			}
		}
		return found
	}
	if code, ends := settings.ExitEarly(name, c, config.Usage, problems, stdout, stderr); ends {
		return code
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	log.Info("gatehouse publisher starts", "version", version.Name())
	if err := serveWriters(ctx, c, teams, m, log); err != nil {
		log.Error("gatehouse publisher failed", "error", err)
		return settings.ExitRuntime
	}
	log.Info("gatehouse publisher stopped")
	return settings.ExitOK
}

// serveWriters runs until ctx ends or a part fails.
func serveWriters(ctx context.Context, c *config.Config, teams *publisher.Teams, m *publisher.Metrics,
	log *slog.Logger) error {
	settings.LogRedis(log)
	if os.Getenv("GOGC") == "" { // most memory is tables of encoders, without pointers: a collection costs little
		debug.SetGCPercent(50)
	}
	settings := c.Redis.Settings(name)
	settings.Once = true // clients repeat failed writes themselves
	client, err := settings.Connect()
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	defer client.Close()
	m.Registry.MustRegister(admin.BuildInfo(version.Name()))
	p := publish.New(client, publish.Shards(c.Redis.Shards), publish.Namespace(c.Redis.Namespace))
	listener, err := net.Listen("tcp", c.Listen.Address)
	if err != nil {
		return fmt.Errorf("listen.address: %w", err)
	}
	var certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	if c.Listen.TLSCertFile != "" {
		certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.Listen.TLSCertFile, c.Listen.TLSKeyFile)
			return &pair, err
		}
	}
	ready := func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := p.MayExist(ctx, "/") // also checks the number of shards
		return err
	}
	operator := admin.New(c.Admin.Address, m.Registry, []admin.Check{{Name: "redis", Ready: ready}}, nil, log)
	if err := operator.Listen(); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return teams.Run(ctx) })
	group.Go(func() error { return publisher.New(p, teams, m, log).Serve(ctx, listener, certificate) })
	group.Go(func() error { return operator.Run(ctx) })
	return group.Wait()
}
