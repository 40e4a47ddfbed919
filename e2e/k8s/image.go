//go:build linux

package k8s

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// WriteImage writes an archive of an image with files of this machine, by their paths in the image, and the libraries
// of these files. One path is the entry point.
func WriteImage(path, reference, entrypoint string, files map[string]string) error {
	all := maps.Clone(files)
	for _, file := range files {
		libraries, err := librariesOf(file)
		if err != nil {
			return err
		}
		for _, library := range libraries {
			all[library] = library
		}
	}
	layer, err := layerOf(all)
	if err != nil {
		return err
	}
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH,
		Config: v1.Config{Entrypoint: []string{entrypoint}, Env: []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin"},
			User: "65535:65535"},
	})
	if err != nil {
		return err
	}
	image, err = mutate.AppendLayers(image, layer)
	if err != nil {
		return err
	}
	tag, err := name.NewTag(reference)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(path, tag, image)
}

var libraryPath = regexp.MustCompile(`/[^ ]+`)

// librariesOf returns the libraries of a program, its loader included: none if the program is static, or the file is no
// program.
func librariesOf(program string) ([]string, error) {
	out, err := exec.Command("ldd", program).CombinedOutput()
	if exit, ended := errors.AsType[*exec.ExitError](err); ended &&
		strings.Contains(string(out), "not a dynamic executable") {
		return nil, nil
	} else if ended {
		return nil, fmt.Errorf("ldd %s: %w: %s", program, exit, out)
	} else if err != nil {
		return nil, fmt.Errorf("ldd %s: %w", program, err)
	}
	return libraryPath.FindAllString(string(out), -1), nil
}

// layerOf returns a layer with /tmp and with files of this machine, by their paths in the layer.
func layerOf(files map[string]string) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}); err != nil { // as everywhere
		return nil, err
	}
	for name, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		header := tar.Header{Name: strings.TrimPrefix(name, "/"), Typeflag: tar.TypeReg, Size: int64(len(text)), Mode: 0o755}
		if err := w.WriteHeader(&header); err != nil {
			return nil, err
		}
		if _, err := w.Write(text); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	},
		tarball.WithCompressionLevel(gzip.NoCompression)) // it is read once
}
