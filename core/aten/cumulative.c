/* Scans along a dim. */
#include <math.h>

#include "aten/reduce.h"

static tpu_val scan(tpu_build *b, tpu_monoid op, tpu_val x, int dim) {
  if (tpu_rank_of(b, x) == 0 || tpu_numel_of(b, x) == 0) return x;
  return tpu_cumulative(b, op, x, dim, false);
}

/* cumsum, cumprod (self, dim, *, dtype): rule is the monoid. */
void lower_cumsum(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int dim = arg_dim(b, a, 1, tpu_rank_of(b, x));
  tpu_dtype from = tpu_dtype_of(b, x);
  tpu_dtype dtype = arg_dtype(a, 2, tpu_is_integral(from) || from == TPU_BOOL ? TPU_I64 : from);
  tpu_val wide = tpu_convert(b, tpu_convert(b, x, dtype), tpu_dtype_opmath(dtype));
  o->out[0].val = tpu_convert(b, scan(b, (tpu_monoid)a->row->rule, wide, dim), dtype);
}

/* cummax, cummin: rule is the monoid. The index is that of the last element that is as extreme as all before it; a NaN wins
 * over numbers. */
void lower_cummax(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  if (tpu_is_complex(tpu_dtype_of(b, x))) {
    fail_not_implemented(b, a, tpu_dtype_of(b, x));
    return;
  }
  int rank = tpu_rank_of(b, x);
  int dim = arg_dim(b, a, 1, rank);
  tpu_val best = scan(b, (tpu_monoid)a->row->rule, x, dim);
  o->out[0].val = best;
  if (rank == 0) {
    o->out[1].val = tpu_scalar_i(b, TPU_I64, 0);
    return;
  }
  tpu_dtype index_dtype = reduce_index_dtype(tpu_dim_of(b, x, dim));
  tpu_val hit = tpu_compare(b, TPU_EQ, x, best);
  if (tpu_is_float(tpu_dtype_of(b, x))) hit = tpu_or(b, hit, tpu_is_nan(b, x));
  tpu_val iota = tpu_iota(b, index_dtype, rank, tpu_dims_of(b, x), dim);
  tpu_val index = scan(b, TPU_MONOID_MAX, tpu_select(b, hit, iota, tpu_full_like(b, iota, 0)), dim);
  o->out[1].val = tpu_convert(b, index, TPU_I64);
}

static tpu_val log_add_exp(tpu_build *b, tpu_val x, tpu_val y) {
  tpu_val low = tpu_min(b, x, y), high = tpu_max(b, x, y);
  tpu_val sum = tpu_add(b, high, tpu_unary(b, TPU_HLO_LOG1P, tpu_exp(b, tpu_sub(b, low, high))));
  tpu_val equal = tpu_compare(b, TPU_EQ, x, y);
  tpu_val infinite = tpu_and(b, equal, tpu_not(b, tpu_unary(b, TPU_HLO_IS_FINITE, x)));
  return tpu_select(b, infinite, x, sum);
}

/* x moved by `by` towards higher indices of dim, with `fill` coming in. */
static tpu_val shift(tpu_build *b, tpu_val x, int dim, int64_t by, double fill) {
  int64_t lo[TPU_MAX_RANK] = {0}, hi[TPU_MAX_RANK] = {0};
  lo[dim] = by;
  hi[dim] = -by;
  return tpu_pad(b, x, tpu_scalar(b, tpu_dtype_of(b, x), fill), lo, hi, NULL);
}

/* log2(n) steps of doubling reach: the sum of exponentials is never out of range, which a cumsum of exp(x - max) would be for
 * elements far below the maximum. */
void lower_logcumsumexp(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int rank = tpu_rank_of(b, x);
  int dim = arg_dim(b, a, 1, rank);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  if (!tpu_is_float(dtype)) {
    tpu_fail(b, TPU_UNIMPLEMENTED, "\"logcumsumexp_out_cpu\" not implemented for '%s'", tpu_dtype_scalar_name(dtype));
    return;
  }
  tpu_val y = tpu_convert(b, x, tpu_dtype_opmath(dtype));
  int64_t size = rank ? tpu_dim_of(b, x, dim) : 1;
  for (int64_t by = 1; by < size && !tpu_build_failed(b); by *= 2) y = log_add_exp(b, y, shift(b, y, dim, by, -INFINITY));
  o->out[0].val = tpu_convert(b, y, dtype);
}
