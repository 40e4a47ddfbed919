package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/e2e/suite"
)

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  map[string]string
		args []string
		want int
		says string
	}{
		{"help", nil, []string{"--help"}, 0, "CHAOS_SECONDS"},
		{"no time", map[string]string{"CHAOS_SECONDS": "0"}, nil, 2, "CHAOS_SECONDS 0: want 1 to"},
		{"time is no number", map[string]string{"CHAOS_SECONDS": "x"}, nil, 2, "x"},
		{"seed is no number", map[string]string{"SEED": "-1"}, nil, 2, `SEED "-1": want a decimal number`},
		{"unknown fault", nil, []string{"--only", "coffee"}, 2, `--only "coffee": want some of`},
		{"unknown flag", nil, []string{"--what"}, 2, "see gatehouse-chaos --help"},
		{"nothing is built", nil, []string{"--build", "missing"}, 2,
			"missing/clock.so: no such file or directory; run: scripts/chaos-build.sh"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("CHAOS_SECONDS", "60")
			t.Setenv("SEED", "")
			t.Setenv("TMPDIR", t.TempDir())
			t.Setenv("ENVOY", os.Args[0]) // any program; none of these runs starts it
			for name, value := range tt.env {
				t.Setenv(name, value)
			}
			var out bytes.Buffer
			got := suite.Run("gatehouse-chaos", &commandLine{}, tt.args, &out, &out)
			if got != tt.want || !strings.Contains(out.String(), tt.says) {
				t.Errorf("got %d %q, want %d with %q", got, out.String(), tt.want, tt.says)
			}
		})
	}
}
