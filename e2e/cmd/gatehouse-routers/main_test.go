package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/e2e/suite"
)

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want int
		says string
	}{
		{"help", []string{"--help"}, 0, "--spellings"},
		{"spellings are no number", []string{"--spellings", "x"}, 2, "x"},
		{"seed is no number", []string{"--seed=-1"}, 2, `SEED "-1": want a decimal number`},
		{"only is no number", []string{"--only", "all"}, 2, "all"},
		{"nothing is built", []string{"--build", t.TempDir()}, 2, "run: make routers"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			var out bytes.Buffer
			got := suite.Run("gatehouse-routers", &commandLine{}, tt.args, &out, &out)
			if got != tt.want || !strings.Contains(out.String(), tt.says) {
				t.Errorf("got %d %q, want %d with %q", got, out.String(), tt.want, tt.says)
			}
		})
	}
}
