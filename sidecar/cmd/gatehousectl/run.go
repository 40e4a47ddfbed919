package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/version"
	"github.com/gatehouse/gatehouse/sidecar/publish"
)

const (
	exitRuntime  = 1
	exitUsage    = 2
	exitNotFound = 3
	exitWeakened = 4
)

// cli is the grammar.
type cli struct {
	Redis redisFlags `embed:""`

	Put    putCmd    `cmd:"" help:"Publish an object."`
	Sync   syncCmd   `cmd:"" help:"Publish the files of a directory: those that differ from what is there. Exit code 1 if any failed."`
	Get    getCmd    `cmd:"" help:"Print a stored object."`
	Delete deleteCmd `cmd:"" help:"Make the edges forget an object."`
	List   listCmd   `cmd:"" help:"List objects by key."`
	Purge  purgeCmd  `cmd:"" help:"Make the edges forget all objects with a tag, or below a path. What is published afterwards stays."`
	Device struct {
		Author string `placeholder:"NAME" help:"Who changes devices, for gatehousectl audit. Default: user@host, and the Redis user."`

		Put        devicePutCmd        `cmd:"" help:"Register a device, or replace its record. Ends a revocation."`
		Import     deviceImportCmd     `cmd:"" help:"Register the devices of a file. Those that are as it says already stay. Exit code 1 if any failed."`
		Rotate     deviceRotateCmd     `cmd:"" help:"Give a device a new secret; the one before counts until the overlap ends."`
		Set        deviceSetCmd        `cmd:"" help:"Change a device without its secret."`
		Get        deviceGetCmd        `cmd:"" help:"Print a device's record."`
		Revoke     deviceRevokeCmd     `cmd:"" help:"Refuse a device, or all, from now on; their records stay. device set --no-disabled accepts one again."`
		Invalidate deviceInvalidateCmd `cmd:"" help:"End verdicts of the authority, on a device without a record, or on all."`
		Delete     deviceDeleteCmd     `cmd:"" help:"Make the edges forget a device."`
		List       deviceListCmd       `cmd:"" help:"List devices, in each shard the oldest write first. One that is written meanwhile may come twice."`
		Export     deviceExportCmd     `cmd:"" help:"Print devices with the hashes of their secrets, one JSON object a line."`
	} `cmd:"" help:"Manage device credentials."`
	AcceptLoss acceptLossCmd `cmd:"" help:"Make the sidecars believe that an empty Redis has lost everything: the edges drop it, and refuse all devices. Otherwise they keep it until somebody writes."`

	Audit auditCmd `cmd:"" help:"Tell who changed which device and how, the oldest change first. Redis keeps some 100,000 of each shard."`

	Trim trimCmd `cmd:"" help:"Remove the log entries of objects and devices deleted over 24 hours ago, and delete objects that were purged, or expired over 24 hours ago."`

	Check checkCmd `cmd:"" help:"Check Gatehouse in a configuration of Envoy or nginx, offline."`

	Schema schemaCmd `cmd:"" help:"Print the JSON Schema of the rules, for editors."`

	Rehearse rehearseCmd `cmd:"" help:"Tell which requests of access logs other rules would judge differently, offline. Exit code 4 if they let in who was kept out."`

	Nginx struct {
		Render  nginxRenderCmd  `cmd:"" help:"Write the rules as the NGINX plugin reads them, after checking them as Envoy does."`
		Install nginxInstallCmd `cmd:"" help:"Write the NGINX plugin of this release into a directory."`
	} `cmd:"" help:"Configure the edge in NGINX."`

	Status  statusCmd  `cmd:"" help:"Tell whether the local sidecar and its edge are well, and what they hold."`
	Explain explainCmd `cmd:"" help:"Tell what the edge answers to a request, and why."`
	Held    heldCmd    `cmd:"" help:"List networks and devices that are throttled after wrong secrets, or release one."`
	Resync  resyncCmd  `cmd:"" help:"Make the local sidecar read everything from Redis and push everything to its edge again."`
	Top     topCmd     `cmd:"" help:"Show rates by rule, the objects used most and the networks refused most."`
	Edges   edgesCmd   `cmd:"" help:"List the sidecars that follow this Redis, and how far they are behind."`
	Watch   watchCmd   `cmd:"" help:"Print the events in Redis as they pass."`

	LogLevel logLevelCmd `cmd:"" help:"Set the local sidecar's log level until it exits."`

	Ready readyCmd `cmd:"" help:"Succeed if the local sidecar, or a URL, is ready; otherwise print the reasons. For probes."`
	Drain drainCmd `cmd:"" help:"Make the local Envoy or nginx close each connection with its next answer. For preStop hooks."`

	InstallModule installModuleCmd `cmd:"" help:"Copy the filter's module into a volume. For init containers."`
}

// console is what commands work with.
type console struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	redis          *redisFlags
	device         bool   // the command is one for devices
	author         string // of its changes; "": the default
	traceparent    string // of writes, from $TRACEPARENT; "" for none
}

// printJSON prints v, indented.
func (c *console) printJSON(v any) error {
	encoder := json.NewEncoder(c.stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
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
	if len(args) == 1 && args[0] == "--version" { // no flag of the grammar: put and delete have one of this name
		fmt.Fprintln(stdout, "gatehousectl", version.Name())
		return 0
	}
	var c cli
	exited, code := false, 0
	parser, err := kong.New(&c,
		kong.Name("gatehousectl"),
		kong.Description("Publish objects and device credentials for Gatehouse, and check its configuration."),
		kong.Writers(stdout, stderr),
		kong.Vars{"cost": strconv.Itoa(publish.DefaultCost)},
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
	con := &console{stdin: stdin, stdout: stdout, stderr: stderr, redis: &c.Redis, author: c.Device.Author,
		device: strings.HasPrefix(command.Command(), "device "), traceparent: env("TRACEPARENT")}
	if err = c.Redis.complete(env); err == nil {
		err = command.Run(con)
	}
	_, shards := errors.AsType[*contract.ShardsError](err)
	switch {
	case err == nil:
		return 0
	case shards, errors.Is(err, errUsage), errors.Is(err, publish.ErrInvalid):
		code = exitUsage
	case errors.Is(err, publish.ErrNotFound):
		code = exitNotFound
	case errors.Is(err, errWeakened):
		code = exitWeakened
	default:
		code = exitRuntime
	}
	fmt.Fprintln(stderr, "gatehousectl:", err)
	return code
}
