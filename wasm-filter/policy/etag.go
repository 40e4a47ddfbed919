package policy

import "strings"

// maxTags bounds the entity-tags of a list that are compared, and the separators between two: a server may always
// answer as if none had matched.
const maxTags = 64

// noneMatch reports whether one of the first maxTags entity-tags of an If-None-Match list matches etag, a strong
// entity-tag with its quotes, by weak comparison (RFC 9110, sections 8.8.3.2 and 13.1.2). Anything else ends the list.
func noneMatch(list, etag string) bool {
	list = strings.Trim(list, " \t")
	if list == "*" {
		return true
	}
	for range maxTags {
		for separators := 0; list != "" && (list[0] == ' ' || list[0] == '\t' || list[0] == ','); separators++ {
			if list = list[1:]; separators == maxTags {
				return false
			}
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
	return false
}
