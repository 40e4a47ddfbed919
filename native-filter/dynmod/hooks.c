//go:build native

#define _GNU_SOURCE
#include "_cgo_export.h"
#include "stream.h"
#include "yield.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A request with more headers than this costs an allocation; envoy.yaml allows 100.
enum { USUAL_HEADERS = 128 };

// maxBody bounds a body that Go wants, bytes: some more than the largest batch, which Go refuses by itself.
enum { MAX_BODY = 4 << 20 };

atomic_uint stream_ids;
static atomic_uint threads;
static __thread unsigned thread;

// ---- loading

const char *envoy_dynamic_module_on_program_init(void) {
  const char *missing = missing_function();
  if (missing) {
    fprintf(stderr,
            "gatehouse: this Envoy has no %s: the module needs one with version " ABI_VERSION
            " of the ABI for dynamic modules, Envoy 1.40\n",
            missing);
    return NULL;
  }
  return goStart() ? ABI_VERSION : NULL;
}

const char *missing_function(void) {
  static const char *const names[] = {
      "log", "is_validation_mode", "http_get_headers_size", "http_get_headers", "http_set_header",
      "http_add_header", "http_get_body_chunks_size", "http_get_body_chunks", "http_filter_get_attribute_string",
      "http_get_filter_state_bytes", "http_get_filter_state_typed", "http_set_filter_state_bytes", "http_send_response",
      "http_filter_continue_decoding", "http_clear_route_cache",
      "http_filter_scheduler_new", "http_filter_scheduler_commit",
      "http_filter_scheduler_delete", "http_filter_config_scheduler_new", "http_filter_config_scheduler_commit",
      "http_filter_config_scheduler_delete", "http_filter_config_http_callout", "http_filter_config_define_counter",
      "http_filter_config_increment_counter"};
  static char name[128];
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    snprintf(name, sizeof name, "envoy_dynamic_module_callback_%s", names[i]);
    if (!dlsym(RTLD_DEFAULT, name)) return name;
  }
  return NULL;
}

// ---- configurations

const void *envoy_dynamic_module_on_http_filter_config_new(void *envoy, buffer name, buffer configuration) {
  (void)name;
  return (const void *)goConfigNew(envoy, configuration);
}

void envoy_dynamic_module_on_http_filter_config_destroy(const void *config) { goConfigDestroy((uintptr_t)config); }

void envoy_dynamic_module_on_http_filter_config_scheduled(void *envoy, const void *config, uint64_t event) {
  (void)envoy, (void)event;
  goConfigScheduled((uintptr_t)config);
}

void envoy_dynamic_module_on_http_filter_config_http_callout_done(void *envoy, const void *config, uint64_t id,
                                                                  int result, header *headers, size_t count,
                                                                  buffer *chunks, size_t chunk_count) {
  (void)envoy;
  buffer status = {"", 0};
  for (size_t i = 0; i < count; i++)
    if (headers[i].key_length == 7 && !memcmp(headers[i].key, ":status", 7))
      status = (buffer){headers[i].value, headers[i].value_length};
  if (result != CALLOUT_SUCCEEDED) chunk_count = 0, status.length = 0;
  goCalloutDone((uintptr_t)config, id, status, chunks, chunk_count);
}

const void *envoy_dynamic_module_on_http_filter_per_route_config_new(buffer name, buffer configuration) {
  (void)name, (void)configuration;
  return NULL; // there are none
}

void envoy_dynamic_module_on_http_filter_per_route_config_destroy(const void *config) { (void)config; }

// ---- streams

const void *envoy_dynamic_module_on_http_filter_new(const void *config, void *envoy) {
  stream *s = calloc(1, sizeof *s);
  if (!s) return NULL; // Envoy ends the request
  if (!thread) goThread(thread = atomic_fetch_add(&threads, 1) + 1);
  s->envoy = envoy, s->config = (uintptr_t)config, s->thread = thread - 1;
  s->id = atomic_fetch_add_explicit(&stream_ids, 1, memory_order_relaxed) + 1;
  return s;
}

void envoy_dynamic_module_on_http_filter_destroy(const void *module) {
  stream *s = (stream *)module;
  if (s->held) goDestroyed(s);
  if (s->scheduler) envoy_dynamic_module_callback_http_filter_scheduler_delete(s->scheduler);
  free(s->body);
  free(s);
}

// send_answer sends a reply, whose fields Go has composed.
static void send_answer(stream *s) {
  const reply *r = &s->answer;
  uint32_t count, length;
  memcpy(&count, r->fields, 4);
  header *headers = alloca((count ? count : 1) * sizeof *headers); // some forty at most
  const char *lengths = r->fields + 4, *text = lengths + 8 * (size_t)count;
  for (uint32_t i = 0; i < count; i++) {
    memcpy(&length, lengths + 8 * (size_t)i, 4);
    headers[i].key = text, headers[i].key_length = length, text += length + 1;
    memcpy(&length, lengths + 8 * (size_t)i + 4, 4);
    headers[i].value = text, headers[i].value_length = length, text += length + 1;
  }
  s->replied = true;
  envoy_dynamic_module_callback_http_send_response(s->envoy, r->status, headers, count, r->body, r->details);
}

// refuse answers a request whose callback has panicked. It needs nothing of Go.
static void refuse(stream *s) {
  static header headers[] = {{"cache-control", 13, "no-store", 8}, {"retry-after", 11, "1", 1}};
  static const char details[] = "gatehouse_panic";
  s->replied = true;
  envoy_dynamic_module_callback_http_send_response(s->envoy, 503, headers, 2, (buffer){"", 0},
                                                   (buffer){details, sizeof details - 1});
}

// choose_route makes Envoy choose the route by the headers as they are now: it did so before the first filter, when they
// still had what a client forged.
static void choose_route(stream *s) {
  if (s->changed) envoy_dynamic_module_callback_http_clear_route_cache(s->envoy);
}

// with_headers calls a function of Go with the request's headers, and room for a reply.
static int with_headers(stream *s, int (*function)(stream *, bool), bool end, char *room) {
  header usual[USUAL_HEADERS];
  size_t count = envoy_dynamic_module_callback_http_get_headers_size(s->envoy, REQUEST_HEADERS);
  header *headers = count <= USUAL_HEADERS ? usual : malloc(count * sizeof *headers);
  s->headers = headers, s->header_count = 0; // without headers a request is refused
  if (headers && envoy_dynamic_module_callback_http_get_headers(s->envoy, REQUEST_HEADERS, headers))
    s->header_count = count;
  s->newest = atomic_load_explicit(&stream_ids, memory_order_relaxed), s->room = room;
  int action = function(s, end);
  s->headers = NULL, s->header_count = 0;
  if (headers != usual) free(headers);
  return action;
}

static int on_headers(stream *s, bool end) { return goRequestHeaders(s, end); }

static int on_body(stream *s, bool end) { return goRequestBody(s, end); }

static int on_woken(stream *s, bool end) {
  (void)end;
  return goWoken(s);
}

int envoy_dynamic_module_on_http_filter_request_headers(void *envoy, const void *module, bool end) {
  (void)envoy;
  stream *s = (stream *)module;
  char room[ROOM];
  yield_now_and_then();
  switch (with_headers(s, on_headers, end, room)) {
  case GO_CONTINUE:
    choose_route(s);
    return HEADERS_CONTINUE;
  case GO_REPLY:
    send_answer(s);
    return HEADERS_STOP;
  case GO_REFUSE:
    refuse(s);
    return HEADERS_STOP;
  case GO_WANT_BODY:
    s->wants_body = true;
    return HEADERS_STOP;
  default: // a paused stream gets no body, and Envoy holds it back
    return HEADERS_STOP_ALL_AND_WATERMARK;
  }
}

// A response that nobody awaits costs no call of Go.
int envoy_dynamic_module_on_http_filter_response_headers(void *envoy, const void *module, bool end) {
  (void)envoy, (void)end;
  stream *s = (stream *)module;
  if (!s->awaited) return 0;
  s->awaited = false;
  size_t count = envoy_dynamic_module_callback_http_get_headers_size(s->envoy, RESPONSE_HEADERS);
  header *headers = malloc((count ? count : 1) * sizeof *headers);
  buffer etag = {"", 0};
  if (headers && envoy_dynamic_module_callback_http_get_headers(s->envoy, RESPONSE_HEADERS, headers))
    for (size_t i = 0; i < count; i++)
      if (headers[i].key_length == 4 && !memcmp(headers[i].key, "etag", 4))
        etag = (buffer){headers[i].value, headers[i].value_length};
  goResponse(s, etag);
  free(headers);
  return 0;
}

// append appends what has arrived of the body; false if it is too long, or memory is short.
static bool append(stream *s) {
  size_t count = envoy_dynamic_module_callback_http_get_body_chunks_size(s->envoy, RECEIVED_REQUEST_BODY);
  if (!count) return true;
  buffer *chunks = malloc(count * sizeof *chunks);
  bool ok = chunks && envoy_dynamic_module_callback_http_get_body_chunks(s->envoy, RECEIVED_REQUEST_BODY, chunks);
  for (size_t i = 0; ok && i < count; i++) {
    size_t need = s->body_length + chunks[i].length;
    if (need > MAX_BODY) {
      ok = false;
      break;
    }
    if (need > s->body_capacity) {
      size_t capacity = 2 * need > MAX_BODY ? MAX_BODY : 2 * need;
      char *larger = realloc(s->body, capacity);
      if (!larger) {
        ok = false;
        break;
      }
      s->body = larger, s->body_capacity = capacity;
    }
    if (chunks[i].length) memcpy(s->body + s->body_length, chunks[i].ptr, chunks[i].length);
    s->body_length = need;
  }
  free(chunks);
  return ok;
}

int envoy_dynamic_module_on_http_filter_request_body(void *envoy, const void *module, bool end) {
  (void)envoy;
  stream *s = (stream *)module;
  if (s->replied) return BODY_STOP_NO_BUFFER;
  if (!s->wants_body) return BODY_CONTINUE;
  if (!append(s)) s->body_incomplete = true; // Go refuses that
  char room[ROOM];
  switch (with_headers(s, on_body, end, room)) {
  case GO_REPLY:
    send_answer(s);
    break;
  case GO_REFUSE:
    refuse(s);
  }
  return BODY_STOP_NO_BUFFER; // it is here
}

void envoy_dynamic_module_on_http_filter_scheduled(void *envoy, const void *module, uint64_t event) {
  (void)envoy, (void)event;
  stream *s = (stream *)module;
  if (s->replied) return; // it timed out while it waited
  char room[ROOM];
  yield_now_and_then();
  switch (with_headers(s, on_woken, false, room)) {
  case GO_CONTINUE:
    choose_route(s);
    envoy_dynamic_module_callback_http_filter_continue_decoding(s->envoy);
    break;
  case GO_REPLY:
    send_answer(s);
    break;
  case GO_REFUSE:
    refuse(s);
  }
}

int envoy_dynamic_module_on_http_filter_local_reply(void *envoy, const void *module, uint32_t status, buffer details,
                                                    bool reset) {
  (void)envoy, (void)status, (void)details, (void)reset;
  ((stream *)module)->replied = true;
  return 0;
}
