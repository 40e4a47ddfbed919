package policy

import (
	"slices"
	"time"
)

// Form is a form of a field's values.
type Form uint8

// The forms. From Text on, values are non-empty texts; each form after Text has its own syntax.
const (
	// Object has Fields.
	Object Form = iota
	// Map has objects with Fields, by the name of a virtual host.
	Map
	// List has values of the form Item.
	List
	// Word is a member of Words.
	Word
	// Flag is true or false.
	Flag
	// Duration is a text like "30s".
	Duration
	Text
	Header
	Permission
	RuleName
	Method
	Path
	Parameter
	Domain
	Language
)

// Field describes a field of the configuration for the decoder and the JSON Schema.
type Field struct {
	Name   string
	Form   Form
	Fields []Field
	// Item is a value of a List.
	Item *Field
	// Words are the values of a Word. The first is the default.
	Words []string
	// Or is an alternative form of the value.
	Or *Field
	// Required means that the field must be present.
	Required bool
	// IfEmpty is the advice about an empty List, which is an error; "": no error.
	IfEmpty string
	// Unique means that the values of a List differ.
	Unique bool
	// Max bounds the entries of a List or Map; 0: no bound.
	Max int
	// On is the default of a Flag.
	On bool
	// Preset is the default of a Duration; Least and Most are the bounds.
	Preset, Least, Most time.Duration
}

// Fields returns the fields of the configuration.
func Fields() []Field { return configFields }

// Bounds of the configuration, as in docs/rules.md.
const (
	minStaleness    = time.Second
	maxStaleness    = 24 * time.Hour
	maxRules        = 1000
	maxVirtualHosts = 256
	maxDomains      = 64
	maxLanguages    = 16
	// MaxRulePath bounds a rule's path, in bytes.
	MaxRulePath = 1024
	// MaxRuleName bounds a rule's name, in bytes.
	MaxRuleName = 64

	defaultCluster = "gatehouse-sidecar"
)

var configFields = []Field{
	{Name: "push_listener", Form: Flag},
	{Name: "sidecar", Form: Object, Fields: []Field{
		{Name: "cluster", Form: Text},
		{Name: "timeout", Form: Duration, Preset: 2 * time.Second, Least: 10 * time.Millisecond, Most: time.Minute},
	}},
	credentialsField,
	sourceField,
	{Name: "session", Form: Object, Fields: []Field{{Name: "metadata", Form: Text, Required: true}}},
	{Name: "verdict_grace", Form: Duration, Most: maxStaleness},
	{Name: "max_staleness", Form: Duration, Preset: 30 * time.Second, Least: minStaleness, Most: maxStaleness},
	{Name: "max_auth_staleness", Form: Duration, Most: maxStaleness},
	{Name: "stale", Form: Word, Words: []string{"bypass", "serve"}},
	rulesField,
	defaultField,
	{Name: "virtual_hosts", Form: Map, Max: maxVirtualHosts, Fields: []Field{
		{Name: "domains", Form: List, Required: true, IfEmpty: "name a host, e.g. shop.example.com", Max: maxDomains,
			Unique: true, Item: &Field{Form: Domain}},
		rulesField,
		defaultField,
		credentialsField,
		sourceField,
	}},
	{Name: "strip_override_headers", Form: Flag, On: true},
	{Name: "log_hits", Form: Flag},
}

var credentialsField = Field{Name: "credentials", Form: Object, Fields: []Field{
	{Name: "id_header", Form: Header},
	{Name: "secret_header", Form: Header},
	{Name: "basic", Form: Flag},
	{Name: "api_key_header", Form: Header},
	{Name: "bearer", Form: Flag},
	{Name: "forward", Form: Flag},
}}

var sourceField = Field{Name: "source", Form: Word, Words: []string{"envoy"}, Or: &Field{Form: Object, Fields: []Field{
	{Name: "header", Form: Header},
	{Name: "filter_state", Form: Text},
}}}

var defaultField = Field{Name: "default", Form: Word, Words: []string{"pass", "deny", "would_deny"}}

var rulesField = Field{Name: "rules", Form: List, Max: maxRules, Item: &Field{Form: Object, Fields: []Field{
	{Name: "name", Form: RuleName},
	{Name: "match", Form: Object, Required: true, Fields: []Field{
		{Name: "path", Form: Path},
		{Name: "prefix", Form: Path},
		{Name: "methods", Form: List, IfEmpty: "name a method, or remove the field for all of them",
			Item: &Field{Form: Method}},
	}},
	{Name: "auth", Form: Object, Fields: []Field{
		{Name: "permissions", Form: List, Item: &Field{Form: Permission}},
		{Name: "enforce", Form: Flag, On: true},
	}},
	{Name: "cache", Form: Object, Fields: []Field{
		{Name: "query", Form: List, Item: &Field{Form: Parameter}},
		{Name: "on_miss", Form: Word, Words: []string{"pass", "fetch"}},
		{Name: "serve", Form: Flag, On: true},
		{Name: "scope", Form: Word, Words: []string{"shared", "device", "host"}, Or: &Field{Form: List, Unique: true,
			IfEmpty: "name host, device or both, or remove the field",
			Item:    &Field{Form: Word, Words: []string{"host", "device"}}}},
		{Name: "languages", Form: List, IfEmpty: "name a language, e.g. de, or remove the field", Max: maxLanguages,
			Unique: true, Item: &Field{Form: Language}},
		{Name: "origin_headers", Form: Flag},
	}},
	{Name: "session", Form: Word, Words: []string{"issue"}},
}}}

// fieldNamed returns the field called name, which must exist.
func fieldNamed(fields []Field, name string) *Field {
	return &fields[slices.IndexFunc(fields, func(f Field) bool { return f.Name == name })]
}

// fieldNames returns the names of fields.
func fieldNames(fields []Field) (all []string) {
	for i := range fields {
		all = append(all, fields[i].Name)
	}
	return all
}
