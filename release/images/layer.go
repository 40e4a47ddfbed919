package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// layerOf returns a layer of the files below root. The layer depends only on names, contents and the executable bit:
// root owns everything, no file is writable, and all times are created.
func layerOf(root string, created time.Time) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := addTree(w, root, created); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	text := buf.Bytes()
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil },
		tarball.WithMediaType(types.OCILayer))
}

// addTree adds the files below root, in lexical order.
func addTree(w *tar.Writer, root string, created time.Time) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		return addFile(w, strings.TrimPrefix(path, root+"/"), path, entry, created)
	})
}

func addFile(w *tar.Writer, name, path string, entry fs.DirEntry, created time.Time) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	header := &tar.Header{Name: name, ModTime: created, Format: tar.FormatPAX}
	switch {
	case entry.IsDir():
		header.Typeflag, header.Name, header.Mode = tar.TypeDir, name+"/", 0o755
		return w.WriteHeader(header)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is no file and no directory, but %s; copy what it means", path, info.Mode().Type())
	}
	header.Typeflag, header.Size, header.Mode = tar.TypeReg, info.Size(), 0o644
	if info.Mode()&0o111 != 0 {
		header.Mode = 0o755
	}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	_, err = io.Copy(w, file)
	return err
}
