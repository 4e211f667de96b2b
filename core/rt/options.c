#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "rt/private.h"

static tpu_options *interned;
static pthread_mutex_t interned_lock = PTHREAD_MUTEX_INITIALIZER;
static const tpu_options *_Atomic of_process;

static int by_key(const void *a, const void *b) { return strcmp(((const tpu_option *)a)->key, ((const tpu_option *)b)->key); }

/* Copies the strings behind the struct: key, 0, value, 0, and so on, in order of the keys. */
static tpu_options *make(const tpu_option *list, int n) {
  size_t bytes = 0, entries = (size_t)n * sizeof *list;
  for (int i = 0; i < n; i++) bytes += strlen(list[i].key) + strlen(list[i].value) + 2;
  tpu_options *o = tpu_malloc(sizeof *o + entries + bytes);
  if (!o) return NULL;
  tpu_option *copy = (tpu_option *)(o + 1);
  char *text = (char *)(copy + n);
  for (int i = 0; i < n; i++) copy[i] = list[i];
  qsort(copy, (size_t)n, sizeof *copy, by_key);
  *o = (tpu_options){.n = n, .list = copy, .text = text, .size = bytes};
  for (int i = 0; i < n; i++) {
    size_t key = strlen(copy[i].key) + 1, value = strlen(copy[i].value) + 1;
    memcpy(text, copy[i].key, key);
    memcpy(text + key, copy[i].value, value);
    copy[i] = (tpu_option){text, text + key};
    text += key + value;
  }
  o->hash = tpu_hash_bytes((tpu_hash){UINT64_C(0x0b7105), 0}, o->text, o->size);
  return o;
}

const tpu_options *tpu_options_get(const tpu_option *list, int n) {
  tpu_options *o = make(list, n);
  if (!o) return NULL;
  pthread_mutex_lock(&interned_lock);
  tpu_options *same = interned;
  while (same && (same->size != o->size || memcmp(same->text, o->text, o->size) != 0)) same = same->next;
  if (!same) {
    o->next = interned;
    interned = o;
  }
  pthread_mutex_unlock(&interned_lock);
  if (same) tpu_free(o);
  return same ? same : o;
}

int tpu_options_list(const tpu_options *options, const tpu_option **out_list) {
  *out_list = options ? options->list : NULL;
  return options ? options->n : 0;
}

void tpu_options_set(const tpu_options *options) { atomic_store(&of_process, options); }
void tpu_lane_options_set(tpu_lane *lane, const tpu_options *options) { atomic_store(&lane->options, options); }
const tpu_options *tpu_lane_options_get(const tpu_lane *lane) { return atomic_load(&lane->options); }
const tpu_options *tpu_options_now(const tpu_lane *lane) {
  const tpu_options *own = atomic_load_explicit(&lane->options, memory_order_relaxed);
  return own ? own : atomic_load_explicit(&of_process, memory_order_relaxed);
}
