package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

type installModuleCmd struct {
	Source      string `arg:"" help:"The filter's module in the image."`
	Destination string `arg:"" help:"File to create or replace, in a volume that Envoy reads."`
}

// Run copies the module so that nobody sees half of it. It is for the init container of a pod
// whose Envoy has another image, and an image without a shell has no cp.
func (cmd *installModuleCmd) Run(c *console) error {
	source, err := os.Open(cmd.Source)
	if err != nil {
		return err
	}
	defer source.Close()
	temporary, err := os.CreateTemp(filepath.Dir(cmd.Destination), ".module-")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name()) // in vain once it has its name
	size, err := io.Copy(temporary, source)
	err = errors.Join(err, temporary.Chmod(0o644), temporary.Close())
	if err != nil {
		return fmt.Errorf("copy %s: %w", cmd.Source, err)
	}
	if err := os.Rename(temporary.Name(), cmd.Destination); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.stdout, "%s: %d bytes\n", cmd.Destination, size)
	return err
}
