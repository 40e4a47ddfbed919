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

	"github.com/gatehouse/gatehouse/check/envoyconfig"
)

// envoyParts names an Envoy configuration and the directory of its rendered parts.
type envoyParts struct {
	File string      `arg:"" placeholder:"FILE" help:"Envoy configuration, YAML or JSON, with the rules in it."`
	Dir  string      `default:"/run/gatehouse/envoy" placeholder:"DIR" help:"Directory of envoy.yaml as Envoy runs it, and of one file for each filter with rules. Default: ${default}."`
	mode fs.FileMode // of File, copied to the parts
}

func (parts *envoyParts) splitConfig(c *console) (*envoyconfig.Split, error) {
	text, err := c.readInput(parts.File, maxConfig, "a configuration")
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

func (parts *envoyParts) bootstrapPath() string {
	return filepath.Join(parts.Dir, envoyconfig.BootstrapFile)
}

type envoyRenderCmd struct {
	envoyParts `embed:""`
}

// Run writes the parts, without Redis. Filters are written before the bootstrap, since Envoy answers 500 without
// filters.
func (cmd *envoyRenderCmd) Run(c *console) error {
	split, err := cmd.splitConfig(c)
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
	return writeFile(cmd.bootstrapPath(), split.Bootstrap, cmd.mode)
}

type envoyReloadCmd struct {
	envoyParts `embed:""`
	Admin      string `default:"127.0.0.1:9901" variable:"GATEHOUSE_EDGE_ADMIN" placeholder:"HOST:PORT" help:"Admin address of Envoy."`
}

// Run checks the configuration, replaces the filters' files that differ, and waits until Envoy has applied the files.
// If Envoy refuses a file, Run restores all files.
func (cmd *envoyReloadCmd) Run(c *console) error {
	checks := *c
	checks.stdout = io.Discard // discards the check's "ok"
	if err := (&checkCmd{File: cmd.File}).Run(&checks); err != nil {
		return err
	}
	split, err := cmd.splitConfig(c)
	if err != nil {
		return err
	}
	running, err := os.ReadFile(cmd.bootstrapPath())
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
	var replaced []replacedFilter
	for _, filter := range split.Filters {
		if err := cmd.applyFilter(c, &filter, &replaced); err != nil {
			return errors.Join(err, cmd.restoreFilters(replaced))
		}
	}
	return nil
}

// replacedFilter is a filter with a replaced file.
type replacedFilter struct {
	name, path string
	text       []byte      // of the file before
	before     filterState // Envoy's state before
}

// restoreFilters writes back the filters' old files, and waits until Envoy has applied the old files.
func (cmd *envoyReloadCmd) restoreFilters(replaced []replacedFilter) (failed error) {
	for _, filter := range replaced {
		failed = errors.Join(failed, writeFile(filter.path, filter.text, cmd.mode))
	}
	begin := time.Now()
	for _, filter := range replaced {
		for {
			now, err := cmd.readFilterState(filter.name)
			if err == nil && now.version == filter.before.version {
				break
			}
			if err != nil || time.Since(begin) > reloadTimeout {
				failed = errors.Join(failed, fmt.Errorf("%s: its file is as before, but Envoy has not applied it after %s",
					filter.name, time.Since(begin).Round(time.Second)), err)
				break
			}
			time.Sleep(reloadPoll)
		}
	}
	return failed
}

// firstDifference returns the first line of next that is missing in running, or differs.
func firstDifference(running, next []byte) string {
	old := strings.Split(string(running), "\n")
	for i, line := range strings.Split(string(next), "\n") {
		if i >= len(old) || old[i] != line {
			return strconv.Quote(strings.TrimSpace(line))
		}
	}
	return "the end"
}

// applyFilter replaces the filter's file if its text differs, appends the filter to replaced, and waits until Envoy has
// applied the file.
func (cmd *envoyReloadCmd) applyFilter(c *console, filter *envoyconfig.Filter, replaced *[]replacedFilter) error {
	before, err := cmd.readFilterState(filter.Name)
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
	*replaced = append(*replaced, replacedFilter{filter.Name, path, old, before})
	for {
		now, err := cmd.readFilterState(filter.Name)
		switch {
		case err != nil:
			return err
		case now.version == filter.Version:
			_, err = fmt.Fprintf(c.stdout, "%s: applied in %d ms\n", filter.Name, time.Since(begin).Milliseconds())
			return err
		case now.rejected > before.rejected:
			return fmt.Errorf("%s: Envoy refuses it and goes on as before; its log tells why", filter.Name)
		case time.Since(begin) > reloadTimeout:
			return fmt.Errorf("%s: Envoy has not applied it after %s: does it run with %s?", filter.Name, reloadTimeout,
				cmd.bootstrapPath())
		}
		time.Sleep(reloadPoll)
	}
}

const (
	reloadTimeout = 30 * time.Second // Envoy compiles the module
	reloadPoll    = 10 * time.Millisecond
)

// filterState is Envoy's state of a filter from extension config discovery.
type filterState struct {
	version  string
	rejected int
}

func (cmd *envoyReloadCmd) readFilterState(filter string) (state filterState, err error) {
	prefix := "extension_config_discovery.http_filter." + filter + "."
	stats, err := fetchBody(http.MethodGet, "http://"+cmd.Admin+"/stats?filter=^extension_config_discovery", nil,
		maxAnswer)
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
