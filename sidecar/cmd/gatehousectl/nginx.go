package main

import (
	"fmt"

	"github.com/gatehouse/gatehouse/nginx"
)

type nginxRenderCmd struct {
	File string `arg:"" help:"Rules, YAML or JSON; - is standard input."`
}

// Run prints the file that the plugin reads; it needs no Redis.
func (cmd *nginxRenderCmd) Run(c *console) error {
	text, err := c.read(cmd.File, maxConfig, "rules")
	if err != nil {
		return err
	}
	rendered, n, err := nginx.Render(text)
	if err != nil {
		return usagef("%s: %w", cmd.File, err)
	}
	if _, err := c.stdout.Write(rendered); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.stderr, "%s: ok, %d rules\n", cmd.File, n)
	return err
}
