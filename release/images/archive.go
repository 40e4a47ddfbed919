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
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// writeArchive writes an image, or an index of images, as an OCI image layout in a tar file, with the name reference,
// NAME:TAG.
func writeArchive(path string, oci mutate.Appendable, reference string, created time.Time) (err error) {
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
	if err := appendTo(tree, oci, layout.WithAnnotations(names)); err != nil {
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

func appendTo(tree layout.Path, oci mutate.Appendable, option layout.Option) error {
	switch oci := oci.(type) {
	case v1.Image:
		return tree.AppendImage(oci, option)
	case v1.ImageIndex:
		return tree.AppendIndex(oci, option)
	}
	return fmt.Errorf("%T is no image and no index", oci)
}
