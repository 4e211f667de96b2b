/* Rows that choose among operands: maxima, clamps, where, fills. Source: aten/src/ATen/native/TensorCompare.cpp,
 * BinaryOps.cpp (maximum), Fill.cpp, UnaryOps.cpp (nan_to_num). */
#include <float.h>
#include <math.h>

#include "aten/elementwise.h"

static bool refuse_complex(tpu_build *b, tpu_dtype dtype, const char *text) {
  if (!tpu_is_complex(dtype)) return false;
  tpu_fail(b, TPU_INVALID_ARGUMENT, "%s", text);
  return true;
}

/* maximum / minimum: NaN wins. */
void lower_maximum(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  bool max = a->row->hlo == TPU_HLO_MAXIMUM;
  tpu_val xs[2];
  tpu_dtype dtype = same_operands(b, a, 2, xs);
  if (refuse_complex(b, dtype,
                     max ? "maximum not implemented for complex tensors." : "minimum not implemented for complex tensors."))
    return;
  o->out[0].val = binary_math(b, (tpu_hlo)a->row->hlo, dtype, tpu_convert(b, xs[0], tpu_dtype_opmath(dtype)),
                              tpu_convert(b, xs[1], tpu_dtype_opmath(dtype)));
}

/* fmax / fmin: NaN loses. */
void lower_fmax(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  tpu_dtype dtype = math_operands(b, a, 2, xs);
  if (refuse_complex(b, dtype,
                     a->row->hlo == TPU_HLO_MAXIMUM ? "fmax not implemented for complex tensors."
                                                    : "fmin not implemented for complex tensors."))
    return;
  tpu_val y = tpu_binary(b, (tpu_hlo)a->row->hlo, xs[0], xs[1]);
  if (tpu_is_float(dtype)) {
    y = tpu_select(b, tpu_is_nan(b, xs[0]), xs[1], y);
    y = tpu_select(b, tpu_is_nan(b, xs[1]), xs[0], y);
  }
  o->out[0].val = tpu_convert(b, y, dtype);
}

static tpu_val bound(tpu_build *b, const tpu_args *a, int i, tpu_dtype dtype) {
  return arg_present(a, i) ? arg_as(b, a, i, dtype) : TPU_POISON;
}

/* clamp(self, min, max), numbers or tensors. rule 1: argument 1 is the maximum. */
void lower_clamp(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  if (!arg_present(a, 1) && !arg_present(a, 2)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "torch.clamp: At least one of 'min' or 'max' must not be None");
    return;
  }
  tpu_dtype dtype = promote_args(b, a, 0, a->n);
  if (tpu_is_complex(dtype)) {
    tpu_fail(b, TPU_UNIMPLEMENTED, "clamp is not supported for complex types");
    return;
  }
  tpu_val xs[3] = {arg_as(b, a, 0, dtype), bound(b, a, 1, dtype), bound(b, a, 2, dtype)};
  tpu_val present[3];
  int n = 0;
  for (int i = 0; i < 3; i++)
    if (xs[i].id) present[n++] = xs[i];
  broadcast_all(b, n, present);
  for (int i = 0, k = 0; i < 3; i++)
    if (xs[i].id) xs[i] = present[k++];
  o->out[0].val = a->row->rule ? clamp_between(b, xs[0], TPU_POISON, xs[1]) : clamp_between(b, xs[0], xs[1], xs[2]);
}

/* The condition keeps its type: only the choices are converted. */
static void where_strides(tpu_build *b, const tpu_args *a, tpu_dtype dtype, tpu_out *out) {
  const tpu_operand *operands[3];
  bool casts[3], scalars = false;
  int n = 0;
  for (int i = 0; i < 3; i++) {
    if (arg_is_number(a, i)) {
      scalars = true;
      continue;
    }
    casts[n] = i > 0;
    operands[n] = arg_operand(b, a, i);
    if (!operands[n++]) return;
  }
  int rank = tpu_rank_of(b, out->val);
  int64_t *strides = tpu_build_alloc(b, sizeof *strides * (size_t)(rank ? rank : 1));
  if (!strides) return;
  strides_promoted(n, operands, casts, dtype, scalars, rank, tpu_dims_of(b, out->val), strides);
  out->strides = strides;
}

void lower_where(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val condition = arg_tensor(b, a, 0);
  tpu_dtype c = tpu_dtype_of(b, condition);
  if (c != TPU_BOOL && c != TPU_U8) {
    if (!tpu_build_failed(b))
      tpu_fail(b, TPU_INVALID_ARGUMENT, "where expected condition to be a boolean tensor, but got a tensor with dtype %s",
               tpu_dtype_scalar_name(c));
    return;
  }
  tpu_dtype dtype = promote_args(b, a, 1, 2);
  o->out[0].val = bcast_select(b, tpu_convert(b, condition, TPU_BOOL), arg_as(b, a, 1, dtype), arg_as(b, a, 2, dtype));
  if (!tpu_build_failed(b)) where_strides(b, a, dtype, &o->out[0]);
}

void lower_masked_fill(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val self = arg_tensor(b, a, 0), mask = arg_tensor(b, a, 1);
  if (tpu_build_failed(b)) return;
  if (tpu_dtype_of(b, mask) != TPU_BOOL) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "masked_fill_ only supports boolean masks, but got mask with dtype %s",
             tpu_dtype_c_name(tpu_dtype_of(b, mask)));
    return;
  }
  tpu_val value = arg_as(b, a, 2, tpu_dtype_of(b, self));
  int rank = tpu_rank_of(b, value);
  if (rank > 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with %d dimension(s).", rank);
    return;
  }
  o->out[0].val = bcast_select(b, mask, value, self);
}

void lower_fill(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *self = arg_operand(b, a, 0);
  if (!self) return;
  tpu_val value = arg_as(b, a, 1, self->dtype);
  int rank = tpu_rank_of(b, value);
  if (rank > 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "fill_ only supports 0-dimension value tensor but got tensor with %d dimensions.", rank);
    return;
  }
  o->out[0].val = tpu_broadcast_to(b, value, self->rank, self->sizes);
}

void lower_zero(tpu_build *b, const tpu_args *a, tpu_outs *o) { o->out[0].val = zero_like(b, arg_tensor(b, a, 0)); }

void lower_is(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  int what = a->row->rule;
  if (tpu_is_complex(dtype)) {
    if (what != IS_NAN && what != IS_INF) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "%s %s complex %s.", a->row->aten,
               what == IS_SIGNED ? "is not implemented for" : "does not support", what == IS_SIGNED ? "tensors" : "inputs");
      return;
    }
    tpu_val re = tpu_unary(b, TPU_HLO_REAL, x), im = tpu_unary(b, TPU_HLO_IMAG, x);
    if (what == IS_NAN)
      o->out[0].val = tpu_or(b, tpu_is_nan(b, re), tpu_is_nan(b, im));
    else
      o->out[0].val = tpu_or(b, compare_c(b, TPU_EQ, tpu_unary(b, TPU_HLO_ABS, re), (double)INFINITY),
                             compare_c(b, TPU_EQ, tpu_unary(b, TPU_HLO_ABS, im), (double)INFINITY));
    return;
  }
  if (what == IS_SIGNED) {
    o->out[0].val = dtype == TPU_BOOL ? tpu_full(b, TPU_BOOL, tpu_rank_of(b, x), tpu_dims_of(b, x), 0) : sign_bit(b, x);
    return;
  }
  if (!tpu_is_float(dtype)) {
    o->out[0].val = tpu_full(b, TPU_BOOL, tpu_rank_of(b, x), tpu_dims_of(b, x), 0);
    return;
  }
  x = tpu_convert(b, x, tpu_dtype_opmath(dtype));
  switch (what) {
    case IS_NAN: o->out[0].val = tpu_is_nan(b, x); break;
    case IS_INF: o->out[0].val = compare_c(b, TPU_EQ, tpu_unary(b, TPU_HLO_ABS, x), (double)INFINITY); break;
    default: o->out[0].val = compare_c(b, TPU_EQ, x, what == IS_POSINF ? (double)INFINITY : -(double)INFINITY); break;
  }
}

static double largest(tpu_dtype dtype) {
  switch (dtype) {
    case TPU_F16: return 65504;
    case TPU_BF16: return 3.3895313892515355e38;
    case TPU_F64: return DBL_MAX;
    default: return (double)FLT_MAX;
  }
}

static tpu_val finite_number(tpu_build *b, const tpu_args *a, tpu_val x) {
  tpu_dtype dtype = tpu_dtype_of(b, x);
  tpu_val nan = arg_present(a, 1) ? number_like(b, a, 1, x) : zero_like(b, x);
  tpu_val high = arg_present(a, 2) ? number_like(b, a, 2, x) : tpu_full_like(b, x, largest(dtype));
  tpu_val low = arg_present(a, 3) ? number_like(b, a, 3, x) : tpu_full_like(b, x, -largest(dtype));
  tpu_val y = tpu_select(b, compare_c(b, TPU_EQ, x, (double)INFINITY), high, x);
  y = tpu_select(b, compare_c(b, TPU_EQ, x, -(double)INFINITY), low, y);
  return tpu_select(b, tpu_is_nan(b, x), nan, y);
}

void lower_nan_to_num(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  if (is_whole(dtype))
    o->out[0].val = x;
  else if (tpu_is_complex(dtype))
    o->out[0].val =
        tpu_complex(b, finite_number(b, a, tpu_unary(b, TPU_HLO_REAL, x)), finite_number(b, a, tpu_unary(b, TPU_HLO_IMAG, x)));
  else
    o->out[0].val = finite_number(b, a, x);
}

/* heaviside(self, values): 0 below zero, values at zero, 1 above. */
void lower_heaviside(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2] = {arg_tensor(b, a, 0), arg_tensor(b, a, 1)};
  tpu_dtype x = tpu_dtype_of(b, xs[0]), y = tpu_dtype_of(b, xs[1]);
  if (tpu_build_failed(b)) return;
  if (tpu_is_complex(x) || tpu_is_complex(y)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "heaviside is not yet implemented for complex tensors.");
    return;
  }
  if (x != y) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "heaviside is not yet implemented for tensors with different dtypes.");
    return;
  }
  broadcast_all(b, 2, xs);
  tpu_val step = tpu_convert(b, compare_c(b, TPU_GT, xs[0], 0), x);
  o->out[0].val = tpu_select(b, compare_c(b, TPU_EQ, xs[0], 0), xs[1], step);
}

/* isin: whether each element is among the test elements. */
void lower_isin(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_dtype dtype = promote_args(b, a, 0, 2);
  tpu_val x = arg_as(b, a, 0, dtype), tests = arg_as(b, a, 1, dtype);
  int rank = tpu_rank_of(b, x);
  int64_t n = tpu_numel_of(b, tests), dims[TPU_MAX_RANK], map[TPU_MAX_RANK], axis = rank;
  if (tpu_build_failed(b)) return;
  if (rank + 1 > TPU_MAX_RANK) {
    tpu_fail(b, TPU_UNIMPLEMENTED, "isin of a tensor with %d dims", rank);
    return;
  }
  for (int d = 0; d < rank; d++) dims[d] = tpu_dim_of(b, x, d), map[d] = d;
  dims[rank] = n;
  tests = tpu_reshape(b, tests, 1, &n);
  tpu_val equal = tpu_compare(b, TPU_EQ, tpu_broadcast_in_dim(b, x, rank + 1, dims, map),
                              tpu_broadcast_in_dim(b, tests, rank + 1, dims, &axis));
  tpu_val found = tpu_reduce(b, TPU_MONOID_OR, equal, tpu_scalar_i(b, TPU_BOOL, 0), 1, &axis);
  o->out[0].val = arg_bool(b, a, 3) ? tpu_not(b, found) : found;
}
