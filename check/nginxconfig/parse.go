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

// directive is a directive of nginx.conf or an included file.
type directive struct {
	name  string
	args  []string // for a block of Lua, the last is the code
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

// position returns the directive's file and line for messages.
func (d *directive) position() string { return fmt.Sprintf("%s:%d", d.file, d.line) }

// pluginDir is the plugin's installation directory.
const pluginDir = "/usr/share/gatehouse/nginx/"

const (
	// maxDepth bounds the nesting of blocks and includes.
	maxDepth = 64
	// maxFiles bounds the number of files, counting repeated includes.
	maxFiles = 10_000
)

// reader reads nginx.conf and the included files: from this machine, or from an output of nginx -T.
type reader struct {
	dir      string            // directory of nginx.conf; relative paths start here
	dump     map[string]string // files of an output of nginx -T, nil for this machine's
	files    int               // number of files read
	problems []string          // unreadable files and syntax errors
	lua      map[*directive]parsedLua
}

var dumpedFile = regexp.MustCompile(`(?m)^# configuration file (\S+):\n`)

// loadFiles parses nginx.conf with content text, or the output of nginx -T.
func loadFiles(file string, text []byte) (tree []*directive, r *reader) {
	r = &reader{dir: filepath.Dir(file), lua: map[*directive]parsedLua{}}
	content := string(text)
	if parts := dumpedFile.FindAllStringSubmatchIndex(content, -1); parts != nil &&
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
	return r.parseFile(file, content, 0), r
}

func (r *reader) parseFile(file, text string, depth int) []*directive {
	r.files++
	l := &lexer{text: text, line: 1}
	tree, err := r.parseBlock(l, file, depth, false)
	if err != nil {
		r.problems = append(r.problems, fmt.Sprintf("%s:%d: %s", file, l.line, err))
	}
	return tree
}

// parseBlock parses directives up to the end of the block or file.
func (r *reader) parseBlock(l *lexer, file string, depth int, inner bool) (list []*directive, err error) {
	if depth > maxDepth || r.files > maxFiles {
		return nil, fmt.Errorf("more than %d blocks or files in one another, or %d files", maxDepth, maxFiles)
	}
	for {
		l.skipSpace()
		line := l.line
		words, end, err := l.readWords()
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
			code, err := l.readLua()
			if err != nil {
				return nil, err
			}
			d.args = append(d.args, code)
		case end == '{':
			if d.block, err = r.parseBlock(l, file, depth+1, true); err != nil {
				return nil, err
			}
		case d.name == "include":
			list = append(list, r.parseInclude(d, depth)...)
			continue
		}
		list = append(list, d)
	}
}

// parseInclude returns the directives of the files that an include names.
func (r *reader) parseInclude(d *directive, depth int) (list []*directive) {
	pattern := d.arg(0)
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(r.dir, pattern)
	}
	names := []string{pattern}
	if strings.ContainsAny(pattern, "*?[") {
		names = r.matchFiles(pattern)
	}
	for _, name := range names {
		text, err := r.readFile(name)
		if err != nil {
			r.problems = append(r.problems, fmt.Sprintf("%s: include %s: %s", d.position(), d.arg(0), err))
			continue
		}
		list = append(list, r.parseFile(name, string(text), depth+1)...)
	}
	return list
}

// readAbsolute reads a file that Lua names. Relative names depend on the directory in which nginx was started.
func (r *reader) readAbsolute(name string) ([]byte, error) {
	if !filepath.IsAbs(name) {
		return nil, errors.New("is no absolute path")
	}
	return r.readFile(name)
}

// matchFiles returns the files that match a pattern, in nginx's order. An empty result is valid.
func (r *reader) matchFiles(pattern string) (names []string) {
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

// readFile returns a file's content. The plugin's files are embedded: readFile finds them without an installation.
func (r *reader) readFile(name string) (text []byte, err error) {
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
