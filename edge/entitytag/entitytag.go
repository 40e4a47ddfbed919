// Package entitytag compares entity-tags (RFC 9110, section 8.8.3).
package entitytag

import "strings"

// InList reports whether list, an If-None-Match or If-Match, is * or has an entity-tag that matches etag, a strong
// entity-tag with quotes: by weak comparison, or else by strong (RFC 9110, sections 8.8.3.2, 13.1.1 and 13.1.2).
// Malformed text ends the list. InList reads each byte at most twice, and the proxy bounds a request's headers.
func InList(list, etag string, weak bool) bool {
	list = strings.Trim(list, " \t")
	if list == "*" {
		return true
	}
	for {
		for list != "" && (list[0] == ' ' || list[0] == '\t' || list[0] == ',') {
			list = list[1:]
		}
		tag := strings.TrimPrefix(list, "W/")
		if len(tag) < 2 || tag[0] != '"' {
			return false
		}
		end := strings.IndexByte(tag[1:], '"')
		if end < 0 {
			return false
		}
		if tag[:end+2] == etag && (weak || len(tag) == len(list)) {
			return true
		}
		list = tag[end+2:]
	}
}
