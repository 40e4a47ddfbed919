package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"

	"github.com/alecthomas/kong"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/sidecar/publish"
)

const (
	exitRuntime = 1
	exitUsage   = 2

	defaultRedis = "redis://127.0.0.1:6379"
)

// cli is the grammar.
type cli struct {
	Redis string `placeholder:"URL" help:"Redis to write to and read from: redis://[user:password@]host:port[/db], rediss:// for TLS, unix://path. Default: $$GATEHOUSE_REDIS, then redis://127.0.0.1:6379."`

	Put    putCmd    `cmd:"" help:"Publish an object."`
	Get    getCmd    `cmd:"" help:"Print an object as it is stored."`
	Delete deleteCmd `cmd:"" help:"Make the edges forget an object."`
	List   listCmd   `cmd:"" help:"List objects by key."`
	Device struct {
		Put    devicePutCmd    `cmd:"" help:"Register a device, or replace its credential; ends a revocation."`
		Revoke deviceRevokeCmd `cmd:"" help:"Refuse a device from now on; its record stays."`
		List   deviceListCmd   `cmd:"" help:"List devices by id."`
	} `cmd:"" help:"Manage device credentials."`
	Check checkCmd `cmd:"" help:"Check the Gatehouse filters of an Envoy configuration, offline."`
}

// console is what commands work with.
type console struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	redisURL       string
}

// errUsage marks what the caller has to write differently.
var errUsage = errors.New("usage")

// usagef is an error whose exit code is that of usage.
func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

type usageError struct{ error }

func (usageError) Is(target error) bool { return target == errUsage }

// run is the program; it prints every error, and gives the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer, env func(string) string) int {
	var c cli
	exited, code := false, 0
	parser, err := kong.New(&c,
		kong.Name("gatehousectl"),
		kong.Description("Publish objects and device credentials for Gatehouse, and check its configuration."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(c int) { exited, code = true, c }), // after --help
	)
	if err != nil {
		fmt.Fprintln(stderr, "gatehousectl:", err)
		return exitRuntime
	}
	command, err := parser.Parse(args)
	if exited {
		return code
	}
	if err != nil {
		fmt.Fprintf(stderr, "gatehousectl: %v\nTry gatehousectl --help\n", err)
		return exitUsage
	}
	con := &console{stdin: stdin, stdout: stdout, stderr: stderr, redisURL: c.Redis}
	if con.redisURL == "" {
		con.redisURL = env("GATEHOUSE_REDIS")
	}
	if con.redisURL == "" {
		con.redisURL = defaultRedis
	}
	err = command.Run(con)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage), errors.Is(err, publish.ErrInvalid):
		code = exitUsage
	default:
		code = exitRuntime
	}
	fmt.Fprintln(stderr, "gatehousectl:", err)
	return code
}

// connect gives command a publisher. An error never has the URL in it, for its password.
func (c *console) connect(command func(context.Context, *publish.Publisher) error) error {
	options, err := redis.ParseURL(c.redisURL)
	if _, malformed := errors.AsType[*url.Error](err); malformed {
		return usagef("--redis, GATEHOUSE_REDIS: not a URL; special characters of a password are written as %%XX")
	} else if err != nil {
		return usagef("--redis, GATEHOUSE_REDIS: %w", err)
	}
	options.MaxRetries = -1 // a write that was applied, but not answered, would meet its own version
	options.DialerRetries = 1
	client := redis.NewClient(options)
	defer client.Close()
	return command(context.Background(), publish.New(client))
}
