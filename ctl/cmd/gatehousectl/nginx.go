package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gatehouse/gatehouse/check/nginxconfig"
	"github.com/gatehouse/gatehouse/internal/yamltext"
	"github.com/gatehouse/gatehouse/nginx"
)

type nginxRenderCmd struct {
	File   string `arg:"" placeholder:"FILE" help:"Rules, YAML or JSON; - is standard input."`
	Output string `placeholder:"FILE" help:"File to create or replace; unchanged if the rules have a mistake. Default: standard output."`
}

// Run writes the rules in the plugin's format, without Redis.
func (cmd *nginxRenderCmd) Run(c *console) error {
	rendered, err := c.renderRules(cmd.File)
	if err != nil {
		return err
	}
	if cmd.Output != "" {
		return writeFile(cmd.Output, rendered, 0o644)
	}
	_, err = c.stdout.Write(rendered)
	return err
}

type nginxInstallCmd struct {
	Dir     string `arg:"" placeholder:"DIR" help:"Directory, created if needed. nginx.conf names it."`
	Library string `placeholder:"FILE" help:"The library of this release. Default: libgatehouse-nginx.so beside gatehousectl, in .. or ../lib/gatehouse."`
	Rules   string `placeholder:"FILE" help:"Rules, YAML or JSON, to write as rules.json beside the plugin."`
}

// Run writes the plugin, and rules.json if the rules have no mistake.
func (cmd *nginxInstallCmd) Run(c *console) error {
	var rendered []byte
	if cmd.Rules != "" {
		var err error
		if rendered, err = c.renderRules(cmd.Rules); err != nil {
			return err
		}
	}
	library, err := readLibrary(cmd.Library)
	if err != nil {
		return err
	}
	if err := installPlugin(cmd.Dir); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(cmd.Dir, libraryName), library, 0o644); err != nil {
		return err
	}
	if rendered == nil {
		return nil
	}
	return writeFile(filepath.Join(cmd.Dir, "rules.json"), rendered, 0o644)
}

const libraryName = "libgatehouse-nginx.so"

// readLibrary reads the library from file or, for "", from the directories of a release.
func readLibrary(file string) ([]byte, error) {
	if file != "" {
		return os.ReadFile(file)
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if program, err = filepath.EvalSymlinks(program); err != nil {
		return nil, err
	}
	dir := filepath.Dir(program)
	for _, place := range []string{".", "..", "../lib/gatehouse"} { // build and archive of a release; deb and image
		text, err := os.ReadFile(filepath.Join(dir, place, libraryName))
		if !errors.Is(err, fs.ErrNotExist) {
			return text, err
		}
	}
	return nil, usagef("no %s beside %s, in .. or ../lib/gatehouse: name it with --library", libraryName, program)
}

// installPlugin writes the plugin's files. Files of another release are overwritten.
func installPlugin(dir string) error {
	return fs.WalkDir(nginx.Plugin, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(path))
		if entry.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		text, err := nginx.Plugin.ReadFile(path)
		if err != nil {
			return err
		}
		return writeFile(to, text, 0o644)
	})
}

// checkSyntax returns the error, with its line, of a file that is not YAML.
func checkSyntax(file string, text []byte) error {
	_, err := yamltext.Parse(text)
	if syntax, is := errors.AsType[*yamltext.SyntaxError](err); is && syntax.Line > 0 {
		return usagef("%s:%d: %w: %s", file, syntax.Line, err, syntax.Fix)
	}
	return nil
}

// renderRules checks a file of rules, and returns the rules in the plugin's format.
func (c *console) renderRules(file string) ([]byte, error) {
	text, err := c.readInput(file, maxConfig, "rules")
	if err != nil {
		return nil, err
	}
	report := nginxconfig.AnalyzeRules(text)
	c.printFindings(file, &report)
	if err := errorsFound(file, &report); err != nil {
		return nil, err
	}
	rendered, n, err := nginx.Render(text)
	if err != nil {
		return nil, usagef("%s: %w", file, err)
	}
	_, err = fmt.Fprintf(c.stderr, "%s: ok, %s\n", file, formatRules(n))
	return rendered, err
}
