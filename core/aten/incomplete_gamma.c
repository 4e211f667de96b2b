/* Rows: the regularised incomplete gamma functions P(a, x) = igamma and Q = 1 - P = igammac. Cephes (igam.c): a power series
 * where x is small or below a, a continued fraction elsewhere. */
#include <math.h>

#include "aten/elementwise.h"

#define MOST_TERMS 2000
#define TWO_PI 6.28318530717958647692

static double epsilon(tpu_build *b, tpu_val x) { return tpu_dtype_of(b, x) == TPU_F64 ? 0x1p-53 : 0x1p-24; }

static tpu_val any(tpu_build *b, tpu_val busy) {
  int rank = tpu_rank_of(b, busy);
  int64_t axes[TPU_MAX_RANK];
  for (int i = 0; i < rank; i++) axes[i] = i;
  return rank ? tpu_reduce(b, TPU_MONOID_OR, busy, tpu_scalar_i(b, TPU_BOOL, 0), rank, axes) : busy;
}

/* x^a e^-x / gamma(a). For large a by Stirling's series in terms of x / a, since the logarithms would cancel. */
static tpu_val factor(tpu_build *b, tpu_val a, tpu_val x) {
  tpu_val plain = tpu_sub(b, tpu_sub(b, tpu_mul(b, a, tpu_log(b, x)), x), tpu_unary(b, TPU_HLO_CHLO_LGAMMA, a));
  tpu_val mu = tpu_div(b, tpu_sub(b, x, a), a), inv = c_div(b, 1, a);
  static const double stirling[] = {-1.0 / 1260, 1.0 / 360, -1.0 / 12};
  tpu_val rest = tpu_mul(b, inv, horner(b, square(b, inv), 3, stirling));
  tpu_val large = tpu_add(b, tpu_mul(b, a, tpu_sub(b, tpu_unary(b, TPU_HLO_LOG1P, mu), mu)), rest);
  large = tpu_add(b, large, mul_c(b, tpu_log(b, mul_c(b, a, 1 / TWO_PI)), 0.5));
  return tpu_exp(b, tpu_select(b, compare_c(b, TPU_GT, a, 10), large, plain));
}

/* --- sum over n of x^n / ((a + 1) ... (a + n)) */
enum { S_COUNT, S_R, S_X, S_TERM, S_SUM, S_PARTS };
static tpu_val series_active(tpu_build *b, const tpu_val *v) {
  tpu_val small = tpu_compare(b, TPU_GT, v[S_TERM], mul_c(b, v[S_SUM], epsilon(b, v[S_SUM])));
  return tpu_and(b, small, compare_c(b, TPU_LT, v[S_COUNT], MOST_TERMS));
}
static tpu_val series_more(tpu_build *b, const tpu_val *v, void *arg) {
  (void)arg;
  return any(b, series_active(b, v));
}
static void series_step(tpu_build *b, const tpu_val *v, tpu_val *out, void *arg) {
  (void)arg;
  tpu_val active = series_active(b, v);
  out[S_COUNT] = add_c(b, v[S_COUNT], 1);
  out[S_R] = add_c(b, v[S_R], 1);
  out[S_X] = v[S_X];
  tpu_val term = tpu_mul(b, v[S_TERM], tpu_div(b, v[S_X], out[S_R]));
  out[S_TERM] = tpu_select(b, active, term, v[S_TERM]);
  out[S_SUM] = tpu_select(b, active, tpu_add(b, v[S_SUM], term), v[S_SUM]);
}
static tpu_val series(tpu_build *b, tpu_val a, tpu_val x) {
  tpu_val one = tpu_full_like(b, x, 1), init[S_PARTS] = {zero_like(b, x), a, x, one, one}, out[S_PARTS];
  for (int i = 0; i < S_PARTS; i++) out[i] = TPU_POISON;
  tpu_while(b, S_PARTS, init, series_more, series_step, NULL, out);
  return tpu_div(b, out[S_SUM], a);
}

/* --- the continued fraction of Q */
enum { F_COUNT, F_Y, F_Z, F_P1, F_P2, F_Q1, F_Q2, F_RATIO, F_CHANGE, F_PARTS };
static tpu_val fraction_active(tpu_build *b, const tpu_val *v) {
  tpu_val open = compare_c(b, TPU_GT, v[F_CHANGE], epsilon(b, v[F_CHANGE]));
  return tpu_and(b, open, compare_c(b, TPU_LT, v[F_COUNT], MOST_TERMS));
}
static tpu_val fraction_more(tpu_build *b, const tpu_val *v, void *arg) {
  (void)arg;
  return any(b, fraction_active(b, v));
}
static void fraction_step(tpu_build *b, const tpu_val *v, tpu_val *out, void *arg) {
  (void)arg;
  tpu_val active = fraction_active(b, v), next[F_PARTS];
  next[F_COUNT] = add_c(b, v[F_COUNT], 1);
  next[F_Y] = add_c(b, v[F_Y], 1);
  next[F_Z] = add_c(b, v[F_Z], 2);
  tpu_val yc = tpu_mul(b, next[F_Y], next[F_COUNT]);
  tpu_val p = tpu_sub(b, tpu_mul(b, v[F_P1], next[F_Z]), tpu_mul(b, v[F_P2], yc));
  tpu_val q = tpu_sub(b, tpu_mul(b, v[F_Q1], next[F_Z]), tpu_mul(b, v[F_Q2], yc));
  tpu_val defined = compare_c(b, TPU_NE, q, 0), ratio = tpu_div(b, p, q);
  next[F_CHANGE] = select_else_c(b, defined, tpu_unary(b, TPU_HLO_ABS, tpu_div(b, tpu_sub(b, v[F_RATIO], ratio), ratio)), 1);
  next[F_RATIO] = tpu_select(b, defined, ratio, v[F_RATIO]);
  tpu_val scale = tpu_full_like(b, p, epsilon(b, p)), one = tpu_full_like(b, p, 1); /* before they overflow */
  scale = tpu_select(b, compare_c(b, TPU_GT, tpu_unary(b, TPU_HLO_ABS, p), 1 / epsilon(b, p)), scale, one);
  next[F_P2] = tpu_mul(b, v[F_P1], scale);
  next[F_Q2] = tpu_mul(b, v[F_Q1], scale);
  next[F_P1] = tpu_mul(b, p, scale);
  next[F_Q1] = tpu_mul(b, q, scale);
  for (int i = 0; i < F_PARTS; i++) out[i] = tpu_select(b, active, next[i], v[i]);
}
static tpu_val fraction(tpu_build *b, tpu_val a, tpu_val x) {
  tpu_val one = tpu_full_like(b, x, 1), z = add_c(b, tpu_sub(b, x, a), 2), out[F_PARTS];
  tpu_val p1 = add_c(b, x, 1), q1 = tpu_mul(b, z, x);
  tpu_val init[F_PARTS] = {zero_like(b, x), c_sub(b, 1, a), z, p1, one, q1, x, tpu_div(b, p1, q1), one};
  for (int i = 0; i < F_PARTS; i++) out[i] = TPU_POISON;
  tpu_while(b, F_PARTS, init, fraction_more, fraction_step, NULL, out);
  return out[F_RATIO];
}

/* Q for x <= 1.1 where 1 - P would cancel: 1 - x^a / gamma(1 + a) (1 + a sum of (-x)^n / (n! (a + n))). */
static tpu_val complement(tpu_build *b, tpu_val a, tpu_val x) {
  tpu_val sum = zero_like(b, x), term = tpu_full_like(b, x, 1), log_x = tpu_log(b, x);
  for (int n = 1; n <= 22; n++) {
    term = tpu_mul(b, term, mul_c(b, x, -1.0 / n));
    sum = tpu_add(b, sum, tpu_div(b, term, add_c(b, a, n)));
  }
  tpu_val power = tpu_sub(b, tpu_mul(b, a, log_x), tpu_unary(b, TPU_HLO_CHLO_LGAMMA, add_c(b, a, 1)));
  tpu_val rest = tpu_mul(b, tpu_mul(b, tpu_exp(b, power), a), sum);
  return tpu_neg(b, tpu_add(b, tpu_unary(b, TPU_HLO_EXPM1, power), rest));
}

void lower_igamma(tpu_build *b, const tpu_args *args, tpu_outs *o) {
  tpu_val xs[2];
  tpu_dtype dtype = math_float_operands(b, args, 2, xs);
  if (!need_float(b, args, dtype, false)) return;
  tpu_val a = xs[0], x = xs[1];
  bool upper = args->row->rule;
  tpu_val a_is_infinite = compare_c(b, TPU_EQ, a, (double)INFINITY), x_is_infinite = compare_c(b, TPU_EQ, x, (double)INFINITY);
  tpu_val a_is_zero = compare_c(b, TPU_EQ, a, 0), x_is_zero = compare_c(b, TPU_EQ, x, 0);
  tpu_val regular = tpu_and(b, compare_c(b, TPU_GT, a, 0), compare_c(b, TPU_GT, x, 0));
  regular = tpu_and(b, regular, tpu_not(b, tpu_or(b, a_is_infinite, x_is_infinite)));
  tpu_val far = tpu_and(b, compare_c(b, TPU_GT, x, 1), tpu_compare(b, TPU_GT, x, a));
  tpu_val bound = tpu_select(b, compare_c(b, TPU_LE, x, 0.5), c_div(b, -0.4, tpu_log(b, x)), mul_c(b, x, 1.1));
  tpu_val little = tpu_and(b, compare_c(b, TPU_LE, x, 1.1), tpu_compare(b, TPU_GE, bound, a)); /* Q is small */
  far = tpu_or(b, far, little);
  /* Where a form does not apply it gets arguments with which it ends at once. */
  tpu_val near_only = tpu_and(b, regular, tpu_not(b, far)), far_only = tpu_and(b, regular, tpu_and(b, far, tpu_not(b, little)));
  tpu_val lower = series(b, select_else_c(b, near_only, a, 1), select_else_c(b, near_only, x, 0));
  tpu_val higher = fraction(b, select_else_c(b, far_only, a, 1), select_else_c(b, far_only, x, 2));
  tpu_val scale = factor(b, select_else_c(b, regular, a, 1), select_else_c(b, regular, x, 1));
  tpu_val y = tpu_mul(b, scale, tpu_select(b, far, higher, lower)); /* Q if far, else P */
  y = tpu_select(b, little, complement(b, select_else_c(b, regular, a, 1), select_else_c(b, regular, x, 1)), y);
  y = tpu_select(b, upper ? far : tpu_not(b, far), y, c_sub(b, 1, y));

  double none = upper ? 1 : 0, all = upper ? 0 : 1;
  y = select_c(b, tpu_or(b, tpu_is_nan(b, a), tpu_is_nan(b, x)), (double)NAN, y);
  y = select_c(b, x_is_zero, none, y);
  y = select_c(b, a_is_infinite, none, y);
  y = select_c(b, tpu_or(b, x_is_infinite, a_is_zero), all, y);
  tpu_val nan = tpu_or(b, compare_c(b, TPU_LT, a, 0), compare_c(b, TPU_LT, x, 0));
  nan = tpu_or(b, nan, tpu_and(b, a_is_infinite, x_is_infinite));
  nan = tpu_or(b, nan, tpu_and(b, a_is_zero, tpu_not(b, compare_c(b, TPU_GT, x, 0))));
  o->out[0].val = tpu_convert(b, select_c(b, nan, (double)NAN, y), dtype);
}
