package nginxconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/nginx"
)

// directive is one of nginx.conf, with all files that it includes.
type directive struct {
	name  string
	args  []string // of a block of Lua the last is the Lua
	block []*directive
	file  string
	line  int
}

func (d *directive) arg(i int) string {
	if 0 <= i && i < len(d.args) {
		return d.args[i]
	}
	return ""
}

// at is the directive's place for a human.
func (d *directive) at() string { return fmt.Sprintf("%s:%d", d.file, d.line) }

// pluginDir is where the plugin is installed.
const pluginDir = "/usr/share/gatehouse/nginx/"

const (
	// maxDepth bounds the depth of blocks and of files that include each other.
	maxDepth = 64
	// maxFiles bounds the files, each as often as it is included.
	maxFiles = 10_000
)

// reader reads nginx.conf and the files that it includes: from this machine, or from an output of nginx -T.
type reader struct {
	dir   string            // of nginx.conf: to it the paths of others are relative
	dump  map[string]string // the files of an output of nginx -T, nil for this machine's
	files int               // that were read
	wrong []string          // what can't be read, or isn't nginx's syntax
}

var dumped = regexp.MustCompile(`(?m)^# configuration file (\S+):\n`)

// load parses nginx.conf, of which text is the content, or the output of nginx -T.
func load(file string, text []byte) (tree []*directive, r *reader) {
	r = &reader{dir: filepath.Dir(file)}
	content := string(text)
	if parts := dumped.FindAllStringSubmatchIndex(content, -1); parts != nil &&
		strings.TrimSpace(content[:parts[0][0]]) == "" {
		r.dump = map[string]string{}
		for i, part := range parts {
			end := len(content)
			if i+1 < len(parts) {
				end = parts[i+1][0]
			}
			r.dump[content[part[2]:part[3]]] = content[part[1]:end]
		}
		file = content[parts[0][2]:parts[0][3]]
		r.dir, content = filepath.Dir(file), r.dump[file]
	}
	return r.parse(file, content, 0), r
}

func (r *reader) parse(file, text string, depth int) []*directive {
	r.files++
	l := &lexer{text: text, line: 1}
	tree, err := r.block(l, file, depth, false)
	if err != nil {
		r.wrong = append(r.wrong, fmt.Sprintf("%s:%d: %s", file, l.line, err))
	}
	return tree
}

// block parses directives up to the end of the block or file.
func (r *reader) block(l *lexer, file string, depth int, inner bool) (list []*directive, err error) {
	if depth > maxDepth || r.files > maxFiles {
		return nil, fmt.Errorf("more than %d blocks or files in one another, or %d files", maxDepth, maxFiles)
	}
	for {
		l.skip()
		line := l.line
		words, end, err := l.words()
		if err != nil {
			return nil, err
		}
		if len(words) == 0 {
			if (end == '}') != inner {
				return nil, errors.New("has a brace too many, or too few")
			}
			return list, nil
		}
		d := &directive{name: words[0], args: words[1:], file: file, line: line}
		switch {
		case end == '{' && strings.HasSuffix(d.name, "_by_lua_block"):
			code, err := l.lua()
			if err != nil {
				return nil, err
			}
			d.args = append(d.args, code)
		case end == '{':
			if d.block, err = r.block(l, file, depth+1, true); err != nil {
				return nil, err
			}
		case d.name == "include":
			list = append(list, r.include(d, depth)...)
			continue
		}
		list = append(list, d)
	}
}

// include returns the directives of the files that an include names.
func (r *reader) include(d *directive, depth int) (list []*directive) {
	pattern := d.arg(0)
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(r.dir, pattern)
	}
	names := []string{pattern}
	if strings.ContainsAny(pattern, "*?[") {
		names = r.glob(pattern)
	}
	for _, name := range names {
		text, err := r.read(name)
		if err != nil {
			r.wrong = append(r.wrong, fmt.Sprintf("%s: include %s: %s", d.at(), d.arg(0), err))
			continue
		}
		list = append(list, r.parse(name, string(text), depth+1)...)
	}
	return list
}

// readAbsolute reads a file that Lua names. What a relative name is relative to depends on how nginx was started.
func (r *reader) readAbsolute(name string) ([]byte, error) {
	if !filepath.IsAbs(name) {
		return nil, errors.New("is no absolute path")
	}
	return r.read(name)
}

// glob returns the files that a pattern names, in nginx's order. There may be none.
func (r *reader) glob(pattern string) (names []string) {
	if r.dump == nil {
		names, _ = filepath.Glob(pattern)
		return names
	}
	for name := range r.dump {
		if matches, _ := path.Match(pattern, name); matches {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// read returns a file's content. The plugin's files are known also where it isn't installed.
func (r *reader) read(name string) (text []byte, err error) {
	if r.dump != nil {
		if text, found := r.dump[name]; found {
			return []byte(text), nil
		}
		err = errors.New("is not in the output of nginx -T")
	} else if text, err = os.ReadFile(name); err == nil {
		return text, nil
	}
	if base, found := strings.CutPrefix(name, pluginDir); found {
		if text, readErr := nginx.Plugin.ReadFile(base); readErr == nil {
			return text, nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("this machine has no such file")
	}
	return nil, err
}
