/* Layer, group and RMS norm, weight norm. Half types are computed in float32. Source:
 * aten/src/ATen/native/layer_norm.cpp, group_norm.cpp, WeightNorm.cpp. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "aten/nn.h"
#include "aten/reduce.h"

static bool is_normalizable(tpu_build *b, const tpu_args *a, tpu_dtype dtype) {
  if (tpu_build_failed(b)) return false;
  if (tpu_is_float(dtype)) return true;
  fail_not_implemented(b, a, dtype);
  return false;
}

/* 1 / sqrt(mean(d^2) + eps) */
static tpu_val reciprocal_std(tpu_build *b, tpu_val d, int n_axes, const int64_t *axes, tpu_val eps) {
  tpu_val var = mean_keep(b, tpu_mul(b, d, d), n_axes, axes);
  return tpu_unary(b, TPU_HLO_RSQRT, tpu_add(b, var, tpu_broadcast_like(b, eps, var)));
}

/* Optional argument i as [dims of x's last dims], in x's dtype, repeated to x's dims; poison if absent. */
static tpu_val optional_affine(tpu_build *b, const tpu_args *a, int i, tpu_val x) {
  if (!arg_present(a, i)) return TPU_POISON;
  return tpu_broadcast_like(b, tpu_convert(b, arg_tensor(b, a, i), tpu_dtype_of(b, x)), x);
}

/* The last dims that normalized_shape (argument i) covers: their number, axes into out_axes. Checks input, weight and bias. */
static int normalized_axes(tpu_build *b, const tpu_args *a, tpu_val x, int i, int weight, int bias, int64_t *out_axes) {
  int n, rank = tpu_rank_of(b, x);
  const int64_t *shape = arg_ints(a, i, &n);
  if (tpu_build_failed(b)) return 0;
  if (n < 1) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
             "normalized_shape = %s",
             dims_text(b, n, shape));
    return 0;
  }
  const int affine[2] = {weight, bias};
  static const char *const names[2] = {"weight", "bias"};
  for (int k = 0; k < 2; k++) {
    if (affine[k] < 0 || !arg_present(a, affine[k])) continue;
    tpu_type type = tpu_type_of(b, arg_tensor(b, a, affine[k]));
    if (type.rank != n || memcmp(type.dims, shape, sizeof *shape * (size_t)n) != 0) {
      tpu_fail(b, TPU_INVALID_ARGUMENT,
               "Expected %s to be of same shape as normalized_shape, but got %s of shape %s and normalized_shape = %s", names[k],
               names[k], dims_text(b, type.rank, type.dims), dims_text(b, n, shape));
      return 0;
    }
  }
  if (rank < n || memcmp(tpu_dims_of(b, x) + (rank - n), shape, sizeof *shape * (size_t)n) != 0) {
    char text[TPU_MAX_RANK * 24 + 4];
    size_t at = 0;
    for (int d = 0; d < n; d++) at += (size_t)snprintf(text + at, sizeof text - at, ", %" PRId64, shape[d]);
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Given normalized_shape=%s, expected input with shape [*%s], but got input of size%s",
             dims_text(b, n, shape), text, dims_text(b, rank, tpu_dims_of(b, x)));
    return 0;
  }
  for (int d = 0; d < n; d++) out_axes[d] = rank - n + d;
  return n;
}

/* x without rows or columns: results of the right shapes, with nothing to compute. */
static tpu_val stats_like(tpu_build *b, tpu_val x, int n_axes, double value) {
  int64_t dims[TPU_MAX_RANK];
  int rank = tpu_rank_of(b, x);
  for (int d = 0; d < rank; d++) dims[d] = d < rank - n_axes ? tpu_dim_of(b, x, d) : 1;
  return tpu_full(b, tpu_dtype_of(b, x), rank, dims, value);
}

void lower_layer_norm(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  int64_t axes[TPU_MAX_RANK];
  int n = normalized_axes(b, a, x, 1, 2, 3, axes);
  if (!is_normalizable(b, a, dtype)) return;
  x = tpu_convert(b, x, tpu_dtype_opmath(dtype));
  tpu_val mean = stats_like(b, x, n, 0), rstd = mean, y = x;
  if (tpu_numel_of(b, x)) {
    mean = mean_keep(b, x, n, axes);
    y = with_kept(b, TPU_HLO_SUBTRACT, x, mean);
    rstd = reciprocal_std(b, y, n, axes, arg_number(b, a, 4, tpu_dtype_of(b, x)));
    y = with_kept(b, TPU_HLO_MULTIPLY, y, rstd);
    tpu_val weight = optional_affine(b, a, 2, x), bias = optional_affine(b, a, 3, x);
    if (weight.id) y = tpu_mul(b, y, weight);
    if (bias.id) y = tpu_add(b, y, bias);
  }
  o->out[0].val = tpu_convert(b, y, dtype);
  o->out[1].val = mean;
  o->out[2].val = rstd;
}

/* The sums over the leading dims that give a weight's gradient, in the dtype of argument i, or of x without it. */
static void affine_gradient(tpu_build *b, const tpu_args *a, int i, tpu_val product, int n_axes, tpu_dtype dtype, bool wanted,
                            tpu_out *out) {
  if (!wanted) {
    out->undefined = true;
    return;
  }
  int64_t leading[TPU_MAX_RANK];
  int n = tpu_rank_of(b, product) - n_axes;
  for (int d = 0; d < n; d++) leading[d] = d;
  if (arg_present(a, i)) dtype = tpu_dtype_of(b, arg_tensor(b, a, i));
  out->val = tpu_convert(b, sum_over(b, product, n, leading), dtype);
}

void lower_layer_norm_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val g = arg_tensor(b, a, 0), x = arg_tensor(b, a, 1);
  tpu_dtype dtype = tpu_dtype_of(b, x), math = tpu_dtype_opmath(dtype);
  int64_t axes[TPU_MAX_RANK];
  int n = normalized_axes(b, a, x, 2, 5, 6, axes), n_mask;
  const int64_t *mask = arg_ints(a, 7, &n_mask);
  if (!is_normalizable(b, a, dtype) || n_mask != 3) return;
  g = tpu_convert(b, g, math);
  x = tpu_convert(b, x, math);
  tpu_val mean = tpu_convert(b, arg_tensor(b, a, 3), math), rstd = tpu_convert(b, arg_tensor(b, a, 4), math);
  tpu_val xhat = with_kept(b, TPU_HLO_MULTIPLY, with_kept(b, TPU_HLO_SUBTRACT, x, mean), rstd);
  if (mask[0]) {
    tpu_val weight = optional_affine(b, a, 5, x), gw = weight.id ? tpu_mul(b, g, weight) : g;
    tpu_val gx = with_kept(b, TPU_HLO_SUBTRACT, gw, mean_keep(b, gw, n, axes));
    gx = tpu_sub(b, gx, with_kept(b, TPU_HLO_MULTIPLY, xhat, mean_keep(b, tpu_mul(b, gw, xhat), n, axes)));
    gx = with_kept(b, TPU_HLO_MULTIPLY, gx, rstd);
    o->out[0].val = tpu_convert(b, tpu_numel_of(b, x) ? gx : x, dtype);
  } else {
    o->out[0].undefined = true;
  }
  affine_gradient(b, a, 5, tpu_mul(b, g, xhat), n, dtype, mask[1] && arg_present(a, 5), &o->out[1]);
  affine_gradient(b, a, 6, g, n, dtype, mask[2] && arg_present(a, 6), &o->out[2]);
}

/* eps None: the machine epsilon of the computation's type, as at::rms_norm takes it. */
static double default_epsilon(tpu_dtype t) { return t == TPU_F64 ? 0x1p-52 : 0x1p-23; }

void lower_rms_norm(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  tpu_dtype dtype = tpu_dtype_of(b, x), math = tpu_dtype_opmath(dtype);
  int64_t axes[TPU_MAX_RANK];
  int n = normalized_axes(b, a, x, 1, 2, -1, axes);
  if (!is_normalizable(b, a, dtype)) return;
  x = tpu_convert(b, x, math);
  tpu_val eps = arg_present(a, 3) ? arg_number(b, a, 3, math) : tpu_scalar(b, math, default_epsilon(math));
  tpu_val rstd = stats_like(b, x, n, 0), y = x;
  if (tpu_numel_of(b, x)) {
    rstd = reciprocal_std(b, x, n, axes, eps);
    y = with_kept(b, TPU_HLO_MULTIPLY, x, rstd);
    tpu_val weight = optional_affine(b, a, 2, x);
    if (weight.id) y = tpu_mul(b, y, weight);
  }
  o->out[0].val = tpu_convert(b, y, dtype);
  o->out[1].val = rstd;
}

void lower_rms_norm_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val g = arg_tensor(b, a, 0), x = arg_tensor(b, a, 1);
  tpu_dtype dtype = tpu_dtype_of(b, x), math = tpu_dtype_opmath(dtype);
  int64_t axes[TPU_MAX_RANK];
  int n = normalized_axes(b, a, x, 2, 4, -1, axes), n_mask;
  const int64_t *mask = arg_ints(a, 5, &n_mask);
  if (!is_normalizable(b, a, dtype) || n_mask != 2) return;
  g = tpu_convert(b, g, math);
  x = tpu_convert(b, x, math);
  tpu_val rstd = tpu_convert(b, arg_tensor(b, a, 3), math);
  tpu_val xhat = with_kept(b, TPU_HLO_MULTIPLY, x, rstd);
  if (mask[0]) {
    tpu_val weight = optional_affine(b, a, 4, x), gw = weight.id ? tpu_mul(b, g, weight) : g;
    tpu_val gx = with_kept(b, TPU_HLO_MULTIPLY, xhat, mean_keep(b, tpu_mul(b, gw, xhat), n, axes));
    gx = with_kept(b, TPU_HLO_MULTIPLY, tpu_sub(b, gw, gx), rstd);
    o->out[0].val = tpu_convert(b, tpu_numel_of(b, x) ? gx : x, dtype);
  } else {
    o->out[0].undefined = true;
  }
  affine_gradient(b, a, 4, tpu_mul(b, g, xhat), n, dtype, mask[1] && arg_present(a, 4), &o->out[1]);
}

/* --- group norm: x [N, C, *] seen as [N, G, C/G, HxW] */
typedef struct groups {
  int64_t dims[4];
  int64_t n, c, spatial, groups;
} groups;

static groups read_groups(tpu_build *b, const tpu_args *a, int i, tpu_type x) {
  groups r = {.n = arg_int(b, a, i, 0),
              .c = arg_int(b, a, i + 1, 0),
              .spatial = arg_int(b, a, i + 2, 0),
              .groups = arg_int(b, a, i + 3, 1)};
  if (r.groups <= 0)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected num groups to be greater than 0, got %" PRId64, r.groups);
  else if (r.c % r.groups)
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Expected number of channels in input to be divisible by num_groups, but got input of shape %s "
             "and num_groups=%" PRId64,
             dims_text(b, x.rank, x.dims), r.groups);
  if (tpu_build_failed(b)) r.groups = 1;
  r.dims[0] = r.n, r.dims[1] = r.groups, r.dims[2] = r.c / r.groups, r.dims[3] = r.spatial;
  return r;
}

/* [C] or [N, G] or [N, G, 1, 1] as a value of the grouped dims. */
static tpu_val spread_channels(tpu_build *b, const groups *r, tpu_val x) {
  x = tpu_reshape(b, x, 2, (const int64_t[]){r->groups, r->dims[2]});
  return tpu_broadcast_in_dim(b, x, 4, r->dims, (const int64_t[]){1, 2});
}
static tpu_val spread_groups(tpu_build *b, const groups *r, tpu_val x) {
  x = tpu_reshape(b, x, 2, (const int64_t[]){r->n, r->groups});
  return tpu_broadcast_in_dim(b, x, 4, r->dims, (const int64_t[]){0, 1});
}

static const int64_t group_axes[2] = {2, 3};

void lower_group_norm(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  tpu_type type = tpu_type_of(b, x);
  groups r = read_groups(b, a, 3, type);
  if (!is_normalizable(b, a, type.dtype)) return;
  tpu_dtype math = tpu_dtype_opmath(type.dtype);
  x = tpu_reshape(b, tpu_convert(b, x, math), 4, r.dims);
  const int64_t stats[2] = {r.n, r.groups};
  tpu_val mean = tpu_full(b, math, 2, stats, 0), rstd = mean, y = x;
  if (tpu_numel_of(b, x)) {
    mean = mean_keep(b, x, 2, group_axes);
    y = with_kept(b, TPU_HLO_SUBTRACT, x, mean);
    rstd = reciprocal_std(b, y, 2, group_axes, arg_number(b, a, 7, math));
    y = with_kept(b, TPU_HLO_MULTIPLY, y, rstd);
    if (arg_present(a, 1)) y = tpu_mul(b, y, spread_channels(b, &r, tpu_convert(b, arg_tensor(b, a, 1), math)));
    if (arg_present(a, 2)) y = tpu_add(b, y, spread_channels(b, &r, tpu_convert(b, arg_tensor(b, a, 2), math)));
  }
  o->out[0].val = tpu_convert(b, tpu_reshape(b, y, type.rank, type.dims), type.dtype);
  o->out[1].val = tpu_convert(b, tpu_reshape(b, mean, 2, stats), type.dtype);
  o->out[2].val = tpu_convert(b, tpu_reshape(b, rstd, 2, stats), type.dtype);
}

void lower_group_norm_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val g = arg_tensor(b, a, 0), x = arg_tensor(b, a, 1);
  tpu_type type = tpu_type_of(b, x);
  groups r = read_groups(b, a, 5, type);
  int n_mask;
  const int64_t *mask = arg_ints(a, 9, &n_mask);
  if (!is_normalizable(b, a, type.dtype) || n_mask != 3) return;
  tpu_dtype math = tpu_dtype_opmath(type.dtype), affine = type.dtype;
  if (arg_present(a, 4)) affine = tpu_dtype_of(b, arg_tensor(b, a, 4));
  g = tpu_reshape(b, tpu_convert(b, g, math), 4, r.dims);
  x = tpu_reshape(b, tpu_convert(b, x, math), 4, r.dims);
  tpu_val mean = spread_groups(b, &r, tpu_convert(b, arg_tensor(b, a, 2), math));
  tpu_val rstd = spread_groups(b, &r, tpu_convert(b, arg_tensor(b, a, 3), math));
  tpu_val xhat = tpu_mul(b, tpu_sub(b, x, mean), rstd);
  o->out[0].undefined = !mask[0];
  if (mask[0]) {
    tpu_val gw = g;
    if (arg_present(a, 4)) gw = tpu_mul(b, g, spread_channels(b, &r, tpu_convert(b, arg_tensor(b, a, 4), math)));
    tpu_val gx = x;
    if (tpu_numel_of(b, x)) {
      gx = with_kept(b, TPU_HLO_SUBTRACT, gw, mean_keep(b, gw, 2, group_axes));
      gx = tpu_sub(b, gx, with_kept(b, TPU_HLO_MULTIPLY, xhat, mean_keep(b, tpu_mul(b, gw, xhat), 2, group_axes)));
      gx = tpu_mul(b, gx, rstd);
    }
    o->out[0].val = tpu_convert(b, tpu_reshape(b, gx, type.rank, type.dims), type.dtype);
  }
  for (int i = 1; i <= 2; i++) {
    o->out[i].undefined = !mask[i];
    if (!mask[i]) continue;
    tpu_val sum = sum_over(b, i == 1 ? tpu_mul(b, g, xhat) : g, 2, (const int64_t[]){0, 3});
    o->out[i].val = tpu_convert(b, tpu_reshape(b, sum, 1, &r.c), affine);
  }
}

/* --- weight norm: v * g / |v|, the norm over all dims but `dim` */
static int other_axes(int rank, int64_t dim, int64_t *out_axes) {
  int n = 0;
  for (int d = 0; d < rank; d++)
    if (d != dim) out_axes[n++] = d;
  return n;
}

void lower_weight_norm(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val v = arg_tensor(b, a, 0), g = arg_tensor(b, a, 1);
  tpu_dtype dtype = tpu_dtype_of(b, v), math = tpu_dtype_opmath(dtype), gt = tpu_dtype_of(b, g);
  int rank = tpu_rank_of(b, v);
  int64_t axes[TPU_MAX_RANK], dim = wrap_dim(b, arg_int(b, a, 2, 0), rank);
  if (!is_normalizable(b, a, dtype)) return;
  v = tpu_convert(b, v, math);
  int n = other_axes(rank, dim, axes);
  tpu_val square = reduce_keep(b, sum_over(b, tpu_mul(b, v, v), n, axes), v, n, axes, true);
  tpu_val norm = tpu_unary(b, TPU_HLO_SQRT, square);
  tpu_val scale = tpu_div(b, tpu_convert(b, tpu_reshape(b, g, rank, tpu_dims_of(b, norm)), math), norm);
  o->out[0].val = tpu_convert(b, with_kept(b, TPU_HLO_MULTIPLY, v, scale), dtype);
  o->out[1].val = tpu_reshape(b, tpu_convert(b, norm, tpu_dtype_opmath(gt)), tpu_rank_of(b, g), tpu_dims_of(b, g));
}

void lower_weight_norm_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val gw = arg_tensor(b, a, 0), v = arg_tensor(b, a, 1), g = arg_tensor(b, a, 2), norm = arg_tensor(b, a, 3);
  tpu_dtype dtype = tpu_dtype_of(b, v), math = tpu_dtype_opmath(dtype), gt = tpu_dtype_of(b, g);
  int rank = tpu_rank_of(b, v);
  int64_t axes[TPU_MAX_RANK], dim = wrap_dim(b, arg_int(b, a, 4, 0), rank);
  if (!is_normalizable(b, a, dtype)) return;
  gw = tpu_convert(b, gw, math);
  v = tpu_convert(b, v, math);
  int n = other_axes(rank, dim, axes);
  tpu_val dot = reduce_keep(b, sum_over(b, tpu_mul(b, gw, v), n, axes), v, n, axes, true);
  const int64_t *kept = tpu_dims_of(b, dot);
  norm = tpu_reshape(b, tpu_convert(b, norm, math), rank, kept);
  tpu_val gs = tpu_reshape(b, tpu_convert(b, g, math), rank, kept);
  tpu_val inverse = tpu_div(b, tpu_full_like(b, norm, 1), norm);
  tpu_val along = tpu_mul(b, dot, tpu_mul(b, inverse, inverse));
  tpu_val gv = tpu_sub(b, gw, with_kept(b, TPU_HLO_MULTIPLY, v, along));
  o->out[0].val = tpu_convert(b, with_kept(b, TPU_HLO_MULTIPLY, gv, tpu_mul(b, gs, inverse)), dtype);
  o->out[1].val = tpu_reshape(b, tpu_convert(b, tpu_mul(b, dot, inverse), gt), tpu_rank_of(b, g), tpu_dims_of(b, g));
}
