package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// built runs `make images` with a umask and returns the directory of the images.
func built(t *testing.T, umask string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "images")
	cmd := exec.Command("bash", "-c", "umask "+umask+" && exec ../images.sh \"$0\"", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("release/images.sh: %v: %s", err, out)
	}
	return dir
}

// TestImages builds the images twice, with different directories and umasks.
func TestImages(t *testing.T) {
	if testing.Short() {
		t.Skip("long; in short: TestLayerDependsOnContents")
	}
	first, second := built(t, "077"), built(t, "022")
	for _, img := range images {
		t.Run(img.name, func(t *testing.T) {
			for _, name := range []string{img.archiveName(), img.bomName()} {
				if a, b := read(t, first, name), read(t, second, name); a != b {
					t.Errorf("%s differs between two builds", name)
				}
			}
			oci := unpack(t, filepath.Join(first, img.archiveName()))
			checkConfig(t, img, oci)
			checkFiles(t, oci, filepath.Join(first, img.name))
			checkBOM(t, img, first, oci)
			checkDockerfile(t, img)
		})
	}
}

// TestLayerDependsOnContents packs the same files in directories with other times and umasks.
func TestLayerDependsOnContents(t *testing.T) {
	packed := func(mode os.FileMode, at time.Time, text string) string {
		root := t.TempDir()
		for _, name := range []string{"b/program", "a"} {
			path := filepath.Join(root, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777&mode), os.WriteFile(path, []byte(text), 0o777&mode),
				os.Chmod(path, 0o777&mode), os.Chtimes(path, at, at)); err != nil {
				t.Fatal(err)
			}
		}
		layer, err := layerOf(root, time.Unix(1, 0))
		if err != nil {
			t.Fatal(err)
		}
		digest, err := layer.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return digest.String()
	}
	first := packed(0o755, time.Unix(2, 0), "x")
	if second := packed(0o700, time.Unix(3, 0), "x"); second != first {
		t.Errorf("got %s and %s for the same files, want one digest", first, second)
	}
	if other := packed(0o755, time.Unix(2, 0), "y"); other == first {
		t.Error("got the same digest for other files")
	}
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// unpack reads the one image of an archive.
func unpack(t *testing.T, archive string) v1.Image {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("tar", "-xf", archive, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 {
		t.Fatalf("got %d images in %s, want one", len(manifest.Manifests), archive)
	}
	oci, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return oci
}

// checkConfig checks the fields that runtimes and registries read.
func checkConfig(t *testing.T, img image, oci v1.Image) {
	t.Helper()
	file, err := oci.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if img.config.User != file.Config.User ||
		strings.Join(img.config.Entrypoint, " ") != strings.Join(file.Config.Entrypoint, " ") {
		t.Errorf("configuration: got %+v, want %+v", file.Config, img.config)
	}
	if file.OS != "linux" || file.Architecture == "" {
		t.Errorf("platform: got %q/%q", file.OS, file.Architecture)
	}
	for _, label := range []string{"title", "description", "source", "licenses", "version", "revision", "created"} {
		if file.Config.Labels["org.opencontainers.image."+label] == "" {
			t.Errorf("no label %s", label)
		}
	}
}

// checkFiles compares the layer with the directory, and checks that owners and modes allow changes by root only.
func checkFiles(t *testing.T, oci v1.Image, root string) {
	t.Helper()
	layers, err := oci.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("got %d layers, %v, want one", len(layers), err)
	}
	if kind, err := layers[0].MediaType(); err != nil || kind != types.OCILayer {
		t.Errorf("media type: got %q, %v, want %q: what meshes fetch modules from", kind, err, types.OCILayer)
	}
	compressed, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	plain, err := gzip.NewReader(compressed)
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for r := tar.NewReader(plain); ; {
		header, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.Mode&0o022 != 0 || header.Mode&0o444 != 0o444 {
			t.Errorf("%s: owner %d, mode %o: want root's, readable and not writable for others", header.Name,
				header.Uid, header.Mode)
		}
		if header.Typeflag == tar.TypeDir {
			continue
		}
		files++
		text, err := io.ReadAll(r)
		if err != nil || string(text) != read(t, root, header.Name) {
			t.Errorf("%s: not what the directory has: %v", header.Name, err)
		}
	}
	if files == 0 {
		t.Error("no files")
	}
}

// TestGoParts expects the Go client among the parts, in the version that the tree's other modules require.
func TestGoParts(t *testing.T) {
	t.Chdir("..") // as release/images.sh runs the program
	example := read(t, "../examples/postgres/go.mod")
	parts, err := goParts(wasmModule)("", "amd64")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if p.name == "github.com/gatehouse/gatehouse/clients/go" {
			if want := p.name + " " + p.version + "\n"; !strings.Contains(example, want) {
				t.Errorf("got %q, want examples/postgres/go.mod to have it", want)
			}
			if want := "pkg:golang/" + p.name + "@" + p.version; p.purl != want {
				t.Errorf("got %q, want %q", p.purl, want)
			}
			return
		}
	}
	t.Errorf("got %v, want the Go client, too", parts)
}

// checkBOM expects the image's digest, and for each image a required part.
func checkBOM(t *testing.T, img image, dir string, oci v1.Image) {
	t.Helper()
	var bom cdx.BOM
	if err := json.Unmarshal([]byte(read(t, dir, img.bomName())), &bom); err != nil {
		t.Fatal(err)
	}
	digest, err := oci.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got := (*bom.Metadata.Component.Hashes)[0].Value; got != digest.Hex {
		t.Errorf("bill of materials of %s, want of %s", got, digest.Hex)
	}
	if line := digest.String() + "  " + img.archiveReference(); !strings.Contains(read(t, dir, "digests.txt"), line) {
		t.Errorf("digests.txt has no line %q", line)
	}
	named := map[string]bool{}
	for _, component := range *bom.Components {
		named[component.Name] = component.Version != "" || component.Hashes != nil
	}
	for _, want := range map[string][]string{
		"sidecar": {"github.com/redis/go-redis/v9", "github.com/dchest/siphash", "golang.org/x/crypto/x509roots/fallback",
			"stdlib", "/usr/local/bin/gatehousectl", "/plugin.wasm",
			"/libgatehouse.so", "/usr/local/lib/gatehouse/libgatehouse-nginx.so"},
		"envoy":  {"envoy", "glibc", "/usr/local/bin/envoy"},
		"nginx":  {"nginx", "libnginx-mod-http-lua", "lua-resty-core", "libc6", "/usr/sbin/nginx"},
		"module": {"github.com/dchest/siphash", "stdlib", "/plugin.wasm"},
	}[img.name] {
		if !named[want] {
			t.Errorf("the bill of materials doesn't have %s with a version or digest", want)
		}
	}
}

// checkDockerfile parses the Dockerfile's few instructions, without a build, and compares the image with the
// instructions.
func checkDockerfile(t *testing.T, img image) {
	t.Helper()
	want := []string{"FROM scratch", "COPY " + img.name + " /"}
	for _, env := range img.config.Env {
		want = append(want, "ENV "+env)
	}
	if img.config.User != "" {
		want = append(want, "USER "+img.config.User)
	}
	if img.config.StopSignal != "" {
		want = append(want, "STOPSIGNAL "+img.config.StopSignal)
	}
	if img.config.Entrypoint != nil {
		want = append(want, `ENTRYPOINT ["`+strings.Join(img.config.Entrypoint, `", "`)+`"]`)
	}
	var got []string
	for line := range strings.Lines(read(t, img.name+".Dockerfile")) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			got = append(got, line)
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s.Dockerfile: got %q, want %q", img.name, got, want)
	}
}
