/* The families of the op table: what most elementwise rows do. */
#include "aten/lower.h"

/* Exact in every dtype: no need to compute in a wider type. */
static bool is_exact(tpu_hlo op) {
  return op == TPU_HLO_NEGATE || op == TPU_HLO_ABS || op == TPU_HLO_SIGN || op == TPU_HLO_FLOOR || op == TPU_HLO_CEIL ||
         op == TPU_HLO_ROUND_EVEN || op == TPU_HLO_NOT || op == TPU_HLO_REAL || op == TPU_HLO_IMAG;
}

static bool is_rounding(tpu_hlo op) { return op == TPU_HLO_FLOOR || op == TPU_HLO_CEIL || op == TPU_HLO_ROUND_EVEN; }

tpu_val unary_math(tpu_build *b, tpu_hlo op, tpu_val x) {
  tpu_dtype dtype = tpu_dtype_of(b, x);
  if (is_exact(op) && tpu_dtype_bytes(dtype) > 1) return tpu_unary(b, op, x);
  return tpu_convert(b, tpu_unary(b, op, tpu_convert(b, x, tpu_dtype_opmath(dtype))), dtype);
}

void lower_unary(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  tpu_hlo op = (tpu_hlo)a->row->hlo;
  if (is_rounding(op) && !tpu_is_float(dtype) && !tpu_build_failed(b)) {
    if (tpu_is_integral(dtype))
      o->out[0].val = x;
    else
      fail_not_implemented(b, a, dtype);
    return;
  }
  o->out[0].val = unary_math(b, op, x);
}

void lower_unary_float(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  tpu_dtype dtype = promote_float_default(a, tpu_dtype_of(b, x));
  o->out[0].val = unary_math(b, (tpu_hlo)a->row->hlo, tpu_convert(b, x, dtype));
}

tpu_val binary_math(tpu_build *b, tpu_hlo op, tpu_dtype dtype, tpu_val x, tpu_val y) {
  return tpu_convert(b, bcast_binary(b, op, x, y), dtype);
}

void lower_binary(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_dtype dtype = promote_args(b, a, 0, 2);
  tpu_val x = arg_math(b, a, 0, dtype), y = arg_math(b, a, 1, dtype);
  o->out[0].val = binary_math(b, (tpu_hlo)a->row->hlo, dtype, x, y);
}

void lower_compare(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_dtype dtype = promote_args(b, a, 0, 2);
  tpu_compare_dir dir = (tpu_compare_dir)a->row->rule;
  if (tpu_is_complex(dtype) && dir != TPU_EQ && dir != TPU_NE) {
    fail_not_implemented(b, a, dtype);
    return;
  }
  tpu_val xs[2] = {arg_as(b, a, 0, dtype), arg_as(b, a, 1, dtype)};
  broadcast_all(b, 2, xs);
  o->out[0].val = tpu_compare(b, dir, xs[0], xs[1]);
}
