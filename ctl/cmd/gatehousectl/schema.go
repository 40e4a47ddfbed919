package main

import "github.com/gatehouse/gatehouse/check/ruleschema"

type schemaCmd struct {
	Of string `arg:"" optional:"" enum:"rules,envoy" default:"rules" help:"rules: a file of rules, for nginx. envoy: the rules in a configuration of Envoy."`
}

// Run prints the schema, without Redis.
func (cmd *schemaCmd) Run(c *console) error {
	text := ruleschema.Rules()
	if cmd.Of == "envoy" {
		text = ruleschema.Envoy()
	}
	_, err := c.stdout.Write(text)
	return err
}
