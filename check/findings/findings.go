// Package findings has what an analysis of a proxy's configuration reports.
package findings

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Severity is the severity of a finding.
type Severity string

// The severities.
const (
	// Error is a setting that the proxy refuses, or that breaks a guarantee of Gatehouse: don't deploy it.
	Error Severity = "error"
	// Warning is a setting that works but is probably unintended, or weaker than it could be.
	Warning Severity = "warning"
)

// Kind is one kind of finding. docs/analysis.md lists all of them.
type Kind struct {
	// Code is stable: "GH" and four digits, of which the first two are the part of the configuration.
	Code     string
	Severity Severity
	// Fix is what to change.
	Fix string
}

// ErrorKind returns a kind of errors.
func ErrorKind(code, fix string) Kind { return Kind{code, Error, fix} }

// WarningKind returns a kind of warnings.
func WarningKind(code, fix string) Kind { return Kind{code, Warning, fix} }

// Place is the place of a finding in the configuration.
type Place struct {
	// Listener is the name of Envoy's listener that it is in, "" if it is in none.
	Listener string `json:"listener,omitempty"`
	// Server is nginx's server that it is in, "" if it is in none: its name, or else what it listens on.
	Server string `json:"server,omitempty"`
	// Path is that of the field within the listener or the plugin's rules, or of the directive within the server; ""
	// if there is none.
	Path string `json:"path,omitempty"`
	// Rule is the name of the rule that it is in, "" if it is in none, or in one without a name.
	Rule string `json:"rule,omitempty"`
	// File is the file that it is in, "" if that is the one that was given.
	File string `json:"file,omitempty"`
	// Line is that of the file, from 1, 0 if it isn't known.
	Line int `json:"line,omitempty"`
}

// Text returns the place within the file for messages: "listener edge: rule products: rules[0].match".
func (p Place) Text() string {
	var parts []string
	if p.Listener != "" {
		parts = append(parts, "listener "+p.Listener)
	}
	if p.Server != "" {
		parts = append(parts, "server "+p.Server)
	}
	if p.Rule != "" {
		parts = append(parts, "rule "+p.Rule)
	}
	if p.Path != "" {
		parts = append(parts, p.Path)
	}
	return strings.Join(parts, ": ")
}

// Finding is one thing that is wrong at one place.
type Finding struct {
	Code     string   `json:"code"`
	Severity Severity `json:"severity"`
	Place
	// Message describes the problem.
	Message string `json:"message"`
	Fix     string `json:"fix"`
	// Corrected is the line as it should be, "" if that isn't known.
	Corrected string `json:"corrected,omitempty"`
}

// Report is the result of an analysis, errors first, each in the order of the file.
type Report struct {
	// Rules is the number of Gatehouse's rules in all of Envoy's listeners, or of nginx.
	Rules    int       `json:"rules"`
	Findings []Finding `json:"findings"`
}

// Errors returns the number of findings that are errors.
func (r *Report) Errors() (n int) {
	for _, f := range r.Findings {
		if f.Severity == Error {
			n++
		}
	}
	return n
}

// Add adds a finding of a kind.
func (r *Report) Add(k *Kind, at Place, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{k.Code, k.Severity, at, fmt.Sprintf(format, args...), k.Fix, ""})
}

// AddSyntax adds a finding about a file that is no YAML.
func (r *Report) AddSyntax(k *Kind, at Place, err error) {
	fix := k.Fix
	if syntax, is := errors.AsType[*SyntaxError](err); is {
		at.Line, fix = syntax.Line, syntax.Fix
	}
	r.Findings = append(r.Findings, Finding{k.Code, k.Severity, at, err.Error(), fix, ""})
}

// AddOfRules adds a finding about a field of rules, once for rules that have several places by an alias.
func (r *Report) AddOfRules(k *Kind, at Place, rules *Rules, field, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	at = rules.Place(at, field)
	if at.Line > 0 && slices.ContainsFunc(r.Findings, func(f Finding) bool {
		return f.Code == k.Code && f.File == at.File && f.Line == at.Line && f.Path == at.Path && f.Message == message
	}) {
		return
	}
	corrected, fix := "", k.Fix
	if len(r.Findings) < maxCorrected {
		if corrected = rules.Correct(field); corrected == "" {
			fix = cmp.Or(rules.Advise(field), fix)
		}
	}
	r.Findings = append(r.Findings, Finding{k.Code, k.Severity, at, message, fix, corrected})
}

// maxCorrected bounds the findings with a corrected line: for each one the rules are read again.
const maxCorrected = 100

// Sort puts errors first.
func (r *Report) Sort() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return strings.Compare(string(a.Severity), string(b.Severity))
	})
}
