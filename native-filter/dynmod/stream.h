//go:build native

// What hooks.c and Go exchange.
#pragma once
#include "abi.h"

// reply is an answer. Its memory is the stream's room, or Go's, pinned until the thread's next callback.
typedef struct {
  uint32_t status;
  const char *fields; // as a header map of Proxy-Wasm
  buffer body, details;
} reply;

// stream is the filter of one request. C allocates it, and Envoy calls from one thread.
typedef struct {
  void *envoy;      // Envoy's filter
  uintptr_t config; // Go's number of the configuration
  uint32_t id;      // of streams of this process, in the order of their beginning; repeats after 2³²
  uint32_t thread;  // number of the thread that serves it
  bool held;        // Go keeps something for it: tell when it ends
  bool awaited;     // so is its response: tell when that begins
  bool changed;     // its headers were, so that another route may match
  bool wants_body;
  bool replied; // by the module, or another part of Envoy
  uint32_t noted;   // keys of filter state that are set, as bits: Envoy forbids to set one twice
  void *scheduler;  // Envoy's, NULL before the first pause
  char *body;       // of the request so far, of streams that want one
  size_t body_length, body_capacity;
  bool body_incomplete; // it was too long, or memory was short
  // During a callback:
  header *headers; // of the request, Envoy's
  size_t header_count;
  uint32_t newest; // id of the newest stream of this process when the callback began
  char *room;      // of ROOM bytes, for a reply
  reply answer; // of the current callback
} stream;

// What to do with a stream after a callback.
enum { GO_CONTINUE = 0, GO_PAUSE = 1, GO_REPLY = 2, GO_WANT_BODY = 3, GO_NOTHING = 4, GO_REFUSE = 5 };

enum { ROOM = 4096 };

// missing_function returns the name of the first function of Envoy that is used here and that this Envoy doesn't have,
// or NULL.
const char *missing_function(void);
