// Package coding has the content codings of writers, the sidecar and the edge.
package coding

import "strconv"

// Encoding is a content coding of a stored body (RFC 9110, section 8.4.1).
type Encoding uint8

// The content codings of stored bodies. The numbers are part of records in the sidecar and the edge.
const (
	Identity Encoding = iota
	Gzip
	Brotli
	Zstd
	// Encodings is their number.
	Encodings
)

var codings = [Encodings]string{"identity", "gzip", "br", "zstd"}

// String returns the coding's token in Content-Encoding and Accept-Encoding.
func (e Encoding) String() string {
	if e < Encodings {
		return codings[e]
	}
	return "encoding(" + strconv.Itoa(int(e)) + ")"
}
