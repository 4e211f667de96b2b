/* Distances between rows: cdist, pdist and their gradients. */
#include <math.h>

#include "aten/reduce.h"

/* Both operands with common batch dims, [B.., P, M] and [B.., R, M]. */
static void expand_batches(tpu_build *b, tpu_val *x, tpu_val *y) {
  int64_t dims[2][TPU_MAX_RANK], batch[TPU_MAX_RANK];
  tpu_val lead[2];
  tpu_val in[2] = {*x, *y};
  for (int k = 0; k < 2; k++) {
    int rank = tpu_rank_of(b, in[k]);
    lead[k] = tpu_full(b, TPU_BOOL, rank - 2, tpu_dims_of(b, in[k]), 0);
  }
  int n = broadcast_dims(b, 2, lead, batch);
  if (tpu_build_failed(b)) return;
  for (int k = 0; k < 2; k++) {
    int rank = tpu_rank_of(b, in[k]);
    for (int i = 0; i < n; i++) dims[k][i] = batch[i];
    dims[k][n] = tpu_dim_of(b, in[k], rank - 2);
    dims[k][n + 1] = tpu_dim_of(b, in[k], rank - 1);
    in[k] = tpu_broadcast_to(b, in[k], n + 2, dims[k]);
  }
  *x = in[0];
  *y = in[1];
}

/* x[.., p, m] - y[.., r, m]: [B.., P, R, M]. */
static tpu_val differences(tpu_build *b, tpu_val x, tpu_val y) {
  int rank = tpu_rank_of(b, x);
  tpu_val pair[2] = {tpu_unsqueeze(b, x, rank - 1), tpu_unsqueeze(b, y, rank - 2)};
  broadcast_all(b, 2, pair);
  return tpu_sub(b, pair[0], pair[1]);
}

static tpu_val euclidean(tpu_build *b, tpu_val x, tpu_val y) {
  int rank = tpu_rank_of(b, x);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  int64_t last[1] = {rank - 1}, batch[TPU_MAX_RANK];
  tpu_dot_dims dot = {
      .n_batch = rank - 2, .n_contract = 1, .lhs_batch = batch, .rhs_batch = batch, .lhs_contract = last, .rhs_contract = last};
  for (int i = 0; i < rank - 2; i++) batch[i] = i;
  tpu_val xx = tpu_unsqueeze(b, reduce_wide(b, TPU_MONOID_ADD, tpu_mul(b, x, x), 1, last), rank - 1);
  tpu_val yy = tpu_unsqueeze(b, reduce_wide(b, TPU_MONOID_ADD, tpu_mul(b, y, y), 1, last), rank - 2);
  tpu_val xy = tpu_dot_general(b, binary_c(b, TPU_HLO_MULTIPLY, x, -2), y, &dot, dtype);
  tpu_val square = bcast_binary(b, TPU_HLO_ADD, bcast_binary(b, TPU_HLO_ADD, xy, xx), yy);
  return tpu_unary(b, TPU_HLO_SQRT, binary_c(b, TPU_HLO_MAXIMUM, square, 0));
}

static bool check_points(tpu_build *b, tpu_val x, tpu_val y) {
  if (tpu_build_failed(b)) return false;
  tpu_val both[2] = {x, y};
  for (int k = 0; k < 2; k++) {
    if (tpu_rank_of(b, both[k]) < 2) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "cdist only supports at least 2D tensors, X%d got: %dD", k + 1, tpu_rank_of(b, both[k]));
      return false;
    }
    if (!tpu_is_float(tpu_dtype_of(b, both[k]))) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "cdist only supports floating-point dtypes, X%d got: %s", k + 1,
               tpu_dtype_scalar_name(tpu_dtype_of(b, both[k])));
      return false;
    }
  }
  int64_t mx = tpu_dim_of(b, x, tpu_rank_of(b, x) - 1), my = tpu_dim_of(b, y, tpu_rank_of(b, y) - 1);
  if (mx == my) return true;
  tpu_fail(b, TPU_INVALID_ARGUMENT, "X1 and X2 must have the same number of columns. X1: %lld X2: %lld", (long long)mx,
           (long long)my);
  return false;
}

/* _cdist_forward(x1, x2, p, compute_mode): mode 1 always, None or 0 for more than 25 rows, takes p = 2 through a matrix product.
 */
void lower_cdist_forward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0), y = arg_tensor(b, a, 1);
  if (!check_points(b, x, y)) return;
  double p = arg_static(b, a, 2);
  int64_t mode = arg_int(b, a, 3, 0);
  expand_batches(b, &x, &y);
  if (tpu_build_failed(b)) return;
  int rank = tpu_rank_of(b, x);
  bool large = tpu_dim_of(b, x, rank - 2) > 25 || tpu_dim_of(b, y, rank - 2) > 25;
  if (p == 2 && (mode == 1 || (mode == 0 && large))) {
    o->out[0].val = euclidean(b, x, y);
    return;
  }
  int64_t axes[1] = {rank};
  tpu_val off = differences(b, x, y);
  if (tpu_dim_of(b, off, rank) == 0) p = 1; /* no coordinates: all distances are 0, also for the extremes */
  o->out[0].val = reduce_norm(b, off, p, 1, axes);
}

void lower_euclidean_dist(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0), y = arg_tensor(b, a, 1);
  if (!check_points(b, x, y)) return;
  expand_batches(b, &x, &y);
  o->out[0].val = euclidean(b, x, y);
}

/* d dist / d off, times grad; all of one type. dist and grad are broadcast along the coordinates. */
static tpu_val norm_gradient(tpu_build *b, double p, tpu_val off, tpu_val dist, tpu_val grad) {
  tpu_val zero = tpu_full_like(b, off, 0), sign = tpu_unary(b, TPU_HLO_SIGN, off), size = tpu_unary(b, TPU_HLO_ABS, off);
  if (p == 0) return zero;
  if (p == 1) return tpu_mul(b, grad, sign);
  tpu_val flat = tpu_compare(b, TPU_EQ, dist, zero);
  if (isinf(p)) {
    tpu_val hit = tpu_compare(b, TPU_EQ, size, dist);
    return tpu_select(b, hit, tpu_mul(b, grad, sign), zero);
  }
  if (p == 2) return tpu_select(b, flat, zero, tpu_div(b, tpu_mul(b, grad, off), dist));
  if (p < 1) flat = tpu_or(b, flat, tpu_compare(b, TPU_EQ, off, zero));
  tpu_val powers = tpu_div(b, binary_c(b, TPU_HLO_POWER, size, p - 1), binary_c(b, TPU_HLO_POWER, dist, p - 1));
  return tpu_select(b, flat, zero, tpu_mul(b, tpu_mul(b, sign, powers), grad));
}

/* _cdist_backward(grad [B.., P, R], x1, x2, p, cdist [B.., P, R]) -> gradient of x1 [B.., P, M] */
void lower_cdist_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val grad = arg_tensor(b, a, 0), x = arg_tensor(b, a, 1), y = arg_tensor(b, a, 2), dist = arg_tensor(b, a, 4);
  double p = arg_static(b, a, 3);
  expand_batches(b, &x, &y);
  if (tpu_build_failed(b)) return;
  int rank = tpu_rank_of(b, x);
  tpu_val off = differences(b, x, y);
  int64_t coordinate[1] = {rank}, row[1] = {rank - 1};
  tpu_val one = norm_gradient(b, p, off, reduce_spread(b, dist, off, 1, coordinate), reduce_spread(b, grad, off, 1, coordinate));
  o->out[0].val = reduce_over(b, TPU_MONOID_ADD, one, 1, row);
}

/* The rows i < j of all pairs, in order: x[i] and x[j], each [N (N - 1) / 2, M]. */
static tpu_val pair_differences(tpu_build *b, tpu_val x, tpu_val *out_first, tpu_val *out_second) {
  int64_t n = tpu_dim_of(b, x, 0), m = tpu_dim_of(b, x, 1), count = n * (n - 1) / 2, at = 0;
  int32_t *index = tpu_build_alloc(b, (size_t)(2 * count + 1) * sizeof *index);
  if (!index) return TPU_POISON;
  for (int32_t i = 0; i < n; i++) {
    for (int32_t j = i + 1; j < n; j++, at++) {
      index[at] = i;
      index[count + at] = j;
    }
  }
  int64_t dims[2] = {count, 1}, offset[1] = {1}, zero[1] = {0}, sizes[2] = {1, m};
  *out_first = tpu_dense(b, TPU_I32, 2, dims, index);
  *out_second = tpu_dense(b, TPU_I32, 2, dims, index + count);
  tpu_gather_dims gather = {.n_offset = 1,
                            .offset = offset,
                            .n_collapsed = 1,
                            .collapsed = zero,
                            .n_map = 1,
                            .start_index_map = zero,
                            .index_vector_dim = 1};
  return tpu_sub(b, tpu_gather(b, x, *out_first, &gather, sizes), tpu_gather(b, x, *out_second, &gather, sizes));
}

void lower_pdist_forward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0), first, second;
  double p = arg_static(b, a, 1);
  if (tpu_build_failed(b)) return;
  int64_t n = tpu_dim_of(b, x, 0), axes[1] = {1}, none = 0;
  if (n <= 1) {
    o->out[0].val = tpu_full(b, tpu_dtype_of(b, x), 1, &none, 0);
    return;
  }
  tpu_val off = pair_differences(b, x, &first, &second);
  o->out[0].val = reduce_norm(b, off, tpu_dim_of(b, x, 1) ? p : 1, 1, axes);
}

/* _pdist_backward(grad, self, p, pdist) */
void lower_pdist_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val grad = arg_tensor(b, a, 0), x = arg_tensor(b, a, 1), dist = arg_tensor(b, a, 3), first, second;
  double p = arg_static(b, a, 2);
  if (tpu_build_failed(b)) return;
  if (tpu_dim_of(b, x, 0) <= 1 || tpu_numel_of(b, x) == 0) {
    o->out[0].val = tpu_full_like(b, x, 0);
    return;
  }
  tpu_val off = pair_differences(b, x, &first, &second);
  int64_t coordinate[1] = {1}, zero[1] = {0};
  tpu_val one = norm_gradient(b, p, off, reduce_spread(b, dist, off, 1, coordinate), reduce_spread(b, grad, off, 1, coordinate));
  tpu_scatter_dims scatter = {.n_window = 1,
                              .window = coordinate,
                              .n_inserted = 1,
                              .inserted = zero,
                              .n_map = 1,
                              .scatter_map = zero,
                              .index_vector_dim = 1};
  tpu_val y = tpu_scatter(b, TPU_MONOID_ADD, tpu_full_like(b, x, 0), first, one, &scatter);
  o->out[0].val = tpu_scatter(b, TPU_MONOID_ADD, y, second, tpu_neg(b, one), &scatter);
}
