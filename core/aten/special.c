/* Rows: functions of one and two real arguments. Source: aten/src/ATen/native/cpu/UnaryOpsKernel.cpp, BinaryOpsKernel.cpp,
 * Math.h. */
#include <math.h>

#include "aten/elementwise.h"

#define LN2 0.693147180559945309417
#define PI 3.14159265358979323846

static tpu_val scaled_log(tpu_build *b, tpu_val x, double scale) {
  tpu_dtype dtype = tpu_dtype_of(b, x);
  if (!tpu_is_complex(dtype)) return mul_c(b, tpu_log(b, x), scale);
  tpu_val y = tpu_log(b, x);
  return tpu_complex(b, mul_c(b, tpu_unary(b, TPU_HLO_REAL, y), scale), mul_c(b, tpu_unary(b, TPU_HLO_IMAG, y), scale));
}

static tpu_val sinc(tpu_build *b, tpu_val x) {
  tpu_val y = mul_c(b, x, PI);
  return select_c(b, compare_c(b, TPU_EQ, x, 0), 1, tpu_div(b, tpu_unary(b, TPU_HLO_SINE, y), y));
}

static tpu_val entropy(tpu_build *b, tpu_val x) {
  tpu_val y = tpu_neg(b, tpu_mul(b, x, tpu_log(b, x)));
  y = select_c(b, compare_c(b, TPU_EQ, x, 0), 0, y);
  y = select_c(b, compare_c(b, TPU_LT, x, 0), -(double)INFINITY, y);
  return tpu_select(b, tpu_is_nan(b, x), x, y);
}

tpu_val horner(tpu_build *b, tpu_val x, int n, const double *c) {
  tpu_val y = tpu_full_like(b, x, c[0]);
  for (int i = 1; i < n; i++) y = add_c(b, tpu_mul(b, y, x), c[i]);
  return y;
}

tpu_val chebyshev_series(tpu_build *b, tpu_val x, int n, const double *c) {
  tpu_val b0 = tpu_full_like(b, x, c[0]), b1 = zero_like(b, x), b2 = b1;
  for (int i = 1; i < n; i++) {
    b2 = b1;
    b1 = b0;
    b0 = add_c(b, tpu_sub(b, tpu_mul(b, x, b1), b2), c[i]);
  }
  return mul_c(b, tpu_sub(b, b0, b2), 0.5);
}

static const double i0e_small[] = {
    -4.41534164647933937950e-18, 3.33079451882223809783e-17, -2.43127984654795469359e-16, 1.71539128555513303061e-15,
    -1.16853328779934516808e-14, 7.67618549860493561688e-14, -4.85644678311192946090e-13, 2.95505266312963983461e-12,
    -1.72682629144155570723e-11, 9.67580903537323691224e-11, -5.18979560163526290666e-10, 2.65982372468238665035e-9,
    -1.30002500998624804212e-8,  6.04699502254191894932e-8,  -2.67079385394061173391e-7,  1.11738753912010371815e-6,
    -4.41673835845875056359e-6,  1.64484480707288970893e-5,  -5.75419501008210370398e-5,  1.88502885095841655729e-4,
    -5.76375574538582365885e-4,  1.63947561694133579842e-3,  -4.32430999505057594430e-3,  1.05464603945949983183e-2,
    -2.37374148058994688156e-2,  4.93052842396707084878e-2,  -9.49010970480476444210e-2,  1.71620901522208775349e-1,
    -3.04682672343198398683e-1,  6.76795274409476084995e-1};
static const double i0e_large[] = {
    -7.23318048787475395456e-18, -4.83050448594418207126e-18, 4.46562142029675999901e-17,  3.46122286769746109310e-17,
    -2.82762398051658348494e-16, -3.42548561967721913462e-16, 1.77256013305652638360e-15,  3.81168066935262242075e-15,
    -9.55484669882830764870e-15, -4.15056934728722208663e-14, 1.54008621752140982691e-14,  3.85277838274214270114e-13,
    7.18012445138366623367e-13,  -1.79417853150680611778e-12, -1.32158118404477131188e-11, -3.14991652796324136454e-11,
    1.18891471078464383424e-11,  4.94060238822496958910e-10,  3.39623202570838634515e-9,   2.26666899049817806459e-8,
    2.04891858946906374183e-7,   2.89137052083475648297e-6,   6.88975834691682398426e-5,   3.36911647825569408990e-3,
    8.04490411014108831608e-1};

static tpu_val bessel_i0e(tpu_build *b, tpu_val x) {
  tpu_val size = tpu_unary(b, TPU_HLO_ABS, x);
  tpu_val small = chebyshev_series(b, add_c(b, mul_c(b, size, 0.5), -2), (int)(sizeof i0e_small / sizeof *i0e_small), i0e_small);
  tpu_val large = chebyshev_series(b, add_c(b, c_div(b, 32, size), -2), (int)(sizeof i0e_large / sizeof *i0e_large), i0e_large);
  large = tpu_div(b, large, tpu_unary(b, TPU_HLO_SQRT, size));
  return tpu_select(b, compare_c(b, TPU_LE, size, 8), small, large);
}

tpu_val bessel_i(tpu_build *b, int order, tpu_val x) {
  return tpu_mul(b, tpu_exp(b, tpu_unary(b, TPU_HLO_ABS, x)),
                 order ? tpu_unary(b, TPU_HLO_CHLO_BESSEL_I1E, x) : bessel_i0e(b, x));
}

static tpu_val erfcx(tpu_build *b, tpu_val x) {
  /* exp(x^2) erfc(x) where that does not overflow, else the continued fraction's first terms. */
  tpu_val near = tpu_mul(b, tpu_exp(b, square(b, x)), tpu_unary(b, TPU_HLO_CHLO_ERFC, x));
  tpu_val y = square(b, x), inv = c_div(b, 1, y);
  static const double series[] = {-29.53125, 6.5625, -1.875, 0.75, -0.5, 1};
  tpu_val sum = zero_like(b, x);
  for (int i = 0; i < 6; i++) sum = add_c(b, tpu_mul(b, sum, inv), series[i]);
  tpu_val far = tpu_div(b, mul_c(b, sum, 0.564189583547756286948), x);
  double limit = tpu_dtype_of(b, x) == TPU_F64 ? 25 : 8;
  return tpu_select(b, compare_c(b, TPU_GT, x, limit), far, near);
}

static tpu_val log_ndtr(tpu_build *b, tpu_val x) {
  tpu_val t = mul_c(b, x, 0.707106781186547524401);
  tpu_val low = tpu_sub(b, tpu_log(b, mul_c(b, erfcx(b, tpu_neg(b, t)), 0.5)), square(b, t));
  tpu_val high = tpu_unary(b, TPU_HLO_LOG1P, mul_c(b, tpu_unary(b, TPU_HLO_CHLO_ERFC, t), -0.5));
  return tpu_select(b, compare_c(b, TPU_LT, x, -1), low, high);
}

/* -inf at 0 and inf at -0.0, where chlo gives NaN. */
static tpu_val digamma(tpu_build *b, tpu_val x) {
  tpu_val pole = copy_sign(b, tpu_full_like(b, x, (double)INFINITY), tpu_neg(b, x));
  return tpu_select(b, compare_c(b, TPU_EQ, x, 0), pole, tpu_unary(b, TPU_HLO_CHLO_DIGAMMA, x));
}

static tpu_val apply(tpu_build *b, int fn, tpu_val x) {
  switch (fn) {
    case FN_EXP2:
      if (tpu_is_complex(tpu_dtype_of(b, x))) return tpu_exp(b, mul_c(b, x, LN2));
      return tpu_binary(b, TPU_HLO_POWER, tpu_full_like(b, x, 2), x);
    case FN_LOG2: return scaled_log(b, x, 1 / LN2);
    case FN_LOG10: return scaled_log(b, x, 0.434294481903251827651);
    case FN_SINC: return sinc(b, x);
    case FN_DEG2RAD: return mul_c(b, x, PI / 180);
    case FN_RAD2DEG: return mul_c(b, x, 180 / PI);
    case FN_ENTR: return entropy(b, x);
    case FN_LOG_NDTR: return log_ndtr(b, x);
    case FN_NDTRI: return mul_c(b, tpu_unary(b, TPU_HLO_CHLO_ERF_INV, add_c(b, mul_c(b, x, 2), -1)), 1.41421356237309504880);
    case FN_ERFCX: return erfcx(b, x);
    case FN_I0: return bessel_i(b, 0, x);
    case FN_I0E: return bessel_i0e(b, x);
    case FN_I1: return bessel_i(b, 1, x);
    case FN_I1E: return tpu_unary(b, TPU_HLO_CHLO_BESSEL_I1E, x);
    case FN_DIGAMMA: return digamma(b, x);
    default: return tpu_fail(b, TPU_INTERNAL, "no function %d", fn);
  }
}

void lower_function(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x;
  tpu_dtype dtype = math_float_operands(b, a, 1, &x);
  o->out[0].val = tpu_convert(b, apply(b, a->row->rule, x), dtype);
}

void lower_trunc(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  if (tpu_is_integral(dtype))
    o->out[0].val = x;
  else if (need_float(b, a, dtype, false))
    o->out[0].val = trunc_toward_zero(b, x);
}

void lower_frac(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  if (!need_float(b, a, tpu_dtype_of(b, x), false)) return;
  o->out[0].val = tpu_sub(b, x, trunc_toward_zero(b, x));
}

void lower_round_decimals(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  int64_t decimals = arg_int(b, a, 1, 0);
  if (!need_float(b, a, dtype, false)) return;
  x = tpu_convert(b, x, tpu_dtype_opmath(dtype));
  double scale = pow(10, (double)(decimals < 0 ? -decimals : decimals));
  if (decimals >= 0)
    x = div_c(b, tpu_unary(b, TPU_HLO_ROUND_EVEN, mul_c(b, x, scale)), scale);
  else
    x = mul_c(b, tpu_unary(b, TPU_HLO_ROUND_EVEN, div_c(b, x, scale)), scale);
  o->out[0].val = tpu_convert(b, x, dtype);
}

static tpu_val clamp_logit(tpu_build *b, const tpu_args *a, int i, tpu_val x) {
  if (!arg_present(a, i)) return x;
  tpu_val eps = number_like(b, a, i, x);
  return clamp_between(b, x, eps, c_sub(b, 1, eps));
}

void lower_logit(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x;
  tpu_dtype dtype = math_float_operands(b, a, 1, &x);
  x = clamp_logit(b, a, 1, x);
  o->out[0].val = tpu_convert(b, tpu_log(b, tpu_div(b, x, c_sub(b, 1, x))), dtype);
}

void lower_logit_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  tpu_dtype dtype = math_operands(b, a, 2, xs);
  tpu_val slope = tpu_div(b, xs[0], tpu_mul(b, xs[1], c_sub(b, 1, xs[1])));
  tpu_val inside, outside;
  if (arg_present(a, 2)) {
    tpu_val eps = number_like(b, a, 2, xs[1]);
    inside = tpu_and(b, tpu_compare(b, TPU_GE, xs[1], eps), tpu_compare(b, TPU_LE, xs[1], c_sub(b, 1, eps)));
    outside = zero_like(b, slope);
  } else {
    inside = tpu_and(b, compare_c(b, TPU_GE, xs[1], 0), compare_c(b, TPU_LE, xs[1], 1));
    outside = tpu_full_like(b, slope, (double)NAN);
  }
  tpu_val y = tpu_select(b, inside, slope, outside);
  o->out[0].val = tpu_convert(b, y, dtype);
}

static tpu_val log_add_exp(tpu_build *b, tpu_val x, tpu_val y, double base_log) {
  tpu_val large = tpu_max(b, x, y), distance = tpu_neg(b, tpu_unary(b, TPU_HLO_ABS, tpu_sub(b, x, y)));
  tpu_val tail = tpu_unary(b, TPU_HLO_LOG1P, tpu_exp(b, mul_c(b, distance, base_log)));
  tpu_val sum = tpu_add(b, large, mul_c(b, tail, 1 / base_log));
  tpu_val equal =
      tpu_and(b, tpu_compare(b, TPU_EQ, x, y), compare_c(b, TPU_EQ, tpu_unary(b, TPU_HLO_ABS, large), (double)INFINITY));
  return tpu_select(b, equal, large, sum);
}

/* Hurwitz zeta. chlo is right for q > 0. Below, for whole s only, the terms with a negative base are a difference of two:
 * with f = -q - floor(-q), zeta(s, q) = (-1)^s (zeta(s, f) - zeta(s, 1 - q)) + zeta(s, 1 - f). Poles are infinite. */
static tpu_val zeta(tpu_build *b, tpu_val s, tpu_val q) {
  tpu_val below = tpu_and(b, compare_c(b, TPU_LT, q, 0), compare_c(b, TPU_GT, s, 1));
  tpu_val whole = tpu_unary(b, TPU_HLO_FLOOR, q), pole = tpu_and(b, compare_c(b, TPU_LE, q, 0), tpu_compare(b, TPU_EQ, q, whole));
  pole = tpu_and(b, pole, compare_c(b, TPU_GT, s, 1));
  tpu_val up = tpu_sub(b, q, whole); /* 1 - f */
  tpu_val first = tpu_binary(b, TPU_HLO_CHLO_ZETA, s, tpu_select(b, below, up, q));
  tpu_val negative = tpu_binary(b, TPU_HLO_CHLO_ZETA, s, c_sub(b, 1, up));
  negative = tpu_sub(b, negative, tpu_binary(b, TPU_HLO_CHLO_ZETA, s, c_sub(b, 1, q)));
  tpu_val half = mul_c(b, s, 0.5), even = tpu_compare(b, TPU_EQ, half, tpu_unary(b, TPU_HLO_FLOOR, half));
  tpu_val sum = tpu_select(b, even, tpu_add(b, first, negative), tpu_sub(b, first, negative));
  sum = tpu_select(b, tpu_compare(b, TPU_EQ, s, tpu_unary(b, TPU_HLO_FLOOR, s)), sum, tpu_full_like(b, sum, (double)NAN));
  tpu_val value = select_c(b, pole, (double)INFINITY, tpu_select(b, below, sum, first));
  value = select_c(b, compare_c(b, TPU_LT, s, 1), (double)NAN, value);
  return select_c(b, compare_c(b, TPU_EQ, s, 1), (double)INFINITY, value);
}

/* By the larger real part; equal infinite ones need the sum itself (_log_add_exp_helper in cpu/LogAddExp.h). */
static tpu_val log_add_exp_complex(tpu_build *b, tpu_val x, tpu_val y) {
  tpu_val re = tpu_unary(b, TPU_HLO_REAL, x), other = tpu_unary(b, TPU_HLO_REAL, y);
  tpu_val first = tpu_compare(b, TPU_GE, re, other);
  tpu_val large = tpu_select(b, first, x, y), small = tpu_select(b, first, y, x);
  tpu_val sum = tpu_add(b, large, tpu_unary(b, TPU_HLO_LOG1P, tpu_exp(b, tpu_sub(b, small, large))));
  tpu_val equal = tpu_and(b, tpu_compare(b, TPU_EQ, re, other), tpu_not(b, tpu_unary(b, TPU_HLO_IS_FINITE, re)));
  tpu_val plain = tpu_log(b, tpu_add(b, tpu_exp(b, x), tpu_exp(b, y)));
  return tpu_select(b, equal, tpu_select(b, compare_c(b, TPU_LT, re, 0), small, plain), sum);
}

static tpu_val apply2(tpu_build *b, int fn, tpu_val x, tpu_val y) {
  switch (fn) {
    case FN_XLOGY:
    case FN_XLOG1PY: {
      tpu_val value = tpu_mul(b, x, fn == FN_XLOGY ? tpu_log(b, y) : tpu_unary(b, TPU_HLO_LOG1P, y));
      value = select_c(b, compare_c(b, TPU_EQ, x, 0), 0, value);
      return tpu_select(b, tpu_is_nan(b, y), y, value);
    }
    case FN_LOGADDEXP: return tpu_is_complex(tpu_dtype_of(b, x)) ? log_add_exp_complex(b, x, y) : log_add_exp(b, x, y, 1);
    case FN_LOGADDEXP2: return log_add_exp(b, x, y, LN2);
    case FN_ATAN2: return tpu_binary(b, TPU_HLO_ATAN2, x, y);
    case FN_COPYSIGN: return copy_sign(b, x, y);
    case FN_ZETA: return zeta(b, x, y);
    default: return tpu_fail(b, TPU_INTERNAL, "no function %d", fn);
  }
}

void lower_function2(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  tpu_dtype dtype = math_float_operands(b, a, 2, xs);
  bool complex_too = a->row->rule == FN_XLOGY || a->row->rule == FN_LOGADDEXP;
  if (!need_float(b, a, dtype, complex_too)) return;
  o->out[0].val = tpu_convert(b, apply2(b, a->row->rule, xs[0], xs[1]), dtype);
}

void lower_nextafter(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  tpu_dtype dtype = same_operands(b, a, 2, xs);
  if (need_float(b, a, dtype, false)) o->out[0].val = tpu_binary(b, TPU_HLO_CHLO_NEXT_AFTER, xs[0], xs[1]);
}

/* self * 2^other, in two factors so that the power itself does not overflow. */
void lower_ldexp(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  tpu_dtype dtype = math_float_operands(b, a, 2, xs);
  o->out[0].val = tpu_convert(b, tpu_mul(b, xs[0], apply(b, FN_EXP2, xs[1])), dtype);
}

/* (mantissa in [0.5, 1), exponent): by the bits, after subnormals are scaled up. */
void lower_frexp(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  if (!need_float(b, a, dtype, false)) return;
  tpu_val y = tpu_convert(b, x, dtype == TPU_F64 ? TPU_F64 : TPU_F32);
  bool wide = dtype == TPU_F64;
  tpu_dtype word = wide ? TPU_U64 : TPU_U32;
  int digits = wide ? 52 : 23, bias = wide ? 1022 : 126;
  double up = ldexp(1, digits + 2);
  tpu_val tiny = compare_c(b, TPU_LT, tpu_unary(b, TPU_HLO_ABS, y), wide ? 0x1p-1022 : 0x1p-126);
  y = tpu_select(b, tiny, mul_c(b, y, up), y);
  tpu_val bits = tpu_bitcast(b, y, word, tpu_rank_of(b, y), tpu_dims_of(b, y));
  tpu_val field = tpu_binary(b, TPU_HLO_SHIFT_RIGHT_LOGIC, bits, tpu_full_like(b, bits, digits));
  tpu_val exponent = add_c(b, tpu_convert(b, tpu_and(b, field, tpu_full_like(b, bits, wide ? 2047 : 255)), TPU_I32), -bias);
  exponent = tpu_sub(b, exponent, select_c(b, tiny, digits + 2, zero_like(b, exponent)));
  tpu_val keep = tpu_broadcast_like(b, tpu_scalar_i(b, word, wide ? INT64_C(-0x7ff0000000000001) : INT64_C(0x807fffff)), bits);
  tpu_val half = tpu_broadcast_like(b, tpu_scalar_i(b, word, wide ? INT64_C(0x3fe0000000000000) : INT64_C(0x3f000000)), bits);
  tpu_val mantissa =
      tpu_bitcast(b, tpu_or(b, tpu_and(b, bits, keep), half), tpu_dtype_of(b, y), tpu_rank_of(b, y), tpu_dims_of(b, y));
  tpu_val plain = tpu_or(b, compare_c(b, TPU_EQ, y, 0), tpu_not(b, tpu_unary(b, TPU_HLO_IS_FINITE, y)));
  o->out[0].val = tpu_convert(b, tpu_select(b, plain, y, mantissa), dtype);
  o->out[1].val = select_c(b, plain, 0, exponent);
}

/* By reflection below 1/2, then the asymptotic series after six steps up (as calc_trigamma in Math.h). */
static tpu_val trigamma(tpu_build *b, tpu_val x) {
  tpu_val low = compare_c(b, TPU_LT, x, 0.5), sine = tpu_unary(b, TPU_HLO_SINE, mul_c(b, x, PI));
  tpu_val y = tpu_select(b, low, c_sub(b, 1, x), x), sum = zero_like(b, x);
  for (int i = 0; i < 6; i++) {
    sum = tpu_add(b, sum, c_div(b, 1, square(b, y)));
    y = add_c(b, y, 1);
  }
  tpu_val inverse = c_div(b, 1, square(b, y));
  tpu_val series = c_sub(b, 1.0 / 30, mul_c(b, inverse, 1.0 / 42));
  series = tpu_mul(b, inverse, c_sub(b, 1.0 / 6, tpu_mul(b, inverse, series)));
  series = tpu_add(b, add_c(b, c_div(b, 0.5, y), 1), series);
  sum = tpu_add(b, sum, tpu_div(b, series, y));
  return tpu_select(b, low, tpu_sub(b, c_div(b, PI * PI, square(b, sine)), sum), sum);
}

/* (-1)^(n+1) n! zeta(n + 1, x) */
static tpu_val polygamma(tpu_build *b, int64_t n, tpu_val x) {
  if (n == 0) return digamma(b, x);
  if (n == 1) return trigamma(b, x);
  double factor = exp(lgamma((double)n + 1)) * (n % 2 ? 1 : -1);
  return mul_c(b, zeta(b, tpu_full_like(b, x, (double)n + 1), x), factor);
}

void lower_polygamma(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int64_t n = arg_int(b, a, 0, 0);
  tpu_val x = arg_tensor(b, a, 1);
  if (n < 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "polygamma(n, x) does not support negative n.");
    return;
  }
  tpu_dtype dtype = promote_float_default(a, tpu_dtype_of(b, x));
  x = tpu_convert(b, x, tpu_dtype_opmath(dtype));
  o->out[0].val = tpu_convert(b, polygamma(b, n, x), dtype);
}

/* sum of lgamma(x - i/2) + p (p - 1) log(pi) / 4 */
void lower_mvlgamma(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int64_t p = arg_int(b, a, 1, 1);
  tpu_val x;
  tpu_dtype dtype = math_float_operands(b, a, 1, &x);
  if (p < 1) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "p has to be greater than or equal to 1");
    return;
  }
  tpu_val sum = tpu_full_like(b, x, (double)(p * (p - 1)) / 4 * log(PI));
  for (int64_t i = 0; i < p; i++) sum = tpu_add(b, sum, tpu_unary(b, TPU_HLO_CHLO_LGAMMA, add_c(b, x, -(double)i / 2)));
  o->out[0].val = tpu_convert(b, sum, dtype);
}
