// Package findings has the report of an analysis of a proxy's configuration.
package findings

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/internal/yamltext"
)

// Severity is the severity of a finding.
type Severity string

// The severities.
const (
	// Error is a setting that the proxy refuses, or that breaks a guarantee of Gatehouse: don't deploy the configuration.
	Error Severity = "error"
	// Warning is a setting that works but is probably unintended or weaker than necessary.
	Warning Severity = "warning"
)

// Kind is one kind of finding. docs/analysis.md lists all kinds.
type Kind struct {
	// Code is stable: "GH" and four digits. The first two digits name the part of the configuration.
	Code     string
	Severity Severity
	// Fix is the recommended change.
	Fix string
}

// ErrorKind returns a kind of errors.
func ErrorKind(code, fix string) Kind { return Kind{code, Error, fix} }

// WarningKind returns a kind of warnings.
func WarningKind(code, fix string) Kind { return Kind{code, Warning, fix} }

// Proxy is a proxy whose configuration is analysed.
type Proxy uint8

// The proxies.
const (
	Envoy Proxy = iota
	Nginx
)

// Place is the place of a finding in the configuration.
type Place struct {
	// Listener is the name of Envoy's listener, "" outside of a listener.
	Listener string `json:"listener,omitempty"`
	// Server is the name of nginx's server, else its listen address, "" outside of a server.
	Server string `json:"server,omitempty"`
	// Path is the path of the field within the listener or the plugin's rules, or of the directive within the server; ""
	// for none.
	Path string `json:"path,omitempty"`
	// Rule is the name of the rule, "" outside of a rule or for a rule without a name.
	Rule string `json:"rule,omitempty"`
	// File is the name of the file, "" for the file given to the analysis.
	File string `json:"file,omitempty"`
	// Line is the line in the file, from 1, 0 if unknown.
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

// Finding is a problem at a place.
type Finding struct {
	Code     string   `json:"code"`
	Severity Severity `json:"severity"`
	Place
	// Message describes the problem.
	Message string `json:"message"`
	Fix     string `json:"fix"`
	// Corrected is the corrected line, "" if unknown.
	Corrected string `json:"corrected,omitempty"`
}

// Report is the result of an analysis: errors, then warnings, both in the order of the file.
type Report struct {
	// Rules is the number of rules, in all of Envoy's listeners or in nginx.
	Rules    int       `json:"rules"`
	Findings []Finding `json:"findings"`
}

// CountErrors returns the number of errors.
func (r *Report) CountErrors() (n int) {
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

// AddSyntax adds a finding about a file with invalid YAML.
func (r *Report) AddSyntax(k *Kind, at Place, err error) {
	fix := k.Fix
	if syntax, is := errors.AsType[*yamltext.SyntaxError](err); is {
		at.Line, fix = syntax.Line, syntax.Fix
	}
	r.Findings = append(r.Findings, Finding{k.Code, k.Severity, at, err.Error(), fix, ""})
}

// AddInRules adds a finding about a field of rules, once for rules that YAML aliases repeat.
func (r *Report) AddInRules(k *Kind, at Place, rules *Rules, field, format string, args ...any) {
	message, advice, _ := strings.Cut(fmt.Sprintf(format, args...), policy.FixMark)
	at = rules.Locate(at, field)
	if at.Line > 0 && slices.ContainsFunc(r.Findings, func(f Finding) bool {
		return f.Code == k.Code && f.File == at.File && f.Line == at.Line && f.Path == at.Path && f.Message == message
	}) {
		return
	}
	corrected, fix := "", cmp.Or(advice, k.Fix)
	if len(r.Findings) < maxCorrected {
		if corrected = rules.Correct(field); corrected == "" {
			fix = cmp.Or(rules.Advise(field), fix)
		}
	}
	r.Findings = append(r.Findings, Finding{k.Code, k.Severity, at, message, fix, corrected})
}

// maxCorrected bounds the findings with a corrected line: each correction reads the rules again.
const maxCorrected = 100

// Sort puts errors first.
func (r *Report) Sort() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return strings.Compare(string(a.Severity), string(b.Severity))
	})
}
