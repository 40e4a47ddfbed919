package main

import (
	"fmt"

	"github.com/gatehouse/gatehouse/sidecar/internal/envoyconfig"
)

// maxConfig bounds a configuration file in bytes; generated ones can be large.
const maxConfig = 64 << 20

type checkCmd struct {
	File string `arg:"" help:"Envoy configuration, YAML or JSON; - is standard input."`
}

// Run checks the file; it needs no Redis.
func (cmd *checkCmd) Run(c *console) error {
	file, err := c.read(cmd.File, maxConfig, "a configuration")
	if err != nil {
		return err
	}
	rules, problems, warnings := envoyconfig.Check(file)
	for _, warning := range warnings {
		fmt.Fprintf(c.stderr, "%s: warning: %s\n", cmd.File, warning)
	}
	for _, problem := range problems {
		fmt.Fprintf(c.stderr, "%s: %s\n", cmd.File, problem)
	}
	if n := len(problems); n > 0 {
		return usagef("%s: problems found: %d", cmd.File, n)
	}
	fmt.Fprintf(c.stdout, "%s: ok, %d rules\n", cmd.File, rules)
	return nil
}
