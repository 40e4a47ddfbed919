//go:build native

// What is used of Envoy's ABI for dynamic modules, v0.2.0, of Envoy 1.40. Declared by hand; names and types are
// Envoy's, without the prefix of its types.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ABI_VERSION "v0.2.0"

typedef struct { const char *ptr; size_t length; } buffer;
typedef struct { const char *key; size_t key_length; const char *value; size_t value_length; } header;

enum { REQUEST_HEADERS = 0, RESPONSE_HEADERS = 2, RECEIVED_REQUEST_BODY = 0 };
enum { ATTRIBUTE_SOURCE_ADDRESS = 24 };
// Results of the hooks for request headers and bodies.
enum { HEADERS_CONTINUE = 0, HEADERS_STOP = 1, HEADERS_STOP_ALL_AND_WATERMARK = 4 };
enum { BODY_CONTINUE = 0, BODY_STOP_NO_BUFFER = 3 };
// Results of calls, and of the definition of metrics.
enum { CALLOUT_STARTED = 0, CALLOUT_SUCCEEDED = 0, METRIC_SUCCESS = 0 };

// They exist in Envoy alone: weak symbols let linkers accept that. missing_function looks all of them up at load.
#define ENVOY __attribute__((weak))

ENVOY void envoy_dynamic_module_callback_log(int level, buffer message);
ENVOY bool envoy_dynamic_module_callback_is_validation_mode(void);

ENVOY size_t envoy_dynamic_module_callback_http_get_headers_size(void *filter, int type);
ENVOY bool envoy_dynamic_module_callback_http_get_headers(void *filter, int type, header *out);
ENVOY bool envoy_dynamic_module_callback_http_set_header(void *filter, int type, buffer key, buffer value);
ENVOY bool envoy_dynamic_module_callback_http_add_header(void *filter, int type, buffer key, buffer value);
ENVOY size_t envoy_dynamic_module_callback_http_get_body_chunks_size(void *filter, int type);
ENVOY bool envoy_dynamic_module_callback_http_get_body_chunks(void *filter, int type, buffer *out);
ENVOY bool envoy_dynamic_module_callback_http_filter_get_attribute_string(void *filter, int attribute, buffer *out);
ENVOY bool envoy_dynamic_module_callback_http_get_filter_state_bytes(void *filter, buffer key, buffer *out);
ENVOY bool envoy_dynamic_module_callback_http_get_filter_state_typed(void *filter, buffer key, buffer *out);
ENVOY bool envoy_dynamic_module_callback_http_set_filter_state_bytes(void *filter, buffer key, buffer value);
ENVOY void envoy_dynamic_module_callback_http_send_response(void *filter, uint32_t status, header *headers,
                                                            size_t count, buffer body, buffer details);
ENVOY void envoy_dynamic_module_callback_http_filter_continue_decoding(void *filter);
ENVOY void envoy_dynamic_module_callback_http_clear_route_cache(void *filter);

// Schedulers make Envoy call a hook on the thread of a request, or on the main thread; they may be used on any thread.
ENVOY void *envoy_dynamic_module_callback_http_filter_scheduler_new(void *filter);
ENVOY void envoy_dynamic_module_callback_http_filter_scheduler_commit(void *scheduler, uint64_t event);
ENVOY void envoy_dynamic_module_callback_http_filter_scheduler_delete(void *scheduler);
ENVOY void *envoy_dynamic_module_callback_http_filter_config_scheduler_new(void *config);
ENVOY void envoy_dynamic_module_callback_http_filter_config_scheduler_commit(void *scheduler, uint64_t event);
ENVOY void envoy_dynamic_module_callback_http_filter_config_scheduler_delete(void *scheduler);

// On the main thread only.
ENVOY int envoy_dynamic_module_callback_http_filter_config_http_callout(void *config, uint64_t *id, buffer cluster,
                                                                        header *headers, size_t count, buffer body,
                                                                        uint64_t timeout_ms);
// While the configuration is being made only.
ENVOY int envoy_dynamic_module_callback_http_filter_config_define_counter(void *config, buffer name, buffer *labels,
                                                                          size_t count, size_t *id);
ENVOY int envoy_dynamic_module_callback_http_filter_config_increment_counter(void *config, size_t id, buffer *values,
                                                                             size_t count, uint64_t n);
