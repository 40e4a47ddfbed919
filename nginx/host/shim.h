//go:build nginx

// What Lua, shim.c and Go exchange. nginx/lua/gatehouse/library.lua declares gh_out and the functions gh_* likewise.
#pragma once
#include <stddef.h>
#include <stdint.h>

// nginx-lua's str and table element, as lua-resty-core declares them.
typedef struct {
  int len;
  const unsigned char *data;
} gh_str;
typedef struct {
  gh_str key, value;
} gh_element;

// What to do with a request.
enum {
  GH_PASS = 0,    // to the next phase
  GH_REPLY = 1,   // status and headers are set: send the body
  GH_DISCARD = 2, // the request's body; then call gh_reply, and send the reply's
  GH_WAIT = 3,    // until GH_WAKE
  GH_BAD = 4,     // 400
};

// What else to do, one after the other, see gh_next.
enum { GH_NOTHING = 0, GH_WAKE = 1, GH_CALL = 2, GH_COUNT = 3 };

// gh_out is the result of a function. Its texts are valid until the next call of a function that has a gh_out.
typedef struct {
  int32_t status;
  int32_t more;  // there is something else to do
  uint32_t id;   // of a request that waits, or is woken; the token of a call
  int32_t wait;  // ms: of a request that waits, at most; the timeout of a call
  double number; // what to add to a counter
  // A body, NULL if none is to be sent. Lua keeps it by key, unless that is 0; before, it forgets all if forget is set.
  const char *body;
  size_t body_length;
  double key;
  int32_t forget;
  // The content type of the answer to a push; method and path of a call, and the lines of its head; a counter's name.
  const char *name, *head;
  size_t name_length, head_length;
} gh_out;

// gh_request is what Go gets of a request.
typedef struct {
  void *r; // ngx_http_request_t
  uint32_t id; // of one that has waited, 0 for a new one
  int32_t yield; // let Go's scheduler run, see exports.go
  double unread; // bytes of bodies that clients have yet to read
  const gh_element *headers;
  int32_t header_count;
  const char *method, *target;
  size_t method_length, target_length;
} gh_request;

// gh_answer_head is status and headers of a reply, which Go keeps until the next one.
typedef struct {
  int32_t status;
  const unsigned char *fields; // in the form of package headermap
  const char *reason;
  size_t reason_length, content_length;
  int32_t has_length; // content_length is one
} gh_answer_head;

// gh_awaited is a request whose response Go awaits.
typedef struct {
  void *r;
  uint32_t id;
} gh_awaited;

// For Go.
const char *shim_bind(void);
void shim_log(int level, const char *text, size_t length);
int shim_headers(void *r, gh_element **all);
void shim_remove_header(void *r, const char *name, size_t length);
void shim_set_header(void *r, const char *name, size_t length, const char *value, size_t value_length);
void shim_set_variable(void *r, const char *name, size_t length, const char *value, size_t value_length);
int shim_await(void *r, uint32_t id);
int shim_variable(void *r, const char *name, size_t length, char **value, size_t *value_length);
