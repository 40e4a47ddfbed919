package main

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// writeArchive writes an image as an OCI image layout in a tar file, with the name reference, NAME:TAG.
func writeArchive(path string, oci v1.Image, reference string, created time.Time) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".layout-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	tree, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	// Two annotations: buildah, podman and skopeo read the first, containerd the second.
	names := map[string]string{"org.opencontainers.image.ref.name": reference, "io.containerd.image.name": reference}
	if err := tree.AppendImage(oci, layout.WithAnnotations(names)); err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if closed := file.Close(); err == nil {
			err = closed
		}
	}()
	w := tar.NewWriter(file)
	if err := addTree(w, dir, created); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return w.Close()
}
