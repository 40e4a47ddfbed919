//go:build linux

package main

import (
	"bytes"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/loadtest/report"
	"github.com/gatehouse/gatehouse/loadtest/scenario"
)

// TestReadme compares the lists in README.md with the code: flags with their variables and defaults, scenarios,
// columns.
func TestReadme(t *testing.T) {
	source, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(source)
	var flags []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[scenario.Options]()) {
		if variable := field.Tag.Get("env"); variable != "" {
			value := field.Tag.Get("default")
			if value == "" {
				value = "0"
			}
			flags = append(flags, strings.ToLower(field.Name)+" "+variable+" "+value)
		}
	}
	for _, test := range []struct {
		what      string
		got, want []string
	}{
		{"flags", matchedGroups(text, "(?m)^\\| `--([a-z0-9-]+)` \\| `([A-Z0-9]+)` \\| `([^`]+)` \\|"), flags},
		{"scenarios", matchedGroups(text, "(?m)^\\| `([a-z0-9-]+)` \\| about"), strings.Split(scenario.Names(), ", ")},
		{"columns", matchedGroups(text, "(?m)^\\| \\*\\*([^*]+)\\*\\* \\|"), slices.Clone(report.Columns)},
	} {
		slices.Sort(test.got)
		slices.Sort(test.want)
		if got, want := strings.Join(test.got, "\n"), strings.Join(test.want, "\n"); got != want {
			t.Errorf("%s listed:\n%s\nwant:\n%s", test.what, got, want)
		}
	}
}

// matchedGroups returns the groups matched by the pattern, joined by spaces for each line.
func matchedGroups(text, pattern string) []string {
	var found []string
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, strings.Join(match[1:], " "))
	}
	return found
}

func TestCommandLine(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		code int
		say  string
	}{
		{"unknown scenario", []string{"--scenario", "nothing"}, 2, `scenario "nothing": want one of 304, 200,`},
		{"no connections", []string{"--connections=0"}, 2, "--connections=0: want 1 or more"},
		{"unknown flag", []string{"--nothing"}, 2, "unknown flag --nothing"},
		{"unknown service", []string{"serve", "nothing", "--address=127.0.0.1:0"}, 2, "must be one of"},
		{"updates without a Redis", []string{"update", "--rate=1", "--objects=1", "--bytes=1"}, 2, "missing flags: --redis"},
		{"an address that can't be listened on", []string{"serve", "origin", "--address=127.0.0.1:99999"}, 1, "99999"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(test.args, &stdout, &stderr); code != test.code || !strings.Contains(stderr.String(), test.say) {
			t.Errorf("%s: got %d and %q, want %d and %q", test.name, code, stderr.String(), test.code, test.say)
		}
	}
}

func TestLimitsAreOfTheRatiosThatAreMeasured(t *testing.T) {
	if _, err := scenario.ParseLimits(limits); err != nil {
		t.Error(err)
	}
}
