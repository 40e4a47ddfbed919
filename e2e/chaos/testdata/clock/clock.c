// A clock that chaos steps: preloaded into Envoy and redis-server, this library adds an offset to the real time that
// they read. The offset, ns, is the content of the file that CHAOS_CLOCK names. Other clocks stay as they are.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { SECOND = 1000000000 };

static volatile int64_t *offset;
static int (*next)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("CHAOS_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
  if (page == MAP_FAILED)
    abort();
  close(file);
  next = dlsym(RTLD_NEXT, "clock_gettime");
  offset = page;
}

// Other constructors may call it before ours has run.
int clock_gettime(clockid_t clock, struct timespec *at) {
  int status = next ? next(clock, at) : (int)syscall(SYS_clock_gettime, clock, at);
  if (status == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    int64_t ns = at->tv_sec * (int64_t)SECOND + at->tv_nsec + *offset;
    at->tv_sec = ns / SECOND;
    at->tv_nsec = ns % SECOND;
  }
  return status;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at)
    *at = now.tv_sec;
  return now.tv_sec;
}
