package main

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// TestExports builds the module and checks the exports: the proxy calls each known export for every request, and never
// calls a missing export.
func TestExports(t *testing.T) {
	got := exports(t, buildModule(t))
	want := []string{"_initialize", "memory", "proxy_abi_version_0_2_0", "proxy_on_configure",
		"proxy_on_http_call_response", "proxy_on_memory_allocate", "proxy_on_request_body", "proxy_on_request_headers",
		"proxy_on_tick"}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("got exports %q, want %q", got, want)
	}
	got, want = exports(t, buildModule(t, "-tags=plugins")), append(want, "proxy_on_context_create")
	slices.Sort(got)
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("with plugins: got exports %q, want %q", got, want)
	}
}

// buildModule returns the module, built by the script with flags.
func buildModule(t *testing.T, flags ...string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "gatehouse.wasm")
	build := exec.Command("scripts/build-wasm.sh", append([]string{out}, flags...)...)
	build.Dir = ".."
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, text)
	}
	module, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return module
}

// exports returns the names in the export section of a module (WebAssembly core specification, section 5.5.10): section
// id 7, of count × (name, kind, index).
func exports(t *testing.T, module []byte) (names []string) {
	t.Helper()
	number := func(b *[]byte) int {
		n, size := binary.Uvarint(*b)
		if size <= 0 || n > uint64(len(module)) {
			t.Fatal("the module is malformed")
		}
		*b = (*b)[size:]
		return int(n)
	}
	const header, exportSection = 8, 7
	for rest := module[header:]; len(rest) > 0; {
		id := rest[0]
		rest = rest[1:]
		size := number(&rest)
		section := rest[:size]
		rest = rest[size:]
		if id != exportSection {
			continue
		}
		for range number(&section) {
			length := number(&section)
			names = append(names, string(section[:length]))
			section = section[length+1:]
			number(&section)
		}
	}
	return names
}
