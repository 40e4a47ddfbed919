// Package settings reads the configuration of a program: flags override the environment, which overrides the YAML file,
// which overrides the defaults. A flag --a.b-c is GATEHOUSE_A_B_C in the environment and a: {b_c: …} in the file.
package settings

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/gatehouse/gatehouse/internal/spelling"
	"github.com/gatehouse/gatehouse/internal/version"
)

// Load reads the flags in args, the environment, and the file named by them, into c. The error has only the problems of
// the file: values are validated later, so that all problems can be listed together. The configuration is nil if the
// flags can't be parsed.
func Load[T any, C interface {
	*T
	programFlags() *Program
}](c C, about About, args []string) (C, error) {
	k, err := about.newParser(c)
	if err != nil {
		return nil, err
	}
	args = joinNegative(args)
	flags, err := k.Parse(args)
	if err != nil {
		return nil, fmt.Errorf("%w; --help lists the flags", err)
	}
	p := c.programFlags()
	if p.File == "" || p.Help || p.Version {
		return c, nil
	}
	source, err := os.ReadFile(p.File)
	if err != nil {
		return c, fmt.Errorf("--config: %w", err)
	}
	return c, mergeFile(p.File, flags, source)
}

// Program has the flags of every program; they are no settings.
type Program struct {
	File    string `name:"config" placeholder:"FILE" env:"GATEHOUSE_CONFIG" help:"YAML file with these settings."`
	Check   bool   `name:"check-config" help:"Check the configuration and exit: 0 if it is good, 2 if not."`
	Version bool   `help:"Print the version and exit."`
	Help    bool   `short:"h" help:"Print this and exit."`
}

func (p *Program) programFlags() *Program { return p }

// joinNegative converts "--flag", "-1" to "--flag=-1", because the parser would take "-1" for a flag and report only an
// unknown flag.
func joinNegative(args []string) []string {
	var joined []string
	for _, arg := range args {
		last := len(joined) - 1
		if isNegative(arg) && last >= 0 && strings.HasPrefix(joined[last], "--") && !strings.Contains(joined[last], "=") {
			joined[last] += "=" + arg
			continue
		}
		joined = append(joined, arg)
	}
	return joined
}

func isNegative(arg string) bool {
	return len(arg) > 1 && arg[0] == '-' && '0' <= arg[1] && arg[1] <= '9'
}

// PrintUsage writes the list of the flags of c.
func (a About) PrintUsage(w io.Writer, c any) error {
	k, err := a.newParser(c)
	if err != nil {
		return err
	}
	k.Stdout = w
	ctx, err := kong.Trace(k, nil)
	if err != nil {
		return err
	}
	return ctx.PrintUsage(false)
}

// About is a program's name and description.
type About struct{ Name, Does string }

func (a About) newParser(c any) (*kong.Kong, error) {
	return kong.New(c, kong.Name(a.Name), kong.Description(a.Does), kong.NoDefaultHelp())
}

// mergeFile applies the file's values of settings that neither a flag nor the environment sets.
func mergeFile(name string, flags *kong.Context, source []byte) error {
	settings, errs := parseYAML(name, source)
	given := make(map[*kong.Flag]bool)
	for _, path := range flags.Path {
		if path.Flag != nil {
			given[path.Flag] = true
		}
	}
	known := make(map[string]*kong.Flag)
	for _, flag := range flags.Model.Flags {
		if strings.Contains(flag.Name, ".") {
			known[strings.ReplaceAll(flag.Name, "-", "_")] = flag
		}
	}
	for _, s := range settings {
		flag := known[s.path]
		if flag == nil {
			errs = append(errs, fmt.Errorf("%s:%d: %s: unknown setting%s", name, s.line, s.path,
				suggestSetting(s.path, slices.Sorted(maps.Keys(known)))))
			continue
		}
		// The value is checked even if overridden.
		value := reflect.New(flag.Target.Type()).Elem()
		scan := kong.Scan().PushTyped(s.value, kong.FlagValueToken)
		if err := flag.Mapper.Decode(&kong.DecodeContext{Value: flag.Value, Scan: scan}, value); err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %s: %w", name, s.line, s.path, err))
			continue
		}
		if !given[flag] && !inEnvironment(flag) {
			flag.Target.Set(value)
		}
	}
	return errors.Join(errs...)
}

// suggestSetting returns the question whether another name was meant, "" if no name is near.
func suggestSetting(path string, known []string) string {
	near := spelling.Nearest(path, known)
	for _, name := range known {
		if strings.HasPrefix(name, path+"_") {
			near = name
		}
	}
	if near == "" {
		return ""
	}
	return ", did you mean " + near + "?"
}

func inEnvironment(flag *kong.Flag) bool {
	for _, name := range flag.Envs {
		if _, found := os.LookupEnv(name); found {
			return true
		}
	}
	return false
}

// Exit codes of the programs.
const (
	ExitOK = iota
	ExitRuntime
	ExitUsage
)

// ExitEarly reports whether a program ends before running, and the exit code: on --help, --version and --check-config,
// or if the configuration has problems. ExitEarly prints the answer. c is nil if the flags can't be parsed.
func ExitEarly[T any, C interface {
	*T
	programFlags() *Program
}](
	name string, c C, usage func(io.Writer) error, problems func() []error, stdout, stderr io.Writer,
) (code int, ends bool) {
	var p Program
	if c != nil {
		p = *c.programFlags()
	}
	switch {
	case p.Help:
		if err := usage(stdout); err != nil {
			fmt.Fprintln(stderr, err)
			return ExitRuntime, true
		}
		return ExitOK, true
	case p.Version:
		fmt.Fprintln(stdout, name, version.Name())
		return ExitOK, true
	}
	found := problems()
	for _, problem := range found {
		fmt.Fprintln(stderr, name+":", problem)
	}
	switch {
	case len(found) > 0:
		return ExitUsage, true
	case p.Check:
		fmt.Fprintln(stdout, "ok")
		return ExitOK, true
	}
	return ExitOK, false
}

// FindProblems returns the errors of Load, if any, and all errors of the values.
func FindProblems[T any, C interface {
	*T
	CheckValues() error
}](loading error, c C) []error {
	if c == nil {
		return splitErrors(loading)
	}
	return append(splitErrors(loading), splitErrors(c.CheckValues())...)
}

func splitErrors(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // from errors.Join
		return joined.Unwrap()
	}
	return []error{err}
}
