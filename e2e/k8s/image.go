//go:build linux

package k8s

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// writeImage writes an archive of an image with a program of this machine at the same path, which is its entry point,
// and the libraries that it needs.
func writeImage(path, reference, program string) error {
	libraries, err := librariesOf(program)
	if err != nil {
		return err
	}
	layer, err := layerOf(append(libraries, program))
	if err != nil {
		return err
	}
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH,
		Config: v1.Config{Entrypoint: []string{program}, Env: []string{"PATH=" + filepath.Dir(program)}, User: "65535:65535"},
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

// librariesOf returns the libraries of a program, its loader included: none if it is static.
func librariesOf(program string) ([]string, error) {
	out, err := exec.Command("ldd", program).CombinedOutput()
	if exit, ended := errors.AsType[*exec.ExitError](err); ended && strings.Contains(string(out), "not a dynamic executable") {
		return nil, nil
	} else if ended {
		return nil, fmt.Errorf("ldd %s: %w: %s", program, exit, out)
	} else if err != nil {
		return nil, fmt.Errorf("ldd %s: %w", program, err)
	}
	return libraryPath.FindAllString(string(out), -1), nil
}

// layerOf returns a layer with files of this machine at their paths.
func layerOf(paths []string) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		header := tar.Header{Name: strings.TrimPrefix(path, "/"), Typeflag: tar.TypeReg, Size: int64(len(text)), Mode: 0o755}
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
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
}
