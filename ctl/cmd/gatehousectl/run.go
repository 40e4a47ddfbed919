package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/internal/version"
)

const (
	exitRuntime  = 1
	exitUsage    = 2
	exitNotFound = 3
	exitWeakened = 4
)

// cli is the grammar. The first sentence of a command's help is for lists.
type cli struct {
	Redis     redisFlags `embed:"" group:"redis"`
	HelpRedis helpRedis  `name:"help-redis" help:"Show the flags that tell which Redis, or set $$GATEHOUSE_REDIS."`

	Put    putCmd    `cmd:"" group:"objects" help:"Publish an object." example:"gatehousectl put /v1/products/42 --file new.json --ttl 10m"`
	Sync   syncCmd   `cmd:"" group:"objects" help:"Publish the files of a directory. Only those that differ from what is there are sent. Exit code 1 if any failed." example:"gatehousectl sync ./public /docs/ --delete"`
	Get    getCmd    `cmd:"" group:"objects" help:"Print a stored object." example:"gatehousectl get /v1/products/42 --head"`
	Delete deleteCmd `cmd:"" group:"objects" help:"Make the edges forget an object." example:"gatehousectl delete /v1/products/42"`
	List   listCmd   `cmd:"" group:"objects" help:"List objects by key." example:"gatehousectl list /v1/products/ --json"`
	Purge  purgeCmd  `cmd:"" group:"objects" help:"Make the edges forget the objects of a tag or a path. What is published afterwards stays." example:"gatehousectl purge --tag product-42"`
	Trim   trimCmd   `cmd:"" group:"objects" help:"Remove what was purged, deleted or expired. These are the log entries of objects and devices deleted over 24 hours ago, purged objects, and objects that expired over 24 hours ago." example:"gatehousectl trim"`

	Device struct {
		Author string `placeholder:"NAME" help:"Who changes devices, for gatehousectl audit. Default: user@host, and the Redis user."`

		Put        devicePutCmd        `cmd:"" help:"Register a device, or replace its record. Ends a revocation." example:"gatehousectl device put truck-7 --generate --permissions telemetry.write > truck-7.secret"`
		Import     deviceImportCmd     `cmd:"" help:"Register the devices of a file. Those that are as it says already stay. Exit code 1 if any failed." example:"gatehousectl device import fleet.csv --generate --secrets fleet.secrets"`
		Rotate     deviceRotateCmd     `cmd:"" help:"Give a device a new secret. The one before counts until the overlap ends." example:"gatehousectl device rotate truck-7 --generate --overlap 24h > truck-7.secret"`
		Set        deviceSetCmd        `cmd:"" help:"Change a device without its secret." example:"gatehousectl device set truck-7 --add config.read --label fleet=us"`
		Get        deviceGetCmd        `cmd:"" help:"Print a device's record." example:"gatehousectl device get truck-7"`
		Revoke     deviceRevokeCmd     `cmd:"" help:"Refuse a device, or all, from now on. Their records stay. device set --no-disabled accepts one again." example:"gatehousectl device revoke truck-7"`
		Invalidate deviceInvalidateCmd `cmd:"" help:"End verdicts of the authority. They are those on a device without a record, with a label, or all." example:"gatehousectl device invalidate --label fleet=eu"`
		Delete     deviceDeleteCmd     `cmd:"" help:"Make the edges forget a device." example:"gatehousectl device delete truck-7"`
		List       deviceListCmd       `cmd:"" help:"List devices. In each shard the oldest write comes first. One that is written meanwhile may come twice." example:"gatehousectl device list --label fleet=eu --not-seen 30d"`
		Export     deviceExportCmd     `cmd:"" help:"Print devices with the hashes of their secrets. Each is a JSON object on a line, as device import reads it." example:"gatehousectl device export > devices.jsonl"`
	} `cmd:"" group:"devices" help:"Manage device credentials."`
	Audit auditCmd `cmd:"" group:"devices" help:"Tell who changed which device and how. The oldest change comes first. Redis keeps some 100,000 of each shard." example:"gatehousectl audit --since 24h --device 'truck-*'"`

	Status     statusCmd     `cmd:"" group:"operate" help:"Tell whether the local sidecar and its edge are well. Also tells what they hold." example:"gatehousectl status"`
	Explain    explainCmd    `cmd:"" group:"operate" help:"Tell what the edge answers to a request, and why." example:"gatehousectl explain http://127.0.0.1:8080/v1/telemetry --method POST --device truck-7"`
	Top        topCmd        `cmd:"" group:"operate" help:"Show what is used and refused most. These are rates by rule, objects and networks." example:"gatehousectl top"`
	Held       heldCmd       `cmd:"" group:"operate" help:"List, or release, who is throttled after wrong secrets. They are networks and devices." example:"gatehousectl held --release 192.0.2.7"`
	Edges      edgesCmd      `cmd:"" group:"operate" help:"List the sidecars that follow this Redis, and their lag." example:"gatehousectl edges"`
	Watch      watchCmd      `cmd:"" group:"operate" help:"Print the events in Redis as they pass." example:"gatehousectl watch --json"`
	Resync     resyncCmd     `cmd:"" group:"operate" help:"Read all from Redis and push it to the edge again. The local sidecar does it." example:"gatehousectl resync"`
	LogLevel   logLevelCmd   `cmd:"" group:"operate" help:"Set the local sidecar's log level until it exits." example:"gatehousectl log-level debug"`
	Snapshot   snapshotCmd   `cmd:"" group:"operate" help:"Write a snapshot, from which sidecars can start. It has objects and purges, and no hash of a device. Redis keeps the SHA-256 of the newest 16." example:"gatehousectl snapshot s3://backups/gatehouse.snapshot"`
	AcceptLoss acceptLossCmd `cmd:"" group:"operate" help:"Make the sidecars believe that an empty Redis lost all. The edges then drop everything, and refuse all devices. Otherwise they keep it until somebody writes." example:"gatehousectl accept-loss"`

	Check    checkCmd    `cmd:"" group:"rules" help:"Check a configuration of Envoy or nginx, offline. Prints mistakes in how Gatehouse is configured there." example:"gatehousectl check envoy.yaml"`
	Rehearse rehearseCmd `cmd:"" group:"rules" help:"Tell which logged requests other rules judge differently. It works offline. Exit code 4 if they let in who was kept out." example:"gatehousectl rehearse --from envoy.yaml --to new.yaml access.log"`
	Schema   schemaCmd   `cmd:"" group:"rules" help:"Print the JSON Schema of the rules, for editors." example:"gatehousectl schema envoy > envoy.schema.json"`
	Envoy    struct {
		Render envoyRenderCmd `cmd:"" help:"Write the files of an Envoy that reloads its rules. Envoy runs with the file envoy.yaml of the directory." example:"gatehousectl envoy render /etc/envoy/envoy.yaml"`
		Reload envoyReloadCmd `cmd:"" help:"Have a running Envoy apply changed rules. Checks them first, and waits until Envoy has applied them. No connection is closed." example:"gatehousectl envoy reload /etc/envoy/envoy.yaml"`
	} `cmd:"" group:"rules" help:"Apply rules in Envoy."`
	Nginx struct {
		Render  nginxRenderCmd  `cmd:"" help:"Write the rules as the NGINX plugin reads them. Checks them first, as Envoy does." example:"gatehousectl nginx render rules.yaml --output rules.json"`
		Install nginxInstallCmd `cmd:"" help:"Write the NGINX plugin of this release into a directory." example:"gatehousectl nginx install /etc/nginx/gatehouse --rules rules.yaml"`
	} `cmd:"" group:"rules" help:"Configure the edge in NGINX."`

	Ready         readyCmd         `cmd:"" group:"hooks" help:"Succeed if the local sidecar, or a URL, is ready. Otherwise print the reasons. For probes." example:"gatehousectl ready"`
	Drain         drainCmd         `cmd:"" group:"hooks" help:"Make the local proxy close its connections. Envoy or nginx closes each with its next answer. For preStop hooks." example:"gatehousectl drain"`
	InstallModule installModuleCmd `cmd:"" group:"hooks" help:"Copy the filter's module into a volume. For init containers." example:"gatehousectl install-module /plugin.wasm /shared/gatehouse.wasm"`

	Completion completionCmd `cmd:"" group:"shell" help:"Print the completion script of a shell." example:"source <(gatehousectl completion bash)"`
	Man        manCmd        `cmd:"" group:"shell" help:"Print the manual page." example:"gatehousectl man | man -l -"`
}

// console has a command's environment: streams, Redis flags, author.
type console struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	redis          *redisFlags
	device         bool   // whether the command changes devices
	author         string // of changes to devices; "": the default
	traceparent    string // of writes, from $TRACEPARENT; "" for none
	dumb           bool   // whether a terminal understands no escape sequences
	model          *kong.Application
}

// jsonFlag is for commands that print data.
type jsonFlag struct {
	JSON bool `name:"json" help:"Print JSON: one object, or of a list one object a line."`
}

// printResult prints v as JSON or, without --json, the formatted text.
func (f *jsonFlag) printResult(c *console, v any, format string, args ...any) error {
	if f.JSON {
		return c.printJSON(v)
	}
	_, err := fmt.Fprintf(c.stdout, format, args...)
	return err
}

// printLines prints the elements of list as JSON lines.
func printLines[T any](c *console, list []T) error {
	lines := json.NewEncoder(c.stdout)
	lines.SetEscapeHTML(false)
	for _, v := range list {
		if err := lines.Encode(v); err != nil {
			return err
		}
	}
	return nil
}

// printJSON prints v, indented.
func (c *console) printJSON(v any) error {
	encoder := json.NewEncoder(c.stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// errUsage marks errors that the caller must correct in the command line or a file.
var errUsage = errors.New("usage")

// usagef returns an error with exit code exitUsage.
func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

type usageError struct{ error }

func (usageError) Is(target error) bool { return target == errUsage }

// run executes the program, prints every error, and returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer, env func(string) string) int {
	if len(args) == 1 && args[0] == "--version" { // not in the grammar: put and delete have a flag --version
		fmt.Fprintln(stdout, "gatehousectl", version.Name())
		return 0
	}
	var c cli
	exited, code := false, 0
	parser, err := newParser(&c, stdout, stderr, env, func(c int) { exited, code = true, c })
	if err != nil {
		fmt.Fprintln(stderr, "gatehousectl:", err)
		return exitRuntime
	}
	if len(args) > 0 && args[0] == completeCommand {
		printCompletions(stdout, parser.Model.Node, args[1:])
		return 0
	}
	command, err := parser.Parse(args)
	if exited {
		return code
	}
	if err != nil {
		about := parser.Model.Name
		if parse, ok := errors.AsType[*kong.ParseError](err); ok && parse.Context != nil && parse.Context.Selected() != nil {
			about = parse.Context.Selected().FullPath()
		}
		fmt.Fprintf(stderr, "gatehousectl: %v\nTry %s --help\n", err, about)
		return exitUsage
	}
	con := &console{stdin: stdin, stdout: stdout, stderr: stderr, redis: &c.Redis, author: c.Device.Author,
		device: strings.HasPrefix(command.Command(), "device "), traceparent: env("TRACEPARENT"),
		dumb: env("TERM") == "dumb", model: parser.Model}
	if err = c.Redis.checkFlags(); err == nil {
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
	fmt.Fprintln(stderr, "gatehousectl:", printableLines(err.Error()))
	return code
}
