package main

import (
	"cmp"
	"fmt"

	"github.com/gatehouse/gatehouse/check/envoyconfig"
	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/check/nginxconfig"
	"github.com/gatehouse/gatehouse/check/rehearse"
	"github.com/gatehouse/gatehouse/internal/envoyrules"
)

// maxConfig bounds a configuration file, in bytes. Generated files can be large.
const maxConfig = 64 << 20

type checkCmd struct {
	File  string `arg:"" optional:"" placeholder:"FILE" help:"Envoy configuration, YAML or JSON, or the output of Envoy's /config_dump; or nginx.conf, or the output of nginx -T; or rules only; - is standard input."`
	Rules string `placeholder:"FILE" help:"With nginx.conf: the rules, as nginx render reads or writes them. Default: the file that nginx.conf names."`

	Against  string `placeholder:"FILE" help:"Also compare the rules with those of this file, such as the configuration that runs, and print a request for each path that is judged differently. Exit code 4 if one lets in who was kept out."`
	Listener string `placeholder:"NAME" help:"Listener whose rules are compared, if there are several."`

	jsonFlag `embed:""`
}

// checkResult is a report, with changes if rules were compared.
type checkResult struct {
	findings.Report
	Changes *[]rehearse.Change `json:"changes,omitempty"`
}

// Run analyses the file, without Redis.
func (cmd *checkCmd) Run(c *console) error {
	if cmd.File == "" { // rules only
		if cmd.File, cmd.Rules = cmd.Rules, ""; cmd.File == "" {
			return usagef("name a configuration, or rules: see gatehousectl check --help")
		}
	}
	file, err := c.readInput(cmd.File, maxConfig, "a configuration")
	if err != nil {
		return err
	}
	var given []byte
	if cmd.Rules != "" && nginxconfig.Is(file) {
		if given, err = c.readInput(cmd.Rules, maxConfig, "rules"); err != nil {
			return err
		}
	}
	report, err := cmd.analyzeFile(file, given)
	if err != nil {
		return err
	}
	var changes []rehearse.Change
	out := checkResult{Report: report}
	if cmd.Against != "" {
		if changes, err = cmd.compareRules(c, file, given); err != nil && report.CountErrors() == 0 {
			return err // with errors in the report, a finding has the reason
		}
		out.Changes = &changes
	}
	if cmd.JSON {
		if err := cmd.printReport(c, &out); err != nil {
			return err
		}
	} else {
		c.printFindings(cmd.File, &report)
		if err := printChanges(c, changes, false); err != nil {
			return err
		}
	}
	if err := errorsFound(cmd.File, &report); err != nil {
		return err
	}
	if rehearse.Weakened(changes) {
		return weakenedError(cmd.File, cmd.Against)
	}
	if !cmd.JSON {
		fmt.Fprintf(c.stdout, "%s: ok, %s\n", cmd.File, formatRules(report.Rules))
	}
	return nil
}

// formatRules returns a number of rules as text.
func formatRules(n int) string {
	if n == 1 {
		return "1 rule"
	}
	return fmt.Sprint(n, " rules")
}

// printFindings prints the findings in a file to standard error.
func (c *console) printFindings(file string, report *findings.Report) {
	for _, f := range report.Findings {
		at := cmp.Or(f.File, file)
		if f.Line > 0 {
			at += fmt.Sprint(":", f.Line)
		}
		if place := f.Place.Text(); place != "" {
			at += ": " + place
		}
		fmt.Fprintf(c.stderr, "%s [%s] %s: %s\n  fix: %s\n", f.Severity, f.Code, at, f.Message, f.Fix)
		if f.Corrected != "" {
			fmt.Fprintf(c.stderr, "       %s\n", f.Corrected)
		}
	}
}

// errorsFound returns the error of a file whose report has errors.
func errorsFound(file string, report *findings.Report) error {
	if n := report.CountErrors(); n > 0 {
		return usagef("%s: errors found: %d", file, n)
	}
	return nil
}

func (cmd *checkCmd) analyzeFile(file, rules []byte) (findings.Report, error) {
	if nginxconfig.Is(file) {
		return nginxconfig.Analyze(cmd.File, file, cmd.Rules, rules), nil
	}
	isRules := envoyrules.IsRules(file)
	switch {
	case envoyrules.IsChartValues(file):
		return findings.Report{}, usagef("%s has values of the chart: check what the chart renders from them, in mode "+
			"gateway by\n  helm template edge CHART -f %[1]s -s templates/gateway/edge-config.yaml | "+
			"sed '1,/yaml: |/d; s/^    //' | gatehousectl check -\n"+
			"and in other modes the /config_dump of a running Envoy", cmd.File)
	case cmd.Rules != "" && isRules:
		return findings.Report{}, usagef("--rules: %s has rules, too: name nginx.conf, or omit --rules", cmd.File)
	case cmd.Rules != "":
		return findings.Report{}, usagef("--rules: %s is Envoy's, which has the rules in it", cmd.File)
	case isRules:
		return nginxconfig.AnalyzeRules(file), nil
	}
	return envoyconfig.Analyze(cmd.File, file), nil
}

// compareRules compares the given rules, or else the file's own rules, with the rules of --against.
func (cmd *checkCmd) compareRules(c *console, file, given []byte) ([]rehearse.Change, error) {
	if cmd.Against == "-" && (cmd.File == "-" || cmd.Rules == "-") {
		return nil, usagef("--against: standard input is also another file")
	}
	old, err := c.readRules(cmd.Against, cmd.Listener)
	if err != nil {
		return nil, err
	}
	name, text := cmd.File, file
	if given != nil {
		name, text = cmd.Rules, given
	}
	rules, err := parseRules(name, text, cmd.Listener)
	if err != nil {
		return nil, err
	}
	return rehearse.Compare(old, rules), nil
}

func (cmd *checkCmd) printReport(c *console, report *checkResult) error {
	if report.Findings == nil {
		report.Findings = []findings.Finding{} // JSON [], not null
	}
	if report.Changes != nil && *report.Changes == nil {
		*report.Changes = []rehearse.Change{}
	}
	return c.printJSON(report)
}
