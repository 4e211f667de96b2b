#include "ir/expand.h"

enum { LONG_ROW = 16 }; /* shorter rows are reduced as well by a plain loop */

bool tpu_expand_row_max(tpu_build *b, tpu_val x, tpu_val init, tpu_val *out) {
  if (b->target->platform != TPU_TARGET_CPU || !tpu_is_float(tpu_dtype_of(b, x))) return false;
  int dim = tpu_rank_of(b, x) - 1;
  int64_t n = tpu_dim_of(b, x, dim);
  if (tpu_dtype_bytes(tpu_dtype_of(b, x)) < 4 || n < LONG_ROW || tpu_numel_of(b, x) <= n) return false;
  tpu_val rest = TPU_POISON;
  while (n >= LONG_ROW) {
    int64_t half = n / 2;
    if (n % 2) {
      tpu_val last = tpu_slice_dim(b, x, dim, n - 1, n, 1);
      rest = rest.id ? tpu_max(b, rest, last) : last;
    }
    x = tpu_max(b, tpu_slice_dim(b, x, dim, 0, half, 1), tpu_slice_dim(b, x, dim, half, 2 * half, 1));
    n = half;
  }
  const int64_t axis = dim;
  x = tpu_reduce(b, TPU_MONOID_MAX, x, init, 1, &axis);
  *out = rest.id ? tpu_max(b, x, tpu_squeeze(b, rest, dim)) : x;
  return true;
}
