package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// switchSource is added to each package with mutants. An environment variable at run time, or findMutants's argument,
// selects the active mutant, if any.
const switchSource = `package %s

import "os"

var mutant, _ = %s

func mutantOn(id string) bool { return id == mutant }

func mutantOr[T any](id string, was, is T) T {
	if mutantOn(id) {
		return is
	}
	return was
}

var _ = os.LookupEnv
`

const variable = "GATEHOUSE_MUTANT"

// findMutants returns the mutants of all packages below the current directory, and writes an overlay for go build into
// dir, with all mutants built in. The mutant on is active; if on is "", GATEHOUSE_MUTANT selects the active mutant.
func findMutants(dir, on string) (mutants []mutant, overlay string, err error) {
	chosen := fmt.Sprintf("os.LookupEnv(%q)", variable)
	if on != "" {
		chosen = fmt.Sprintf("%q, 0", on)
	}
	replace := make(map[string]string)
	add := func(name string, content []byte) error {
		from, err := filepath.Abs(name)
		to := filepath.Join(dir, fmt.Sprintf("%d.go", len(replace)))
		replace[from] = to
		return errors.Join(err, os.WriteFile(to, content, 0o600))
	}
	err = filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir() || d.Name() != listName:
			return nil
		}
		list, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		found, err := parseList(filepath.ToSlash(name), string(list))
		if err != nil {
			return err
		}
		sources, err := readSources(filepath.Dir(name))
		if err != nil {
			return err
		}
		pkg, mutated, err := buildMutants(sources, found)
		if err != nil {
			return err
		}
		mutants = append(mutants, found...)
		for source, content := range mutated {
			err = errors.Join(err, add(source, content))
		}
		return errors.Join(err, add(filepath.Join(filepath.Dir(name), "gatehouse_mutants.go"),
			fmt.Appendf(nil, switchSource, pkg, chosen)))
	})
	if err != nil {
		return nil, "", err
	}
	content, err := json.Marshal(map[string]any{"Replace": replace})
	overlay = filepath.Join(dir, "overlay.json")
	return mutants, overlay, errors.Join(err, os.WriteFile(overlay, content, 0o600))
}

// readSources returns the Go files of a directory without tests, by name.
func readSources(dir string) (map[string][]byte, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	sources := make(map[string][]byte)
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			content, e := os.ReadFile(name)
			sources[filepath.ToSlash(name)], err = content, errors.Join(err, e)
		}
	}
	return sources, err
}
