package envoyrules

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Document is a file with the configuration of a discovered filter.
type Document struct {
	Name string
	Path string // as written in the filter
	Text []byte
	Tree any
	Root *yaml.Node
}

// Unread is a discovered filter whose file can't be read.
type Unread struct {
	Filter string
	Err    error
}

// readDiscovered reads the files of discovered filters.
func (c *Configuration) readDiscovered(tree any) {
	c.Documents = map[string]*Document{}
	if c.name == "" {
		return
	}
	VisitObjects(tree, func(o Object) bool {
		for _, filter := range o.List("http_filters") {
			c.readFilter(filter)
		}
		return true
	})
}

func (c *Configuration) readFilter(filter Object) {
	name, discovery := filter.Text("name"), filter.Object("config_discovery")
	path := sourcePath(discovery.Object("config_source"))
	if _, dumped := c.extensions[name]; path == "" || dumped && c.Documents[name] == nil {
		return
	}
	var err error
	if known := c.Documents[name]; known == nil {
		err = c.readExtension(path, name)
	} else if known.Path != path {
		err = fmt.Errorf("%s and %s: give the filters other names", known.Path, path)
	}
	if err != nil && mayBeGatehouse(discovery) {
		c.Unread = append(c.Unread, Unread{name, err})
	}
}

// sourcePath returns the file of a config source, "" for other kinds of source.
func sourcePath(source Object) string {
	if path := source.Object("path_config_source").Text("path"); path != "" {
		return path
	}
	return source.Text("path")
}

// mayBeGatehouse reports whether a discovered filter may have the type of a Gatehouse filter.
func mayBeGatehouse(discovery Object) bool {
	types, _ := discovery.Field("type_urls").([]any)
	return slices.ContainsFunc(types, func(url any) bool {
		text, _ := url.(string)
		return MayBePlugin(text)
	})
}

// readExtension reads a discovered filter from a file. If the file doesn't exist, readExtension looks in the directory
// of the configuration: before installation both files are there.
func (c *Configuration) readExtension(path, name string) error {
	file := path
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		file = filepath.Join(filepath.Dir(c.name), filepath.Base(path))
		if beside, failed := os.ReadFile(file); failed == nil {
			text, err = beside, nil
		}
	}
	if err != nil {
		return err
	}
	tree, root, err := Parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	m, _ := tree.(map[string]any)
	all := Object(m).List("resources")
	if len(all) != 1 || all[0].Text("name") != name {
		return fmt.Errorf("%s: want resources with one item, and there name: %s", file, name)
	}
	c.extensions[name], c.Documents[name] = all[0], &Document{file, path, text, tree, root}
	return nil
}
