package policy

import "strings"

// noneMatch reports whether one of the entity-tags of an If-None-Match list matches etag, a strong entity-tag with its
// quotes, by weak comparison (RFC 9110, sections 8.8.3.2 and 13.1.2). Anything else ends the list. It reads each byte
// at most twice, and the proxy bounds a request's headers.
func noneMatch(list, etag string) bool {
	list = strings.Trim(list, " \t")
	if list == "*" {
		return true
	}
	for {
		for list != "" && (list[0] == ' ' || list[0] == '\t' || list[0] == ',') {
			list = list[1:]
		}
		list = strings.TrimPrefix(list, "W/")
		if len(list) < 2 || list[0] != '"' {
			return false
		}
		end := strings.IndexByte(list[1:], '"')
		if end < 0 {
			return false
		}
		if list[:end+2] == etag {
			return true
		}
		list = list[end+2:]
	}
}
