//go:build native

#include "fake.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The module's hooks.
const void *envoy_dynamic_module_on_http_filter_config_new(void *, buffer, buffer);
void envoy_dynamic_module_on_http_filter_config_destroy(const void *);
void envoy_dynamic_module_on_http_filter_config_scheduled(void *, const void *, uint64_t);
void envoy_dynamic_module_on_http_filter_config_http_callout_done(void *, const void *, uint64_t, int, header *, size_t,
                                                                  buffer *, size_t);
const void *envoy_dynamic_module_on_http_filter_new(const void *, void *);
int envoy_dynamic_module_on_http_filter_request_headers(void *, const void *, bool);
int envoy_dynamic_module_on_http_filter_request_body(void *, const void *, bool);
void envoy_dynamic_module_on_http_filter_scheduled(void *, const void *, uint64_t);
void envoy_dynamic_module_on_http_filter_destroy(const void *);

static buffer copy(buffer b) {
  char *p = malloc(b.length + 1);
  if (b.length) memcpy(p, b.ptr, b.length);
  return (buffer){p, b.length};
}

bool fake_config_new(fake_config *c, buffer configuration) {
  c->module = envoy_dynamic_module_on_http_filter_config_new(c, (buffer){"", 0}, configuration);
  return c->module;
}
void fake_config_destroy(fake_config *c) { envoy_dynamic_module_on_http_filter_config_destroy(c->module); }
void fake_main(fake_config *c) {
  while (atomic_exchange(&c->scheduled, 0)) envoy_dynamic_module_on_http_filter_config_scheduled(c, c->module, 0);
}
void fake_answer(fake_config *c, uint64_t id, header *status, buffer *body) {
  envoy_dynamic_module_on_http_filter_config_http_callout_done(c, c->module, id, CALLOUT_SUCCEEDED, status, 1, body, 1);
}
bool fake_begin(fake_config *c, fake_filter *f, bool end) {
  f->module = envoy_dynamic_module_on_http_filter_new(c->module, f);
  if (!f->module) return false;
  f->action = envoy_dynamic_module_on_http_filter_request_headers(f, f->module, end);
  return true;
}
void fake_body(fake_filter *f, bool end) {
  f->action = envoy_dynamic_module_on_http_filter_request_body(f, f->module, end);
}
bool fake_run(fake_filter *f) {
  if (!atomic_exchange(&f->scheduled, 0)) return false;
  envoy_dynamic_module_on_http_filter_scheduled(f, f->module, 0);
  return true;
}
void fake_end(fake_filter *f) { envoy_dynamic_module_on_http_filter_destroy(f->module); }

// Envoy's functions.
void envoy_dynamic_module_callback_log(int level, buffer message) {
  fprintf(stderr, "[%d] %.*s\n", level, (int)message.length, message.ptr);
}
bool envoy_dynamic_module_callback_is_validation_mode(void) { return false; }
size_t envoy_dynamic_module_callback_http_get_headers_size(void *f, int type) {
  (void)type;
  return ((fake_filter *)f)->header_count;
}
bool envoy_dynamic_module_callback_http_get_headers(void *f, int type, header *out) {
  (void)type;
  memcpy(out, ((fake_filter *)f)->headers, ((fake_filter *)f)->header_count * sizeof *out);
  return true;
}
bool envoy_dynamic_module_callback_http_set_header(void *f, int type, buffer key, buffer value) {
  (void)type, (void)key, (void)value;
  ((fake_filter *)f)->changes++;
  return true;
}
bool envoy_dynamic_module_callback_http_add_header(void *f, int type, buffer key, buffer value) {
  return envoy_dynamic_module_callback_http_set_header(f, type, key, value);
}
size_t envoy_dynamic_module_callback_http_get_body_chunks_size(void *f, int type) {
  (void)f, (void)type;
  return 1;
}
bool envoy_dynamic_module_callback_http_get_body_chunks(void *f, int type, buffer *out) {
  (void)type;
  *out = ((fake_filter *)f)->chunk;
  return true;
}
bool envoy_dynamic_module_callback_http_filter_get_attribute_string(void *f, int attribute, buffer *out) {
  (void)f, (void)attribute;
  *out = (buffer){"192.0.2.1:1", 11};
  return true;
}
bool envoy_dynamic_module_callback_http_get_filter_state_bytes(void *f, buffer key, buffer *out) {
  (void)f, (void)key, (void)out;
  return false;
}
bool envoy_dynamic_module_callback_http_get_filter_state_typed(void *f, buffer key, buffer *out) {
  (void)f, (void)key, (void)out;
  return false;
}
bool envoy_dynamic_module_callback_http_set_filter_state_bytes(void *f, buffer key, buffer value) {
  (void)f, (void)key, (void)value;
  return true;
}
void envoy_dynamic_module_callback_http_send_response(void *f, uint32_t status, header *headers, size_t count,
                                                      buffer body, buffer details) {
  (void)headers, (void)count, (void)details;
  fake_filter *filter = f;
  if (filter->status) abort(); // Envoy forbids a second reply
  filter->status = status, filter->body = copy(body);
}
void envoy_dynamic_module_callback_http_filter_continue_decoding(void *f) { ((fake_filter *)f)->resumed = true; }
void envoy_dynamic_module_callback_http_clear_route_cache(void *f) { ((fake_filter *)f)->route_chosen = true; }
void *envoy_dynamic_module_callback_http_filter_scheduler_new(void *f) { return f; }
void envoy_dynamic_module_callback_http_filter_scheduler_commit(void *f, uint64_t event) {
  (void)event;
  atomic_fetch_add(&((fake_filter *)f)->scheduled, 1);
}
void envoy_dynamic_module_callback_http_filter_scheduler_delete(void *f) { (void)f; }
void *envoy_dynamic_module_callback_http_filter_config_scheduler_new(void *c) { return c; }
void envoy_dynamic_module_callback_http_filter_config_scheduler_commit(void *c, uint64_t event) {
  (void)event;
  fake_config *config = c;
  atomic_fetch_add(&config->scheduled, 1);
  if (!atomic_exchange(&config->ends, false)) return;
  fake_config_destroy(config);
  atomic_store(&config->ended, true);
}
void envoy_dynamic_module_callback_http_filter_config_scheduler_delete(void *c) { (void)c; }
int envoy_dynamic_module_callback_http_filter_config_http_callout(void *c, uint64_t *id, buffer cluster, header *headers,
                                                                  size_t count, buffer body, uint64_t timeout_ms) {
  (void)cluster, (void)timeout_ms;
  fake_config *config = c;
  if (config->calls == MAX_CALLS) return 4;
  size_t length = 0;
  for (size_t i = 0; i < count; i++) length += headers[i].key_length + headers[i].value_length + 3;
  char *head = malloc(length + 1), *at = head;
  for (size_t i = 0; i < count; i++)
    at += sprintf(at, "%.*s: %.*s\n", (int)headers[i].key_length, headers[i].key, (int)headers[i].value_length,
                  headers[i].value);
  config->heads[config->calls] = (buffer){head, at - head};
  *id = config->calls;
  config->bodies[config->calls++] = copy(body);
  return CALLOUT_STARTED;
}
int envoy_dynamic_module_callback_http_filter_config_define_counter(void *c, buffer name, buffer *labels, size_t count,
                                                                    size_t *id) {
  (void)name, (void)labels, (void)count;
  *id = ((fake_config *)c)->counters++;
  return METRIC_SUCCESS;
}
int envoy_dynamic_module_callback_http_filter_config_increment_counter(void *c, size_t id, buffer *values, size_t count,
                                                                       uint64_t n) {
  (void)values, (void)count;
  atomic_fetch_add(&((fake_config *)c)->counts[id], n);
  return METRIC_SUCCESS;
}

extern atomic_uint stream_ids; // of the module

void fake_set_newest(uint32_t id) { atomic_store(&stream_ids, id); }

void fake_config_end_at_commit(fake_config *c) { atomic_store(&c->ends, true); }

bool fake_config_ended(fake_config *c) { return atomic_load(&c->ended); }
