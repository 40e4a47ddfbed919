package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/internal/envoyconfig"
)

// envoyParts is a configuration of Envoy, and the directory of its parts.
type envoyParts struct {
	File string `arg:"" placeholder:"FILE" help:"Envoy configuration, YAML or JSON, with the rules in it."`
	Dir  string `default:"/run/gatehouse/envoy" placeholder:"DIR" help:"Directory of envoy.yaml as Envoy runs it, and of one file for each filter with rules. Default: ${default}."`
	mode fs.FileMode // of File, which its parts get
}

func (parts *envoyParts) split(c *console) (*envoyconfig.Split, error) {
	text, err := c.read(parts.File, maxConfig, "a configuration")
	if err != nil {
		return nil, err
	}
	parts.mode = 0o600
	if parts.File != "-" {
		info, err := os.Stat(parts.File)
		if err != nil {
			return nil, err
		}
		parts.mode = info.Mode().Perm()
	}
	dir, err := filepath.Abs(parts.Dir)
	if err != nil {
		return nil, err
	}
	split, err := envoyconfig.SplitFilters(text, dir)
	if err != nil {
		return nil, usagef("%s: %w", parts.File, err)
	}
	return split, nil
}

func (parts *envoyParts) bootstrap() string {
	return filepath.Join(parts.Dir, envoyconfig.BootstrapFile)
}

type envoyRenderCmd struct {
	envoyParts `embed:""`
}

// Run writes the parts; it needs no Redis. The filters come first, since Envoy answers 500 without them.
func (cmd *envoyRenderCmd) Run(c *console) error {
	split, err := cmd.split(c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cmd.Dir, 0o700); err != nil {
		return err
	}
	for _, filter := range split.Filters {
		if err := writeFile(filepath.Join(cmd.Dir, filter.File()), filter.Text, cmd.mode); err != nil {
			return err
		}
	}
	return writeFile(cmd.bootstrap(), split.Bootstrap, cmd.mode)
}

type envoyReloadCmd struct {
	envoyParts `embed:""`
	Admin      string `default:"127.0.0.1:9901" variable:"GATEHOUSE_EDGE_ADMIN" placeholder:"HOST:PORT" help:"Admin address of Envoy."`
}

// Run checks the configuration, replaces the filters' files that differ, and waits until Envoy has applied them. If
// Envoy refuses one, its file is again as before.
func (cmd *envoyReloadCmd) Run(c *console) error {
	checks := *c
	checks.stdout = io.Discard // it says that all is well
	if err := (&checkCmd{File: cmd.File}).Run(&checks); err != nil {
		return err
	}
	split, err := cmd.split(c)
	if err != nil {
		return err
	}
	running, err := os.ReadFile(cmd.bootstrap())
	if errors.Is(err, fs.ErrNotExist) {
		return usagef("%w: let Envoy start with what gatehousectl envoy render writes", err)
	}
	if err != nil {
		return err
	}
	if !bytes.Equal(running, split.Bootstrap) {
		return usagef("%s: nothing is applied: other parts than the rules differ from what Envoy started with, first %s; "+
			"restart Envoy", cmd.File, firstDifference(running, split.Bootstrap))
	}
	for _, filter := range split.Filters {
		if err := cmd.apply(c, &filter); err != nil {
			return err
		}
	}
	return nil
}

// firstDifference returns the first line of next that differs, or is missing, in running.
func firstDifference(running, next []byte) string {
	old := strings.Split(string(running), "\n")
	for i, line := range strings.Split(string(next), "\n") {
		if i >= len(old) || old[i] != line {
			return strconv.Quote(strings.TrimSpace(line))
		}
	}
	return "the end"
}

func (cmd *envoyReloadCmd) apply(c *console, filter *envoyconfig.Filter) error {
	before, err := cmd.state(filter.Name)
	if err != nil {
		return fmt.Errorf("%w\nSay where Envoy's admin is by --admin or $GATEHOUSE_EDGE_ADMIN", err)
	}
	path := filepath.Join(cmd.Dir, filter.File())
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if before.version == filter.Version && bytes.Equal(old, filter.Text) {
		_, err = fmt.Fprintf(c.stdout, "%s: unchanged\n", filter.Name)
		return err
	}
	begin := time.Now()
	if err := writeFile(path, filter.Text, cmd.mode); err != nil {
		return err
	}
	for {
		now, err := cmd.state(filter.Name)
		switch {
		case err != nil:
			return err
		case now.version == filter.Version:
			_, err = fmt.Fprintf(c.stdout, "%s: applied in %d ms\n", filter.Name, time.Since(begin).Milliseconds())
			return err
		case now.rejected > before.rejected:
			return errors.Join(fmt.Errorf("%s: Envoy refuses it and goes on as before; its log tells why", filter.Name),
				writeFile(path, old, cmd.mode))
		case time.Since(begin) > reloadTimeout:
			return errors.Join(fmt.Errorf("%s: Envoy has not applied it after %s: does it run with %s?", filter.Name,
				reloadTimeout, cmd.bootstrap()), writeFile(path, old, cmd.mode))
		}
		time.Sleep(reloadPoll)
	}
}

const (
	reloadTimeout = 30 * time.Second // Envoy compiles the module
	reloadPoll    = 10 * time.Millisecond
)

// discovery is what Envoy tells of a filter that it discovers.
type discovery struct {
	version  string
	rejected int
}

func (cmd *envoyReloadCmd) state(filter string) (state discovery, err error) {
	prefix := "extension_config_discovery.http_filter." + filter + "."
	stats, err := fetch(http.MethodGet, "http://"+cmd.Admin+"/stats?filter=^extension_config_discovery", nil, maxAnswer)
	if err != nil {
		return state, err
	}
	for line := range strings.Lines(string(stats)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch name {
		case prefix + "version_text":
			state.version = strings.Trim(value, `"`)
		case prefix + "update_rejected":
			if state.rejected, err = strconv.Atoi(value); err != nil {
				return state, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return state, nil
}
