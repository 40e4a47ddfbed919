// Package abi is the filter's Go binding of Proxy-Wasm, ABI 0.2: the proxy's functions, and the memory for their
// results. It is independent of Gatehouse, and allocates nothing per call.
package abi

// arenaSize is the size of a callback's results without an allocation, in bytes: all headers of a request (16 KiB in
// our envoy.yaml, 60 KiB by default) and the records for the decision.
const arenaSize = 128 << 10

// Arena is the memory for the proxy's results, valid during the current callback; the next callback overwrites them.
// The zero value is ready to use.
type Arena struct {
	block [arenaSize]byte
	used  int
	last  []byte
	// spilled has the results that didn't fit, each in memory of its own. The proxy knows only the addresses, so
	// spilled retains the memory until the end of the callback.
	spilled [][]byte
}

// Reset releases all allocated memory. Every callback begins with Reset.
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

// Last returns the first size bytes of the last allocation, the result of the call just made; nil if the allocation is
// smaller.
func (a *Arena) Last(size int) []byte {
	if size > len(a.last) {
		return nil
	}
	return a.last[:size:size]
}
