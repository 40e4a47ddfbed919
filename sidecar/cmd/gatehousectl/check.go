package main

import (
	"fmt"

	"github.com/gatehouse/gatehouse/sidecar/internal/envoyconfig"
	"github.com/gatehouse/gatehouse/sidecar/internal/findings"
	"github.com/gatehouse/gatehouse/sidecar/internal/nginxconfig"
)

// maxConfig bounds a configuration file in bytes; generated ones can be large.
const maxConfig = 64 << 20

type checkCmd struct {
	File  string `arg:"" help:"Envoy configuration, YAML or JSON, or the output of Envoy's /config_dump; or nginx.conf, or the output of nginx -T; - is standard input."`
	Rules string `placeholder:"FILE" help:"Rules of nginx, as nginx render reads or writes them. Default: the file that nginx.conf names."`
	JSON  bool   `name:"json" help:"Print the report as JSON."`
}

// Run analyses the file; it needs no Redis.
func (cmd *checkCmd) Run(c *console) error {
	file, err := c.read(cmd.File, maxConfig, "a configuration")
	if err != nil {
		return err
	}
	report, err := cmd.analyze(c, file)
	if err != nil {
		return err
	}
	if cmd.JSON {
		if err := cmd.print(c, &report); err != nil {
			return err
		}
	} else {
		for _, f := range report.Findings {
			at := cmd.File
			if place := f.Place.Text(); place != "" {
				at += ": " + place
			}
			fmt.Fprintf(c.stderr, "%s [%s] %s: %s\n  fix: %s\n", f.Severity, f.Code, at, f.Message, f.Fix)
		}
	}
	if n := report.Errors(); n > 0 {
		return usagef("%s: errors found: %d", cmd.File, n)
	}
	if !cmd.JSON {
		fmt.Fprintf(c.stdout, "%s: ok, %d rules\n", cmd.File, report.Rules)
	}
	return nil
}

func (cmd *checkCmd) analyze(c *console, file []byte) (findings.Report, error) {
	if !nginxconfig.Is(file) {
		if cmd.Rules != "" {
			return findings.Report{}, usagef("--rules: %s is Envoy's, which has the rules in it", cmd.File)
		}
		return envoyconfig.Analyze(file), nil
	}
	var rules []byte
	if cmd.Rules != "" {
		var err error
		if rules, err = c.read(cmd.Rules, maxConfig, "rules"); err != nil {
			return findings.Report{}, err
		}
	}
	return nginxconfig.Analyze(cmd.File, file, rules), nil
}

func (cmd *checkCmd) print(c *console, report *findings.Report) error {
	if report.Findings == nil {
		report.Findings = []findings.Finding{} // a list, also an empty one
	}
	return c.printJSON(report)
}
