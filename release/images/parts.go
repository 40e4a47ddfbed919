package main

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// target is a Go program and a platform.
type target struct {
	goos, goarch string // goarch "": the image's
	dir          string // of the package, from the repository's root
	tags         string // of the build; builds of the dynamic module need cgo
}

// requiredClient matches the line of go.mod that requires the Go client.
var requiredClient = regexp.MustCompile(`(\S+/clients/go) (v\S+)`)

// goParts returns the modules of the packages in the programs, and Go's standard library, from the go command: a Wasm
// module has no readable build information. In the workspace the Go client has no version: go.mod has the version that
// is released with the programs.
func goParts(targets ...target) func(string, string) ([]part, error) {
	return func(_, arch string) ([]part, error) {
		file, err := os.ReadFile("../go.mod")
		if err != nil {
			return nil, err
		}
		client := requiredClient.FindStringSubmatch(string(file))
		if client == nil {
			return nil, fmt.Errorf("go.mod: want a line that matches %s", requiredClient)
		}
		parts := []part{{"stdlib", strings.TrimPrefix(runtime.Version(), "go"), "pkg:golang/stdlib@" +
			strings.TrimPrefix(runtime.Version(), "go")}}
		for _, t := range targets {
			const format = `{{with .Module}}{{.Path}} {{.Version}}{{end}}`
			cmd := exec.Command("go", "list", "-C", "..", "-deps", "-f", format, "-tags", t.tags, t.dir)
			cgo := "0"
			if t.tags != "" {
				cgo = "1"
			}
			cmd.Env = append(cmd.Environ(), "CGO_ENABLED="+cgo, "GOOS="+t.goos, "GOARCH="+cmp.Or(t.goarch, arch))
			out, err := cmd.Output()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", cmd, err)
			}
			for line := range strings.Lines(string(out)) {
				module, version, _ := strings.Cut(strings.TrimSpace(line), " ")
				if module == client[1] {
					version = client[2]
				}
				if version != "" { // the programs' own module has none
					parts = append(parts, part{module, version, "pkg:golang/" + module + "@" + version})
				}
			}
		}
		return sortParts(parts), nil
	}
}

var envoyVersion = regexp.MustCompile(`version: ([0-9a-f]+)/([0-9.]+)/`)

// envoyParts returns Envoy and the C library in its image.
func envoyParts(root, _ string) ([]part, error) {
	out, err := exec.Command(filepath.Join(root, "usr/local/bin/envoy"), "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("envoy --version: %w", err)
	}
	found := envoyVersion.FindSubmatch(out)
	if found == nil {
		return nil, fmt.Errorf("envoy --version: want COMMIT/VERSION/ in %q", out)
	}
	version := string(found[2])
	out, err = exec.Command("getconf", "GNU_LIBC_VERSION").Output() // "glibc 2.36"
	if err != nil {
		return nil, fmt.Errorf("getconf GNU_LIBC_VERSION: %w; the image has the C library of this machine", err)
	}
	_, libc, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	return []part{
		{"envoy", version, "pkg:github/envoyproxy/envoy@v" + version},
		{"glibc", libc, "pkg:generic/glibc@" + libc},
	}, nil
}

// nginxParts returns the distribution's packages that own the image's files.
func nginxParts(root, _ string) ([]part, error) {
	var patterns []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		inside := strings.TrimPrefix(path, root)
		if err == nil && !entry.IsDir() && !strings.HasPrefix(inside, "/etc/") { // files in /etc are ours
			patterns = append(patterns, "*"+inside) // /lib is a link to /usr/lib
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	out, err := exec.Command("dpkg-query", append([]string{"--search"}, patterns...)...).Output()
	if err != nil {
		return nil,
			fmt.Errorf(
				"dpkg-query --search: %w; the image has the nginx of this machine, which must be of Debian's packages", err)
	}
	query := []string{"--show", "--showformat", "${Package} ${Version}\n"}
	for line := range strings.Lines(string(out)) { // "libc6:amd64: /lib/…"
		if name, _, found := strings.Cut(line, ": "); found && !slices.Contains(query, name) {
			query = append(query, name)
		}
	}
	if out, err = exec.Command("dpkg-query", query...).Output(); err != nil {
		return nil, fmt.Errorf("dpkg-query --show: %w", err)
	}
	var parts []part
	for line := range strings.Lines(string(out)) {
		name, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		parts = append(parts, part{name, version, "pkg:deb/debian/" + name + "@" + version})
	}
	return sortParts(parts), nil
}
