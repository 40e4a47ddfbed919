//go:build native

// See yield.go.
#pragma once
#include <time.h>

// Go's monitor takes the P after 10 ms.
enum { YIELD_NS = 8000000 };

// yield_now_and_then lets Go's scheduler run on this thread, if that was long ago. The coarse clock takes some
// nanoseconds, and ticks every 1 to 4 ms; with a kernel of 100 Hz every 10 ms, and then requests cost a little more.
static inline void yield_now_and_then(void) {
  static __thread long yielded;
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  long now = t.tv_sec * 1000000000L + t.tv_nsec;
  if (now - yielded >= YIELD_NS) {
    yielded = now;
    goYield();
  }
}
