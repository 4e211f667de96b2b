/* Order statistics through a sort along a dim: median, kthvalue, mode. */
#include <math.h>

#include "aten/reduce.h"

/* NaN comes last. */
static tpu_val less(tpu_build *b, const tpu_val *params, void *arg) {
  (void)arg;
  tpu_val below = tpu_compare(b, TPU_LT, params[0], params[1]);
  if (!tpu_is_float(tpu_dtype_of(b, params[0]))) return below;
  tpu_val first = tpu_is_nan(b, params[0]), second = tpu_is_nan(b, params[1]);
  return tpu_or(b, below, tpu_and(b, tpu_not(b, first), second));
}

/* x sorted along dim; out[1]: where each element was. */
static void sort_with_index(tpu_build *b, tpu_val x, int dim, tpu_val out[2]) {
  tpu_val xs[2] = {x, tpu_iota(b, reduce_index_dtype(tpu_dim_of(b, x, dim)), tpu_rank_of(b, x), tpu_dims_of(b, x), dim)};
  tpu_sort(b, 2, xs, dim, true, less, NULL, out);
}

/* 0-d tensors count as one element along their only dim. */
static tpu_val at_least_1d(tpu_build *b, tpu_val x) {
  int64_t one = 1;
  return tpu_rank_of(b, x) == 0 ? tpu_reshape(b, x, 1, &one) : x;
}

/* Position of the (lower) median in the sorted slice: [dims without dim], i32. A NaN in the slice is its median unless skipped.
 */
static tpu_val median_position(tpu_build *b, tpu_val x, int dim, bool skip_nan) {
  int64_t axes[1] = {dim}, size = tpu_dim_of(b, x, dim);
  tpu_dtype index_dtype = reduce_index_dtype(size);
  tpu_val ordered = tpu_convert(b, tpu_compare(b, TPU_EQ, x, x), index_dtype);
  tpu_val count = reduce_over(b, TPU_MONOID_ADD, ordered, 1, axes);
  tpu_val middle = tpu_full_like(b, count, (double)((size - 1) / 2));
  if (!skip_nan) return tpu_select(b, tpu_compare(b, TPU_LT, count, tpu_full_like(b, count, (double)size)), count, middle);
  tpu_val last = binary_c(b, TPU_HLO_MAXIMUM, binary_c(b, TPU_HLO_SUBTRACT, count, 1), 0);
  return binary_c(b, TPU_HLO_DIVIDE, last, 2);
}

/* median, nanmedian: whole and (self, dim, keepdim). rule: 1 skips NaN. */
void lower_median(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  if (tpu_build_failed(b)) return;
  bool whole = a->n == 1, is_float = tpu_is_float(tpu_dtype_of(b, x));
  int rank = tpu_rank_of(b, x), dim = whole ? 0 : arg_dim(b, a, 1, rank);
  int64_t numel = tpu_numel_of(b, x), axes[1] = {dim};
  if (whole && numel == 0) {
    o->out[0].val = is_float ? tpu_scalar(b, tpu_dtype_of(b, x), (double)NAN) : tpu_lowest(b, tpu_dtype_of(b, x));
    return;
  }
  if (!whole && !reduce_check_dim(b, x, dim, "median()")) return;
  tpu_val flat = whole ? tpu_reshape(b, x, 1, &numel) : at_least_1d(b, x), sorted[2];
  sort_with_index(b, flat, dim, sorted);
  int64_t middle = (tpu_dim_of(b, flat, dim) - 1) / 2;
  tpu_val value, index;
  if (is_float) {
    tpu_val position = median_position(b, flat, dim, a->row->rule != 0);
    value = reduce_pick(b, sorted[0], dim, position);
    index = reduce_pick(b, sorted[1], dim, position);
  } else {
    value = tpu_squeeze(b, tpu_slice_dim(b, sorted[0], dim, middle, middle + 1, 1), dim);
    index = tpu_squeeze(b, tpu_slice_dim(b, sorted[1], dim, middle, middle + 1, 1), dim);
  }
  if (whole) {
    o->out[0].val = value;
    return;
  }
  int n = rank ? 1 : 0;
  bool keep = arg_bool(b, a, 2);
  o->out[0].val = reduce_keep(b, value, x, n, axes, keep);
  o->out[1].val = reduce_keep(b, tpu_convert(b, index, TPU_I64), x, n, axes, keep);
}

/* kthvalue(self, k, dim, keepdim): k counts from 1. */
void lower_kthvalue(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int64_t k = arg_int(b, a, 1, 1);
  int rank = tpu_rank_of(b, x), dim = arg_dim(b, a, 2, rank);
  if (!reduce_check_dim(b, x, dim, "kthvalue()")) return;
  tpu_val flat = at_least_1d(b, x), sorted[2];
  if (k < 1 || k > tpu_dim_of(b, flat, dim)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "kthvalue(): selected number k out of range for dimension %d", dim);
    return;
  }
  sort_with_index(b, flat, dim, sorted);
  int64_t axes[1] = {dim};
  bool keep = arg_bool(b, a, 3);
  for (int i = 0; i < 2; i++) {
    tpu_val y = tpu_squeeze(b, tpu_slice_dim(b, sorted[i], dim, k - 1, k, 1), dim);
    if (i == 1) y = tpu_convert(b, y, TPU_I64);
    o->out[i].val = reduce_keep(b, y, x, rank ? 1 : 0, axes, keep);
  }
}

/* mode(self, dim, keepdim): the smallest of the most frequent values and the index of its last occurrence. In sorted order
 * an element's place in its run of equals grows along the run, so the first maximum of the places ends the wanted run. */
void lower_mode(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int rank = tpu_rank_of(b, x), dim = arg_dim(b, a, 1, rank);
  if (!reduce_check_dim(b, x, dim, "mode()")) return;
  tpu_val flat = at_least_1d(b, x), sorted[2];
  sort_with_index(b, flat, dim, sorted);
  int64_t size = tpu_dim_of(b, flat, dim), axes[1] = {dim};
  tpu_val iota = tpu_iota(b, reduce_index_dtype(size), tpu_rank_of(b, flat), tpu_dims_of(b, flat), dim);
  tpu_val starts = tpu_full_like(b, iota, 0);
  if (size > 1) {
    tpu_val differs =
        tpu_compare(b, TPU_NE, tpu_slice_dim(b, sorted[0], dim, 1, size, 1), tpu_slice_dim(b, sorted[0], dim, 0, size - 1, 1));
    tpu_val here = tpu_slice_dim(b, iota, dim, 1, size, 1);
    tpu_val parts[2] = {tpu_slice_dim(b, iota, dim, 0, 1, 1), tpu_select(b, differs, here, tpu_full_like(b, here, 0))};
    starts = tpu_cumulative(b, TPU_MONOID_MAX, tpu_concat(b, 2, parts, dim), dim, false);
  }
  tpu_val position = reduce_index(b, TPU_MONOID_MAX, tpu_sub(b, iota, starts), dim, NULL);
  tpu_val value = reduce_pick(b, sorted[0], dim, position), index = reduce_pick(b, sorted[1], dim, position);
  bool keep = arg_bool(b, a, 2);
  o->out[0].val = reduce_keep(b, value, x, rank ? 1 : 0, axes, keep);
  o->out[1].val = reduce_keep(b, tpu_convert(b, index, TPU_I64), x, rank ? 1 : 0, axes, keep);
}
