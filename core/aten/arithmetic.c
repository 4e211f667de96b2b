/* Rows: sums, products, quotients and powers. Source: aten/src/ATen/native/BinaryOps.cpp, cpu/BinaryOpsKernel.cpp, Pow.cpp. */
#include <math.h>
#include <string.h>

#include "aten/elementwise.h"

static bool check_alpha(tpu_build *b, const tpu_args *a, int i, tpu_dtype dtype) {
  tpu_dtype alpha = arg_number_dtype(a, i);
  if (alpha == TPU_BOOL && dtype != TPU_BOOL)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Boolean alpha only supported for Boolean results.");
  else if (is_whole(dtype) && alpha != TPU_DTYPE_NONE && !is_whole(alpha) && !tpu_is_complex(alpha))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "For integral input tensors, argument alpha must not be a floating point number.");
  else if (!tpu_is_complex(dtype) && alpha != TPU_DTYPE_NONE && tpu_is_complex(alpha))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "For non-complex input tensors, argument alpha must not be a complex number.");
  else
    return true;
  return false;
}

static tpu_val scaled(tpu_build *b, const tpu_args *a, int i, tpu_val x) {
  if (!arg_present(a, i) || arg_is_default(a, i)) return x;
  return tpu_mul(b, x, number_like(b, a, i, x));
}

static bool bool_argument(const tpu_args *a, int i) {
  return a->arg[i].kind == TPU_ARG_TENSOR ? a->operands[a->arg[i].first].dtype == TPU_BOOL : arg_number_dtype(a, i) == TPU_BOOL;
}

static bool check_sub(tpu_build *b, const tpu_args *a) {
  bool x = bool_argument(a, 0), y = bool_argument(a, 1);
  if (x && y)
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` "
             "operator instead.");
  else if (x || y)
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, use "
             "the `~` or `logical_not()` operator instead.");
  return !x && !y;
}

/* add(self, other, alpha) = self + alpha * other; rule -1: self - alpha * other; -2: other - alpha * self */
void lower_add(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int sign = a->row->rule;
  if (sign < 0 && !check_sub(b, a)) return;
  tpu_val xs[2];
  tpu_dtype dtype = math_operands(b, a, 2, xs);
  if (!check_alpha(b, a, 2, dtype)) return;
  tpu_val x = sign == -2 ? xs[1] : xs[0], y = scaled(b, a, 2, sign == -2 ? xs[0] : xs[1]);
  o->out[0].val = tpu_convert(b, sign < 0 ? tpu_sub(b, x, y) : tpu_add(b, x, y), dtype);
}

void lower_add_relu(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  tpu_dtype dtype = math_operands(b, a, 2, xs);
  o->out[0].val = tpu_convert(b, max_c(b, tpu_add(b, xs[0], scaled(b, a, 2, xs[1])), 0), dtype);
}

/* Whole numbers: quotient one less where the remainder's sign is not the divisor's. */
static tpu_val sign_differs(tpu_build *b, tpu_val rest, tpu_val y) {
  tpu_val differs = tpu_binary(b, TPU_HLO_XOR, compare_c(b, TPU_LT, rest, 0), compare_c(b, TPU_LT, y, 0));
  return tpu_and(b, compare_c(b, TPU_NE, rest, 0), differs);
}

static tpu_val remainder_floor(tpu_build *b, tpu_val x, tpu_val y) {
  tpu_val rest = tpu_binary(b, TPU_HLO_REMAINDER, x, y);
  if (tpu_dtype_kind(tpu_dtype_of(b, x)) == TPU_KIND_UINT) return rest;
  return tpu_select(b, sign_differs(b, rest, y), tpu_add(b, rest, y), rest);
}

static tpu_val divide_floor(tpu_build *b, tpu_val x, tpu_val y) {
  tpu_dtype dtype = tpu_dtype_of(b, x);
  if (tpu_dtype_kind(dtype) == TPU_KIND_UINT) return tpu_div(b, x, y);
  tpu_val rest = tpu_binary(b, TPU_HLO_REMAINDER, x, y);
  if (!tpu_is_float(dtype)) {
    tpu_val q = tpu_div(b, x, y);
    return tpu_select(b, sign_differs(b, rest, y), add_c(b, q, -1), q);
  }
  /* c10::div_floor_floating: exact where x / y rounds up to the next whole number. */
  tpu_val quotient = tpu_div(b, x, y), q = tpu_div(b, tpu_sub(b, x, rest), y);
  q = tpu_select(b, sign_differs(b, rest, y), add_c(b, q, -1), q);
  tpu_val down = tpu_unary(b, TPU_HLO_FLOOR, q);
  down = tpu_select(b, compare_c(b, TPU_GT, tpu_sub(b, q, down), 0.5), add_c(b, down, 1), down);
  tpu_val zero = copy_sign(b, zero_like(b, q), quotient);
  return tpu_select(b, compare_c(b, TPU_EQ, y, 0), quotient, tpu_select(b, compare_c(b, TPU_EQ, q, 0), zero, down));
}

void lower_div(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const char *mode = arg_str(a, 2);
  tpu_val xs[2];
  if (a->n < 3 || !arg_present(a, 2)) {
    tpu_dtype dtype = math_float_operands(b, a, 2, xs);
    o->out[0].val = tpu_convert(b, tpu_div(b, xs[0], xs[1]), dtype);
    return;
  }
  bool down = strcmp(mode, "floor") == 0;
  if (!down && strcmp(mode, "trunc") != 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '%s'", mode);
    return;
  }
  tpu_dtype dtype = math_operands(b, a, 2, xs);
  if (dtype == TPU_BOOL || tpu_is_complex(dtype)) {
    if (!tpu_build_failed(b)) fail_not_implemented(b, a, dtype);
    return;
  }
  tpu_val y = down ? divide_floor(b, xs[0], xs[1]) : tpu_div(b, xs[0], xs[1]);
  if (!down && tpu_is_float(dtype)) y = trunc_toward_zero(b, y);
  o->out[0].val = tpu_convert(b, y, dtype);
}

void lower_floor_divide(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  tpu_dtype dtype = math_operands(b, a, 2, xs);
  if (dtype == TPU_BOOL || tpu_is_complex(dtype)) {
    if (!tpu_build_failed(b)) fail_not_implemented(b, a, dtype);
    return;
  }
  o->out[0].val = tpu_convert(b, divide_floor(b, xs[0], xs[1]), dtype);
}

/* rule 1: fmod, the sign of self; 0: remainder, the sign of other. */
void lower_remainder(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  tpu_dtype dtype = math_operands(b, a, 2, xs);
  if (dtype == TPU_BOOL || tpu_is_complex(dtype)) {
    if (!tpu_build_failed(b)) fail_not_implemented(b, a, dtype);
    return;
  }
  tpu_val y = a->row->rule ? tpu_binary(b, TPU_HLO_REMAINDER, xs[0], xs[1]) : remainder_floor(b, xs[0], xs[1]);
  o->out[0].val = tpu_convert(b, y, dtype);
}

void lower_reciprocal(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x;
  tpu_dtype dtype = math_float_operands(b, a, 1, &x);
  o->out[0].val = tpu_convert(b, c_div(b, 1, x), dtype);
}

void lower_neg(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  if (tpu_dtype_of(b, x) == TPU_BOOL) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert a mask, use the "
             "`~` or `logical_not()` operator instead.");
    return;
  }
  o->out[0].val = tpu_neg(b, x);
}

/* addcmul / addcdiv (hlo: MULTIPLY or DIVIDE): self + value * tensor1 (op) tensor2 */
void lower_addc(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[3];
  tpu_hlo op = (tpu_hlo)a->row->hlo;
  if (op == TPU_HLO_DIVIDE && is_whole(promote_args(b, a, 1, 2))) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Integer division with addcdiv is no longer supported, and in a future  release addcdiv will perform a true "
             "division of tensor1 and tensor2. The historic addcdiv behavior can be implemented as (input + value * "
             "torch.trunc(tensor1 / tensor2)).to(input.dtype) for integer inputs and as (input + value * tensor1 / tensor2) "
             "for float inputs. The future addcdiv behavior is just the latter implementation: (input + value * tensor1 / "
             "tensor2), for all dtypes.");
    return;
  }
  tpu_dtype dtype = math_operands(b, a, 3, xs);
  tpu_val y = tpu_binary(b, op, scaled(b, a, 3, xs[1]), xs[2]);
  o->out[0].val = tpu_convert(b, tpu_add(b, xs[0], y), dtype);
}

/* The formula that is exact at both ends (aten/src/ATen/native/Lerp.h). */
void lower_lerp(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *self = arg_operand(b, a, 0), *end = arg_operand(b, a, 1);
  if (!self || !end) return;
  if (self->dtype != end->dtype) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "expected dtype %s for `end` but got dtype %s", tpu_dtype_c_name(self->dtype),
             tpu_dtype_c_name(end->dtype));
    return;
  }
  if (!need_float(b, a, self->dtype, true)) return;
  if (!arg_is_number(a, 2)) {
    const tpu_operand *weight = arg_operand(b, a, 2);
    if (weight && weight->dtype != self->dtype && weight->rank > 0) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "expected dtype %s for `weight` but got dtype %s", tpu_dtype_c_name(self->dtype),
               tpu_dtype_c_name(weight->dtype));
      return;
    }
  }
  tpu_val xs[3];
  for (int i = 0; i < 3; i++) xs[i] = arg_math(b, a, i, self->dtype);
  broadcast_all(b, 3, xs);
  tpu_val distance = tpu_sub(b, xs[1], xs[0]);
  tpu_val near = tpu_add(b, xs[0], tpu_mul(b, xs[2], distance));
  tpu_val far = tpu_sub(b, xs[1], tpu_mul(b, distance, c_sub(b, 1, xs[2])));
  tpu_val size = tpu_unary(b, TPU_HLO_ABS, xs[2]);
  o->out[0].val = tpu_convert(b, tpu_select(b, compare_c(b, TPU_LT, size, 0.5), near, far), self->dtype);
}

/* --- powers */
static const char negative_power[] = "Integers to negative integer powers are not allowed.";

static tpu_val whole_power(tpu_build *b, tpu_val x, int64_t n) {
  tpu_val result = tpu_full_like(b, x, 1);
  for (; n; n >>= 1) {
    if (n & 1) result = tpu_mul(b, result, x);
    if (n > 1) x = square(b, x);
  }
  return result;
}

static tpu_val static_power(tpu_build *b, tpu_val x, double n) {
  if (n == 0) return tpu_full_like(b, x, 1);
  if (n == 1) return x;
  if (is_whole(tpu_dtype_of(b, x))) return whole_power(b, x, (int64_t)n);
  if (n == 2) return square(b, x);
  if (n == 3) return tpu_mul(b, square(b, x), x);
  if (n == 0.5) return tpu_unary(b, TPU_HLO_SQRT, x);
  if (n == -0.5) return c_div(b, 1, tpu_unary(b, TPU_HLO_SQRT, x));
  if (n == -1) return c_div(b, 1, x);
  if (n == -2) return c_div(b, 1, square(b, x));
  return binary_c(b, TPU_HLO_POWER, x, n);
}

void lower_pow_scalar(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_dtype dtype = promote_args(b, a, 0, 2), exponent = arg_number_dtype(a, 1);
  const tpu_operand *self = arg_operand(b, a, 0);
  if (!self) return;
  if (tpu_is_complex(exponent)) {
    tpu_val xs[2] = {arg_math(b, a, 0, dtype), arg_number(b, a, 1, tpu_dtype_opmath(dtype))};
    o->out[0].val = binary_math(b, TPU_HLO_POWER, dtype, xs[0], xs[1]);
    return;
  }
  double n = arg_static(b, a, 1);
  if (is_whole(self->dtype) && is_whole(exponent) && n < 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s", negative_power);
    return;
  }
  o->out[0].val = tpu_convert(b, static_power(b, arg_math(b, a, 0, dtype), n), dtype);
}

/* pow.Tensor_Tensor and pow.Scalar. */
void lower_pow(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  tpu_dtype dtype = math_operands(b, a, 2, xs);
  if (dtype == TPU_BOOL) {
    fail_not_implemented(b, a, dtype);
    return;
  }
  o->out[0].val = tpu_convert(b, tpu_binary(b, TPU_HLO_POWER, xs[0], xs[1]), dtype);
}

/* Without overflow of the squares, as std::hypot. */
void lower_hypot(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  tpu_dtype dtype = math_operands(b, a, 2, xs);
  if (!need_float(b, a, dtype, false)) return;
  tpu_val x = tpu_unary(b, TPU_HLO_ABS, xs[0]), y = tpu_unary(b, TPU_HLO_ABS, xs[1]);
  tpu_val large = tpu_max(b, x, y), small = tpu_min(b, x, y);
  tpu_val ratio = tpu_div(b, small, large);
  tpu_val value = tpu_mul(b, large, tpu_unary(b, TPU_HLO_SQRT, add_c(b, square(b, ratio), 1)));
  value = tpu_select(b, compare_c(b, TPU_EQ, large, 0), large, value);
  tpu_val infinite = tpu_or(b, compare_c(b, TPU_EQ, x, (double)INFINITY), compare_c(b, TPU_EQ, y, (double)INFINITY));
  o->out[0].val = tpu_convert(b, select_c(b, infinite, (double)INFINITY, value), dtype);
}

/* --- greatest common divisor */
static tpu_val gcd_more(tpu_build *b, const tpu_val *params, void *arg) {
  (void)arg;
  tpu_val busy = compare_c(b, TPU_NE, params[1], 0);
  int rank = tpu_rank_of(b, busy);
  int64_t axes[TPU_MAX_RANK];
  for (int i = 0; i < rank; i++) axes[i] = i;
  return rank ? tpu_reduce(b, TPU_MONOID_OR, busy, tpu_scalar_i(b, TPU_BOOL, 0), rank, axes) : busy;
}

static void gcd_step(tpu_build *b, const tpu_val *params, tpu_val *out, void *arg) {
  (void)arg;
  tpu_val done = compare_c(b, TPU_EQ, params[1], 0);
  tpu_val rest = tpu_binary(b, TPU_HLO_REMAINDER, params[0], select_c(b, done, 1, params[1]));
  out[0] = tpu_select(b, done, params[0], params[1]);
  out[1] = select_c(b, done, 0, rest);
}

static tpu_val gcd(tpu_build *b, tpu_val x, tpu_val y) {
  bool is_unsigned = tpu_dtype_kind(tpu_dtype_of(b, x)) == TPU_KIND_UINT;
  tpu_val init[2] = {is_unsigned ? x : tpu_unary(b, TPU_HLO_ABS, x), is_unsigned ? y : tpu_unary(b, TPU_HLO_ABS, y)};
  tpu_val out[2] = {TPU_POISON, TPU_POISON};
  tpu_while(b, 2, init, gcd_more, gcd_step, NULL, out);
  return out[0];
}

void lower_gcd(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  tpu_dtype dtype = same_operands(b, a, 2, xs);
  if (!tpu_is_integral(dtype)) {
    if (!tpu_build_failed(b)) fail_not_implemented(b, a, dtype);
    return;
  }
  tpu_val divisor = gcd(b, xs[0], xs[1]);
  if (!a->row->rule) {
    o->out[0].val = divisor;
    return;
  }
  tpu_val zero = compare_c(b, TPU_EQ, divisor, 0);
  tpu_val multiple = tpu_mul(b, tpu_div(b, xs[0], select_c(b, zero, 1, divisor)), xs[1]);
  if (tpu_dtype_kind(dtype) == TPU_KIND_INT) multiple = tpu_unary(b, TPU_HLO_ABS, multiple);
  o->out[0].val = select_c(b, zero, 0, multiple);
}
