//go:build linux

package proc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoPathIsThisProgram has the tests of this package listed by another process.
func TestNoPathIsThisProgram(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	p, err := Start(Program{Name: "self", Args: []string{"-test.list=^TestNoPath"}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	text, err := os.ReadFile(log)
	if want := t.Name(); err != nil || strings.TrimSpace(string(text)) != want {
		t.Errorf("got %q (%v), want %s", text, err, want)
	}
}
