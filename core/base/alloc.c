#include "base/alloc.h"

#include <dlfcn.h>
#include <limits.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Live blocks are counted in stripes, one cache line each, so that threads do not share one. */
enum { STRIPES = 16 };
typedef struct stripe {
  _Alignas(64) _Atomic int64_t live;
} stripe;
static stripe stripes[STRIPES];
static atomic_uint next_stripe;
static _Thread_local unsigned own_stripe; /* index + 1 */

static _Atomic int64_t fail_after = -1;

static void count(int64_t by) {
  if (!own_stripe) own_stripe = 1 + atomic_fetch_add_explicit(&next_stripe, 1, memory_order_relaxed) % STRIPES;
  atomic_fetch_add_explicit(&stripes[own_stripe - 1].live, by, memory_order_relaxed);
}

static bool must_fail(void) {
  if (atomic_load_explicit(&fail_after, memory_order_relaxed) < 0) return false;
  return atomic_fetch_sub_explicit(&fail_after, 1, memory_order_relaxed) == 0;
}

void *tpu_malloc(size_t size) {
  if (must_fail()) return NULL;
  void *p = malloc(size ? size : 1);
  if (p) count(1);
  return p;
}

void *tpu_calloc(size_t n, size_t size) {
  if (must_fail()) return NULL;
  if (!n || !size) n = size = 1;
  if (n > SIZE_MAX / size) return NULL; /* a sanitizer's calloc would end the process */
  void *p = calloc(n, size);
  if (p) count(1);
  return p;
}

void *tpu_realloc(void *p, size_t size) {
  if (must_fail()) return NULL;
  void *q = realloc(p, size ? size : 1);
  if (q && !p) count(1);
  return q;
}

void tpu_free(void *p) {
  if (!p) return;
  count(-1);
  free(p);
}

char *tpu_strdup(const char *s) {
  size_t size = strlen(s) + 1;
  char *copy = tpu_malloc(size);
  return copy ? memcpy(copy, s, size) : NULL;
}

void tpu_alloc_fail_after(int64_t after) { atomic_store(&fail_after, after); }

int64_t tpu_alloc_live(void) {
  int64_t sum = 0;
  for (int i = 0; i < STRIPES; i++) sum += atomic_load_explicit(&stripes[i].live, memory_order_relaxed);
  return sum;
}

bool tpu_size_mul(int64_t a, int64_t b, int64_t *out) {
  if (a < 0 || b < 0 || (b && a > INT64_MAX / b)) return false;
  *out = a * b;
  return true;
}

bool tpu_size_add(int64_t a, int64_t b, int64_t *out) {
  if (a < 0 || b < 0 || a > INT64_MAX - b) return false;
  *out = a + b;
  return true;
}

/* A CPU plugin takes every buffer from malloc. With glibc's defaults big ones are fresh pages each time, a third of a training
 * step; kept and reused they cost nothing. One arena, since a buffer is made by one thread and freed by another. */
void tpu_alloc_tune(void) {
#ifdef __GLIBC__
  if (!getenv("MALLOC_MMAP_THRESHOLD_")) mallopt(M_MMAP_THRESHOLD, 1 << 30);
  if (!getenv("MALLOC_TRIM_THRESHOLD_")) mallopt(M_TRIM_THRESHOLD, INT_MAX);
  if (!getenv("MALLOC_ARENA_MAX")) mallopt(M_ARENA_MAX, 1);
#endif
}

void tpu_alloc_trim(void) {
  void (*release)(void); /* tcmalloc's, if it was preloaded */
  *(void **)&release = dlsym(RTLD_DEFAULT, "MallocExtension_ReleaseFreeMemory");
  if (release) release();
#ifdef __GLIBC__
  (void)malloc_trim(0);
#endif
}
