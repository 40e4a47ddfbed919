package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// part is a versioned component of an image.
type part struct {
	name, version string
	purl          string // package URL, or empty
}

// writeBOM writes a CycloneDX bill of materials: the parts with their versions, and the files with their digests.
func (img image) writeBOM(path, root, arch string, digest v1.Hash, from source) (err error) {
	parts, err := img.contents(root, arch)
	if err != nil {
		return fmt.Errorf("bill of materials: %w", err)
	}
	files, err := fileComponents(root)
	if err != nil {
		return fmt.Errorf("bill of materials: %w", err)
	}
	components := make([]cdx.Component, 0, len(parts)+len(files))
	for _, p := range parts {
		components = append(components, cdx.Component{
			BOMRef: p.name + "@" + p.version, Type: cdx.ComponentTypeLibrary, Name: p.name, Version: p.version,
			PackageURL: p.purl,
		})
	}
	components = append(components, files...)

	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: from.created.Format("2006-01-02T15:04:05Z"),
		Component: &cdx.Component{
			BOMRef: digest.String(), Type: cdx.ComponentTypeContainer, Name: img.title, Version: from.version,
			Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: digest.Hex}},
		},
	}
	bom.Components = &components
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if closed := file.Close(); err == nil {
			err = closed
		}
	}()
	return cdx.NewBOMEncoder(file, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}

// fileComponents returns the files below root with their digests.
func fileComponents(root string) ([]cdx.Component, error) {
	var components []cdx.Component
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		name := strings.TrimPrefix(path, root)
		components = append(components, cdx.Component{
			BOMRef: "file:" + name, Type: cdx.ComponentTypeFile, Name: name,
			Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
		})
		return nil
	})
	return components, err
}

// sortParts returns parts by name, each once.
func sortParts(parts []part) []part {
	slices.SortFunc(parts, func(a, b part) int { return strings.Compare(a.name+"@"+a.version, b.name+"@"+b.version) })
	return slices.Compact(parts)
}
