package policy

import "strings"

// noneMatch reports whether an If-None-Match list names etag, a strong entity-tag with
// its quotes, by weak comparison (RFC 9110, sections 8.8.3.2 and 13.1.2). What is not
// an entity-tag ends the list.
func noneMatch(list, etag string) bool {
	list = strings.Trim(list, " \t")
	if list == "*" {
		return true
	}
	for {
		list = strings.TrimLeft(list, " \t,")
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
