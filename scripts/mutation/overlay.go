package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// switches is added to each package that has marks. An environment variable at run time, or find's argument, selects
// the mutant that is on, if any.
const switches = `package %s

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

// find returns the marks of all packages below the current directory, and writes an overlay for go build into dir with
// all of them built in. In it, the mutant on is on; if that is "", GATEHOUSE_MUTANT selects one.
func find(dir, on string) (marks []mark, overlay string, err error) {
	chosen := fmt.Sprintf("os.LookupEnv(%q)", variable)
	if on != "" {
		chosen = fmt.Sprintf("%q, 0", on)
	}
	replace := make(map[string]string)
	add := func(name string, content []byte) error {
		from, err := filepath.Abs(name)
		to, known := replace[from]
		if !known {
			to = filepath.Join(dir, fmt.Sprintf("%d.go", len(replace)))
			replace[from] = to
		}
		return errors.Join(err, os.WriteFile(to, content, 0o600))
	}
	err = filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		src, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(src, []byte(prefix)) {
			return err
		}
		pkg, found, mutated, err := parse(filepath.ToSlash(name), src)
		if err != nil || len(found) == 0 {
			return err
		}
		marks = append(marks, found...)
		return errors.Join(add(name, mutated),
			add(filepath.Join(filepath.Dir(name), "gatehouse_mutants.go"), fmt.Appendf(nil, switches, pkg, chosen)))
	})
	if err != nil {
		return nil, "", err
	}
	content, err := json.Marshal(map[string]any{"Replace": replace})
	overlay = filepath.Join(dir, "overlay.json")
	return marks, overlay, errors.Join(err, os.WriteFile(overlay, content, 0o600))
}
