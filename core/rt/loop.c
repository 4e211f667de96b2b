#include "base/alloc.h"
#include "rt/private.h"

/* A training loop without an optimizer hook or a host read would grow one segment for ever. Its stream of calls repeats, over the
 * same storages; equal layers of a model do not, since their weights differ. A cut is only allowed where the segment's length is
 * a multiple of the period, so that every later segment starts at the same call and is the same program. */
bool tpu_loop_note(tpu_segment *seg, uint64_t fingerprint) {
  uint32_t n = seg->n_prints;
  if (n == seg->cap_prints) {
    uint32_t capacity = n ? n * 2 : 1024;
    uint64_t *p = tpu_realloc(seg->prints, capacity * sizeof *p);
    if (!p) return false;
    seg->prints = p;
    seg->cap_prints = capacity;
  }
  seg->prints[n] = fingerprint;
  seg->n_prints = n + 1;
  if (seg->period && n >= seg->period && seg->prints[n - seg->period] == fingerprint) {
    seg->run++;
  } else {
    uintptr_t last = (uintptr_t)tpu_map_get(&seg->last_seen, fingerprint);
    seg->period = last ? n + 1 - (uint32_t)last : 0;
    seg->run = last ? 1 : 0;
  }
  (void)tpu_map_put(&seg->last_seen, fingerprint, (void *)(uintptr_t)(n + 1));
  return seg->period && seg->run >= seg->period && seg->n_calls % seg->period == 0;
}

void tpu_loop_reset(tpu_segment *seg) {
  if (seg->n_prints) tpu_map_clear(&seg->last_seen);
  seg->n_prints = seg->period = seg->run = 0;
}
