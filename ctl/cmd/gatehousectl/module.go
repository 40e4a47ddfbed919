package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

type installModuleCmd struct {
	Source      string `arg:"" placeholder:"FILE" help:"The filter's module in the image."`
	Destination string `arg:"" placeholder:"FILE" help:"File to create or replace, in a volume that Envoy reads."`
}

// Run copies the module, in the init container of a pod whose Envoy has another image. The image has no shell, and no
// cp.
func (cmd *installModuleCmd) Run(c *console) error {
	module, err := os.ReadFile(cmd.Source)
	if err != nil {
		return err
	}
	info, err := os.Stat(cmd.Source)
	if err != nil {
		return err
	}
	// A program stays one: hooks of a proxy's image without a shell run gatehousectl from the volume.
	if err := writeFile(cmd.Destination, module, 0o644|info.Mode()&0o111); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.stdout, "%s: %d bytes\n", cmd.Destination, len(module))
	return err
}

// writeFile creates or replaces a file atomically.
func writeFile(path string, text []byte, mode fs.FileMode) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), ".gatehouse-")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name()) // no-op after the rename
	_, err = temporary.Write(text)
	if err := errors.Join(err, temporary.Chmod(mode), temporary.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(temporary.Name(), path)
}
