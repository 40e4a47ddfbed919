package envoyconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/gatehouse/gatehouse/check/findings"
)

// document is a file with the configuration of a discovered filter.
type document struct {
	name   string
	path   string // as written in the filter
	source findings.Source
}

// readDiscovered reads the files of discovered filters.
func (a *analysis) readDiscovered(tree any) {
	a.documents = map[string]*document{}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				walk(item)
			}
		case map[string]any:
			o := object(v)
			for _, filter := range o.list("http_filters") {
				a.readFilter(filter)
			}
			for _, key := range o.keys() {
				walk(o[key])
			}
		}
	}
	if a.name != "" {
		walk(tree)
	}
}

func (a *analysis) readFilter(filter object) {
	name, discovery := filter.text("name"), filter.object("config_discovery")
	path := sourcePath(discovery.object("config_source"))
	if _, dumped := a.extensions[name]; path == "" || dumped && a.documents[name] == nil {
		return
	}
	var err error
	if known := a.documents[name]; known == nil {
		err = a.readExtension(path, name)
	} else if known.path != path {
		err = fmt.Errorf("%s and %s: give the filters other names", known.path, path)
	}
	if err != nil && mayBeGatehouse(discovery) {
		a.add(&noFile, "", "", "filter %s: its configuration is in another file: %s", name, err)
	}
}

// sourcePath returns the file of a config source, "" for other kinds of source.
func sourcePath(source object) string {
	if path := source.object("path_config_source").text("path"); path != "" {
		return path
	}
	return source.text("path")
}

// mayBeGatehouse reports whether a discovered filter may have the type of a Gatehouse filter.
func mayBeGatehouse(discovery object) bool {
	types, _ := discovery.field("type_urls").([]any)
	return slices.ContainsFunc(types, func(url any) bool {
		text, _ := url.(string)
		return isType(text, wasmType) || isType(text, nativeType)
	})
}

// readExtension reads a discovered filter from a file. If the file doesn't exist, readExtension looks in the directory
// of the configuration: before installation both files are there.
func (a *analysis) readExtension(path, name string) error {
	file := path
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		file = filepath.Join(filepath.Dir(a.name), filepath.Base(path))
		if beside, failed := os.ReadFile(file); failed == nil {
			text, err = beside, nil
		}
	}
	if err != nil {
		return err
	}
	tree, source, err := parseTree(text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	m, _ := tree.(map[string]any)
	all := object(m).list("resources")
	if len(all) != 1 || all[0].text("name") != name {
		return fmt.Errorf("%s: want resources with one item, and there name: %s", file, name)
	}
	if a.entries != nil {
		a.indexEntries(tree, source.Root())
	}
	a.extensions[name], a.documents[name] = all[0], &document{file, path, source}
	return nil
}
