// Package abi is the Go binding of Proxy-Wasm, ABI 0.2, that the filter uses: the proxy's functions, and the memory for
// their results. It is independent of Gatehouse, and allocates nothing per call.
package abi

// arenaSize is the size of a callback's results without an allocation, in bytes: all headers of a request (16 KiB in
// our envoy.yaml, 60 KiB by default) and the records that decide it.
const arenaSize = 128 << 10

// Arena is the memory for the proxy's results. Its contents are valid during the current callback: the next one
// overwrites them. The zero value is ready to use.
type Arena struct {
	block [arenaSize]byte
	used  int
	last  []byte
	// spilled has the results that didn't fit, each with its own memory. The proxy knows them by address only, so they
	// are retained here until the callback is over.
	spilled [][]byte
}

// Reset releases all allocated memory. A callback calls it first.
func (a *Arena) Reset() {
	a.used, a.last = 0, nil
	if a.spilled != nil {
		a.spilled = nil
	}
}

// Allocate returns size bytes, aligned to 8, with arbitrary contents.
func (a *Arena) Allocate(size int) []byte {
	if size > len(a.block)-a.used {
		a.last = make([]byte, max(size, 1))
		a.spilled = append(a.spilled, a.last)
		return a.last
	}
	a.last = a.block[a.used : a.used+size : a.used+size]
	a.used += (size + 7) &^ 7
	return a.last
}

// Last returns the first size bytes of the last allocation, nil if that is smaller: the result of the call that has
// just returned.
func (a *Arena) Last(size int) []byte {
	if size > len(a.last) {
		return nil
	}
	return a.last[:size:size]
}
