#include <string.h>

#include "ir/graph_private.h"

static bool grow(tpu_build *b, tpu_checks *c) {
  if (c->n < c->capacity) return true;
  uint32_t capacity = c->capacity ? c->capacity * 2 : 16;
  tpu_val *bad = tpu_build_alloc(b, capacity * sizeof *bad);
  uint32_t *scope = tpu_build_alloc(b, capacity * sizeof *scope);
  if (!bad || !scope) return false;
  if (c->n) {
    memcpy(bad, c->bad, c->n * sizeof *bad);
    memcpy(scope, c->scope, c->n * sizeof *scope);
  }
  c->bad = bad;
  c->scope = scope;
  c->capacity = capacity;
  return true;
}

void tpu_build_check(tpu_build *b, tpu_val bad) {
  tpu_checks *c = b->checks;
  if (!c || b->block || tpu_build_failed(b)) return;
  int rank = tpu_rank_of(b, bad);
  int64_t axes[TPU_MAX_RANK];
  for (int i = 0; i < rank; i++) axes[i] = i;
  if (rank) bad = tpu_reduce(b, TPU_MONOID_OR, bad, tpu_scalar_i(b, TPU_BOOL, 0), rank, axes);
  for (uint32_t i = 0; i < c->n; i++)
    if (c->bad[i].id == bad.id) return; /* the same index twice, as in forward and backward */
  if (tpu_build_failed(b) || !grow(b, c)) return;
  c->bad[c->n] = bad;
  c->scope[c->n++] = b->scope;
}
