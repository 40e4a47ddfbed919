package main

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/sidecar/internal/config"
)

// The schema of the chart's sidecar.settings has the settings that there are, but for those that
// the chart gives itself.
func TestChartSettings(t *testing.T) {
	source, err := os.ReadFile("../../../charts/gatehouse/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type node struct{ Properties map[string]json.RawMessage }
	read := func(raw []byte) (n node) {
		if err := json.Unmarshal(raw, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	settings := read(read(read(source).Properties["sidecar"]).Properties["settings"])
	var listed, offered []string
	for section, raw := range settings.Properties {
		for name := range read(raw).Properties {
			listed = append(listed, section+"."+name)
		}
	}
	var help bytes.Buffer
	if err := config.Usage(&help); err != nil {
		t.Fatal(err)
	}
	for _, flag := range regexp.MustCompile(`--([a-z]+\.[a-z-]+)=`).FindAllStringSubmatch(help.String(), -1) {
		name := strings.ReplaceAll(flag[1], "-", "_")
		section, _, _ := strings.Cut(name, ".")
		if !slices.Contains([]string{"redis", "push", "api", "admin"}, section) {
			offered = append(offered, name)
		}
	}
	slices.Sort(listed)
	slices.Sort(offered)
	if !slices.Equal(listed, offered) {
		t.Errorf("the chart's values.schema.json has %q, want %q", listed, offered)
	}
}
