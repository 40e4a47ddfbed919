// Command images makes OCI images of the directories that release/images.sh fills. Each image is an archive for
// buildah,
// podman, skopeo and containerd, with a bill of materials. The command runs in release, without engine, registry or
// root.
//
//	images DIR	          reads DIR/sidecar, DIR/envoy and DIR/module;
//		                    writes DIR/*.tar, DIR/*.cdx.json and DIR/digests.txt
//	images release DIR OUT  reads DIR/ARCH/sidecar and DIR/module, and writes the same of a release into OUT
//	images provenance OUT   reads OUT/SHA256SUMS and OUT/digests.txt, and writes the release's provenance into OUT
//
// The same files give the same bytes: every time in an image is SOURCE_DATE_EPOCH.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr, os.Getenv))
}

// run runs the program and returns the exit status, 2 on wrong usage.
func run(args []string, stdout, stderr io.Writer, env func(string) string) int {
	seconds, err := strconv.ParseInt(env("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		fmt.Fprintf(stderr, "images: SOURCE_DATE_EPOCH %q: want seconds since 1970, such as a commit's time\n",
			env("SOURCE_DATE_EPOCH"))
		return 2
	}
	source := source{
		created: time.Unix(seconds, 0).UTC(), version: env("VERSION"), revision: env("REVISION"),
	}
	switch {
	case len(args) == 1:
		err = buildAll(args[0], source, stdout)
	case len(args) == 3 && args[0] == "release":
		err = writeRelease(args[1], args[2], source)
	case len(args) == 2 && args[0] == "provenance":
		err = writeProvenance(args[1], source)
	default:
		fmt.Fprintln(stderr, "images: want DIR, release DIR OUT or provenance OUT; see release/images.sh and "+
			"release/release.sh")
		return 2
	}
	if err != nil {
		fmt.Fprintln(stderr, "images:", err)
		return 1
	}
	return 0
}

// source describes the sources of the images.
type source struct {
	created           time.Time
	version, revision string
}

// buildAll writes all images below dir, and prints a line for each.
func buildAll(dir string, from source, stdout io.Writer) error {
	var digests strings.Builder
	for _, img := range images {
		digest, err := img.buildImage(dir, from)
		if err != nil {
			return fmt.Errorf("%s: %w", img.name, err)
		}
		fmt.Fprintf(&digests, "%s  %s\n", digest, img.archiveReference())
	}
	if err := os.WriteFile(filepath.Join(dir, "digests.txt"), []byte(digests.String()), 0o644); err != nil {
		return err
	}
	_, err := io.WriteString(stdout, digests.String())
	return err
}

// buildImage writes an image's archive and bill of materials, and returns the digest.
func (img image) buildImage(dir string, from source) (digest string, err error) {
	root := filepath.Join(dir, img.name)
	oci, err := img.assembleImage(root, runtime.GOARCH, from)
	if err != nil {
		return "", err
	}
	if err := writeArchive(filepath.Join(dir, img.archiveName()), oci, img.archiveReference(), from.created); err != nil {
		return "", err
	}
	hash, err := oci.Digest()
	if err != nil {
		return "", err
	}
	return hash.String(), img.writeBOM(filepath.Join(dir, img.bomName()), root, runtime.GOARCH, hash, from)
}

// assembleImage returns the image of the files below root.
func (img image) assembleImage(root, arch string, from source) (v1.Image, error) {
	layer, err := layerOf(root, from.created)
	if err != nil {
		return nil, err
	}
	config, err := img.configFile(arch, from)
	if err != nil {
		return nil, err
	}
	oci, err := mutate.ConfigFile(emptyOCI(), config)
	if err != nil {
		return nil, err
	}
	return mutate.Append(oci, mutate.Addendum{Layer: layer, History: img.layerHistory(from)})
}
