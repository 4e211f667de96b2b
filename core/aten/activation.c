/* Rows: activations and their gradients. Source: aten/src/ATen/native/cpu/Activation.cpp, Activation.cpp. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "aten/elementwise.h"

#define SQRT_HALF 0.707106781186547524401
#define SQRT_2_OVER_PI 0.797884560802865355880
#define TWO_OVER_SQRT_PI 1.12837916709551257390
#define GELU_CUBIC 0.044715

static bool gelu_is_tanh(tpu_build *b, const tpu_args *a, int i) {
  const char *approximate = arg_str(a, i);
  if (strcmp(approximate, "tanh") == 0) return true;
  if (strcmp(approximate, "none") != 0) tpu_fail(b, TPU_INVALID_ARGUMENT, "approximate argument must be either none or tanh.");
  return false;
}

static tpu_val gelu_inner(tpu_build *b, tpu_val x) {
  tpu_val cubic = mul_c(b, tpu_mul(b, square(b, x), x), GELU_CUBIC);
  return tpu_unary(b, TPU_HLO_TANH, mul_c(b, tpu_add(b, x, cubic), SQRT_2_OVER_PI));
}

static tpu_val gelu(tpu_build *b, tpu_val x, bool with_tanh) {
  tpu_val t = with_tanh ? gelu_inner(b, x) : tpu_unary(b, TPU_HLO_CHLO_ERF, mul_c(b, x, SQRT_HALF));
  return tpu_mul(b, mul_c(b, x, 0.5), add_c(b, t, 1));
}

/* elu(x) = scale * (x > 0 ? x : alpha * (exp(input_scale * x) - 1)), for the numbers at i, i+1, i+2. */
static tpu_val elu(tpu_build *b, const tpu_args *a, tpu_val x) {
  tpu_val alpha = number_like(b, a, 1, x), scale = number_like(b, a, 2, x), input_scale = number_like(b, a, 3, x);
  tpu_val low = tpu_mul(b, tpu_unary(b, TPU_HLO_EXPM1, tpu_mul(b, x, input_scale)), tpu_mul(b, alpha, scale));
  return tpu_select(b, compare_c(b, TPU_LE, x, 0), low, tpu_mul(b, x, scale));
}

static tpu_val celu(tpu_build *b, const tpu_args *a, tpu_val x) {
  tpu_val alpha = number_like(b, a, 1, x);
  tpu_val low = tpu_mul(b, tpu_unary(b, TPU_HLO_EXPM1, tpu_div(b, x, alpha)), alpha);
  return tpu_select(b, compare_c(b, TPU_LE, x, 0), low, x);
}

static tpu_val apply(tpu_build *b, const tpu_args *a, tpu_val x) {
  switch (a->row->rule) {
    case ACT_RELU: return max_c(b, x, 0);
    case ACT_GELU: return gelu(b, x, gelu_is_tanh(b, a, 1));
    case ACT_SILU: return tpu_mul(b, x, sigmoid(b, x));
    case ACT_MISH: return tpu_mul(b, x, tpu_unary(b, TPU_HLO_TANH, softplus(b, x)));
    case ACT_HARDTANH: return clamp_between(b, x, number_like(b, a, 1, x), number_like(b, a, 2, x));
    case ACT_HARDSWISH: return div_c(b, tpu_mul(b, x, min_c(b, max_c(b, add_c(b, x, 3), 0), 6)), 6);
    case ACT_HARDSIGMOID: return div_c(b, min_c(b, max_c(b, add_c(b, x, 3), 0), 6), 6);
    case ACT_LEAKY_RELU: return tpu_select(b, compare_c(b, TPU_GT, x, 0), x, tpu_mul(b, x, number_like(b, a, 1, x)));
    case ACT_ELU: return elu(b, a, x);
    case ACT_CELU: return celu(b, a, x);
    case ACT_SOFTPLUS: {
      tpu_val beta = number_like(b, a, 1, x), z = tpu_mul(b, x, beta);
      tpu_val straight = tpu_compare(b, TPU_GT, z, number_like(b, a, 2, x));
      return tpu_select(b, straight, x, tpu_div(b, softplus(b, z), beta));
    }
    case ACT_THRESHOLD: return tpu_select(b, tpu_compare(b, TPU_LE, x, number_like(b, a, 1, x)), number_like(b, a, 2, x), x);
    case ACT_HARDSHRINK: {
      tpu_val l = number_like(b, a, 1, x);
      tpu_val inside = tpu_and(b, tpu_compare(b, TPU_GE, x, tpu_neg(b, l)), tpu_compare(b, TPU_LE, x, l));
      return select_c(b, inside, 0, x);
    }
    case ACT_SOFTSHRINK: {
      tpu_val l = number_like(b, a, 1, x);
      tpu_val low = tpu_select(b, tpu_compare(b, TPU_LT, x, tpu_neg(b, l)), tpu_add(b, x, l),
                               tpu_select(b, tpu_is_nan(b, x), x, zero_like(b, x)));
      return tpu_select(b, tpu_compare(b, TPU_GT, x, l), tpu_sub(b, x, l), low);
    }
    default: return tpu_fail(b, TPU_INTERNAL, "no activation %d", a->row->rule);
  }
}

static bool takes_integers(int activation) {
  return activation == ACT_RELU || activation == ACT_HARDTANH || activation == ACT_THRESHOLD;
}

void lower_activation(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_dtype dtype = tpu_dtype_of(b, arg_tensor(b, a, 0));
  int activation = a->row->rule;
  if (dtype == TPU_BOOL && activation == ACT_RELU) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Boolean inputs not supported for relu");
    return;
  }
  bool complex_too = activation == ACT_SILU;
  if (!(takes_integers(activation) && tpu_is_integral(dtype)) && !need_float(b, a, dtype, complex_too)) return;
  o->out[0].val = tpu_convert(b, apply(b, a, arg_math(b, a, 0, dtype)), dtype);
}

/* --- gradients: (grad_output, self) or (grad_output, result) */
static tpu_val gelu_slope(tpu_build *b, tpu_val x, bool with_tanh) {
  if (!with_tanh) {
    tpu_val cdf = mul_c(b, add_c(b, tpu_unary(b, TPU_HLO_CHLO_ERF, mul_c(b, x, SQRT_HALF)), 1), 0.5);
    tpu_val pdf = mul_c(b, tpu_exp(b, mul_c(b, square(b, x), -0.5)), TWO_OVER_SQRT_PI * SQRT_HALF * 0.5);
    return tpu_add(b, cdf, tpu_mul(b, x, pdf));
  }
  tpu_val t = gelu_inner(b, x);
  tpu_val inner = add_c(b, mul_c(b, square(b, x), 3 * GELU_CUBIC * SQRT_2_OVER_PI), SQRT_2_OVER_PI);
  tpu_val right = tpu_mul(b, tpu_mul(b, mul_c(b, x, 0.5), c_sub(b, 1, square(b, t))), inner);
  return tpu_add(b, mul_c(b, add_c(b, t, 1), 0.5), right);
}

static tpu_val between(tpu_build *b, tpu_val x, tpu_val lo, tpu_val hi) { /* strictly */
  return tpu_and(b, tpu_compare(b, TPU_GT, x, lo), tpu_compare(b, TPU_LT, x, hi));
}

static tpu_val conjugate(tpu_build *b, tpu_val x) {
  if (!tpu_is_complex(tpu_dtype_of(b, x))) return x;
  return tpu_complex(b, tpu_unary(b, TPU_HLO_REAL, x), tpu_neg(b, tpu_unary(b, TPU_HLO_IMAG, x)));
}

static tpu_val gradient(tpu_build *b, const tpu_args *a, tpu_val g, tpu_val x) {
  switch (a->row->rule) {
    case ACT_GELU: return tpu_mul(b, g, gelu_slope(b, x, gelu_is_tanh(b, a, 2)));
    case ACT_SILU: {
      tpu_val s = sigmoid(b, x);
      tpu_val slope = tpu_mul(b, s, add_c(b, tpu_mul(b, x, c_sub(b, 1, s)), 1));
      return tpu_mul(b, g, conjugate(b, slope));
    }
    case ACT_MISH: {
      tpu_val t = tpu_unary(b, TPU_HLO_TANH, softplus(b, x));
      return tpu_mul(b, g, tpu_add(b, t, tpu_mul(b, tpu_mul(b, x, sigmoid(b, x)), c_sub(b, 1, square(b, t)))));
    }
    case ACT_SIGMOID: {
      tpu_val y = conjugate(b, x);
      return tpu_mul(b, g, tpu_mul(b, c_sub(b, 1, y), y));
    }
    case ACT_TANH: return tpu_mul(b, g, c_sub(b, 1, square(b, conjugate(b, x))));
    case ACT_HARDTANH: return select_else_c(b, between(b, x, number_like(b, a, 2, x), number_like(b, a, 3, x)), g, 0);
    case ACT_HARDSWISH: {
      tpu_val middle = tpu_mul(b, g, add_c(b, div_c(b, x, 3), 0.5));
      tpu_val high = tpu_select(b, compare_c(b, TPU_LT, x, 3), middle, g);
      return select_c(b, compare_c(b, TPU_LE, x, -3), 0, high);
    }
    case ACT_HARDSIGMOID:
      return select_else_c(b, between(b, x, tpu_full_like(b, x, -3), tpu_full_like(b, x, 3)), div_c(b, g, 6), 0);
    case ACT_LEAKY_RELU: return tpu_select(b, compare_c(b, TPU_GT, x, 0), g, tpu_mul(b, g, number_like(b, a, 2, x)));
    case ACT_SOFTPLUS: {
      tpu_val z = tpu_mul(b, x, number_like(b, a, 2, x));
      tpu_val straight = tpu_compare(b, TPU_GT, z, number_like(b, a, 3, x));
      return tpu_select(b, straight, g, tpu_mul(b, g, sigmoid(b, z)));
    }
    case ACT_THRESHOLD: return select_c(b, tpu_compare(b, TPU_LE, x, number_like(b, a, 2, x)), 0, g);
    case ACT_HARDSHRINK:
    case ACT_SOFTSHRINK: {
      tpu_val l = number_like(b, a, 2, x);
      tpu_val inside = tpu_and(b, tpu_compare(b, TPU_GE, x, tpu_neg(b, l)), tpu_compare(b, TPU_LE, x, l));
      return select_c(b, inside, 0, g);
    }
    case ACT_LOG_SIGMOID: return tpu_mul(b, g, sigmoid(b, tpu_neg(b, x)));
    default: return tpu_fail(b, TPU_INTERNAL, "no gradient %d", a->row->rule);
  }
}

void lower_activation_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  tpu_dtype dtype = math_operands(b, a, 2, xs);
  bool whole = a->row->rule == ACT_THRESHOLD || a->row->rule == ACT_HARDTANH;
  if (!(whole && tpu_is_integral(dtype)) && !need_float(b, a, dtype, true)) return;
  o->out[0].val = tpu_convert(b, gradient(b, a, xs[0], xs[1]), dtype);
}

/* elu_backward(grad_output, alpha, scale, input_scale, is_result, self_or_result) */
void lower_elu_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2] = {arg_tensor(b, a, 0), arg_tensor(b, a, 5)};
  tpu_dtype dtype = tpu_dtype_of(b, xs[0]);
  if (!need_float(b, a, dtype, false)) return;
  for (int i = 0; i < 2; i++) xs[i] = tpu_convert(b, xs[i], tpu_dtype_opmath(dtype));
  broadcast_all(b, 2, xs);
  tpu_val g = xs[0], x = xs[1];
  tpu_val alpha = number_like(b, a, 1, x), scale = number_like(b, a, 2, x), input_scale = number_like(b, a, 3, x);
  tpu_val coefficient = tpu_mul(b, alpha, scale), low;
  if (arg_bool(b, a, 4))
    low = tpu_mul(b, tpu_mul(b, g, input_scale), tpu_add(b, x, coefficient));
  else
    low = tpu_mul(b, tpu_mul(b, g, tpu_mul(b, input_scale, coefficient)), tpu_exp(b, tpu_mul(b, x, input_scale)));
  o->out[0].val = tpu_convert(b, tpu_select(b, compare_c(b, TPU_LE, x, 0), low, tpu_mul(b, g, scale)), dtype);
}

/* (output, buffer); like on CUDA the buffer is empty: the gradient needs only self. */
void lower_log_sigmoid(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x;
  tpu_dtype dtype = math_operands(b, a, 1, &x);
  if (!need_float(b, a, dtype, false)) return;
  static const int64_t none = 0, one = 1;
  o->out[0].val = tpu_convert(b, tpu_neg(b, softplus(b, tpu_neg(b, x))), dtype);
  o->out[1].val = tpu_full(b, dtype, 1, &none, 0);
  o->out[1].strides = &one;
}

/* --- gated linear unit: self [.., 2 n, ..] -> first half * sigmoid(second half) */
static void halve(tpu_build *b, tpu_val x, int dim, tpu_val out[2]) {
  out[0] = out[1] = TPU_POISON;
  if (tpu_build_failed(b)) return;
  if (tpu_rank_of(b, x) == 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "glu does not support 0-dimensional tensors");
    return;
  }
  int64_t size = tpu_dim_of(b, x, dim);
  if (size % 2 != 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Halving dimension must be even, but dimension %d is size %" PRId64, dim, size);
    return;
  }
  out[0] = tpu_slice_dim(b, x, dim, 0, size / 2, 1);
  out[1] = tpu_slice_dim(b, x, dim, size / 2, size, 1);
}

static tpu_val glu_operand(tpu_build *b, const tpu_args *a, int i, tpu_dtype *out_dtype) {
  *out_dtype = tpu_dtype_of(b, arg_tensor(b, a, i));
  return arg_math(b, a, i, *out_dtype);
}

void lower_glu(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_dtype dtype;
  tpu_val x = glu_operand(b, a, 0, &dtype), half[2];
  halve(b, x, arg_dim(b, a, 1, tpu_rank_of(b, x)), half);
  if (!need_float(b, a, dtype, false)) return;
  o->out[0].val = tpu_convert(b, tpu_mul(b, half[0], sigmoid(b, half[1])), dtype);
}

void lower_glu_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_dtype dtype, other;
  tpu_val g = glu_operand(b, a, 0, &other), x = glu_operand(b, a, 1, &dtype), half[2];
  int dim = arg_dim(b, a, 2, tpu_rank_of(b, x));
  halve(b, x, dim, half);
  tpu_val s = sigmoid(b, half[1]), first = tpu_mul(b, g, s);
  tpu_val both[2] = {first, tpu_mul(b, tpu_mul(b, first, c_sub(b, 1, s)), half[0])};
  o->out[0].val = tpu_convert(b, tpu_concat(b, 2, both, dim), dtype);
}

/* --- parametric relu: self, weight broadcastable to it */
void lower_prelu(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  tpu_dtype dtype = math_operands(b, a, 2, xs);
  o->out[0].val = tpu_convert(b, tpu_select(b, compare_c(b, TPU_GT, xs[0], 0), xs[0], tpu_mul(b, xs[1], xs[0])), dtype);
}

/* (grad_output, self, weight) -> gradients of self and weight, both of self's size */
void lower_prelu_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[3];
  tpu_dtype dtype = math_operands(b, a, 3, xs);
  tpu_val up = compare_c(b, TPU_GT, xs[1], 0);
  o->out[0].val = tpu_convert(b, tpu_select(b, up, xs[0], tpu_mul(b, xs[2], xs[0])), dtype);
  o->out[1].val = tpu_convert(b, select_c(b, up, 0, tpu_mul(b, xs[1], xs[0])), dtype);
}

/* rrelu_with_noise_backward(grad_output, self, noise, lower, upper, training, self_is_result) */
void lower_rrelu_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[3];
  tpu_dtype dtype = math_operands(b, a, 3, xs);
  if (arg_bool(b, a, 5)) {
    o->out[0].val = tpu_convert(b, tpu_mul(b, xs[0], xs[2]), dtype);
    return;
  }
  tpu_val slope = mul_c(b, tpu_add(b, number_like(b, a, 3, xs[1]), number_like(b, a, 4, xs[1])), 0.5);
  o->out[0].val = tpu_convert(b, tpu_select(b, compare_c(b, TPU_GT, xs[1], 0), xs[0], tpu_mul(b, xs[0], slope)), dtype);
}

tpu_status check_softshrink(const double *v, tpu_dtype dtype) {
  if (!tpu_is_float(dtype)) return NULL; /* the lowering refuses it */
  double most = dtype == TPU_F16 ? 65504 : dtype == TPU_BF16 ? 0x1.fep127 : dtype == TPU_F32 ? 0x1.fffffep127 : DBL_MAX;
  if (v[1] >= 0 && v[1] <= most) return NULL;
  return tpu_error(TPU_INVALID_ARGUMENT, "lambda must be in range [0, %g] for input dtype %s, but found %g", most,
                   tpu_dtype_scalar_name(dtype), v[1]);
}
