//go:build nginx

// Between LuaJIT's FFI and Go: reads a request once, by the functions of lua-nginx-module that lua-resty-core calls, so
// that a request crosses from C into Go once. nginx calls all of this on one thread.
#define _GNU_SOURCE
#include "shim.h"
#include "_cgo_export.h"
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// ngx_http_cleanup_t: what nginx calls when a request ends, before it writes the access log.
typedef struct cleanup {
  void (*handler)(void *);
  void *data;
  struct cleanup *next;
} cleanup;

// nginx loads modules with RTLD_GLOBAL, so their functions are found in the process.
static int (*headers_count)(void *, int, int *);
static int (*get_headers)(void *, gh_element *, int, int);
static int (*method_name)(void *, unsigned char **, size_t *);
static int (*set_request_header)(void *, const unsigned char *, size_t, const unsigned char *, size_t, void *, size_t,
                                 int, char **);
static int (*set_response_status)(void *, int);
static int (*set_response_header)(void *, const char *, size_t, int, const char *, size_t, void *, size_t, int,
                                  char **);
static int (*get_variable)(void *, const char *, size_t, char *, int, char **, size_t *, char **);
static int (*set_variable)(void *, const unsigned char *, size_t, unsigned char *, const unsigned char *, size_t,
                           unsigned char *, size_t *);
static cleanup *(*add_cleanup)(void *, size_t);
static int (*raw_log)(void *, int, const unsigned char *, size_t);

// shim_bind finds them, and returns the name of one that is missing, or NULL.
const char *shim_bind(void) {
  static const struct {
    const char *name;
    void *at;
  } all[] = {
      {"ngx_http_lua_ffi_req_get_headers_count", &headers_count},
      {"ngx_http_lua_ffi_req_get_headers", &get_headers},
      {"ngx_http_lua_ffi_req_get_method_name", &method_name},
      {"ngx_http_lua_ffi_req_set_header", &set_request_header},
      {"ngx_http_lua_ffi_set_resp_status", &set_response_status},
      {"ngx_http_lua_ffi_set_resp_header", &set_response_header},
      {"ngx_http_lua_ffi_var_get", &get_variable},
      {"ngx_http_lua_ffi_var_set", &set_variable},
      {"ngx_http_lua_ffi_raw_log", &raw_log},
      {"ngx_http_cleanup_add", &add_cleanup},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    void *function = dlsym(RTLD_DEFAULT, all[i].name);
    if (!function) return all[i].name;
    *(void **)all[i].at = function;
  }
  return NULL;
}

void shim_log(int level, const char *text, size_t length) {
  raw_log(NULL, level, (const unsigned char *)text, length);
}

void shim_remove_header(void *r, const char *name, size_t length) {
  char *err;
  set_request_header(r, (const unsigned char *)name, length, NULL, 0, NULL, 0, 1, &err);
}

void shim_set_header(void *r, const char *name, size_t length, const char *value, size_t value_length) {
  char *err;
  set_request_header(r, (const unsigned char *)name, length, (const unsigned char *)value, value_length, NULL, 0, 1,
                     &err);
}

enum { MAX_NAME = 64 }; // of a variable

void shim_set_variable(void *r, const char *name, size_t length, const char *value, size_t value_length) {
  unsigned char low[MAX_NAME], err[256];
  size_t err_length = sizeof err;
  if (length <= sizeof low)
    set_variable(r, (const unsigned char *)name, length, low, (const unsigned char *)value, value_length, err,
                 &err_length);
}

int shim_variable(void *r, const char *name, size_t length, char **value, size_t *value_length) {
  char low[MAX_NAME], *err;
  return length <= sizeof low ? get_variable(r, name, length, low, 0, value, value_length, &err) : -1;
}

static void ended(void *awaited) { goEnded(awaited); }

// shim_await has goEnded called when a request ends; -1 if memory is short.
int shim_await(void *r, uint32_t id) {
  cleanup *c = add_cleanup(r, sizeof(gh_awaited));
  if (!c) return -1;
  *(gh_awaited *)c->data = (gh_awaited){r, id};
  c->handler = ended;
  return 0;
}

// shim_headers returns the number of headers that all points to until the next call, less than 0 if they can't be read.
int shim_headers(void *r, gh_element **all) {
  static gh_element *room;
  static int capacity;
  int truncated = 0, count = headers_count(r, 0, &truncated);
  if (count > capacity) {
    free(room);
    capacity = 2 * count;
    room = malloc(capacity * sizeof *room);
    if (!room) {
      capacity = 0;
      return -1;
    }
  }
  *all = room;
  return count > 0 && get_headers(r, room, count, 0) ? -1 : count;
}

// YIELD_NS: Go's monitor takes the P after 10 ms.
enum { YIELD_NS = 8000000 };

// must_yield reports whether Go's scheduler has not run for long. The coarse clock takes some nanoseconds.
static int must_yield(void) {
  static long yielded;
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  long now = t.tv_sec * 1000000000L + t.tv_nsec;
  if (now - yielded < YIELD_NS) return 0;
  yielded = now;
  return 1;
}

static void set_head(void *r, const gh_answer_head *head) {
  char *err;
  set_response_status(r, head->status);
  if (head->status == 200) { // Go has compared them, or they don't count: nginx must not make it a 304 or a 412
    shim_remove_header(r, "if-none-match", 13);
    shim_remove_header(r, "if-match", 8);
    shim_remove_header(r, "if-unmodified-since", 19);
  }
  uint32_t count, name, value;
  memcpy(&count, head->fields, 4);
  const char *lengths = (const char *)head->fields + 4, *at = lengths + 8 * (size_t)count;
  for (uint32_t i = 0; i < count; i++, lengths += 8, at += name + value + 2) {
    memcpy(&name, lengths, 4);
    memcpy(&value, lengths + 4, 4);
    bool replaces = name != 4 || memcmp(at, "link", 4); // the only one that may come several times
    set_response_header(r, at, name, 0, at + name + 1, value, NULL, 0, replaces, &err);
  }
  if (head->has_length) {
    char digits[24], *from = digits + sizeof digits;
    size_t n = head->content_length;
    do *--from = '0' + n % 10;
    while (n /= 10);
    set_response_header(r, "content-length", 14, 0, from, digits + sizeof digits - from, NULL, 0, 1, &err);
  }
  if (head->reason_length) shim_set_variable(r, "gatehouse_reason", 16, head->reason, head->reason_length);
}

static gh_answer_head head;

// refuse answers a request whose function has panicked, without Go. It must never be let in.
static int refuse(gh_out *out) {
  static const unsigned char fields[] = "\2\0\0\0" "\15\0\0\0" "\10\0\0\0" "\13\0\0\0" "\1\0\0\0"
                                        "cache-control\0no-store\0" "retry-after\0" "1\0";
  static const char body[] = "try again\n";
  head = (gh_answer_head){503, fields, "gatehouse_panic", 15, sizeof body - 1, 1};
  out->status = 503, out->body = body, out->body_length = sizeof body - 1, out->key = 0, out->forget = 0;
  return GH_DISCARD;
}

static int judge(void *r, uint32_t id, double unread, gh_out *out) {
  gh_request q = {.r = r, .id = id, .unread = unread, .yield = must_yield()};
  gh_element *headers;
  unsigned char *method;
  char *target;
  q.header_count = shim_headers(r, &headers);
  if (q.header_count < 0 || method_name(r, &method, &q.method_length) ||
      shim_variable(r, "request_uri", 11, &target, &q.target_length))
    return GH_BAD;
  q.headers = headers, q.method = (const char *)method, q.target = target;
  int action = goJudge(&q, out, &head);
  if (action < 0) action = refuse(out);
  if (action == GH_REPLY) set_head(r, &head);
  return action;
}

// What Lua calls, beside the functions that Go exports.

int gh_access(void *r, double unread, gh_out *out) { return judge(r, 0, unread, out); }

int gh_resume(void *r, uint32_t id, double unread, gh_out *out) { return judge(r, id, unread, out); }

void gh_reply(void *r) { set_head(r, &head); }

void gh_push(void *r, const char *body, size_t length, gh_out *out) {
  gh_request q = {.r = r};
  unsigned char *method;
  char *target;
  if (method_name(r, &method, &q.method_length) || shim_variable(r, "request_uri", 11, &target, &q.target_length)) {
    out->status = 400, out->name_length = out->body_length = 0;
    return;
  }
  q.method = (const char *)method, q.target = target;
  goPush(&q, (char *)body, length, out);
}
