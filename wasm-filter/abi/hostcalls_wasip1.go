package abi

import (
	"strconv"
	"time"
	"unsafe"
)

// Status is why the proxy refused a call.
type Status uint32

// Error implements error.
func (s Status) Error() string {
	switch s {
	case 1:
		return "the proxy says: not found"
	case 2:
		return "the proxy says: bad argument"
	}
	return "the proxy says: status " + strconv.Itoa(int(s))
}

func (s Status) err() error {
	if s == 0 {
		return nil
	}
	return s
}

// Level is the severity of a log line.
type Level uint32

// The severities in use.
const (
	LevelWarn Level = iota + 3
	LevelError
	LevelCritical
)

// HeaderMap names a header map of a context.
type HeaderMap uint32

// The header maps in use.
const (
	RequestHeaders      HeaderMap = 0
	ResponseHeaders     HeaderMap = 2
	CallResponseHeaders HeaderMap = 6
)

// Buffer names a buffer of a context.
type Buffer uint32

// The buffers in use.
const (
	RequestBody         Buffer = 0
	CallResponseBody    Buffer = 4
	VMConfiguration     Buffer = 6
	PluginConfiguration Buffer = 7
)

// results is the memory for the proxy's results: one arena per VM, because a VM runs one callback at a time.
var results Arena

// BeginCallback releases the results of earlier callbacks. Every exported function begins with BeginCallback, and so
// does the work for each of many streams.
func BeginCallback() { results.Reset() }

// allocate allocates memory for a result of the proxy.
//
//go:wasmexport proxy_on_memory_allocate
func allocate(size uint32) unsafe.Pointer {
	return unsafe.Pointer(unsafe.SliceData(results.Allocate(int(size))))
}

// out is the memory to which the proxy writes through the pointers of a call. It is not on the stack: a call can come
// back into the module, and the stack may move.
var out struct {
	address, size, number uint32
	time                  uint64 // unix ns
	metric                uint64
}

// result returns the value of the call just made, valid during the callback.
func result(s Status) ([]byte, error) {
	if s != 0 {
		return nil, s
	}
	return results.Last(int(out.size)), nil
}

// Log writes a line to the proxy's log.
func Log(l Level, message string) { proxyLog(l, message) }

// NowMS returns the proxy's clock, unix ms.
func NowMS() int64 {
	proxyGetCurrentTime(unsafe.Pointer(&out.time))
	return int64(out.time / 1e6)
}

// Pairs returns a header map of the current context, in the form of package headermap. Names are in lower case.
func Pairs(m HeaderMap) ([]byte, error) {
	return result(proxyGetHeaderMapPairs(m, unsafe.Pointer(&out.address), unsafe.Pointer(&out.size)))
}

// Header returns the value of a header; Envoy joins several by commas.
func Header(m HeaderMap, name string) (string, error) {
	value, err := result(proxyGetHeaderMapValue(m, name, unsafe.Pointer(&out.address), unsafe.Pointer(&out.size)))
	return asString(value), err
}

// AddHeader adds a header after headers of the same name.
func AddHeader(m HeaderMap, name, value string) error {
	return proxyAddHeaderMapValue(m, name, value).err()
}

// RemoveHeader removes all headers of a name.
func RemoveHeader(m HeaderMap, name string) error { return proxyRemoveHeaderMapValue(m, name).err() }

// BufferBytes returns the first size bytes of a buffer, or all of a shorter buffer.
func BufferBytes(b Buffer, size int) ([]byte, error) {
	out.size = 0 // without bytes the proxy does not set size
	return result(proxyGetBufferBytes(b, 0, uint32(size), unsafe.Pointer(&out.address), unsafe.Pointer(&out.size)))
}

// Property returns an attribute of the current context; the parts of its path are joined by NUL.
func Property(path string) ([]byte, error) {
	return result(proxyGetProperty(path, unsafe.Pointer(&out.address), unsafe.Pointer(&out.size)))
}

// SetProperty sets an attribute of the current context; the proxy copies both texts.
func SetProperty(path, value string) error { return proxySetProperty(path, value).err() }

// SharedData returns the value and the compare-and-swap number of a key.
func SharedData(key string) (value []byte, cas uint32, err error) {
	value, err = result(proxyGetSharedData(key, unsafe.Pointer(&out.address), unsafe.Pointer(&out.size),
		unsafe.Pointer(&out.number)))
	return value, out.number, err
}

// SetSharedData sets the value of a key, which the proxy copies: unconditionally if cas is 0, otherwise only if the key
// still has the number cas.
func SetSharedData(key string, value []byte, cas uint32) error {
	return proxySetSharedData(key, asString(value), cas).err()
}

// Reply answers the request of the current context, after the callback has returned.
// headers is a header map, and details are Envoy's RESPONSE_CODE_DETAILS; the proxy copies everything.
func Reply(status int, details string, headers, body []byte) error {
	const noGRPCStatus = -1
	return proxySendLocalResponse(uint32(status), details, asString(body), asString(headers), noGRPCStatus).err()
}

// ContinueRequest continues a paused request, after the callback has returned.
func ContinueRequest() error {
	const request = 0
	return proxyContinueStream(request).err()
}

// Enter makes the context contextID the current context until the callback returns; it fails if the context has gone.
func Enter(contextID uint32) error { return proxySetEffectiveContext(contextID).err() }

// Call sends a request to a cluster and returns the token that proxy_on_http_call_response will get. The proxy assigns
// the call to the plugin of the current context, so the answer arrives even if the stream ends, but not if the plugin
// does.
func Call(cluster string, headers, body []byte, timeout time.Duration) (uint32, error) {
	const noTrailers = ""
	s := proxyHTTPCall(cluster, asString(headers), asString(body), noTrailers, uint32(timeout.Milliseconds()),
		unsafe.Pointer(&out.number))
	return out.number, s.err()
}

// SetTickPeriod sets the period of proxy_on_tick.
func SetTickPeriod(ms uint32) error { return proxySetTickPeriod(ms).err() }

// DefineCounter returns the id of the counter called name.
func DefineCounter(name string) (uint32, error) {
	const counter = 0
	s := proxyDefineMetric(counter, name, unsafe.Pointer(&out.number))
	return out.number, s.err()
}

// DefineGauge returns the id of the gauge called name.
func DefineGauge(name string) (uint32, error) {
	const gauge = 1
	s := proxyDefineMetric(gauge, name, unsafe.Pointer(&out.number))
	return out.number, s.err()
}

// Add adds to a counter or gauge.
func Add(id uint32, n int64) error { return proxyIncrementMetric(id, n).err() }

// Metric returns the value of a counter or gauge.
func Metric(id uint32) (uint64, error) {
	s := proxyGetMetric(id, unsafe.Pointer(&out.metric))
	return out.metric, s.err()
}

//go:wasmimport env proxy_log
func proxyLog(level Level, message string) Status

//go:wasmimport env proxy_get_current_time_nanoseconds
func proxyGetCurrentTime(time unsafe.Pointer) Status

//go:wasmimport env proxy_get_header_map_pairs
func proxyGetHeaderMapPairs(m HeaderMap, address, size unsafe.Pointer) Status

//go:wasmimport env proxy_get_header_map_value
func proxyGetHeaderMapValue(m HeaderMap, name string, address, size unsafe.Pointer) Status

//go:wasmimport env proxy_add_header_map_value
func proxyAddHeaderMapValue(m HeaderMap, name, value string) Status

//go:wasmimport env proxy_remove_header_map_value
func proxyRemoveHeaderMapValue(m HeaderMap, name string) Status

//go:wasmimport env proxy_get_buffer_bytes
func proxyGetBufferBytes(b Buffer, start, length uint32, address, size unsafe.Pointer) Status

//go:wasmimport env proxy_get_property
func proxyGetProperty(path string, address, size unsafe.Pointer) Status

//go:wasmimport env proxy_set_property
func proxySetProperty(path, value string) Status

//go:wasmimport env proxy_get_shared_data
func proxyGetSharedData(key string, address, size, cas unsafe.Pointer) Status

//go:wasmimport env proxy_set_shared_data
func proxySetSharedData(key, value string, cas uint32) Status

//go:wasmimport env proxy_send_local_response
func proxySendLocalResponse(status uint32, details, body, headers string, grpcStatus int32) Status

//go:wasmimport env proxy_continue_stream
func proxyContinueStream(stream uint32) Status

//go:wasmimport env proxy_set_effective_context
func proxySetEffectiveContext(contextID uint32) Status

//go:wasmimport env proxy_http_call
func proxyHTTPCall(cluster, headers, body, trailers string, timeoutMS uint32, token unsafe.Pointer) Status

//go:wasmimport env proxy_set_tick_period_milliseconds
func proxySetTickPeriod(ms uint32) Status

//go:wasmimport env proxy_define_metric
func proxyDefineMetric(kind uint32, name string, id unsafe.Pointer) Status

//go:wasmimport env proxy_get_metric
func proxyGetMetric(id uint32, value unsafe.Pointer) Status

//go:wasmimport env proxy_increment_metric
func proxyIncrementMetric(id uint32, offset int64) Status

// asString returns b as a string without a copy: the string lives and changes with b.
func asString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
