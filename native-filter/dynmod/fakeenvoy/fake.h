//go:build native

#pragma once
#include "../abi.h"
#include <stdatomic.h>

enum { MAX_HEADERS = 32, MAX_CALLS = 256, MAX_COUNTERS = 4096 };

// fake_config is Envoy's part of a configuration.
typedef struct {
  const void *module;
  atomic_int scheduled;
  atomic_bool ends, ended; // at the next commit of its scheduler, which is its last owner
  uint64_t calls;
  buffer bodies[MAX_CALLS], heads[MAX_CALLS]; // of calls, by number
  size_t counters;
  atomic_ulong counts[MAX_COUNTERS];
} fake_config;

// fake_filter is Envoy's part of a filter of one request.
typedef struct {
  const void *module;
  header headers[MAX_HEADERS];
  size_t header_count;
  buffer chunk; // of the body
  atomic_int scheduled;
  int status; // of the reply, 0 for none
  buffer body;
  int action;
  bool resumed, route_chosen;
  int changes; // of headers
} fake_filter;

bool fake_config_new(fake_config *c, buffer configuration);
void fake_config_destroy(fake_config *c);
void fake_config_end_at_commit(fake_config *c);
bool fake_config_ended(fake_config *c);
void fake_main(fake_config *c);
void fake_answer(fake_config *c, uint64_t id, header *status, buffer *body);
bool fake_begin(fake_config *c, fake_filter *f, bool end);
void fake_body(fake_filter *f, bool end);
bool fake_run(fake_filter *f);
void fake_end(fake_filter *f);
void fake_set_newest(uint32_t id);
