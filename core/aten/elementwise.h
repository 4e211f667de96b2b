/* What elementwise lowerings share. Values are in the type the arithmetic runs in (opmath). Thread-compatible.
 * May include: base, ir, aten/lower.h.
 */
#ifndef TPU_ATEN_ELEMENTWISE_H
#define TPU_ATEN_ELEMENTWISE_H

#include "aten/lower.h"

/* The .rule of lower_function, lower_function2 and lower_is. */
enum tpu_function {
  FN_EXP2,
  FN_LOG2,
  FN_LOG10,
  FN_SINC,
  FN_DEG2RAD,
  FN_RAD2DEG,
  FN_ENTR,
  FN_LOG_NDTR,
  FN_NDTRI,
  FN_ERFCX,
  FN_I0,
  FN_I0E,
  FN_I1,
  FN_I1E,
  FN_DIGAMMA
};
enum tpu_function2 { FN_XLOGY, FN_XLOG1PY, FN_LOGADDEXP, FN_LOGADDEXP2, FN_ATAN2, FN_COPYSIGN, FN_ZETA };
/* The .rule of lower_bessel. */
enum tpu_bessel {
  BESSEL_J0,
  BESSEL_J1,
  BESSEL_Y0,
  BESSEL_Y1,
  BESSEL_I0,
  BESSEL_I1,
  BESSEL_K0,
  BESSEL_K1,
  BESSEL_SCALED_K0,
  BESSEL_SCALED_K1,
  BESSEL_AIRY_AI,
  BESSEL_SPHERICAL_J0
};
/* The .rule of lower_polynomial: Chebyshev's of four kinds, Hermite's, Laguerre's, Legendre's. */
enum tpu_polynomial {
  POLYNOMIAL_T,
  POLYNOMIAL_U,
  POLYNOMIAL_V,
  POLYNOMIAL_W,
  POLYNOMIAL_H,
  POLYNOMIAL_HE,
  POLYNOMIAL_L,
  POLYNOMIAL_P,
  POLYNOMIAL_SHIFTED_T,
  POLYNOMIAL_SHIFTED_U,
  POLYNOMIAL_SHIFTED_V,
  POLYNOMIAL_SHIFTED_W
};
enum tpu_is { IS_NAN, IS_INF, IS_POSINF, IS_NEGINF, IS_SIGNED };
/* The .rule of lower_activation and lower_activation_backward. */
enum tpu_activation {
  ACT_RELU,
  ACT_RELU6,
  ACT_GELU,
  ACT_SILU,
  ACT_MISH,
  ACT_SIGMOID,
  ACT_TANH,
  ACT_HARDTANH,
  ACT_HARDSWISH,
  ACT_HARDSIGMOID,
  ACT_LEAKY_RELU,
  ACT_ELU,
  ACT_CELU,
  ACT_SOFTPLUS,
  ACT_THRESHOLD,
  ACT_HARDSHRINK,
  ACT_SOFTSHRINK,
  ACT_LOG_SIGMOID
};

/* Arguments 0 .. n-1 promoted to one type, in its opmath type, broadcast to each other. Returns the result's type. */
tpu_dtype math_operands(tpu_build *b, const tpu_args *a, int n, tpu_val *out);
/* Likewise with integers promoted to the default float type. */
tpu_dtype math_float_operands(tpu_build *b, const tpu_args *a, int n, tpu_val *out);
/* Likewise without the step to opmath. */
tpu_dtype same_operands(tpu_build *b, const tpu_args *a, int n, tpu_val *out);
/* Number i (or a 0-dim tensor) with dims and dtype of `like`. */
tpu_val number_like(tpu_build *b, const tpu_args *a, int i, tpu_val like);
/* False and NotImplementedError unless dtype is floating (complex too, if allowed). */
bool need_float(tpu_build *b, const tpu_args *a, tpu_dtype dtype, bool allow_complex);
/* The C++ type's name, as caffe2::TypeMeta prints it in some errors: "float", "c10::Half", "long". */
const char *tpu_dtype_c_name(tpu_dtype dtype);
/* c[0] x^(n-1) + ... + c[n-1]. */
tpu_val horner(tpu_build *b, tpu_val x, int n, const double *c);
/* A series of Chebyshev polynomials of x / 2, halved first coefficient last (Cephes' chbevl). */
tpu_val chebyshev_series(tpu_build *b, tpu_val x, int n, const double *c);
/* The modified Bessel function of the first kind of order 0 or 1. */
tpu_val bessel_i(tpu_build *b, int order, tpu_val x);
/* Integral or bool. */
bool is_whole(tpu_dtype dtype);

/* With a constant of x's dtype. */
static inline tpu_val add_c(tpu_build *b, tpu_val x, double c) { return binary_c(b, TPU_HLO_ADD, x, c); }
static inline tpu_val mul_c(tpu_build *b, tpu_val x, double c) { return binary_c(b, TPU_HLO_MULTIPLY, x, c); }
static inline tpu_val div_c(tpu_build *b, tpu_val x, double c) { return binary_c(b, TPU_HLO_DIVIDE, x, c); }
static inline tpu_val max_c(tpu_build *b, tpu_val x, double c) { return binary_c(b, TPU_HLO_MAXIMUM, x, c); }
static inline tpu_val min_c(tpu_build *b, tpu_val x, double c) { return binary_c(b, TPU_HLO_MINIMUM, x, c); }
static inline tpu_val c_sub(tpu_build *b, double c, tpu_val x) { return tpu_sub(b, tpu_full_like(b, x, c), x); }
static inline tpu_val c_div(tpu_build *b, double c, tpu_val x) { return tpu_div(b, tpu_full_like(b, x, c), x); }
static inline tpu_val compare_c(tpu_build *b, tpu_compare_dir dir, tpu_val x, double c) {
  return tpu_compare(b, dir, x, tpu_full_like(b, x, c));
}
static inline tpu_val square(tpu_build *b, tpu_val x) { return tpu_mul(b, x, x); }
/* pred ? x : constant, and pred ? constant : x. */
static inline tpu_val select_else_c(tpu_build *b, tpu_val pred, tpu_val x, double c) {
  return tpu_select(b, pred, x, tpu_full_like(b, x, c));
}
static inline tpu_val select_c(tpu_build *b, tpu_val pred, double c, tpu_val x) {
  return tpu_select(b, pred, tpu_full_like(b, x, c), x);
}
/* x * 0 where a select would hide NaN and infinity is not wanted: a plain 0 of x's type. */
static inline tpu_val zero_like(tpu_build *b, tpu_val x) { return tpu_full_like(b, x, 0); }

/* The sign bit of floats (also of -0.0 and NaN), x < 0 of others. */
tpu_val sign_bit(tpu_build *b, tpu_val x);
/* Magnitude of x with the sign of `sign` (same float type). */
tpu_val copy_sign(tpu_build *b, tpu_val x, tpu_val sign);
tpu_val trunc_toward_zero(tpu_build *b, tpu_val x);
tpu_val sigmoid(tpu_build *b, tpu_val x);
tpu_val softplus(tpu_build *b, tpu_val x); /* log(1 + exp(x)) without overflow */
/* min(max(x, lo), hi); NaN of any operand stays. lo or hi may be poison: none. */
tpu_val clamp_between(tpu_build *b, tpu_val x, tpu_val lo, tpu_val hi);

#endif
