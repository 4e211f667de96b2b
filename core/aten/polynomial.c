/* Rows: orthogonal polynomials of degree n (truncated to a whole number, by element). Source: ATen/native/Math.h. */
#include <math.h>

#include "aten/elementwise.h"

/* The recurrence gives p, q = P(k-1), P(k) until every element has its own degree. */
enum { K, N, X, P, Q, PARTS };

static tpu_val is_active(tpu_build *b, const tpu_val *v) {
  return tpu_and(b, tpu_compare(b, TPU_LT, v[K], v[N]), tpu_not(b, tpu_is_nan(b, v[Q])));
}

static tpu_val any_active(tpu_build *b, const tpu_val *v, void *arg) {
  (void)arg;
  tpu_val busy = is_active(b, v);
  int rank = tpu_rank_of(b, busy);
  int64_t axes[TPU_MAX_RANK];
  for (int i = 0; i < rank; i++) axes[i] = i;
  return rank ? tpu_reduce(b, TPU_MONOID_OR, busy, tpu_scalar_i(b, TPU_BOOL, 0), rank, axes) : busy;
}

static tpu_val next(tpu_build *b, int rule, tpu_val k, tpu_val x, tpu_val p, tpu_val q) {
  tpu_val xq = tpu_mul(b, x, q), kp = tpu_mul(b, k, p), two_k = mul_c(b, k, 2);
  switch (rule) {
    case POLYNOMIAL_H: return tpu_sub(b, mul_c(b, xq, 2), mul_c(b, kp, 2));
    case POLYNOMIAL_HE: return tpu_sub(b, xq, kp);
    case POLYNOMIAL_L: {
      tpu_val y = tpu_mul(b, tpu_add(b, two_k, c_sub(b, 1, x)), q);
      return tpu_div(b, tpu_sub(b, y, kp), add_c(b, k, 1));
    }
    case POLYNOMIAL_P: {
      tpu_val y = tpu_mul(b, tpu_mul(b, add_c(b, two_k, 1), x), q);
      return tpu_div(b, tpu_sub(b, y, kp), add_c(b, k, 1));
    }
    default: return tpu_sub(b, mul_c(b, xq, 2), p);
  }
}

static void step(tpu_build *b, const tpu_val *v, tpu_val *out, void *arg) {
  tpu_val active = is_active(b, v);
  out[K] = add_c(b, v[K], 1);
  out[N] = v[N];
  out[X] = v[X];
  out[P] = tpu_select(b, active, v[Q], v[P]);
  out[Q] = tpu_select(b, active, next(b, *(const int *)arg, v[K], v[X], v[P], v[Q]), v[Q]);
}

static tpu_val first_degree(tpu_build *b, int rule, tpu_val x) {
  switch (rule) {
    case POLYNOMIAL_U:
    case POLYNOMIAL_H: return mul_c(b, x, 2);
    case POLYNOMIAL_V: return add_c(b, mul_c(b, x, 2), -1);
    case POLYNOMIAL_W: return add_c(b, mul_c(b, x, 2), 1);
    case POLYNOMIAL_L: return c_sub(b, 1, x);
    default: return x;
  }
}

static tpu_val is_even(tpu_build *b, tpu_val n) {
  tpu_val half = mul_c(b, n, 0.5);
  return tpu_compare(b, TPU_EQ, half, tpu_unary(b, TPU_HLO_FLOOR, half));
}

static tpu_val sine(tpu_build *b, tpu_val x) { return tpu_unary(b, TPU_HLO_SINE, x); }
static tpu_val cosine(tpu_build *b, tpu_val x) { return tpu_unary(b, TPU_HLO_COSINE, x); }

/* Of the Chebyshev kinds for |x| < 1 and a high degree; `low` and `high`: the values at x = -1 and 1, where a quotient has no
 * limit. */
static tpu_val closed_form(tpu_build *b, int rule, tpu_val x, tpu_val n, tpu_val low, tpu_val high) {
  tpu_val angle = tpu_unary(b, TPU_HLO_CHLO_ACOS, x), half = mul_c(b, angle, 0.5);
  tpu_val n_half = tpu_mul(b, add_c(b, n, 0.5), angle), n_one = add_c(b, n, 1);
  switch (rule) {
    case POLYNOMIAL_T: return cosine(b, tpu_mul(b, n, angle));
    case POLYNOMIAL_U: {
      tpu_val s = sine(b, angle), t = tpu_mul(b, n_one, angle);
      tpu_val limit = tpu_div(b, tpu_mul(b, n_one, cosine(b, t)), x);
      return tpu_select(b, compare_c(b, TPU_NE, s, 0), tpu_div(b, sine(b, t), s), limit);
    }
    case POLYNOMIAL_V:
      return tpu_select(b, compare_c(b, TPU_NE, sine(b, half), 1), tpu_div(b, cosine(b, n_half), cosine(b, half)), low);
    default: {
      tpu_val end = tpu_select(b, compare_c(b, TPU_GT, x, 0), high, low);
      return tpu_select(b, compare_c(b, TPU_NE, cosine(b, half), 1), tpu_div(b, sine(b, n_half), sine(b, half)), end);
    }
  }
}

/* A kind's values at x = 1, and at -1 for an even degree (an odd one has the opposite sign). */
static tpu_val at_one(tpu_build *b, int rule, tpu_val n) {
  if (rule == POLYNOMIAL_U) return add_c(b, n, 1);
  if (rule == POLYNOMIAL_W) return add_c(b, mul_c(b, n, 2), 1);
  return tpu_full_like(b, n, 1);
}
static tpu_val at_minus_one(tpu_build *b, int rule, tpu_val n) {
  tpu_val y = tpu_full_like(b, n, 1);
  if (rule == POLYNOMIAL_U) y = add_c(b, n, 1);
  if (rule == POLYNOMIAL_V) y = add_c(b, mul_c(b, n, 2), 1);
  return tpu_select(b, is_even(b, n), y, tpu_neg(b, y));
}

void lower_polynomial(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  tpu_dtype dtype = math_float_operands(b, a, 2, xs);
  if (!need_float(b, a, dtype, false)) return;
  int rule = a->row->rule;
  bool shifted = rule >= POLYNOMIAL_SHIFTED_T;
  if (shifted) rule -= POLYNOMIAL_SHIFTED_T - POLYNOMIAL_T;
  bool chebyshev = rule <= POLYNOMIAL_W;
  tpu_val argument = xs[0], x = shifted ? add_c(b, mul_c(b, argument, 2), -1) : argument;
  tpu_val whole = tpu_and(b, compare_c(b, TPU_GT, xs[1], -1), compare_c(b, TPU_LT, xs[1], 0x1p63));
  tpu_val n = select_else_c(b, whole, tpu_unary(b, TPU_HLO_FLOOR, max_c(b, xs[1], 0)), -1);

  /* Which elements need the recurrence. */
  double limit = !chebyshev             ? (tpu_dtype_of(b, x) == TPU_F64 ? 512 : 128)
                 : shifted              ? (rule == POLYNOMIAL_W ? 4 : 6)
                 : rule == POLYNOMIAL_T ? 6
                                        : 8;
  tpu_val high_degree = compare_c(b, TPU_GT, n, limit), degree = n;
  tpu_val closed = tpu_and(b, high_degree, compare_c(b, TPU_LT, tpu_unary(b, TPU_HLO_ABS, x), 1));
  if (chebyshev) degree = select_c(b, closed, 0, n);
  if (rule == POLYNOMIAL_H || rule == POLYNOMIAL_HE) degree = select_c(b, high_degree, 0, n);
  tpu_val init[PARTS] = {tpu_full_like(b, x, 1), degree, x, tpu_full_like(b, x, 1), first_degree(b, rule, x)}, out[PARTS];
  for (int i = 0; i < PARTS; i++) out[i] = TPU_POISON;
  tpu_while(b, PARTS, init, any_active, step, &rule, out);

  tpu_val y = tpu_select(b, compare_c(b, TPU_EQ, n, 0), init[P], out[Q]);
  if (chebyshev) {
    tpu_val high = at_one(b, rule, n), low = at_minus_one(b, rule, n);
    y = tpu_select(b, closed, closed_form(b, rule, x, n, low, high), y);
    y = tpu_select(b, compare_c(b, TPU_EQ, argument, 1), high, y);
    y = tpu_select(b, compare_c(b, TPU_EQ, argument, shifted ? 0 : -1), low, y);
  } else if (rule == POLYNOMIAL_P) {
    y = tpu_select(b, compare_c(b, TPU_EQ, x, 1), at_one(b, POLYNOMIAL_T, n), y);
    y = tpu_select(b, compare_c(b, TPU_EQ, x, -1), at_minus_one(b, POLYNOMIAL_T, n), y);
  } else if (rule == POLYNOMIAL_L) {
    y = select_c(b, compare_c(b, TPU_EQ, x, 0), 1, y);
  } else {
    y = select_c(b, high_degree, (double)NAN, y);
  }
  o->out[0].val = tpu_convert(b, select_c(b, compare_c(b, TPU_LT, n, 0), 0, y), dtype);
}
