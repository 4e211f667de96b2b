#include "aten/reduce.h"

static tpu_val identity(tpu_build *b, tpu_monoid op, tpu_dtype dtype) {
  switch (op) {
    case TPU_MONOID_MUL:
    case TPU_MONOID_AND: return tpu_scalar(b, dtype, 1);
    case TPU_MONOID_MAX: return tpu_lowest(b, dtype);
    case TPU_MONOID_MIN: return tpu_highest(b, dtype);
    default: return tpu_scalar(b, dtype, 0);
  }
}

tpu_val reduce_over(tpu_build *b, tpu_monoid op, tpu_val x, int n_axes, const int64_t *axes) {
  if (n_axes == 0) return x;
  tpu_dtype dtype = tpu_dtype_of(b, x);
  if (dtype == TPU_BOOL) {
    if (op == TPU_MONOID_ADD || op == TPU_MONOID_MAX) op = TPU_MONOID_OR;
    if (op == TPU_MONOID_MUL || op == TPU_MONOID_MIN) op = TPU_MONOID_AND;
  }
  return tpu_reduce(b, op, x, identity(b, op, dtype), n_axes, axes);
}

int reduce_all_axes(tpu_build *b, tpu_val x, int64_t *out_axes) {
  int rank = tpu_rank_of(b, x);
  for (int i = 0; i < rank; i++) out_axes[i] = i;
  return rank;
}

tpu_val reduce_all(tpu_build *b, tpu_monoid op, tpu_val x) {
  int64_t axes[TPU_MAX_RANK];
  int n = reduce_all_axes(b, x, axes);
  return reduce_over(b, op, x, n, axes);
}

tpu_val reduce_wide(tpu_build *b, tpu_monoid op, tpu_val x, int n_axes, const int64_t *axes) {
  tpu_dtype dtype = tpu_dtype_of(b, x);
  x = tpu_convert(b, x, tpu_dtype_opmath(dtype));
  return tpu_convert(b, reduce_over(b, op, x, n_axes, axes), dtype);
}

tpu_val reduce_keep(tpu_build *b, tpu_val y, tpu_val like, int n_axes, const int64_t *axes, bool keepdim) {
  if (!keepdim || n_axes == 0) return y;
  int rank = tpu_rank_of(b, like);
  int64_t dims[TPU_MAX_RANK];
  for (int i = 0; i < rank; i++) dims[i] = tpu_dim_of(b, like, i);
  for (int i = 0; i < n_axes; i++) dims[axes[i]] = 1;
  return tpu_reshape(b, y, rank, dims);
}

tpu_val reduce_spread(tpu_build *b, tpu_val y, tpu_val like, int n_axes, const int64_t *axes) {
  int rank = tpu_rank_of(b, like), n = 0, k = 0;
  int64_t map[TPU_MAX_RANK];
  for (int i = 0; i < rank; i++) {
    if (k < n_axes && axes[k] == i)
      k++;
    else
      map[n++] = i;
  }
  return tpu_broadcast_in_dim(b, y, rank, tpu_dims_of(b, like), map);
}

int64_t reduce_count(tpu_build *b, tpu_val x, int n_axes, const int64_t *axes) {
  int64_t count = 1;
  for (int i = 0; i < n_axes; i++) count *= tpu_dim_of(b, x, (int)axes[i]);
  return count;
}

tpu_dtype reduce_index_dtype(int64_t size) { return size > INT32_MAX ? TPU_I64 : TPU_I32; }

/* Two plain reductions: XLA's CPU backend vectorises them, and does not vectorise one reduction of pairs (3 to 10 times
 * slower at [256, 8192]). */
tpu_val reduce_index(tpu_build *b, tpu_monoid op, tpu_val x, int axis, tpu_val *out_value) {
  int rank = tpu_rank_of(b, x);
  int64_t axes[1] = {axis};
  if (rank == 0) {
    if (out_value) *out_value = x;
    return tpu_scalar_i(b, TPU_I32, 0);
  }
  tpu_dtype index_dtype = reduce_index_dtype(tpu_dim_of(b, x, axis));
  tpu_val best = reduce_over(b, op, x, 1, axes);
  if (out_value) *out_value = best;
  tpu_val hit = tpu_compare(b, TPU_EQ, x, reduce_spread(b, best, x, 1, axes));
  if (tpu_is_float(tpu_dtype_of(b, x))) hit = tpu_or(b, hit, tpu_is_nan(b, x));
  tpu_val iota = tpu_iota(b, index_dtype, rank, tpu_dims_of(b, x), axis);
  tpu_val none = tpu_broadcast_to(b, tpu_highest(b, index_dtype), rank, tpu_dims_of(b, x));
  return reduce_over(b, TPU_MONOID_MIN, tpu_select(b, hit, iota, none), 1, axes);
}

tpu_val reduce_pick(tpu_build *b, tpu_val x, int axis, tpu_val index) {
  int rank = tpu_rank_of(b, x);
  if (rank == 0) return x;
  int64_t axes[1] = {axis};
  tpu_val iota = tpu_iota(b, tpu_dtype_of(b, index), rank, tpu_dims_of(b, x), axis);
  tpu_val hit = tpu_compare(b, TPU_EQ, iota, reduce_spread(b, index, x, 1, axes));
  return reduce_over(b, TPU_MONOID_ADD, tpu_select(b, hit, x, tpu_full_like(b, x, 0)), 1, axes);
}

bool reduce_check_dim(tpu_build *b, tpu_val x, int dim, const char *fn) {
  if (tpu_build_failed(b)) return false;
  if (tpu_rank_of(b, x) == 0 || tpu_dim_of(b, x, dim) != 0) return true;
  tpu_fail(b, TPU_OUT_OF_RANGE, "%s: Expected reduction dim %d to have non-zero size.", fn, dim);
  return false;
}

tpu_val reduce_loss(tpu_build *b, tpu_val x, tpu_dtype dtype, int64_t reduction) {
  if (reduction != REDUCTION_NONE) {
    double count = (double)tpu_numel_of(b, x);
    x = reduce_all(b, TPU_MONOID_ADD, x);
    if (reduction == REDUCTION_MEAN) x = binary_c(b, TPU_HLO_DIVIDE, x, count);
  }
  return tpu_convert(b, x, dtype);
}

/* Overloads come in two forms: (self[, dtype]) and (self, dim, keepdim[, dtype]). */
static bool is_whole(const tpu_args *a) { return a->n <= 2; }
static int dtype_at(const tpu_args *a) { return is_whole(a) ? 1 : 3; }

/* The axes to reduce; keepdim into out_keep. */
static int axes_of(tpu_build *b, const tpu_args *a, tpu_val x, int64_t *out_axes, bool *out_keep) {
  if (is_whole(a)) {
    *out_keep = false;
    return reduce_all_axes(b, x, out_axes);
  }
  *out_keep = arg_bool(b, a, 2);
  return arg_axes(b, a, 1, tpu_rank_of(b, x), out_axes);
}

/* sum, prod, nansum: rule is the monoid. Integers and bools become int64 unless a dtype is given. */
static void sum_like(tpu_build *b, const tpu_args *a, tpu_outs *o, bool skip_nan) {
  tpu_val x = arg_tensor(b, a, 0);
  int64_t axes[TPU_MAX_RANK];
  bool keep;
  int n = axes_of(b, a, x, axes, &keep);
  tpu_dtype from = tpu_dtype_of(b, x);
  tpu_dtype otherwise = tpu_is_integral(from) || from == TPU_BOOL ? TPU_I64 : from;
  x = tpu_convert(b, x, arg_dtype(a, dtype_at(a), otherwise));
  if (skip_nan && tpu_is_float(tpu_dtype_of(b, x))) x = tpu_select(b, tpu_is_nan(b, x), tpu_full_like(b, x, 0), x);
  tpu_val y = reduce_wide(b, (tpu_monoid)a->row->rule, x, n, axes);
  o->out[0].val = reduce_keep(b, y, x, n, axes, keep);
}
void lower_sum(tpu_build *b, const tpu_args *a, tpu_outs *o) { sum_like(b, a, o, false); }

void lower_nansum(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  if (tpu_is_complex(tpu_dtype_of(b, arg_tensor(b, a, 0)))) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "nansum does not support complex inputs");
    return;
  }
  sum_like(b, a, o, true);
}

void lower_mean(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int64_t axes[TPU_MAX_RANK];
  bool keep;
  int n = axes_of(b, a, x, axes, &keep);
  tpu_dtype given = arg_dtype(a, dtype_at(a), TPU_DTYPE_NONE);
  tpu_dtype dtype = given == TPU_DTYPE_NONE ? tpu_dtype_of(b, x) : given;
  if (!tpu_is_float(dtype) && !tpu_is_complex(dtype)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "mean(): could not infer output dtype. %s dtype must be either a floating point or complex dtype. Got: %s",
             given == TPU_DTYPE_NONE ? "Input" : "Optional", tpu_dtype_scalar_name(dtype));
    return;
  }
  tpu_val wide = tpu_convert(b, tpu_convert(b, x, dtype), tpu_dtype_opmath(dtype));
  tpu_val sum = reduce_over(b, TPU_MONOID_ADD, wide, n, axes);
  tpu_val mean = binary_c(b, TPU_HLO_DIVIDE, sum, (double)reduce_count(b, x, n, axes));
  o->out[0].val = reduce_keep(b, tpu_convert(b, mean, dtype), x, n, axes, keep);
}

static bool reject_complex(tpu_build *b, tpu_val x, const char *name) {
  if (!tpu_is_complex(tpu_dtype_of(b, x))) return false;
  tpu_fail(b, TPU_UNIMPLEMENTED, "\"%s\" not implemented for '%s'", name, tpu_dtype_scalar_name(tpu_dtype_of(b, x)));
  return true;
}

/* amax, amin: rule is the monoid. */
void lower_amax(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  const char *name = a->row->rule == TPU_MONOID_MAX ? "amax" : "amin";
  int64_t axes[TPU_MAX_RANK];
  int given, rank = tpu_rank_of(b, x), n = arg_axes(b, a, 1, rank, axes);
  const int64_t *dims = arg_ints(a, 1, &given);
  if (reject_complex(b, x, name) || tpu_build_failed(b)) return;
  if (tpu_numel_of(b, x) == 0 && given == 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "%s(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the "
             "'dim' argument.",
             name);
    return;
  }
  for (int i = 0; i < given && rank; i++) {
    if (tpu_dim_of(b, x, wrap_dim(b, dims[i], rank)) != 0) continue;
    tpu_fail(b, TPU_OUT_OF_RANGE, "%s(): Expected reduction dim %d to have non-zero size.", name, (int)dims[i]);
    return;
  }
  o->out[0].val = reduce_keep(b, reduce_over(b, (tpu_monoid)a->row->rule, x, n, axes), x, n, axes, arg_bool(b, a, 2));
}

/* aminmax(self, *, dim, keepdim), _aminmax(self), _aminmax.dim(self, dim, keepdim) */
void lower_aminmax(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int64_t axes[TPU_MAX_RANK];
  bool keep = a->n > 1 && arg_bool(b, a, 2);
  int n;
  if (a->n > 1 && arg_present(a, 1)) {
    int dim = arg_dim(b, a, 1, tpu_rank_of(b, x));
    if (!reduce_check_dim(b, x, dim, "aminmax")) return;
    axes[0] = dim;
    n = tpu_rank_of(b, x) ? 1 : 0;
  } else {
    n = reduce_all_axes(b, x, axes);
    if (tpu_numel_of(b, x) == 0 && !tpu_build_failed(b)) {
      tpu_fail(b, TPU_INVALID_ARGUMENT,
               "aminmax(): cannot compute aminmax over an empty dimension as the operation has no identity.");
      return;
    }
  }
  o->out[0].val = reduce_keep(b, reduce_over(b, TPU_MONOID_MIN, x, n, axes), x, n, axes, keep);
  o->out[1].val = reduce_keep(b, reduce_over(b, TPU_MONOID_MAX, x, n, axes), x, n, axes, keep);
}

/* max(self), min(self): rule is the monoid. */
void lower_max(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  const char *name = a->row->aten;
  if (reject_complex(b, x, name) || tpu_build_failed(b)) return;
  if (tpu_numel_of(b, x) == 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "%s(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the "
             "'dim' argument.",
             name);
    return;
  }
  o->out[0].val = reduce_all(b, (tpu_monoid)a->row->rule, x);
}

void lower_max_dim(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  tpu_monoid op = (tpu_monoid)a->row->rule;
  int dim = arg_dim(b, a, 1, tpu_rank_of(b, x));
  if (reject_complex(b, x, op == TPU_MONOID_MAX ? "max" : "min")) return;
  if (!reduce_check_dim(b, x, dim, op == TPU_MONOID_MAX ? "max()" : "min()")) return;
  int64_t axes[1] = {dim};
  int n = tpu_rank_of(b, x) ? 1 : 0;
  bool keep = arg_bool(b, a, 2);
  tpu_val value, index = reduce_index(b, op, x, dim, &value);
  o->out[0].val = reduce_keep(b, value, x, n, axes, keep);
  o->out[1].val = reduce_keep(b, tpu_convert(b, index, TPU_I64), x, n, axes, keep);
}

void lower_argmax(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  tpu_monoid op = (tpu_monoid)a->row->rule;
  const char *name = op == TPU_MONOID_MAX ? "argmax()" : "argmin()";
  int rank = tpu_rank_of(b, x), n;
  bool keep = arg_bool(b, a, 2);
  int64_t axes[TPU_MAX_RANK], numel = tpu_numel_of(b, x);
  tpu_val index;
  if (arg_present(a, 1)) {
    int dim = arg_dim(b, a, 1, rank);
    if (!reduce_check_dim(b, x, dim, name)) return;
    axes[0] = dim;
    n = rank ? 1 : 0;
    index = reduce_index(b, op, x, dim, NULL);
  } else {
    if (tpu_build_failed(b)) return;
    if (numel == 0) {
      tpu_fail(b, TPU_OUT_OF_RANGE, "%s: Expected reduction dim to be specified for input.numel() == 0.", name);
      return;
    }
    n = reduce_all_axes(b, x, axes);
    index = reduce_index(b, op, tpu_reshape(b, x, 1, &numel), 0, NULL);
  }
  o->out[0].val = reduce_keep(b, tpu_convert(b, index, TPU_I64), x, n, axes, keep);
}

/* any, all: rule is the monoid (OR, AND). For uint8 the result is uint8, as it was before PyTorch had bool. */
void lower_any(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int64_t axes[TPU_MAX_RANK];
  bool keep;
  int n = axes_of(b, a, x, axes, &keep);
  if (!is_whole(a) && a->arg[1].kind == TPU_ARG_INTS && arg_list_size(a, 1) == 0) n = 0; /* dim=[]: elementwise */
  tpu_val y = reduce_over(b, (tpu_monoid)a->row->rule, tpu_convert(b, x, TPU_BOOL), n, axes);
  y = tpu_convert(b, y, tpu_dtype_of(b, x) == TPU_U8 ? TPU_U8 : TPU_BOOL);
  o->out[0].val = reduce_keep(b, y, x, n, axes, keep);
}

/* _is_all_true, _is_any_true: bools only. */
void lower_is_all_true(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  o->out[0].val = reduce_all(b, (tpu_monoid)a->row->rule, arg_tensor(b, a, 0));
}

/* count_nonzero(self, dim), count_nonzero.dim_IntList */
void lower_count_nonzero(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int64_t axes[TPU_MAX_RANK];
  int n = arg_axes(b, a, 1, tpu_rank_of(b, x), axes);
  tpu_val ones = tpu_convert(b, tpu_convert(b, x, TPU_BOOL), TPU_I64);
  o->out[0].val = reduce_over(b, TPU_MONOID_ADD, ones, n, axes);
}

void lower_trace(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  if (tpu_build_failed(b)) return;
  if (tpu_rank_of(b, x) != 2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "trace: expected a matrix, but got tensor with dim %d", tpu_rank_of(b, x));
    return;
  }
  tpu_dtype dtype = tpu_dtype_of(b, x);
  if (tpu_is_integral(dtype) || dtype == TPU_BOOL) x = tpu_convert(b, x, TPU_I64);
  int64_t side = tpu_dim_of(b, x, 0) < tpu_dim_of(b, x, 1) ? tpu_dim_of(b, x, 0) : tpu_dim_of(b, x, 1);
  int64_t start[2] = {0, 0}, limit[2] = {side, side}, axes[2] = {0, 1};
  tpu_val square = tpu_slice(b, x, start, limit, NULL);
  tpu_val row = tpu_iota(b, TPU_I32, 2, limit, 0), column = tpu_iota(b, TPU_I32, 2, limit, 1);
  tpu_val on = tpu_compare(b, TPU_EQ, row, column);
  o->out[0].val = reduce_wide(b, TPU_MONOID_ADD, tpu_select(b, on, square, tpu_full_like(b, square, 0)), 2, axes);
}
