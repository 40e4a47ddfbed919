// Package ruleschema writes the JSON Schema of the rules from the filter's own table of fields.
package ruleschema

import (
	"encoding/json"
	"fmt"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// draft is the newest draft that both Helm and yaml-language-server read.
const draft = "http://json-schema.org/draft-07/schema#"

// jsonSchema is a JSON Schema, reduced to the keywords in use.
type jsonSchema struct {
	Schema      string                 `json:"$schema,omitempty"`
	Title       string                 `json:"title,omitempty"`
	Description string                 `json:"description,omitempty"`
	Ref         string                 `json:"$ref,omitempty"`
	Type        string                 `json:"type,omitempty"`
	Const       any                    `json:"const,omitempty"`
	Enum        []string               `json:"enum,omitempty"`
	Pattern     string                 `json:"pattern,omitempty"`
	MinLength   int                    `json:"minLength,omitempty"`
	MaxLength   int                    `json:"maxLength,omitempty"`
	Items       *jsonSchema            `json:"items,omitempty"`
	MinItems    int                    `json:"minItems,omitempty"`
	MaxItems    int                    `json:"maxItems,omitempty"`
	UniqueItems bool                   `json:"uniqueItems,omitempty"`
	Properties  map[string]*jsonSchema `json:"properties,omitempty"`
	Names       *jsonSchema            `json:"propertyNames,omitempty"`
	Additional  any                    `json:"additionalProperties,omitempty"`
	MaxFields   int                    `json:"maxProperties,omitempty"`
	Required    []string               `json:"required,omitempty"`
	AllOf       []*jsonSchema          `json:"allOf,omitempty"`
	AnyOf       []*jsonSchema          `json:"anyOf,omitempty"`
	OneOf       []*jsonSchema          `json:"oneOf,omitempty"`
	Not         *jsonSchema            `json:"not,omitempty"`
	If          *jsonSchema            `json:"if,omitempty"`
	Then        *jsonSchema            `json:"then,omitempty"`
	Defs        map[string]*jsonSchema `json:"$defs,omitempty"`
}

// Rules returns the schema of a file with rules only. The schema is stricter than the filter: it refuses null and
// unregistered methods. Of conditions on several fields, the schema has only the exclusive fields; the filter checks
// the rest.
func Rules() []byte {
	s := rulesSchema()
	s.Schema, s.Title = draft, "Rules of Gatehouse"
	return encodeSchema(s)
}

// Envoy returns the schema of an Envoy configuration. The schema describes only the rules in the configuration.
func Envoy() []byte {
	config := rulesSchema()
	defs := config.Defs
	config.Defs = nil
	defs["configuration"] = config
	// A StringValue has the rules as text.
	rules := &jsonSchema{
		If:   atPath(&jsonSchema{Pattern: "Struct$"}, "@type"),
		Then: atPath(refTo("configuration"), "value"),
	}
	filter := atPath(&jsonSchema{AllOf: []*jsonSchema{
		{If: requireAtPath(&jsonSchema{Const: "gatehouse"}, "config", "vm_config", "vm_id"),
			Then: atPath(rules, "config", "vm_config", "configuration")},
		{If: requireAtPath(&jsonSchema{Const: "gatehouse"}, "filter_name"), Then: atPath(rules, "filter_config")},
	}}, "typed_config")
	chain := atPath(&jsonSchema{Items: atPath(&jsonSchema{Items: filter}, "typed_config", "http_filters")}, "filters")
	defs["listener"] = &jsonSchema{Properties: map[string]*jsonSchema{
		"filter_chains": {Items: chain}, "default_filter_chain": chain,
	}}
	return encodeSchema(&jsonSchema{Schema: draft, Title: "Rules of Gatehouse in a configuration of Envoy",
		Properties: map[string]*jsonSchema{
			"static_resources": atPath(&jsonSchema{Items: refTo("listener")}, "listeners"),
			"resources":        {Items: refTo("listener")},
		}, Defs: defs})
}

func encodeSchema(s *jsonSchema) []byte {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // every field has a form in JSON
	}
	return append(text, '\n')
}

// atPath returns the schema of an object whose value at a path has schema s.
func atPath(s *jsonSchema, path ...string) *jsonSchema {
	for i := len(path) - 1; i >= 0; i-- {
		s = &jsonSchema{Properties: map[string]*jsonSchema{path[i]: s}}
	}
	return s
}

// requireAtPath is atPath for an object that must have the path.
func requireAtPath(s *jsonSchema, path ...string) *jsonSchema {
	for i := len(path) - 1; i >= 0; i-- {
		s = &jsonSchema{Properties: map[string]*jsonSchema{path[i]: s}, Required: path[i : i+1]}
	}
	return s
}

func refTo(name string) *jsonSchema { return &jsonSchema{Ref: "#/$defs/" + name} }

// rulesSchema returns the schema of the rules and of the fields beside the rules. Fields shared with virtual hosts are
// in $defs.
func rulesSchema() *jsonSchema {
	w := schemaWriter{defs: map[string]*jsonSchema{}}
	s := w.objectSchema("", policy.Fields())
	s.Defs = w.defs
	return s
}

type schemaWriter struct{ defs map[string]*jsonSchema }

// sharedFields are in $defs, for the chart.
var sharedFields = map[string]bool{"rules": true, "default": true, "credentials": true, "source": true,
	"virtual_hosts": true}

// objectSchema returns the schema of the object at path.
func (w *schemaWriter) objectSchema(path string, fields []policy.Field) *jsonSchema {
	s := &jsonSchema{Type: "object", Additional: false, Properties: map[string]*jsonSchema{}}
	for i := range fields {
		f := &fields[i]
		if f.Required {
			s.Required = append(s.Required, f.Name)
		}
		if !sharedFields[f.Name] {
			s.Properties[f.Name] = w.fieldSchema(path+f.Name, f)
			continue
		}
		s.Properties[f.Name] = refTo(f.Name)
		if w.defs[f.Name] == nil {
			w.defs[f.Name] = w.fieldSchema(f.Name, f)
		}
	}
	s.OneOf = exclusiveFields[path]
	return s
}

var basicEnabled = requireAtPath(&jsonSchema{Const: true}, "basic")

// exclusiveFields are alternatives of fields: an object has exactly one alternative.
var exclusiveFields = map[string][]*jsonSchema{
	"rules.match.": {{Required: []string{"path"}}, {Required: []string{"prefix"}}},
	"source.":      {{Required: []string{"header"}}, {Required: []string{"filter_state"}}},
	"credentials.": {
		{Required: []string{"id_header", "secret_header"}, Not: basicEnabled},
		{Required: []string{"basic"}, Properties: map[string]*jsonSchema{"basic": {Const: true}},
			Not: &jsonSchema{AnyOf: []*jsonSchema{{Required: []string{"id_header"}}, {Required: []string{"secret_header"}}}}},
		{AnyOf: []*jsonSchema{{Required: []string{"api_key_header"}}, requireAtPath(&jsonSchema{Const: true}, "bearer")},
			Not: &jsonSchema{
				AnyOf: []*jsonSchema{{Required: []string{"id_header"}}, {Required: []string{"secret_header"}}, basicEnabled}}},
	},
}

func (w *schemaWriter) fieldSchema(path string, f *policy.Field) *jsonSchema {
	s := w.valueSchema(path, f)
	if f.Or != nil {
		s = &jsonSchema{AnyOf: []*jsonSchema{s, w.valueSchema(path, f.Or)}}
	}
	s.Description = Descriptions[path]
	if f.Form == policy.Duration {
		s.Description += fmt.Sprintf(" %s to %s, by default %s.", formatDuration(f.Least), formatDuration(f.Most),
			formatDuration(f.Preset))
	}
	return s
}

func (w *schemaWriter) valueSchema(path string, f *policy.Field) *jsonSchema {
	switch f.Form {
	case policy.Object:
		return w.objectSchema(path+".", f.Fields)
	case policy.Map:
		return &jsonSchema{Type: "object", MaxFields: f.Max, Additional: w.objectSchema(path+".", f.Fields),
			Names: &jsonSchema{Pattern: fmt.Sprintf("^[a-z0-9_-]{1,%d}$", limits.MaxVirtualHost)}}
	case policy.List:
		s := &jsonSchema{Type: "array", Items: w.valueSchema(path, f.Item), MaxItems: f.Max, UniqueItems: f.Unique}
		if f.IfEmpty != "" {
			s.MinItems = 1
		}
		return s
	case policy.Word:
		return &jsonSchema{Enum: f.Words}
	case policy.Flag:
		return &jsonSchema{Type: "boolean"}
	}
	s := textSchemas[f.Form]
	s.Type = "string"
	return &s
}

// textSchemas are the schemas of texts, by form.
var textSchemas = map[policy.Form]jsonSchema{
	policy.Duration:   {Pattern: `^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$`},
	policy.Text:       {MinLength: 1},
	policy.Header:     {Pattern: "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"},
	policy.Permission: {Pattern: fmt.Sprintf("^[A-Za-z0-9._:-]{1,%d}$", limits.MaxPermissionName)},
	policy.RuleName: {Pattern: fmt.Sprintf("^[a-z0-9_-]{1,%d}$", policy.MaxRuleName),
		Not: &jsonSchema{Const: "none"}},
	policy.Method:    {Enum: policy.Methods()},
	policy.Path:      {Pattern: "^/[^?# ]*$", MaxLength: policy.MaxRulePath},
	policy.Parameter: {Pattern: "^[^&=]+$"},
	policy.Language:  {Pattern: "^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$"},
	policy.Domain: {MaxLength: limits.MaxHost,
		Pattern: `^(\*|(\*\.)?[a-z0-9_.-]*[a-z0-9_-]|\[[0-9a-f:.]+\])$`},
}
