package nginxconfig

import (
	"regexp"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
)

var (
	writesHeader = regexp.MustCompile(`\bngx\.header(?:\.(\w+)|\[\s*["']([^"']+)["']\s*\])\s*=[^=]`)
	writesStatus = regexp.MustCompile(`\bngx\.status\s*=[^=]`)
	writesBody   = regexp.MustCompile(`\bngx\.arg\s*\[\s*1\s*\]\s*=[^=]`)
)

// checkAlterations checks that nothing changes cached answers: nginx's filters apply to cached answers as to all
// answers.
func (a *analysis) checkAlterations(s *scope) {
	if !a.mayGovern(s, hasCache) {
		return
	}
	for _, name := range []string{"gzip", "brotli", "zstd"} {
		if s.value(name) == "on" {
			a.addOnce(&reencoded, s, s.effective(name)[0],
				"is on: nginx encodes cached answers again, and changes their entity-tags")
		}
	}
	for _, name := range []string{"sub_filter", "add_before_body", "add_after_body", "ssi"} {
		if value := s.value(name); value != "" && value != "off" {
			a.addOnce(&changedBody, s, s.effective(name)[0],
				"changes bodies of cached answers, whatever their encoding and range, and their entity-tags")
		}
	}
	header := func(d *directive, name string) {
		if s.name == "location" && s.pass() == nil {
			return // files, whose names a rule happens to cover
		}
		a.addOnce(&changedHeader, s, d, "changes %s of cached answers", name)
	}
	for name, changes := range map[string]string{"expires": "Cache-Control", "charset": "Content-Type",
		"add_trailer": "Content-Length"} {
		if value := s.value(name); value != "" && value != "off" {
			header(s.effective(name)[0], changes)
		}
	}
	for _, d := range s.effective("add_header") {
		if name := d.arg(0); findings.DescribesAnswer(name) && !strings.EqualFold(name, "vary") &&
			!isEmptyForPlugin(d.arg(1)) {
			header(d, name)
		}
	}
	for _, d := range s.effective("header_filter_by_lua", "header_filter_by_lua_block", "header_filter_by_lua_file") {
		l, _ := a.reader.directiveLua(d)
		if writesStatus.MatchString(l.code) {
			a.addOnce(&changedBody, s, d, "changes the status of cached answers")
		}
		for _, match := range writesHeader.FindAllStringSubmatch(l.code, -1) {
			if name := strings.ReplaceAll(match[1]+match[2], "_", "-"); findings.DescribesAnswer(name) {
				header(d, name)
			}
		}
	}
	for _, d := range s.effective("body_filter_by_lua", "body_filter_by_lua_block", "body_filter_by_lua_file") {
		if l, _ := a.reader.directiveLua(d); writesBody.MatchString(l.code) {
			a.addOnce(&changedBody, s, d, "changes bodies of cached answers, but not their entity-tags")
		}
	}
}

// isEmptyForPlugin reports whether a value is empty in the plugin's own answers.
func isEmptyForPlugin(value string) bool {
	return slices.ContainsFunc([]string{"$gatehouse_", "$upstream_", "$sent_http_"}, func(name string) bool {
		return strings.HasPrefix(value, name)
	})
}
