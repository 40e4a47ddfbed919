package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/objectkey"
)

// decoder reads a tree field by field and collects errors.
type decoder struct {
	problems []string
}

func (d *decoder) addProblem(path, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if path != "" {
		text = path + ": " + text
	}
	d.problems = append(d.problems, text)
}

// object is an object of the configuration and its path.
type object struct {
	*decoder
	at     string
	fields []Field
	values map[string]any // nil if the value is no object
	before int            // problems
}

// isSound reports whether the object has no problem so far: a further problem may be a consequence.
func (o *object) isSound() bool { return len(o.problems) == o.before }

// decodeObject returns v as an object with no fields but fields.
func (d *decoder) decodeObject(at string, v any, fields []Field) object {
	o := object{d, at, fields, nil, len(d.problems)}
	known := strings.Join(fieldNames(fields), ", ")
	var ok bool
	if o.values, ok = v.(map[string]any); !ok {
		d.addProblem(at, "is %s, want an object with the fields %s", describeValue(v), known)
		return o
	}
	for _, name := range slices.Sorted(maps.Keys(o.values)) {
		if !slices.Contains(fieldNames(fields), name) {
			d.addProblem(joinField(at, name), "unknown field; known are %s", known)
		}
	}
	return o
}

// has reports whether the object has a field, perhaps null.
func (o *object) has(name string) bool {
	_, found := o.values[name]
	return found
}

// field returns the field called name, its path and its value.
func (o *object) field(name string) (f *Field, at string, v any) {
	return fieldNamed(o.fields, name), joinField(o.at, name), o.values[name]
}

// readObject returns the object in a field.
func (o *object) readObject(name string) object {
	f, at, v := o.field(name)
	if v == nil && o.has(name) {
		o.addProblem(at, "has no value, want an object with the fields %s", strings.Join(fieldNames(f.Fields), ", "))
		return object{o.decoder, at, f.Fields, nil, len(o.problems) - 1}
	}
	return o.decodeObject(at, v, f.Fields)
}

// readList returns the values of a list; nil if absent.
func (o *object) readList(name string) []any {
	f, at, v := o.field(name)
	if !o.has(name) {
		return nil
	}
	return o.readItems(f, at, v)
}

func (d *decoder) readItems(f *Field, at string, v any) []any {
	if v == nil && f.IfEmpty == "" {
		return nil
	}
	list, ok := v.([]any)
	switch {
	case !ok:
		want := "a list"
		if text, is := v.(string); is {
			want += ": [" + text + "]"
		}
		d.addProblem(at, "is %s, want %s", describeValue(v), want)
	case len(list) == 0 && f.IfEmpty != "":
		d.addProblem(at, "is empty: %s", f.IfEmpty)
	case f.Max > 0 && len(list) > f.Max:
		d.addProblem(at, "has %d entries, at most %d", len(list), f.Max)
		return nil
	}
	return list
}

// readTexts returns the values of a list of texts, nil if absent. Invalid values are "".
func (o *object) readTexts(name string) []string {
	f, at, _ := o.field(name)
	if !o.has(name) {
		return nil
	}
	all := []string{}
	for i, v := range o.readList(name) {
		all = append(all, o.readTextOf(f.Item.Form, fmt.Sprintf("%s[%d]", at, i), v))
	}
	return all
}

// readText returns a text, "" if invalid.
func (o *object) readText(name string) string {
	f, at, v := o.field(name)
	return o.readTextOf(f.Form, at, v)
}

// readFlag returns true or false.
func (o *object) readFlag(name string) bool {
	f, at, v := o.field(name)
	if v == nil {
		return f.On
	}
	b, ok := v.(bool)
	if !ok {
		o.addProblem(at, "is %s, want true or false", describeValue(v))
	}
	return b
}

// readWord returns a word of the field's Words; absent is the first word.
func (o *object) readWord(name string) string {
	f, at, v := o.field(name)
	if v == nil {
		return f.Words[0]
	}
	return o.readOneOf(at, v, f.Words)
}

// readOneOf returns v, a member of words.
func (d *decoder) readOneOf(at string, v any, words []string) string {
	s, _ := v.(string)
	if !slices.Contains(words, s) {
		d.addProblem(at, "is %s, want %s", describeValue(v), strings.Join(words, " or "))
	}
	return s
}

// readDuration returns a duration such as "30s", within the field's bounds.
func (o *object) readDuration(name string) time.Duration {
	f, at, v := o.field(name)
	if v == nil {
		return f.Preset
	}
	s, _ := v.(string)
	t, err := time.ParseDuration(s)
	if err != nil {
		o.addProblem(at, "is %s, want a duration such as %q", describeValue(v), f.Preset)
	} else if t < f.Least || t > f.Most {
		o.addProblem(at, "is %s, want %s to %s", t, f.Least, f.Most)
	}
	return t
}

// readTextOf returns v as text of a form, "" if invalid.
func (d *decoder) readTextOf(form Form, at string, v any) string {
	s, ok := v.(string)
	if !ok {
		d.addProblem(at, "is %s, want text", describeValue(v))
		return ""
	}
	if form == Header || form == Language {
		s = strings.ToLower(s)
	}
	if why := textProblem(form, s); why != "" {
		d.addProblem(at, "%s", why)
		return ""
	}
	return s
}

// textProblem returns the problem of a text of a form, "" for none.
func textProblem(form Form, s string) string {
	if s == "" {
		return "is empty"
	}
	switch form {
	case Header:
		return headerProblem(s)
	case Permission:
		if !limits.ValidPermission(s) {
			return fmt.Sprintf("%q: want at most %d letters, digits and . _ : -", s, limits.MaxPermissionName)
		}
	case RuleName:
		return ruleNameProblem(s)
	case Method:
		if !isToken(s) || s != strings.ToUpper(s) {
			return fmt.Sprintf("%q is not a method: methods are case-sensitive, such as GET", s)
		}
	case Path:
		return pathProblem(s)
	case Parameter:
		if strings.ContainsAny(s, "&=") {
			return fmt.Sprintf("%q is not a parameter's name: want one without & and =", s)
		}
	case Language:
		if !limits.ValidLanguage(s) {
			return fmt.Sprintf("%q is not a language tag: want one such as de or en-GB (RFC 5646)", s)
		}
	case Domain:
		if why := domainProblem(s); why != "" {
			return fmt.Sprintf("%q: %s", s, why)
		}
	}
	return ""
}

// headerProblem tells why a header may not carry a credential.
func headerProblem(name string) string {
	if !isToken(name) {
		return fmt.Sprintf("%q is not a header name (RFC 9110, section 5.1)", name)
	}
	if slices.Contains(identityHeaders, name) {
		return fmt.Sprintf("%q is a header that Gatehouse sends upstream"+FixMark+"use another", name)
	}
	if slices.Contains(messageHeaders, name) {
		return fmt.Sprintf("%q belongs to the message or the connection, not to the client"+FixMark+"use another", name)
	}
	return ""
}

// messageHeaders are the headers that proxies read and rewrite (RFC 9110, sections 7.2 and 7.6.1), and cookies, which
// have several values.
var messageHeaders = []string{"host", "content-length", "transfer-encoding", "te", "trailer", "connection",
	"keep-alive", "proxy-connection", "upgrade", "expect", "cookie"}

// ruleNameProblem tells why a rule can't have a name, which is a part of the names of counters.
func ruleNameProblem(name string) string {
	other := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' && r != '-' }
	if len(name) > MaxRuleName || strings.ContainsFunc(name, other) {
		return fmt.Sprintf("%q: want at most %d of a-z, 0-9, _ and -", name, MaxRuleName)
	}
	if name == noRuleName {
		return fmt.Sprintf("%q is for requests that no rule governs: use another name", name)
	}
	return ""
}

// pathProblem tells why no normalized request has a path.
func pathProblem(p string) string {
	if p[0] != '/' || strings.ContainsAny(p, "?# ") {
		return fmt.Sprintf("%q: want a path that begins with / and has no query", p)
	}
	if len(p) > MaxRulePath {
		return fmt.Sprintf("has %d bytes, at most %d", len(p), MaxRulePath)
	}
	if got := CanonicalPath(p); got != p {
		return fmt.Sprintf("%q matches nothing: rules see decoded, normalised paths, such as %q", p, got)
	}
	if !hasOneReading(p) {
		return fmt.Sprintf("%q: want no spaces or control characters: routers read them differently", p)
	}
	return ""
}

// pathSegments returns the segments of a path, which begins with a slash, as an upstream may see them: percent-encoding
// decoded once, parameters (";…") dropped, backslashes taken for slashes.
func pathSegments(path string) []string {
	all := strings.Split(strings.ReplaceAll(objectkey.PercentDecode(path), `\`, "/"), "/")
	for i, s := range all {
		all[i], _, _ = strings.Cut(s, ";")
	}
	return all
}

// CanonicalPath returns the path to write in a rule: segments decoded and without parameters, repeated slashes merged,
// dot segments resolved.
func CanonicalPath(path string) string {
	all := pathSegments(path)
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

// isToken reports whether s is a token (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !alnum && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

func joinField(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// describeValue returns a description of v for error messages.
func describeValue(v any) string {
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
