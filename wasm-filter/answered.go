//go:build wasip1 || sdk

package main

import "encoding/binary"

// Names shared by the module and the proxy.
const (
	guardGauge   = "gatehouse.guard"
	claimsFilter = "envoy.filters.http.jwt_authn" // the metadata has the claims
)

// isAnswered reports whether the property response.code of a stream, nil for none, is an answer: not 100.
func isAnswered(code []byte) bool { return len(code) == 8 && binary.LittleEndian.Uint64(code) >= 200 }
