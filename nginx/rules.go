// Package nginx writes the rules of an edge for Gatehouse's NGINX plugin, which is written in Lua: see README.md.
package nginx

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/edge/policy"
)

// Format is the version of the file; the plugin refuses another one.
const Format = 2

// rules is a configuration as the plugin reads it: checked, with all defaults, and without a field that isn't set.
type rules struct {
	Format             int          `json:"format"`
	SidecarTimeoutMS   int64        `json:"sidecar_timeout_ms"`
	Credentials        *credentials `json:"credentials,omitempty"`
	SourceHeader       string       `json:"source_header,omitempty"`
	Session            bool         `json:"session"` // tokens are enabled
	VerdictGraceMS     int64        `json:"verdict_grace_ms"`
	MaxStalenessMS     int64        `json:"max_staleness_ms"`
	MaxAuthStalenessMS int64        `json:"max_auth_staleness_ms"`
	ServeStale         bool         `json:"serve_stale"`
	DenyByDefault      bool         `json:"deny_by_default"`
	KeepOverrides      bool         `json:"keep_overrides"`
	LogHits            bool         `json:"log_hits"`
	Counters           []string     `json:"counters"` // that requests without a rule are expected to increment
	Rules              []rule       `json:"rules"`
}

type credentials struct {
	IDHeader     string `json:"id_header,omitempty"`
	SecretHeader string `json:"secret_header,omitempty"`
	Basic        bool   `json:"basic"`
	Forward      bool   `json:"forward"`
}

type rule struct {
	Name     string   `json:"name"`
	Path     string   `json:"path,omitempty"`
	Prefix   string   `json:"prefix,omitempty"`
	Methods  []string `json:"methods,omitempty"`
	Auth     *auth    `json:"auth,omitempty"`
	Cache    *cache   `json:"cache,omitempty"`
	Session  bool     `json:"session,omitempty"` // it issues tokens
	Counters []string `json:"counters"`          // that its requests are expected to increment
}

type auth struct {
	Permissions []string `json:"permissions"`
}

type cache struct {
	Query     *[]string `json:"query,omitempty"` // nil: all parameters; [] is another thing
	Fetch     bool      `json:"fetch"`
	PerDevice bool      `json:"per_device"`
}

// Render returns the file for the plugin from rules in YAML or JSON, and how many there are. It refuses what Envoy
// refuses, and what is only Envoy's.
func Render(text []byte) (file []byte, n int, err error) {
	c, err := parse(text)
	if err != nil {
		return nil, 0, err
	}
	if err := unsupported(c); err != nil {
		return nil, 0, err
	}
	file, err = json.MarshalIndent(rulesOf(c), "", "  ")
	return append(file, '\n'), len(c.Rules), err
}

// parse reads rules as Envoy would, which gets them as JSON.
func parse(text []byte) (*policy.Config, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var tree any
	if err := decoder.Decode(&tree); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("has more than one YAML document")
	}
	asJSON, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("has a field whose name is no text: %w", err)
	}
	return policy.ParseBytes(asJSON)
}

func rulesOf(c *policy.Config) *rules {
	out := &rules{
		Format: Format, SidecarTimeoutMS: c.SidecarTimeout.Milliseconds(), SourceHeader: c.Source.Header, Session: c.SessionMetadata != "",
		VerdictGraceMS: c.VerdictGrace.Milliseconds(), MaxStalenessMS: c.MaxStaleness.Milliseconds(),
		MaxAuthStalenessMS: c.MaxAuthStaleness.Milliseconds(), ServeStale: c.ServeStale,
		DenyByDefault: c.DenyByDefault, KeepOverrides: c.KeepOverrides, LogHits: c.LogHits, Counters: expected(c, policy.NoRule), Rules: []rule{},
	}
	if k := c.Credentials; k != (policy.Credentials{}) {
		out.Credentials = &credentials{k.IDHeader, k.SecretHeader, k.Basic, k.Forward}
	}
	for i, r := range c.Rules {
		to := rule{Name: r.Name, Path: r.Match.Path, Prefix: r.Match.Prefix, Methods: r.Match.Methods, Session: r.IssueSession, Counters: expected(c, i)}
		if r.Auth != nil {
			to.Auth = &auth{append([]string{}, r.Auth.Permissions...)}
		}
		if r.Cache != nil {
			to.Cache = &cache{Fetch: r.Cache.Fetch, PerDevice: r.Cache.PerDevice}
			if r.Cache.Query != nil {
				to.Cache.Query = &r.Cache.Query
			}
		}
		out.Rules = append(out.Rules, to)
	}
	return out
}

// expected returns the names of the counters of a rule that exist before they count.
func expected(c *policy.Config, rule int) []string {
	names := []string{}
	for counter := policy.None + 1; counter < policy.Counters; counter++ {
		if c.Expects(rule, counter) {
			names = append(names, counter.String())
		}
	}
	return names
}

func unsupported(c *policy.Config) error {
	switch {
	case c.PushListener:
		return errors.New("push_listener: nginx's push listener is in its own server block, and needs no rules")
	case c.Source.FilterState != "":
		return errors.New("source.filter_state: is Envoy's; use {header: NAME}, or nginx's real_ip_header")
	}
	return nil
}
