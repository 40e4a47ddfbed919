//go:build native

// The hooks that do nothing: Envoy wants a module to have them.
#include "abi.h"

int envoy_dynamic_module_on_http_filter_request_trailers(void *f, const void *m) { (void)f, (void)m; return 0; }
int envoy_dynamic_module_on_http_filter_response_body(void *f, const void *m, bool end) {
  (void)f, (void)m, (void)end;
  return 0;
}
int envoy_dynamic_module_on_http_filter_response_trailers(void *f, const void *m) { (void)f, (void)m; return 0; }
void envoy_dynamic_module_on_http_filter_stream_complete(void *f, const void *m) { (void)f, (void)m; }
void envoy_dynamic_module_on_http_filter_http_callout_done(void *f, const void *m, uint64_t id, int result, header *h,
                                                           size_t n, buffer *b, size_t bn) {
  (void)f, (void)m, (void)id, (void)result, (void)h, (void)n, (void)b, (void)bn;
}
void envoy_dynamic_module_on_http_filter_http_stream_headers(void *f, const void *m, uint64_t id, header *h, size_t n,
                                                             bool end) {
  (void)f, (void)m, (void)id, (void)h, (void)n, (void)end;
}
void envoy_dynamic_module_on_http_filter_http_stream_data(void *f, const void *m, uint64_t id, const buffer *b,
                                                          size_t n, bool end) {
  (void)f, (void)m, (void)id, (void)b, (void)n, (void)end;
}
void envoy_dynamic_module_on_http_filter_http_stream_trailers(void *f, const void *m, uint64_t id, header *h,
                                                              size_t n) {
  (void)f, (void)m, (void)id, (void)h, (void)n;
}
void envoy_dynamic_module_on_http_filter_http_stream_complete(void *f, const void *m, uint64_t id) {
  (void)f, (void)m, (void)id;
}
void envoy_dynamic_module_on_http_filter_http_stream_reset(void *f, const void *m, uint64_t id, int reason) {
  (void)f, (void)m, (void)id, (void)reason;
}
void envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark(void *f, const void *m) {
  (void)f, (void)m;
}
void envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark(void *f, const void *m) {
  (void)f, (void)m;
}
