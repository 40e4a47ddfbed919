package main

import (
	"encoding/json"
	"fmt"

	"github.com/gatehouse/gatehouse/sidecar/internal/envoyconfig"
)

// maxConfig bounds a configuration file in bytes; generated ones can be large.
const maxConfig = 64 << 20

type checkCmd struct {
	File string `arg:"" help:"Envoy configuration, YAML or JSON, or the output of Envoy's /config_dump; - is standard input."`
	JSON bool   `name:"json" help:"Print the report as JSON."`
}

// Run analyses the file; it needs no Redis.
func (cmd *checkCmd) Run(c *console) error {
	file, err := c.read(cmd.File, maxConfig, "a configuration")
	if err != nil {
		return err
	}
	report := envoyconfig.Analyze(file)
	if cmd.JSON {
		if err := cmd.print(c, &report); err != nil {
			return err
		}
	} else {
		for _, f := range report.Findings {
			at := cmd.File
			if place := f.Place(); place != "" {
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

func (cmd *checkCmd) print(c *console, report *envoyconfig.Report) error {
	if report.Findings == nil {
		report.Findings = []envoyconfig.Finding{} // a list, also an empty one
	}
	encoder := json.NewEncoder(c.stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(report)
}
