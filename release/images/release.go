package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// architectures are the architectures of a release.
var architectures = []string{"amd64", "arm64"}

// writeRelease writes the published images: the sidecar's for all architectures, and the module's, which has no
// architecture.
func writeRelease(dir, out string, from source) error {
	var digests strings.Builder
	for _, img := range images {
		var oci mutate.Appendable
		var err error
		switch img.name {
		case "sidecar":
			oci, err = img.buildIndex(dir, out, from)
		case "module":
			oci, err = img.buildReleaseImage(filepath.Join(dir, img.name), out, img.title+"-"+from.version,
				architectures[0], from)
		default:
			continue // files of the building machine
		}
		if err != nil {
			return fmt.Errorf("%s: %w", img.name, err)
		}
		name := img.title + "-" + from.version
		reference := "localhost/" + img.title + ":" + from.version
		if err := writeArchive(filepath.Join(out, name+".tar"), oci, reference, from.created); err != nil {
			return err
		}
		digest, err := oci.Digest()
		if err != nil {
			return err
		}
		fmt.Fprintf(&digests, "%s  %s\n", digest, img.title)
	}
	return os.WriteFile(filepath.Join(out, "digests.txt"), []byte(digests.String()), 0o644)
}

// buildIndex returns an index of the image for each architecture.
func (img image) buildIndex(dir, out string, from source) (v1.ImageIndex, error) {
	index := v1.ImageIndex(empty.Index)
	for _, arch := range architectures {
		oci, err := img.buildReleaseImage(filepath.Join(dir, arch, img.name), out, img.title+"-"+from.version+
			"-linux-"+arch, arch, from)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: oci, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return index, nil
}

// buildReleaseImage returns the image for an architecture, and writes the bill of materials as name.
func (img image) buildReleaseImage(root, out, name, arch string, from source) (v1.Image, error) {
	oci, err := img.assembleImage(root, arch, from)
	if err != nil {
		return nil, err
	}
	digest, err := oci.Digest()
	if err != nil {
		return nil, err
	}
	return oci, img.writeBOM(filepath.Join(out, name+".cdx.json"), root, arch, digest, from)
}
