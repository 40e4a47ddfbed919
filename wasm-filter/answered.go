//go:build wasip1 || sdk

package main

import "encoding/binary"

// answered reports whether the property response.code of a stream, nil if it has none, tells of an answer: not of 100.
func answered(code []byte) bool { return len(code) == 8 && binary.LittleEndian.Uint64(code) >= 200 }
