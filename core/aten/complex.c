/* Rows: complex numbers. */
#include <math.h>

#include "aten/elementwise.h"

static tpu_val real(tpu_build *b, tpu_val x) { return tpu_unary(b, TPU_HLO_REAL, x); }
static tpu_val imag(tpu_build *b, tpu_val x) { return tpu_unary(b, TPU_HLO_IMAG, x); }

void lower_abs(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  tpu_kind kind = tpu_dtype_kind(tpu_dtype_of(b, x));
  o->out[0].val = kind == TPU_KIND_BOOL || kind == TPU_KIND_UINT ? x : tpu_unary(b, TPU_HLO_ABS, x);
}

/* 0 for NaN, and +0 for both zeros. */
static tpu_val real_sign(tpu_build *b, tpu_val x) {
  tpu_dtype dtype = tpu_dtype_of(b, x);
  if (dtype == TPU_BOOL) return x;
  tpu_val up = tpu_convert(b, compare_c(b, TPU_GT, x, 0), dtype);
  if (tpu_dtype_kind(dtype) == TPU_KIND_UINT) return up;
  return tpu_sub(b, up, tpu_convert(b, compare_c(b, TPU_LT, x, 0), dtype));
}

void lower_sign(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  if (tpu_is_complex(tpu_dtype_of(b, x)))
    tpu_fail(b, TPU_UNIMPLEMENTED,
             "Unlike NumPy, torch.sign is not intended to support complex numbers. Please use torch.sgn instead.");
  else
    o->out[0].val = real_sign(b, x);
}

void lower_sgn(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  if (!tpu_is_complex(tpu_dtype_of(b, x))) {
    o->out[0].val = real_sign(b, x);
    return;
  }
  tpu_val size = tpu_unary(b, TPU_HLO_ABS, x), zero = compare_c(b, TPU_EQ, size, 0);
  tpu_val part[2] = {real(b, x), imag(b, x)};
  for (int i = 0; i < 2; i++) part[i] = select_c(b, zero, 0, tpu_div(b, part[i], size));
  o->out[0].val = tpu_complex(b, part[0], part[1]);
}

void lower_conj(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  o->out[0].val = tpu_is_complex(tpu_dtype_of(b, x)) ? tpu_complex(b, real(b, x), tpu_neg(b, imag(b, x))) : x;
}

void lower_angle(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  if (tpu_is_complex(tpu_dtype_of(b, x))) {
    o->out[0].val = tpu_binary(b, TPU_HLO_ATAN2, imag(b, x), real(b, x));
    return;
  }
  tpu_dtype dtype = promote_float_default(a, tpu_dtype_of(b, x));
  tpu_val y = tpu_convert(b, x, tpu_dtype_opmath(dtype));
  tpu_val angle = select_c(b, compare_c(b, TPU_LT, y, 0), 3.14159265358979323846, zero_like(b, y));
  o->out[0].val = tpu_convert(b, tpu_select(b, tpu_is_nan(b, y), y, angle), dtype);
}

static bool parts(tpu_build *b, const tpu_args *a, tpu_val *xs, bool allow_half) {
  for (int i = 0; i < 2; i++) xs[i] = arg_tensor(b, a, i);
  tpu_dtype x = tpu_dtype_of(b, xs[0]), y = tpu_dtype_of(b, xs[1]);
  if (tpu_build_failed(b)) return false;
  for (int i = 0; i < 2; i++) {
    tpu_dtype t = i ? y : x;
    if (t == TPU_F32 || t == TPU_F64 || (t == TPU_F16 && allow_half)) continue;
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected both inputs to be Half, Float or Double tensors but got %s and %s",
             tpu_dtype_scalar_name(x), tpu_dtype_scalar_name(y));
    return false;
  }
  if (x != y) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected object of scalar type %s but got scalar type %s for second argument",
             tpu_dtype_scalar_name(x), tpu_dtype_scalar_name(y));
    return false;
  }
  for (int i = 0; i < 2; i++) xs[i] = tpu_convert(b, xs[i], tpu_dtype_opmath(x));
  broadcast_all(b, 2, xs);
  return true;
}

void lower_complex(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  if (parts(b, a, xs, false)) o->out[0].val = tpu_complex(b, xs[0], xs[1]);
}

void lower_polar(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  if (!parts(b, a, xs, false)) return;
  o->out[0].val = tpu_complex(b, tpu_mul(b, xs[0], tpu_unary(b, TPU_HLO_COSINE, xs[1])),
                              tpu_mul(b, xs[0], tpu_unary(b, TPU_HLO_SINE, xs[1])));
}

/* view_as_real_copy: [..] complex -> [.., 2] */
void lower_as_real(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int rank = tpu_rank_of(b, x);
  if (!tpu_is_complex(tpu_dtype_of(b, x))) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "view_as_real is only supported for complex tensors");
    return;
  }
  tpu_val xs[2] = {tpu_unsqueeze(b, real(b, x), rank), tpu_unsqueeze(b, imag(b, x), rank)};
  o->out[0].val = tpu_concat(b, 2, xs, rank);
}

void lower_as_complex(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int rank = tpu_rank_of(b, x);
  if (rank == 0 || tpu_dim_of(b, x, rank - 1) != 2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Tensor must have a last dimension of size 2");
    return;
  }
  o->out[0].val = tpu_complex(b, tpu_squeeze(b, tpu_slice_dim(b, x, rank - 1, 0, 1, 1), rank - 1),
                              tpu_squeeze(b, tpu_slice_dim(b, x, rank - 1, 1, 2, 1), rank - 1));
}
