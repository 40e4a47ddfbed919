package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire/limits"
	"github.com/gatehouse/gatehouse/edge/wire/objectkey"
)

// decoder reads a tree field by field and collects its errors.
type decoder struct {
	problems []string
}

func (d *decoder) problem(path, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if path != "" {
		text = path + ": " + text
	}
	d.problems = append(d.problems, text)
}

// fields returns v as an object that has no other fields than known, or nil.
func (d *decoder) fields(at string, v any, known ...string) map[string]any {
	m, ok := v.(map[string]any)
	if !ok {
		d.problem(at, "is %s, want an object with the fields %s", kind(v), strings.Join(known, ", "))
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(known, name) {
			d.problem(join(at, name), "unknown field; known are %s", strings.Join(known, ", "))
		}
	}
	return m
}

// list returns v as a list; absent is an empty one.
func (d *decoder) list(at string, v any) []any {
	if v == nil {
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		d.problem(at, "is %s, want a list", kind(v))
	}
	return list
}

// text returns v as a string that is not empty.
func (d *decoder) text(at string, v any) string {
	s, ok := v.(string)
	if !ok {
		d.problem(at, "is %s, want text", kind(v))
	} else if s == "" {
		d.problem(at, "is empty")
	}
	return s
}

// boolean returns v as true or false; absent is preset.
func (d *decoder) boolean(at string, v any, preset bool) bool {
	if v == nil {
		return preset
	}
	b, ok := v.(bool)
	if !ok {
		d.problem(at, "is %s, want true or false", kind(v))
	}
	return b
}

// oneOf returns v as one of words; absent is the first.
func (d *decoder) oneOf(at string, v any, words ...string) string {
	if v == nil {
		return words[0]
	}
	s, _ := v.(string)
	if !slices.Contains(words, s) {
		d.problem(at, "is %s, want %s", kind(v), strings.Join(words, " or "))
	}
	return s
}

// duration returns v as a duration such as "30s" within bounds; absent is preset.
func (d *decoder) duration(at string, v any, preset, least, most time.Duration) time.Duration {
	if v == nil {
		return preset
	}
	s, _ := v.(string)
	t, err := time.ParseDuration(s)
	if err != nil {
		d.problem(at, "is %s, want a duration such as %q", kind(v), preset)
	} else if t < least || t > most {
		d.problem(at, "is %s, want %s to %s", t, least, most)
	}
	return t
}

// header returns v as the name of a header that may carry a credential.
func (d *decoder) header(at string, v any) string {
	if v == nil {
		d.problem(at, "is missing")
		return ""
	}
	name := strings.ToLower(d.text(at, v))
	if name == "" {
		return ""
	}
	if !token(name) {
		d.problem(at, "%q is not a header name (RFC 9110, section 5.1)", name)
	} else if slices.Contains(identityHeaders, name) {
		d.problem(at, "%q is a header that Gatehouse sends upstream; use another", name)
	}
	return name
}

// permission returns v as a permission name.
func (d *decoder) permission(at string, v any) string {
	name := d.text(at, v)
	if name != "" && !limits.ValidPermission(name) {
		d.problem(at, "%q: want at most %d letters, digits and . _ : -", name, limits.MaxPermissionName)
	}
	return name
}

// ruleName returns v as the name of a rule, which is a part of the names of counters.
func (d *decoder) ruleName(at string, v any) string {
	name := d.text(at, v)
	other := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' && r != '-' }
	if len(name) > maxRuleName || strings.ContainsFunc(name, other) {
		d.problem(at, "%q: want at most %d of a-z, 0-9, _ and -", name, maxRuleName)
	} else if name == noRuleName {
		d.problem(at, "%q is for requests that no rule governs: use another name", name)
	}
	return name
}

// method returns v as a request method.
func (d *decoder) method(at string, v any) string {
	name := d.text(at, v)
	if name != "" && (!token(name) || name != strings.ToUpper(name)) {
		d.problem(at, "%q is not a method: methods are case-sensitive, such as GET", name)
	}
	return name
}

// path returns v as a path that a normalized request can have.
func (d *decoder) path(at string, v any) string {
	p := d.text(at, v)
	if p == "" {
		return p
	}
	if p[0] != '/' || strings.ContainsAny(p, "?# ") {
		d.problem(at, "%q: want a path that begins with / and has no query", p)
	} else if len(p) > maxRulePath {
		d.problem(at, "has %d bytes, at most %d", len(p), maxRulePath)
	} else if got := canonicalPath(p); got != p {
		d.problem(at, "%q matches nothing: rules see decoded, normalised paths, such as %q", p, got)
	} else if !hasOneReading(p) {
		d.problem(at, "%q: want no spaces or control characters: routers read them differently", p)
	}
	return p
}

// segments returns the segments of a path that begins with a slash, as an upstream may see them:
// percent-encoding decoded once, parameters (";…") dropped, backslashes taken for slashes.
func segments(path string) []string {
	all := strings.Split(strings.ReplaceAll(objectkey.PercentDecode(path), `\`, "/"), "/")
	for i, s := range all {
		all[i], _, _ = strings.Cut(s, ";")
	}
	return all
}

// canonicalPath returns what a rule must name instead of path: its segments decoded and without parameters, with
// repeated slashes merged and dot segments resolved.
func canonicalPath(path string) string {
	all := segments(path)
	kept := all[:0:0]
	for i, s := range all {
		last := i == len(all)-1
		switch {
		case s == "..":
			kept = kept[:max(len(kept)-1, 0)]
		case s != "." && s != "":
			kept = append(kept, s)
			continue
		}
		if last { // "/a/", "/a/." and "/a/b/.." all name the directory
			kept = append(kept, "")
		}
	}
	return "/" + strings.Join(kept, "/")
}

// token reports whether s is a token (RFC 9110, section 5.6.2).
func token(s string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !alnum && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// kind returns a description of v for error messages.
func kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "missing"
	case string:
		return fmt.Sprintf("%q", v)
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	default:
		return fmt.Sprint(v)
	}
}
