// Package ruleschema writes the JSON Schema of the rules from the table of fields by which the filter reads them.
package ruleschema

import (
	"encoding/json"
	"fmt"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// draft is the newest that Helm and yaml-language-server both read.
const draft = "http://json-schema.org/draft-07/schema#"

// schema is a JSON Schema, of which only this is used.
type schema struct {
	Schema      string             `json:"$schema,omitempty"`
	Title       string             `json:"title,omitempty"`
	Description string             `json:"description,omitempty"`
	Ref         string             `json:"$ref,omitempty"`
	Type        string             `json:"type,omitempty"`
	Const       any                `json:"const,omitempty"`
	Enum        []string           `json:"enum,omitempty"`
	Pattern     string             `json:"pattern,omitempty"`
	MinLength   int                `json:"minLength,omitempty"`
	MaxLength   int                `json:"maxLength,omitempty"`
	Items       *schema            `json:"items,omitempty"`
	MinItems    int                `json:"minItems,omitempty"`
	MaxItems    int                `json:"maxItems,omitempty"`
	UniqueItems bool               `json:"uniqueItems,omitempty"`
	Properties  map[string]*schema `json:"properties,omitempty"`
	Names       *schema            `json:"propertyNames,omitempty"`
	Additional  any                `json:"additionalProperties,omitempty"`
	MaxFields   int                `json:"maxProperties,omitempty"`
	Required    []string           `json:"required,omitempty"`
	AllOf       []*schema          `json:"allOf,omitempty"`
	AnyOf       []*schema          `json:"anyOf,omitempty"`
	OneOf       []*schema          `json:"oneOf,omitempty"`
	Not         *schema            `json:"not,omitempty"`
	If          *schema            `json:"if,omitempty"`
	Then        *schema            `json:"then,omitempty"`
	Defs        map[string]*schema `json:"$defs,omitempty"`
}

// Rules returns the schema of a file that has the rules only. It is stricter than the filter about null, and about
// methods, of which it knows the registered ones; what depends on more than one field it leaves to the filter, but for
// fields that exclude each other.
func Rules() []byte {
	s := configuration()
	s.Schema, s.Title = draft, "Rules of Gatehouse"
	return print(s)
}

// Envoy returns the schema of an Envoy configuration that describes the rules in it, and nothing else.
func Envoy() []byte {
	config := configuration()
	defs := config.Defs
	config.Defs = nil
	defs["configuration"] = config
	// A StringValue has the rules as text.
	rules := &schema{If: at(&schema{Pattern: "Struct$"}, "@type"), Then: at(ref("configuration"), "value")}
	filter := at(&schema{AllOf: []*schema{
		{If: having(&schema{Const: "gatehouse"}, "config", "vm_config", "vm_id"),
			Then: at(rules, "config", "vm_config", "configuration")},
		{If: having(&schema{Const: "gatehouse"}, "filter_name"), Then: at(rules, "filter_config")},
	}}, "typed_config")
	chain := at(&schema{Items: at(&schema{Items: filter}, "typed_config", "http_filters")}, "filters")
	defs["listener"] = &schema{Properties: map[string]*schema{
		"filter_chains": {Items: chain}, "default_filter_chain": chain,
	}}
	return print(&schema{Schema: draft, Title: "Rules of Gatehouse in a configuration of Envoy",
		Properties: map[string]*schema{
			"static_resources": at(&schema{Items: ref("listener")}, "listeners"),
			"resources":        {Items: ref("listener")},
		}, Defs: defs})
}

func print(s *schema) []byte {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // it has nothing that JSON lacks
	}
	return append(text, '\n')
}

// at returns the schema of an object with s at a path.
func at(s *schema, path ...string) *schema {
	for i := len(path) - 1; i >= 0; i-- {
		s = &schema{Properties: map[string]*schema{path[i]: s}}
	}
	return s
}

// having is at for an object that has what is at the path.
func having(s *schema, path ...string) *schema {
	for i := len(path) - 1; i >= 0; i-- {
		s = &schema{Properties: map[string]*schema{path[i]: s}, Required: path[i : i+1]}
	}
	return s
}

func ref(name string) *schema { return &schema{Ref: "#/$defs/" + name} }

// configuration returns the schema of the rules and what stands beside them. What virtual hosts have, too, is in $defs.
func configuration() *schema {
	w := writer{defs: map[string]*schema{}}
	s := w.object("", policy.Fields())
	s.Defs = w.defs
	return s
}

type writer struct{ defs map[string]*schema }

// shared are the fields that are in $defs, for the chart.
var shared = map[string]bool{"rules": true, "default": true, "credentials": true, "source": true, "virtual_hosts": true}

// object returns the schema of an object under its path.
func (w *writer) object(path string, fields []policy.Field) *schema {
	s := &schema{Type: "object", Additional: false, Properties: map[string]*schema{}}
	for i := range fields {
		f := &fields[i]
		if f.Required {
			s.Required = append(s.Required, f.Name)
		}
		if !shared[f.Name] {
			s.Properties[f.Name] = w.field(path+f.Name, f)
			continue
		}
		s.Properties[f.Name] = ref(f.Name)
		if w.defs[f.Name] == nil {
			w.defs[f.Name] = w.field(f.Name, f)
		}
	}
	s.OneOf = exclusive[path]
	return s
}

var basic = having(&schema{Const: true}, "basic")

// exclusive are the fields of objects that exclude each other, of which there must be some.
var exclusive = map[string][]*schema{
	"rules.match.": {{Required: []string{"path"}}, {Required: []string{"prefix"}}},
	"source.":      {{Required: []string{"header"}}, {Required: []string{"filter_state"}}},
	"credentials.": {
		{Required: []string{"id_header", "secret_header"}, Not: basic},
		{Required: []string{"basic"}, Properties: map[string]*schema{"basic": {Const: true}},
			Not: &schema{AnyOf: []*schema{{Required: []string{"id_header"}}, {Required: []string{"secret_header"}}}}},
		{AnyOf: []*schema{{Required: []string{"api_key_header"}}, having(&schema{Const: true}, "bearer")}, Not: &schema{
			AnyOf: []*schema{{Required: []string{"id_header"}}, {Required: []string{"secret_header"}}, basic}}},
	},
}

func (w *writer) field(path string, f *policy.Field) *schema {
	s := w.value(path, f)
	if f.Or != nil {
		s = &schema{AnyOf: []*schema{s, w.value(path, f.Or)}}
	}
	s.Description = Descriptions[path]
	if f.Form == policy.Duration {
		s.Description += fmt.Sprintf(" %s to %s, by default %s.", span(f.Least), span(f.Most), span(f.Preset))
	}
	return s
}

func (w *writer) value(path string, f *policy.Field) *schema {
	switch f.Form {
	case policy.Object:
		return w.object(path+".", f.Fields)
	case policy.Map:
		return &schema{Type: "object", MaxFields: f.Max, Additional: w.object(path+".", f.Fields),
			Names: &schema{Pattern: fmt.Sprintf("^[a-z0-9_-]{1,%d}$", limits.MaxVirtualHost)}}
	case policy.List:
		s := &schema{Type: "array", Items: w.value(path, f.Item), MaxItems: f.Max, UniqueItems: f.Unique}
		if f.IfEmpty != "" {
			s.MinItems = 1
		}
		return s
	case policy.Word:
		return &schema{Enum: f.Words}
	case policy.Flag:
		return &schema{Type: "boolean"}
	}
	s := texts[f.Form]
	s.Type = "string"
	return &s
}

// texts are the schemas of texts.
var texts = map[policy.Form]schema{
	policy.Duration:   {Pattern: `^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$`},
	policy.Text:       {MinLength: 1},
	policy.Header:     {Pattern: "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"},
	policy.Permission: {Pattern: fmt.Sprintf("^[A-Za-z0-9._:-]{1,%d}$", limits.MaxPermissionName)},
	policy.RuleName: {Pattern: fmt.Sprintf("^[a-z0-9_-]{1,%d}$", policy.MaxRuleName),
		Not: &schema{Const: "none"}},
	policy.Method:    {Enum: policy.Methods()},
	policy.Path:      {Pattern: "^/[^?# ]*$", MaxLength: policy.MaxRulePath},
	policy.Parameter: {Pattern: "^[^&=]+$"},
	policy.Language:  {Pattern: "^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$"},
	policy.Domain: {MaxLength: limits.MaxHost,
		Pattern: `^(\*|(\*\.)?[a-z0-9_.-]*[a-z0-9_-]|\[[0-9a-f:.]+\])$`},
}
