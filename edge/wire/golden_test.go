package wire

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

var update = flag.Bool("update", false, "write testdata/*.golden anew from the codec")

// A field is a stretch of a sample, named as in the layout tables of the package comment. The widths are in the tests,
// and not taken from the codec, so that a codec that moves a byte differs from them.
type field struct {
	name string
	size int
}

// zero is the name of reserved bytes: written as zeroes, ignored by readers.
const zero = "zero"

// dump returns b in readable form, a field per line: offset, bytes, name. Fields longer than 16 bytes continue in lines
// without a name; text is shown beside them.
func dump(t *testing.T, about string, b []byte, fields []field) string {
	t.Helper()
	var s strings.Builder
	fmt.Fprintf(&s, "# %s\n# offset  bytes                                            field\n", about)
	at := 0
	for _, f := range fields {
		if at+f.size > len(b) {
			t.Fatalf("%s: got %d bytes, want field %q at %d to %d", about, len(b), f.name, at, at+f.size)
		}
		for line := 0; line < f.size; line += 16 {
			chunk := b[at+line : at+min(line+16, f.size)]
			note := f.name
			if line > 0 {
				note = ""
			}
			if strings.HasPrefix(f.name, "text ") {
				note = strings.TrimSpace(strings.TrimPrefix(note, "text ") + fmt.Sprintf(" %q", chunk))
			}
			fmt.Fprintf(&s, "%08x  %-47x  %s\n", at+line, spaced(chunk), note)
		}
		at += f.size
	}
	if at != len(b) {
		t.Fatalf("%s: got %d bytes, want the %d that its fields name", about, len(b), at)
	}
	return s.String()
}

// spaced prints as bytes with a space between each under the verb %x.
type spaced []byte

// Format writes the bytes; the width of the verb pads them on the right.
func (b spaced) Format(s fmt.State, _ rune) {
	width, _ := s.Width()
	fmt.Fprintf(s, "%-*s", width, fmt.Sprintf("% x", []byte(b)))
}

// undump is the inverse of dump.
func undump(text string) ([]byte, error) {
	var b []byte
	for n, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		columns := strings.SplitN(line, "  ", 3)
		if len(columns) < 2 || columns[0] != fmt.Sprintf("%08x", len(b)) {
			return nil, fmt.Errorf("line %d: got %q, want offset %08x", n+1, line, len(b))
		}
		chunk, err := hex.DecodeString(strings.ReplaceAll(columns[1], " ", ""))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}
		b = append(b, chunk...)
	}
	return b, nil
}

// golden compares text with testdata/name.golden, or writes it under -update.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; write it with: go test ./edge/wire -update", err)
	}
	if text == string(want) {
		return
	}
	got, lines := strings.Split(text, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(got), len(lines)) {
		if i >= len(got) || i >= len(lines) || got[i] != lines[i] {
			t.Fatalf("%s, line %d:\ngot  %s\nwant %s\nThe bytes are a contract: if the change is meant, raise Layout and run "+
				"go test ./edge/wire -update",
				path, i+1, strings.Join(got[i:min(i+1, len(got))], ""), strings.Join(lines[i:min(i+1, len(lines))], ""))
		}
	}
}

// TestGolden fails if the codec writes other bytes than the files in testdata have, or reads something else from those
// bytes than was written.
func TestGolden(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			b := s.append(nil)
			golden(t, s.name, dump(t, s.about, b, s.fields))
			stored := goldenBytes(t, s.name)
			if !bytes.Equal(b, stored) {
				t.Fatalf("got % x, want % x", b, stored)
			}
			if got := s.read(stored); got != s.want {
				t.Errorf("read\ngot  %s\nwant %s", got, s.want)
			}
		})
	}
}

// TestGoldenFiles fails if testdata has a golden that no test compares.
func TestGoldenFiles(t *testing.T) {
	if *update {
		return // not all are written yet
	}
	known := map[string]bool{"place": true, "digest": true, "device": true}
	for _, s := range samples() {
		known[s.name] = true
	}
	paths, err := filepath.Glob(filepath.Join("testdata", "*.golden"))
	if err != nil || len(paths) != len(known) {
		t.Errorf("got %d goldens and error %v, want %d", len(paths), err, len(known))
	}
	for _, path := range paths {
		if name := strings.TrimSuffix(filepath.Base(path), ".golden"); !known[name] {
			t.Errorf("got %s, which no test compares", path)
		}
	}
}

// goldenBytes returns the bytes in a golden.
func goldenBytes(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".golden"))
	require.NoError(t, err)
	b, err := undump(string(text))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return b
}
