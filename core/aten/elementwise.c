#include "aten/elementwise.h"

static tpu_dtype operands_as(tpu_build *b, const tpu_args *a, int n, tpu_dtype dtype, tpu_val *out) {
  for (int i = 0; i < n; i++) out[i] = arg_math(b, a, i, dtype);
  broadcast_all(b, n, out);
  return dtype;
}

tpu_dtype math_operands(tpu_build *b, const tpu_args *a, int n, tpu_val *out) {
  return operands_as(b, a, n, promote_args(b, a, 0, n), out);
}

tpu_dtype math_float_operands(tpu_build *b, const tpu_args *a, int n, tpu_val *out) {
  return operands_as(b, a, n, promote_float_default(a, promote_args(b, a, 0, n)), out);
}

tpu_dtype same_operands(tpu_build *b, const tpu_args *a, int n, tpu_val *out) {
  tpu_dtype dtype = promote_args(b, a, 0, n);
  for (int i = 0; i < n; i++) out[i] = arg_as(b, a, i, dtype);
  broadcast_all(b, n, out);
  return dtype;
}

tpu_val number_like(tpu_build *b, const tpu_args *a, int i, tpu_val like) {
  return tpu_broadcast_like(b, arg_as(b, a, i, tpu_dtype_of(b, like)), like);
}

bool need_float(tpu_build *b, const tpu_args *a, tpu_dtype dtype, bool allow_complex) {
  if (tpu_is_float(dtype) || (allow_complex && tpu_is_complex(dtype))) return true;
  if (!tpu_build_failed(b)) fail_not_implemented(b, a, dtype);
  return false;
}

const char *tpu_dtype_c_name(tpu_dtype dtype) {
  switch (dtype) {
    case TPU_BOOL: return "bool";
    case TPU_U8: return "unsigned char";
    case TPU_I8: return "signed char";
    case TPU_I16: return "short int";
    case TPU_I32: return "int";
    case TPU_I64: return "long int";
    case TPU_U16: return "short unsigned int";
    case TPU_U32: return "unsigned int";
    case TPU_U64: return "long unsigned int";
    case TPU_F16: return "c10::Half";
    case TPU_BF16: return "c10::BFloat16";
    case TPU_F32: return "float";
    case TPU_F64: return "double";
    case TPU_C64: return "c10::complex<float>";
    case TPU_C128: return "c10::complex<double>";
    default: return tpu_dtype_scalar_name(dtype);
  }
}

bool is_whole(tpu_dtype dtype) { return dtype == TPU_BOOL || tpu_is_integral(dtype); }

/* Unsigned integers of a float type's width. */
static tpu_dtype bits_of(tpu_dtype dtype) {
  switch (tpu_dtype_bytes(dtype)) {
    case 8: return TPU_U64;
    case 4: return TPU_U32;
    case 2: return TPU_U16;
    default: return TPU_U8;
  }
}

static tpu_val sign_mask(tpu_build *b, tpu_val bits) {
  tpu_dtype dtype = tpu_dtype_of(b, bits);
  tpu_val one = tpu_broadcast_like(b, tpu_scalar_i(b, dtype, 1), bits);
  tpu_val shift = tpu_broadcast_like(b, tpu_scalar_i(b, dtype, tpu_dtype_bytes(dtype) * 8 - 1), bits);
  return tpu_binary(b, TPU_HLO_SHIFT_LEFT, one, shift);
}

static tpu_val as_bits(tpu_build *b, tpu_val x) {
  return tpu_bitcast(b, x, bits_of(tpu_dtype_of(b, x)), tpu_rank_of(b, x), tpu_dims_of(b, x));
}

tpu_val sign_bit(tpu_build *b, tpu_val x) {
  if (!tpu_is_float(tpu_dtype_of(b, x))) return compare_c(b, TPU_LT, x, 0);
  tpu_val bits = as_bits(b, x);
  return compare_c(b, TPU_NE, tpu_and(b, bits, sign_mask(b, bits)), 0);
}

tpu_val copy_sign(tpu_build *b, tpu_val x, tpu_val sign) {
  tpu_val magnitude = tpu_unary(b, TPU_HLO_ABS, x);
  return tpu_select(b, sign_bit(b, sign), tpu_neg(b, magnitude), magnitude);
}

tpu_val trunc_toward_zero(tpu_build *b, tpu_val x) {
  tpu_val down = tpu_unary(b, TPU_HLO_FLOOR, x), up = tpu_unary(b, TPU_HLO_CEIL, x);
  return tpu_select(b, sign_bit(b, x), up, down);
}

tpu_val sigmoid(tpu_build *b, tpu_val x) { return tpu_unary(b, TPU_HLO_LOGISTIC, x); }

tpu_val softplus(tpu_build *b, tpu_val x) {
  tpu_val tail = tpu_unary(b, TPU_HLO_LOG1P, tpu_exp(b, tpu_neg(b, tpu_unary(b, TPU_HLO_ABS, x))));
  return tpu_add(b, max_c(b, x, 0), tail);
}

tpu_val clamp_between(tpu_build *b, tpu_val x, tpu_val lo, tpu_val hi) {
  if (lo.id) x = tpu_max(b, x, lo);
  return hi.id ? tpu_min(b, x, hi) : x;
}
