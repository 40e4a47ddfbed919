package main

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/sidecar/internal/config"
)

// The chart's values have the settings that there are: in sidecar.settings, and in values of
// their own. Those of redis, push, api and admin, and the directories of edges, are the chart's business.
func TestChartSettings(t *testing.T) {
	source, err := os.ReadFile("../../../charts/gatehouse/values.schema.json")
	require.NoError(t, err)
	type node struct{ Properties map[string]json.RawMessage }
	read := func(raw []byte) (n node) {
		require.NoError(t, json.Unmarshal(raw, &n))
		return n
	}
	values := read(source).Properties
	settings := read(read(values["sidecar"]).Properties["settings"])
	var listed, offered []string
	listed = append(listed, "credential.pepper_file") // by peppers
	for value, section := range map[string]string{"sessions": "session", "sharedVerdicts": "verdict"} {
		for name := range read(values[value]).Properties {
			switch name {
			case "enabled", "header", "secretKey": // no settings of the sidecar
			case "existingSecret":
				listed = append(listed, section+".secret_file")
			default:
				listed = append(listed, section+"."+name)
			}
		}
	}
	for section, raw := range settings.Properties {
		for name := range read(raw).Properties {
			listed = append(listed, section+"."+name)
		}
	}
	var help bytes.Buffer
	require.NoError(t, config.PrintUsage(&help))
	for _, flag := range regexp.MustCompile(`--([a-z]+\.[a-z-]+)\b`).FindAllStringSubmatch(help.String(), -1) {
		name := strings.ReplaceAll(flag[1], "-", "_")
		section, _, _ := strings.Cut(name, ".")
		if !slices.Contains([]string{"admin.address", "admin.metrics", "edge.directories"}, name) &&
			!slices.Contains([]string{"redis", "push", "api"}, section) {
			offered = append(offered, name)
		}
	}
	slices.Sort(listed)
	slices.Sort(offered)
	if !slices.Equal(listed, offered) {
		t.Errorf("the chart's values.schema.json has the settings %q, want %q", listed, offered)
	}
}
