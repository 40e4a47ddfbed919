package findings

import "strings"

// DescribesAnswer reports whether a header says something about an answer's content, or what caches may do with it (RFC
// 9110 and 9111).
func DescribesAnswer(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case "etag", "last-modified", "age", "cache-control", "expires", "pragma", "vary", "location", "retry-after",
		"accept-ranges", "www-authenticate", "transfer-encoding", "trailer", "cache-status":
		return true
	}
	return strings.HasPrefix(name, "content-") && name != "content-security-policy" && name != "content-disposition"
}
