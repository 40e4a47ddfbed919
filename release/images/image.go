package main

import (
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// nonRoot is the user of both programs, which share sockets of mode 0600. Distroless images use the same number.
const nonRoot = "65532:65532"

// image describes an image without the files.
type image struct {
	name        string // directory of the files, and last part of the image's name
	title       string
	description string
	config      v1.Config // without labels
	contents    func(root, arch string) ([]part, error)
}

// images lists all images. The Dockerfiles have the same settings; TestDockerfiles compares them.
var images = []image{
	{
		// Istio's agent takes the module from the file plugin.wasm in the last layer of an image: this image has sidecar and
		// module of the same version. The dynamic module is for the image's architecture.
		name: "sidecar", title: "gatehouse-sidecar",
		description: "Keeps an Envoy's shared memory in step with Redis and verifies credentials; with gatehousectl and " +
			"the filter's modules.",
		config: v1.Config{
			User: nonRoot, Env: []string{"PATH=/usr/local/bin"}, Entrypoint: []string{"/usr/local/bin/gatehouse-sidecar"},
		},
		contents: goParts(
			target{goos: "linux", dir: "./sidecar/cmd/gatehouse-sidecar"},
			target{goos: "linux", dir: "./ctl/cmd/gatehousectl"},
			target{goos: "linux", dir: "./publisher/cmd/gatehouse-publisher"},
			target{goos: "linux", dir: "./native-filter", tags: "native"},
			target{goos: "linux", dir: "./nginx/host", tags: "nginx"},
			wasmModule,
		),
	},
	{
		name: "envoy", title: "gatehouse-envoy",
		description: "Envoy as its wheel has it, for where the official image can't be pulled.",
		config: v1.Config{
			User: nonRoot, Env: []string{"PATH=/usr/local/bin"}, Entrypoint: []string{"/usr/local/bin/envoy"},
		},
		contents: envoyParts,
	},
	{
		name: "nginx", title: "gatehouse-nginx",
		description: "Debian's nginx with lua-nginx-module, for an edge whose plugin gatehousectl installs.",
		config: v1.Config{
			User: nonRoot, Env: []string{"PATH=/usr/sbin"},
			Entrypoint: []string{"/usr/sbin/nginx", "-e", "stderr", "-g", "daemon off;"},
			StopSignal: "SIGQUIT", // nginx ends after answering the pending requests
		},
		contents: nginxParts,
	},
	{
		// The format that Istio and Envoy Gateway accept for a module: a single layer with /plugin.wasm, and no command.
		name: "module", title: "gatehouse-module",
		description: "The filter's module as /plugin.wasm, for Istio's WasmPlugin and Envoy Gateway's EnvoyExtensionPolicy.",
		contents:    goParts(wasmModule),
	},
}

var wasmModule = target{goos: "wasip1", goarch: "wasm", dir: "./wasm-filter"}

// archiveReference returns the image's name in the archive; users push the image under another name.
func (img image) archiveReference() string { return "localhost/" + img.title + ":dev" }

func (img image) archiveName() string { return img.title + ".tar" }
func (img image) bomName() string     { return img.title + ".cdx.json" }

// ociLabels returns the annotations defined by OCI.
func (img image) ociLabels(from source) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       img.title,
		"org.opencontainers.image.description": img.description,
		"org.opencontainers.image.source":      repository,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     from.version,
		"org.opencontainers.image.revision":    from.revision,
		"org.opencontainers.image.created":     from.created.Format("2006-01-02T15:04:05Z"),
	}
}

func (img image) configFile(arch string, from source) (*v1.ConfigFile, error) {
	base, err := emptyOCI().ConfigFile()
	if err != nil {
		return nil, err
	}
	file := base.DeepCopy()
	file.OS, file.Architecture = "linux", arch
	file.Created = v1.Time{Time: from.created}
	file.Config = *img.config.DeepCopy()
	file.Config.Labels = img.ociLabels(from)
	return file, nil
}

func (img image) layerHistory(from source) v1.History {
	return v1.History{Created: v1.Time{Time: from.created}, CreatedBy: "COPY " + img.name + " /"}
}

// emptyOCI returns an image without layers. Manifest and configuration have OCI's media types, not Docker's.
func emptyOCI() v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
}
