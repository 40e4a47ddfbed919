package envoyconfig

import (
	"reflect"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
)

// positions are the positions of objects in a file; a /config_dump has none.
type positions struct {
	source  findings.Source
	entries map[uintptr]findings.Entry // by object
}

// indexEntries records the source entry of each object of a tree.
func (p *positions) indexEntries(v any, at findings.Entry) {
	switch v := v.(type) {
	case []any:
		for i, item := range at.Items() {
			p.indexEntries(v[i], item)
		}
	case map[string]any:
		p.entries[reflect.ValueOf(v).Pointer()] = at
		for name, value := range v {
			if child, found := at.Child(name); found {
				p.indexEntries(value, child)
			}
		}
	}
}

// rulesEntry returns the entry of a plugin's rules, or of the text that contains the rules.
func (p *positions) rulesEntry(of *plugin) findings.Entry {
	if of.Raw == nil || p.entries == nil {
		return findings.Entry{}
	}
	if at, found := p.entries[reflect.ValueOf(of.Raw).Pointer()]; found {
		return at
	}
	at, _ := p.entries[reflect.ValueOf(of.Config).Pointer()].At(of.Field + ".value")
	return at
}

// findLine returns the line of a finding's path or of the nearest enclosing entry, 0 for none.
func (p *positions) findLine(listener, path string) int {
	if p.entries == nil {
		return 0
	}
	at, all := p.source.Root(), p.source.Root()
	if listener != "" {
		at = at.FindNamed(listener, "filter_chains")
	}
	if at == all && listener != "" {
		at = at.FindNamed(listener, "default_filter_chain")
	}
	for part := range strings.SplitSeq(path, ": ") {
		if name, found := strings.CutPrefix(part, "cluster "); found {
			clusters, _ := all.At("static_resources.clusters")
			at = clusters.FindNamed(name, "name")
		} else if name, found := strings.CutPrefix(part, "filter "); found {
			at = at.FindNamed(name, "typed_config")
		} else if name, found := strings.CutPrefix(part, "virtual host "); found {
			at = findVirtualHost(at, name)
		} else {
			at = at.Search(part, "vm_config", "filter_config")
		}
	}
	if at == all {
		return 0
	}
	return at.Line()
}

// findVirtualHost returns the virtual host with a name, or the entry at the path behind the name.
func findVirtualHost(in findings.Entry, name string) findings.Entry {
	if at := in.FindNamed(name, "domains"); at != in {
		return at
	}
	if dot := strings.LastIndexByte(name, '.'); dot >= 0 {
		return findVirtualHost(in, name[:dot]).Search(name[dot+1:])
	}
	return in
}
