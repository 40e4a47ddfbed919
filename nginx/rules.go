// Package nginx writes the rules of an edge for Gatehouse's edge in NGINX: see README.md.
package nginx

import (
	"bytes"
	"crypto/md5"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/edge/policy"
)

// Format is the version of the file; the plugin refuses other versions.
const Format = 3

// Render returns the plugin's file from rules in YAML or JSON, and the number of rules. It refuses the same as Envoy,
// and Envoy's own features. The file has the rules as read by package policy, and a digest, by which nginx sees before
// the start of workers that the rules were checked.
func Render(text []byte) (file []byte, n int, err error) {
	asJSON, c, err := parseRules(text)
	if err != nil {
		return nil, 0, err
	}
	return fmt.Appendf(nil, "{\"format\": %d, \"md5\": \"%x\", \"rules\":\n%s}\n", Format, md5.Sum(asJSON),
		asJSON), len(c.Rules), nil
}

// Parse returns the rules of Render's input or output.
func Parse(text []byte) (*policy.Config, error) {
	var file struct {
		Format int
		Rules  json.RawMessage
	}
	if err := json.Unmarshal(text, &file); err == nil && file.Format != 0 {
		if file.Format != Format {
			return nil, fmt.Errorf("has format %d, want %d", file.Format, Format)
		}
		text = file.Rules
	}
	_, c, err := parseRules(text)
	return c, err
}

// parseRules returns rules as JSON, and as read by Envoy. It refuses Envoy's own features.
func parseRules(text []byte) (asJSON []byte, c *policy.Config, err error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var tree any
	if err := decoder.Decode(&tree); err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("has more than one YAML document")
	}
	if asJSON, err = json.MarshalIndent(tree, "", "  "); err != nil {
		return nil, nil, fmt.Errorf("has a field whose name is no text: %w", err)
	}
	if c, err = policy.ParseBytes(asJSON); err == nil {
		err = findUnsupported(c)
	}
	return asJSON, c, err
}

func findUnsupported(c *policy.Config) error {
	if c.PushListener {
		return errors.New("push_listener: nginx's push listener is in its own server block, and needs no rules")
	}
	at, own := "", c.Source.FilterState != ""
	for i := 0; i < len(c.VirtualHosts) && !own; i++ {
		at, own = "virtual_hosts."+c.VirtualHosts[i].Name+".", c.VirtualHosts[i].Source.FilterState != ""
	}
	if own {
		return errors.New(at + "source.filter_state: is Envoy's; use {header: NAME}, or nginx's real_ip_header")
	}
	return nil
}
