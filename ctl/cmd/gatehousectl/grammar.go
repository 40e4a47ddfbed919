package main

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/gatehouse/gatehouse/clients/go/publish"
)

// The grammar has two tags that kong lacks. `variable` lists the environment variables of a flag; the first non-empty
// variable wins, while kong's `env` accepts an empty variable as a value. `example` is a command line.

// groups are the titles of commands in the help.
var groups = []kong.Group{
	{Key: "objects", Title: "Objects:"},
	{Key: "devices", Title: "Devices:"},
	{Key: "operate", Title: "Operation:"},
	{Key: "rules", Title: "Rules and configuration:"},
	{Key: "hooks", Title: "Probes, hooks and init containers:"},
	{Key: "shell", Title: "Shell:"},
}

// newParser returns the parser of c. After printing help, the parser calls exit.
func newParser(c *cli, stdout, stderr io.Writer, env func(string) string, exit func(int)) (*kong.Kong, error) {
	parser, err := kong.New(c,
		kong.Name("gatehousectl"),
		kong.Description("Publish objects and device credentials for Gatehouse, and check its configuration."),
		kong.Writers(stdout, stderr),
		kong.Vars{"cost": strconv.Itoa(publish.DefaultCost)},
		kong.ExplicitGroups(groups),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, FlagsLast: true}),
		kong.ValueFormatter(valueHelp),
		kong.Resolvers(newEnvResolver(env)),
		kong.Exit(exit),
	)
	if err != nil {
		return nil, err
	}
	arrangeHelp(parser.Model.Node)
	parser.Model.Detail = "gatehousectl --version prints the version."
	return parser, nil
}

// arrangeHelp completes the help of a command and its subcommands: lists show the first sentence only, a command's own
// flags precede flags shared by many commands, and only --help-redis shows Redis' flags.
func arrangeHelp(node *kong.Node) {
	help, detail, _ := strings.Cut(node.Help, ". ")
	if detail != "" {
		node.Help, node.Detail = help+".", detail
	}
	if example := node.Tag.Get("example"); example != "" {
		node.Detail = strings.TrimSpace(node.Detail + "\n\nExample:\n\n    " + example)
	}
	for _, flag := range node.Flags {
		switch {
		case isRedisFlag(flag):
			flag.Hidden = true
		case !node.Leaf():
			all := strings.TrimSpace("all " + node.Path())
			flag.Group = &kong.Group{Key: all, Title: "Flags of " + all + " commands:"}
		}
	}
	for _, child := range node.Children {
		arrangeHelp(child)
	}
}

func isRedisFlag(flag *kong.Flag) bool { return flag.Group != nil && flag.Group.Key == "redis" }

// flagVariables are the names of the environment variables of a flag.
func flagVariables(v *kong.Value) []string {
	return strings.FieldsFunc(v.Tag.Get("variable"), func(r rune) bool { return r == ',' })
}

// valueHelp returns the help of a flag or argument, with the names of environment variables.
func valueHelp(v *kong.Value) string {
	names := flagVariables(v)
	if len(names) == 0 {
		return v.Help
	}
	help := v.Help + " Default: $" + strings.Join(names, ", then $")
	if v.HasDefault {
		help += ", then " + v.Default
	}
	return help + "."
}

// newEnvResolver returns a resolver that sets flags from the environment.
func newEnvResolver(env func(string) string) kong.ResolverFunc {
	return func(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
		for _, name := range flagVariables(flag.Value) {
			text := env(name)
			if text == "" {
				continue
			}
			scan := kong.ScanFromTokens(kong.Token{Type: kong.FlagValueToken, Value: text})
			if err := flag.Parse(scan, reflect.New(flag.Target.Type()).Elem()); err != nil {
				return nil, fmt.Errorf("$%s: %w", name, errors.Unwrap(err)) // the caller adds the flag's name
			}
			return text, nil
		}
		return nil, nil
	}
}

// helpRedis is the flag that prints the help of redisFlags.
type helpRedis bool

// BeforeReset prints the help. The parser calls BeforeReset.
func (helpRedis) BeforeReset(ctx *kong.Context) error {
	page := &kong.Node{Help: "Flags of all commands that use Redis. Each has an environment variable, the sidecar's."}
	for _, flag := range ctx.Model.Flags {
		if isRedisFlag(flag) {
			shown := *flag
			shown.Hidden, shown.Group = false, nil
			page.Flags = append(page.Flags, &shown)
		}
	}
	k := *ctx.Kong
	k.Model = &kong.Application{Node: page}
	options := kong.HelpOptions{NoAppSummary: true, ValueFormatter: valueHelp}
	if err := kong.DefaultHelpPrinter(options, &kong.Context{Kong: &k}); err != nil {
		return err
	}
	ctx.Exit(0)
	return nil
}

// exitCodes lists the exit codes of all commands.
var exitCodes = []struct {
	code    int
	meaning string
}{
	{0, "done"},
	{exitRuntime, "failed: Redis, the sidecar or a file can't be used, or some lines of an import are wrong"},
	{exitUsage, "wrong usage or configuration; the same command fails again"},
	{exitNotFound, "no such object or device"},
	{exitWeakened, "check, rehearse: the new rules let in who was kept out"},
}
