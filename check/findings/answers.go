package findings

import (
	"slices"
	"strings"
)

// DescribingHeaders describe an answer's content, or tell caches how to use the answer (RFC 9110 and 9111).
var DescribingHeaders = []string{"etag", "last-modified", "age", "cache-control", "expires", "pragma", "vary",
	"location", "retry-after", "accept-ranges", "www-authenticate", "transfer-encoding", "trailer", "cache-status",
	"content-type", "content-encoding", "content-language", "content-length",
	"content-location", "content-range", "content-digest"}

// DescribesAnswer reports whether a header is one of DescribingHeaders.
func DescribesAnswer(name string) bool {
	return slices.ContainsFunc(DescribingHeaders, func(h string) bool { return strings.EqualFold(h, name) })
}
