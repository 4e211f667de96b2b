/* Moments, norms and log-sum-exp. */
#include <math.h>
#include <stdio.h>

#include "aten/reduce.h"

/* |x|^2 of a real or complex x, real. */
static tpu_val square_abs(tpu_build *b, tpu_val x) {
  if (!tpu_is_complex(tpu_dtype_of(b, x))) return tpu_mul(b, x, x);
  tpu_val re = tpu_unary(b, TPU_HLO_REAL, x), im = tpu_unary(b, TPU_HLO_IMAG, x);
  return tpu_add(b, tpu_mul(b, re, re), tpu_mul(b, im, im));
}

/* var, std, var_mean, std_mean (self, dim, *, correction, keepdim). rule: 1 takes the root. Two passes over x, so that a large
 * mean does not cancel the variance. */
void lower_var(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  if (!tpu_is_float(dtype) && !tpu_is_complex(dtype)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s only support floating point and complex dtypes",
             a->n_returns == 2 ? (a->row->rule ? "std_mean" : "var_mean") : "std and var");
    return;
  }
  int64_t axes[TPU_MAX_RANK];
  int n = arg_axes(b, a, 1, tpu_rank_of(b, x), axes);
  double correction = arg_present(a, 2) ? arg_static(b, a, 2) : 1;
  bool keep = arg_bool(b, a, 3);
  double count = (double)reduce_count(b, x, n, axes);
  tpu_val wide = tpu_convert(b, x, tpu_dtype_opmath(dtype));
  tpu_val mean = binary_c(b, TPU_HLO_DIVIDE, reduce_over(b, TPU_MONOID_ADD, wide, n, axes), count);
  tpu_val off = tpu_sub(b, wide, reduce_spread(b, mean, x, n, axes));
  tpu_val moment = reduce_over(b, TPU_MONOID_ADD, square_abs(b, off), n, axes);
  double freedom = count - correction;
  tpu_val var = binary_c(b, TPU_HLO_DIVIDE, moment, freedom > 0 ? freedom : 0);
  if (a->row->rule) var = tpu_unary(b, TPU_HLO_SQRT, var);
  o->out[0].val = reduce_keep(b, tpu_convert(b, var, tpu_dtype_real(dtype)), x, n, axes, keep);
  if (a->n_returns == 2) o->out[1].val = reduce_keep(b, tpu_convert(b, mean, dtype), x, n, axes, keep);
}

tpu_val reduce_norm(tpu_build *b, tpu_val x, double p, int n_axes, const int64_t *axes) {
  tpu_dtype dtype = tpu_dtype_of(b, x), real = tpu_dtype_real(dtype);
  x = tpu_convert(b, x, tpu_dtype_opmath(dtype));
  tpu_val y;
  if (p == 0) {
    y = reduce_over(b, TPU_MONOID_ADD, tpu_convert(b, tpu_convert(b, x, TPU_BOOL), tpu_dtype_opmath(real)), n_axes, axes);
  } else if (p == 2 && reduce_count(b, x, n_axes, axes) != 1) {
    y = tpu_unary(b, TPU_HLO_SQRT, reduce_over(b, TPU_MONOID_ADD, square_abs(b, x), n_axes, axes));
  } else {
    tpu_val size = tpu_unary(b, TPU_HLO_ABS, x);
    if (isinf(p)) {
      y = reduce_over(b, p > 0 ? TPU_MONOID_MAX : TPU_MONOID_MIN, size, n_axes, axes);
    } else if (p == 1 || reduce_count(b, x, n_axes, axes) == 1) {
      y = reduce_over(b, TPU_MONOID_ADD, size, n_axes, axes);
    } else {
      y = reduce_over(b, TPU_MONOID_ADD, binary_c(b, TPU_HLO_POWER, size, p), n_axes, axes);
      y = binary_c(b, TPU_HLO_POWER, y, 1 / p);
    }
  }
  return tpu_convert(b, y, real);
}

/* Extremes have no identity: every reduced dim must have elements. */
static bool check_norm_identity(tpu_build *b, tpu_val x, double p, bool whole, int n_axes, const int64_t *axes) {
  if (tpu_build_failed(b)) return false;
  if (tpu_numel_of(b, x) != 0 || (p >= 0 && !isinf(p))) return true;
  char ord[32];
  if (isinf(p))
    snprintf(ord, sizeof ord, "%s", p > 0 ? "inf" : "-inf");
  else
    snprintf(ord, sizeof ord, "%g", p);
  if (whole) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "linalg.vector_norm cannot compute the %s norm on an empty tensor because the operation does not have an identity",
             ord);
    return false;
  }
  for (int i = 0; i < n_axes; i++) { /* PyTorch's text lacks a space, too */
    if (tpu_dim_of(b, x, (int)axes[i]) != 0) continue;
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "linalg.vector_norm cannot compute the %s norm on the dimension %dbecause this dimension is empty and the "
             "operation does not have an identity",
             ord, (int)axes[i]);
    return false;
  }
  return true;
}

/* linalg_vector_norm(self, ord, dim, keepdim, dtype) and norm's overloads (self, p[, dim, keepdim][, dtype]). */
void lower_norm(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  double p = arg_present(a, 1) ? arg_static(b, a, 1) : 2;
  bool dims = a->n >= 4;
  int dtype_at = a->n == 3 ? 2 : a->n == 5 ? 4 : -1;
  int rank = tpu_rank_of(b, x);
  int64_t axes[TPU_MAX_RANK];
  int n = dims ? arg_axes(b, a, 2, rank, axes) : reduce_all_axes(b, x, axes);
  bool keep = dims && arg_bool(b, a, 3), whole = !dims || arg_list_size(a, 2) == 0;
  tpu_dtype from = tpu_dtype_of(b, x);
  if (!tpu_is_float(from) && !tpu_is_complex(from)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "linalg.vector_norm: Expected a floating point or complex tensor as input. Got %s",
             tpu_dtype_scalar_name(from));
    return;
  }
  tpu_dtype to = dtype_at < 0 ? from : arg_dtype(a, dtype_at, from);
  if (to != from) {
    const char *ask = tpu_is_complex(from) ? "complex" : "real";
    if (tpu_is_complex(to) != tpu_is_complex(from)) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "linalg.vector_norm: dtype should be %s for %s inputs, but got %s", ask, ask,
               tpu_dtype_scalar_name(to));
      return;
    }
    if (tpu_dtype_promote(from, to) != to) {
      tpu_fail(
          b, TPU_INVALID_ARGUMENT,
          "linalg.vector_norm: the dtype of the input (%s) should be convertible without narrowing to the specified dtype (%s)",
          tpu_dtype_scalar_name(from), tpu_dtype_scalar_name(to));
      return;
    }
    x = tpu_convert(b, x, to);
  }
  if (!check_norm_identity(b, x, p, whole, n, axes)) return;
  o->out[0].val = reduce_keep(b, reduce_norm(b, x, p, n, axes), x, n, axes, keep);
}

/* log(sum(exp(x))), shifted by the maximum; a row of -inf stays -inf and one with inf stays inf. */
void lower_logsumexp(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int64_t axes[TPU_MAX_RANK];
  int n = arg_axes(b, a, 1, tpu_rank_of(b, x), axes);
  tpu_dtype dtype = promote_float_default(a, tpu_dtype_of(b, x));
  x = tpu_convert(b, x, tpu_dtype_opmath(dtype));
  tpu_val size = tpu_is_complex(dtype) ? tpu_unary(b, TPU_HLO_REAL, x) : x;
  tpu_val top = reduce_over(b, TPU_MONOID_MAX, size, n, axes);
  tpu_val infinite = tpu_compare(b, TPU_EQ, tpu_unary(b, TPU_HLO_ABS, top), tpu_full_like(b, top, INFINITY));
  top = tpu_convert(b, tpu_select(b, infinite, tpu_full_like(b, top, 0), top), tpu_dtype_of(b, x));
  tpu_val sum = reduce_over(b, TPU_MONOID_ADD, tpu_exp(b, tpu_sub(b, x, reduce_spread(b, top, x, n, axes))), n, axes);
  tpu_val y = tpu_convert(b, tpu_add(b, tpu_log(b, sum), top), dtype);
  o->out[0].val = reduce_keep(b, y, x, n, axes, arg_bool(b, a, 2));
}

/* renorm(self, p, dim, maxnorm): slices along dim whose p-norm is over maxnorm are scaled down to it. */
void lower_renorm(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int rank = tpu_rank_of(b, x);
  double p = arg_static(b, a, 1);
  if (tpu_build_failed(b)) return;
  if (p <= 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "renorm: non-positive-norm not supported");
    return;
  }
  if (rank < 2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "renorm: input needs at least 2 dimensions, got %d dimensions", rank);
    return;
  }
  int dim = arg_dim(b, a, 2, rank), n = 0;
  int64_t axes[TPU_MAX_RANK];
  for (int i = 0; i < rank; i++) {
    if (i != dim) axes[n++] = i;
  }
  tpu_dtype dtype = tpu_dtype_of(b, x), real = tpu_dtype_opmath(tpu_dtype_real(dtype));
  tpu_val wide = tpu_convert(b, x, tpu_dtype_opmath(dtype));
  tpu_val norm = reduce_norm(b, wide, p, n, axes);
  tpu_val most = tpu_broadcast_like(b, arg_number(b, a, 3, real), norm);
  tpu_val scaled = tpu_div(b, most, binary_c(b, TPU_HLO_ADD, norm, 1e-7));
  tpu_val factor = tpu_select(b, tpu_compare(b, TPU_GT, norm, most), scaled, tpu_full_like(b, norm, 1));
  factor = tpu_convert(b, factor, tpu_dtype_of(b, wide));
  o->out[0].val = tpu_convert(b, tpu_mul(b, wide, reduce_spread(b, factor, x, n, axes)), dtype);
}
