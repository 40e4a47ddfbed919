// A module with hooks like Gatehouse's that decides nothing: its cost is the least that any dynamic module with these
// answers can have. The load test measures Gatehouse against it.
//
// It answers paths below /v1/ with fields as long as Gatehouse's: 304 if there is an If-None-Match, 200 otherwise.
#include "../../native-filter/dynmod/abi.h"
#include <string.h>

enum { USUAL_HEADERS = 128 };

static char body[48 << 10];

const char *envoy_dynamic_module_on_program_init(void) {
  memset(body, 'x', sizeof body);
  return ABI_VERSION;
}

// Envoy takes NULL for a refusal.
static const char made;

const void *envoy_dynamic_module_on_http_filter_config_new(void *envoy, buffer name, buffer configuration) {
  (void)envoy, (void)name, (void)configuration;
  return &made;
}
void envoy_dynamic_module_on_http_filter_config_destroy(const void *config) { (void)config; }
void envoy_dynamic_module_on_http_filter_config_scheduled(void *envoy, const void *config, uint64_t event) {
  (void)envoy, (void)config, (void)event;
}
void envoy_dynamic_module_on_http_filter_config_http_callout_done(void *envoy, const void *config, uint64_t id,
                                                                  int result, header *headers, size_t count,
                                                                  buffer *chunks, size_t chunk_count) {
  (void)envoy, (void)config, (void)id, (void)result, (void)headers, (void)count, (void)chunks, (void)chunk_count;
}
const void *envoy_dynamic_module_on_http_filter_per_route_config_new(buffer name, buffer configuration) {
  (void)name, (void)configuration;
  return NULL;
}
void envoy_dynamic_module_on_http_filter_per_route_config_destroy(const void *config) { (void)config; }

const void *envoy_dynamic_module_on_http_filter_new(const void *config, void *envoy) {
  (void)config;
  return envoy; // all that a request needs
}
void envoy_dynamic_module_on_http_filter_destroy(const void *module) { (void)module; }

int envoy_dynamic_module_on_http_filter_response_headers(void *envoy, const void *module, bool end) {
  (void)envoy, (void)module, (void)end;
  return 0;
}

#define FIELD(name, value) {name, sizeof name - 1, value, sizeof value - 1}

// The first five are those of a 304.
static header fields[] = {
    FIELD("cache-status", "gatehouse; hit"),
    FIELD("etag", "\"0123456789abcdef0123456789abcdef\""),
    FIELD("cache-control", "no-cache"),
    FIELD("age", "12"),
    FIELD("vary", "accept-encoding"),
    FIELD("content-type", "application/json"),
    FIELD("last-modified", "Tue, 24 Nov 2026 10:00:00 GMT"),
};

static bool is(const char *key, size_t length, const char *name) {
  return length == strlen(name) && !memcmp(key, name, length);
}

int envoy_dynamic_module_on_http_filter_request_headers(void *envoy, const void *module, bool end) {
  (void)module, (void)end;
  header headers[USUAL_HEADERS];
  size_t count = envoy_dynamic_module_callback_http_get_headers_size(envoy, REQUEST_HEADERS);
  if (count > USUAL_HEADERS || !envoy_dynamic_module_callback_http_get_headers(envoy, REQUEST_HEADERS, headers))
    return HEADERS_CONTINUE;
  const header *path = NULL, *none_match = NULL;
  for (const header *h = headers; h < headers + count; h++)
    if (is(h->key, h->key_length, ":path"))
      path = h;
    else if (is(h->key, h->key_length, "if-none-match"))
      none_match = h;
  if (!path || path->value_length < 4 || memcmp(path->value, "/v1/", 4)) return HEADERS_CONTINUE;
  bool large = is(path->value + path->value_length - 3, 3, "48k");
  size_t size = none_match ? 0 : large ? sizeof body : 1 << 10;
  static const char details[] = "gatehouse_hit";
  envoy_dynamic_module_callback_http_send_response(envoy, none_match ? 304 : 200, fields, none_match ? 5 : 7,
                                                   (buffer){body, size}, (buffer){details, sizeof details - 1});
  return HEADERS_STOP;
}
int envoy_dynamic_module_on_http_filter_request_body(void *envoy, const void *module, bool end) {
  (void)envoy, (void)module, (void)end;
  return BODY_CONTINUE;
}
void envoy_dynamic_module_on_http_filter_scheduled(void *envoy, const void *module, uint64_t event) {
  (void)envoy, (void)module, (void)event;
}
int envoy_dynamic_module_on_http_filter_local_reply(void *envoy, const void *module, uint32_t status, buffer details,
                                                    bool reset) {
  (void)envoy, (void)module, (void)status, (void)details, (void)reset;
  return 0;
}
