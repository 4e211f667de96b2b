/* Rows: random numbers. Source: aten/src/ATen/core/TransformationHelper.h, native/Distributions.cpp, native/Dropout.cpp. */
#include <inttypes.h>
#include <math.h>

#include "aten/elementwise.h"

#define TWO_PI 6.28318530717958647693

static tpu_dtype unit_type(tpu_dtype dtype) { return dtype == TPU_F64 ? TPU_F64 : TPU_F32; }

/* Uniform in [0, 1) of dims, in F32 or F64. */
static tpu_val unit(tpu_build *b, const tpu_args *a, tpu_outs *o, tpu_dtype math, int rank, const int64_t *dims) {
  return random_unit(b, a, o, math, rank, dims);
}

/* Standard normal by Box and Muller: each pair of draws gives two. math: F32 or F64. */
static tpu_val normal(tpu_build *b, const tpu_args *a, tpu_outs *o, tpu_dtype math, int rank, const int64_t *dims) {
  int64_t n = 1;
  for (int d = 0; d < rank; d++) n *= dims[d];
  int64_t half = n / 2 + n % 2, pair[2] = {2, half};
  tpu_val u = unit(b, a, o, math, 2, pair);
  tpu_val first = tpu_reshape(b, tpu_slice_dim(b, u, 0, 0, 1, 1), 1, &half);
  tpu_val second = tpu_reshape(b, tpu_slice_dim(b, u, 0, 1, 2, 1), 1, &half);
  tpu_val radius = tpu_unary(b, TPU_HLO_SQRT, mul_c(b, tpu_unary(b, TPU_HLO_LOG1P, tpu_neg(b, first)), -2));
  tpu_val angle = mul_c(b, second, TWO_PI);
  tpu_val both[2] = {tpu_mul(b, radius, tpu_unary(b, TPU_HLO_COSINE, angle)),
                     tpu_mul(b, radius, tpu_unary(b, TPU_HLO_SINE, angle))};
  tpu_val z = tpu_concat(b, 2, both, 0);
  return tpu_reshape(b, tpu_slice_dim(b, z, 0, 0, n, 1), rank, dims);
}

typedef struct target {
  tpu_dtype dtype, math;
  int rank;
  const int64_t *dims;
} target;

static bool target_of(tpu_build *b, const tpu_args *a, target *t) {
  const tpu_operand *self = arg_operand(b, a, 0);
  if (!self) return false;
  *t = (target){self->dtype, unit_type(self->dtype), self->rank, self->sizes};
  return true;
}

static bool continuous(tpu_build *b, const target *t, const char *name, bool upper) {
  if (tpu_is_float(t->dtype)) return true;
  tpu_fail(b, TPU_INVALID_ARGUMENT,
           "%s distribution is a continuous probability distribution. dtype must be a floating point but you specified %s", name,
           upper ? tpu_dtype_scalar_name(t->dtype) : tpu_dtype_c_name(t->dtype));
  return false;
}

void lower_uniform(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  target t;
  if (!target_of(b, a, &t) || !need_float(b, a, t.dtype, false)) return;
  tpu_val u = tpu_convert(b, random_unit(b, a, o, t.dtype, t.rank, t.dims), t.math);
  tpu_val from = number_like(b, a, 1, u), to = number_like(b, a, 2, u);
  o->out[0].val = tpu_convert(b, tpu_add(b, tpu_mul(b, u, tpu_sub(b, to, from)), from), t.dtype);
}

/* normal_functional(self, mean, std), log_normal (rule 1). */
void lower_normal(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  target t;
  if (!target_of(b, a, &t)) return;
  if (tpu_is_complex(t.dtype) && !a->row->rule) { /* parts of variance 1/2 each */
    tpu_dtype part = tpu_dtype_real(t.dtype);
    tpu_val z[2];
    for (int i = 0; i < 2; i++) {
      z[i] = mul_c(b, normal(b, a, o, part, t.rank, t.dims), 0.707106781186547524401);
      z[i] = tpu_mul(b, z[i], number_like(b, a, 2, z[i]));
    }
    o->out[0].val = tpu_complex(b, tpu_add(b, z[0], number_like(b, a, 1, z[0])), z[1]);
    return;
  }
  if (!need_float(b, a, t.dtype, false)) return;
  tpu_val z = normal(b, a, o, t.math, t.rank, t.dims);
  z = tpu_add(b, tpu_mul(b, z, number_like(b, a, 2, z)), number_like(b, a, 1, z));
  o->out[0].val = tpu_convert(b, a->row->rule ? tpu_exp(b, z) : z, t.dtype);
}

/* normal.Tensor_Tensor and its kin: mean and std are tensors or numbers. */
void lower_normal_of(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_dtype dtype = TPU_DTYPE_NONE;
  for (int i = 0; i < 2 && dtype == TPU_DTYPE_NONE; i++)
    if (!arg_is_number(a, i)) dtype = tpu_dtype_of(b, arg_tensor(b, a, i));
  if (!need_float(b, a, dtype, false)) return;
  tpu_dtype math = unit_type(dtype);
  tpu_val xs[2] = {arg_as(b, a, 0, math), arg_as(b, a, 1, math)};
  broadcast_all(b, 2, xs);
  tpu_val z = normal(b, a, o, math, tpu_rank_of(b, xs[0]), tpu_dims_of(b, xs[0]));
  o->out[0].val = tpu_convert(b, tpu_add(b, tpu_mul(b, z, xs[1]), xs[0]), dtype);
}

/* -log(u) for u in (0, 1]; never 0, so that a quotient by it is finite. */
static tpu_val exponential(tpu_build *b, const tpu_args *a, tpu_outs *o, tpu_dtype math, int rank, const int64_t *dims) {
  tpu_val u = unit(b, a, o, math, rank, dims);
  return max_c(b, tpu_neg(b, tpu_unary(b, TPU_HLO_LOG1P, tpu_neg(b, u))), math == TPU_F64 ? 0x1p-54 : 0x1p-25);
}

void lower_exponential(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  target t;
  if (!target_of(b, a, &t) || !continuous(b, &t, "Exponential", true)) return;
  tpu_val x = exponential(b, a, o, t.math, t.rank, t.dims);
  o->out[0].val = tpu_convert(b, tpu_div(b, x, number_like(b, a, 1, x)), t.dtype);
}

void lower_cauchy(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  target t;
  if (!target_of(b, a, &t) || !continuous(b, &t, "Cauchy", false)) return;
  tpu_val u = add_c(b, unit(b, a, o, t.math, t.rank, t.dims), -0.5);
  tpu_val x = tpu_unary(b, TPU_HLO_TAN, mul_c(b, u, TWO_PI / 2));
  x = tpu_add(b, tpu_mul(b, x, number_like(b, a, 2, x)), number_like(b, a, 1, x));
  o->out[0].val = tpu_convert(b, x, t.dtype);
}

void lower_geometric(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  target t;
  if (!target_of(b, a, &t)) return;
  tpu_val x = tpu_neg(b, exponential(b, a, o, t.math, t.rank, t.dims));
  tpu_val scale = tpu_unary(b, TPU_HLO_LOG1P, tpu_neg(b, number_like(b, a, 1, x)));
  x = max_c(b, tpu_unary(b, TPU_HLO_CEIL, tpu_div(b, x, scale)), 1);
  o->out[0].val = tpu_convert(b, x, t.dtype);
}

/* --- what their parameters must be */
#define NEEDS(condition, ...) \
  (void)dtype;                \
  return (condition) ? NULL : tpu_error(TPU_INVALID_ARGUMENT, __VA_ARGS__)

tpu_status check_bernoulli(const double *v, tpu_dtype dtype) {
  NEEDS(v[1] >= 0 && v[1] <= 1, "bernoulli_ expects p to be in [0, 1], but got p=%g", v[1]);
}
tpu_status check_cauchy(const double *v, tpu_dtype dtype) {
  NEEDS(v[2] > 0, "cauchy_ expects sigma > 0.0, but found sigma=%g", v[2]);
}
tpu_status check_exponential(const double *v, tpu_dtype dtype) {
  NEEDS(v[1] > 0, "exponential_ expects lambda > 0.0, but found lambda=%g", v[1]);
}
tpu_status check_geometric(const double *v, tpu_dtype dtype) {
  NEEDS(v[1] > 0 && v[1] < 1, "geometric_ expects p to be in (0, 1), but got p=%g", v[1]);
}
tpu_status check_log_normal(const double *v, tpu_dtype dtype) {
  NEEDS(v[2] > 0, "log_normal_ expects std > 0.0, but found std=%g", v[2]);
}
tpu_status check_normal(const double *v, tpu_dtype dtype) { return check_normal_std(v + 1, dtype); }
tpu_status check_normal_std(const double *v, tpu_dtype dtype) {
  NEEDS(v[1] >= 0, "normal expects std >= 0.0, but found std %g", v[1]);
}
tpu_status check_uniform(const double *v, tpu_dtype dtype) {
  NEEDS(v[1] <= v[2], "uniform_ expects to return a [from, to) range, but found from=%g > to=%g", v[1], v[2]);
}

/* --- whole numbers */
/* How many values random() draws from: all non-negative ones that dtype holds exactly. 0: 2^64. */
static uint64_t full_range(tpu_dtype dtype) {
  switch (dtype) {
    case TPU_BOOL: return 2;
    case TPU_F16: return (1u << 11) + 1;
    case TPU_BF16: return (1u << 8) + 1;
    case TPU_F32: return (1u << 24) + 1;
    case TPU_F64: return (UINT64_C(1) << 53) + 1;
    case TPU_U64: return 0;
    default: {
      int bits = (int)tpu_dtype_bytes(dtype) * 8 - (tpu_dtype_kind(dtype) == TPU_KIND_INT ? 1 : 0);
      return UINT64_C(1) << bits;
    }
  }
}

const char *random_out_of_bounds(tpu_dtype dtype, int64_t from, int64_t to) {
  double low = -HUGE_VAL, high = HUGE_VAL;
  if (dtype == TPU_F16) low = -65504, high = 65504;
  if (is_whole(dtype)) {
    int bits = dtype == TPU_BOOL ? 1 : (int)tpu_dtype_bytes(dtype) * 8;
    bool has_sign = tpu_dtype_kind(dtype) == TPU_KIND_INT;
    if (bits == 64) return !has_sign && from < 0 ? "from" : NULL;
    high = (double)((INT64_C(1) << (has_sign ? bits - 1 : bits)) - 1);
    low = has_sign ? -high - 1 : 0;
  }
  if ((double)from < low || (double)from > high) return "from";
  return (double)(to - 1) < low || (double)(to - 1) > high ? "to - 1" : NULL;
}

/* from + (bits mod range) as dtype. */
static tpu_val draw_below(tpu_build *b, const tpu_args *a, tpu_outs *o, const target *t, int64_t from, uint64_t range) {
  bool wide = range == 0 || range > (UINT64_C(1) << 32);
  tpu_val bits = wide ? random_u64(b, a, o, t->rank, t->dims) : random_u32(b, a, o, t->rank, t->dims);
  tpu_dtype word = wide ? TPU_U64 : TPU_U32;
  if (range && (range & (range - 1)) == 0) {
    if (range != UINT64_C(1) << 32) bits = tpu_and(b, bits, tpu_full_i(b, word, t->rank, t->dims, (int64_t)(range - 1)));
  } else if (range) {
    bits = tpu_binary(b, TPU_HLO_REMAINDER, bits, tpu_full_i(b, word, t->rank, t->dims, (int64_t)range));
  }
  if (from == 0 && t->dtype != TPU_BOOL) return tpu_convert(b, bits, t->dtype);
  tpu_val x = tpu_convert(b, bits, TPU_I64);
  return tpu_convert(b, tpu_add(b, x, tpu_full_i(b, TPU_I64, t->rank, t->dims, from)), t->dtype);
}

/* random(self); random.to(self, to) (rule 1); random.from(self, from, to) (rule 2). */
void lower_random(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  target t;
  if (!target_of(b, a, &t)) return;
  int64_t from = a->row->rule == 2 ? arg_int(b, a, 1, 0) : 0;
  if (a->row->rule == 0 || !arg_present(a, a->row->rule)) {
    uint64_t range = full_range(t.dtype);
    if (a->row->rule == 2) range = t.dtype == TPU_I64 && from == INT64_MIN ? 0 : range - (uint64_t)from;
    o->out[0].val = draw_below(b, a, o, &t, from, range);
    return;
  }
  int64_t to = arg_int(b, a, a->row->rule, 0);
  if (from >= to) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "random_ expects 'from' to be less than 'to', but got from=%" PRId64 " >= to=%" PRId64,
             from, to);
    return;
  }
  const char *name = random_out_of_bounds(t.dtype, from, to);
  if (name) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s is out of bounds for %s", name, tpu_dtype_c_name(t.dtype));
    return;
  }
  o->out[0].val = draw_below(b, a, o, &t, from, (uint64_t)to - (uint64_t)from);
}

/* tpu::random(Tensor self, Scalar from, Scalar range, bool wide, Generator? generator): random.from with run-time bounds, the
 * same draws. wide: range exceeds 32 bits. */
void lower_random_bounded(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  target t;
  if (!target_of(b, a, &t)) return;
  bool wide = arg_bool(b, a, 3);
  tpu_val bits = wide ? random_u64(b, a, o, t.rank, t.dims) : random_u32(b, a, o, t.rank, t.dims);
  bits = tpu_binary(b, TPU_HLO_REMAINDER, bits, number_like(b, a, 2, bits));
  tpu_val x = tpu_convert(b, bits, TPU_I64);
  o->out[0].val = tpu_convert(b, tpu_add(b, x, number_like(b, a, 1, x)), t.dtype);
}

static tpu_val key_less(tpu_build *b, const tpu_val *params, void *arg) {
  (void)arg;
  return tpu_compare(b, TPU_LT, params[0], params[1]);
}

/* randperm(n), rule: the dtype's index. Sorts indices by random 64-bit keys. */
void lower_randperm(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int64_t n = arg_int(b, a, 0, 0);
  tpu_dtype dtype = arg_dtype(a, a->row->rule, TPU_I64);
  if (n < 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "n must be non-negative, got%" PRId64, n);
    return;
  }
  tpu_val xs[2] = {random_u64(b, a, o, 1, &n), tpu_iota(b, TPU_I32, 1, &n, 0)}, sorted[2] = {xs[0], xs[1]};
  tpu_sort(b, 2, xs, 0, true, key_less, NULL, sorted);
  o->out[0].val = tpu_convert(b, sorted[1], dtype);
}

/* --- Bernoulli and dropout */
/* True with probability p [dims]. */
static tpu_val happens(tpu_build *b, const tpu_args *a, tpu_outs *o, tpu_val p) {
  tpu_val u = unit(b, a, o, tpu_dtype_of(b, p), tpu_rank_of(b, p), tpu_dims_of(b, p));
  return tpu_compare(b, TPU_LT, u, p);
}

/* bernoulli(self): p is self; bernoulli.p, bernoulli.Tensor (rule 1): p is argument 1. */
void lower_bernoulli(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  target t;
  if (!target_of(b, a, &t)) return;
  if (!a->row->rule && !need_float(b, a, t.dtype, false)) return;
  tpu_val p = arg_tensor(b, a, a->row->rule);
  tpu_dtype math = arg_is_number(a, a->row->rule) ? TPU_F32 : unit_type(tpu_dtype_of(b, p));
  p = tpu_broadcast_to(b, arg_as(b, a, a->row->rule, math), t.rank, t.dims);
  o->out[0].val = tpu_convert(b, happens(b, a, o, p), t.dtype);
}

/* (input * mask / (1 - p), mask) */
void lower_dropout(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  target t;
  if (!target_of(b, a, &t)) return;
  tpu_val x = arg_tensor(b, a, 0);
  if (arg_present(a, 2) && !arg_bool(b, a, 2)) {
    o->out[0].val = x;
    o->out[1].val = tpu_full(b, TPU_BOOL, t.rank, t.dims, 1);
    return;
  }
  if (!need_float(b, a, t.dtype, true)) return;
  tpu_val keep = c_sub(b, 1, arg_number(b, a, 1, t.math));
  tpu_val mask = happens(b, a, o, tpu_broadcast_to(b, keep, t.rank, t.dims));
  tpu_dtype math = tpu_dtype_opmath(t.dtype);
  tpu_val scale = select_c(b, compare_c(b, TPU_EQ, keep, 0), 0, c_div(b, 1, keep));
  scale = tpu_broadcast_to(b, tpu_convert(b, scale, math), t.rank, t.dims);
  tpu_val y = tpu_mul(b, tpu_mul(b, tpu_convert(b, x, math), tpu_convert(b, mask, math)), scale);
  o->out[0].val = tpu_convert(b, y, t.dtype);
  o->out[1].val = mask;
}

void lower_dropout_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_dtype dtype = promote_float_default(a, tpu_dtype_of(b, arg_tensor(b, a, 0)));
  tpu_val g = arg_math(b, a, 0, dtype);
  tpu_val mask = tpu_convert(b, arg_tensor(b, a, 1), tpu_dtype_of(b, g));
  tpu_val y = tpu_mul(b, bcast_binary(b, TPU_HLO_MULTIPLY, g, mask), number_like(b, a, 2, g));
  o->out[0].val = tpu_convert(b, y, dtype);
}

/* rrelu_with_noise_functional(self, noise, lower, upper, training) -> (output, noise) */
void lower_rrelu(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  target t;
  if (!target_of(b, a, &t) || !need_float(b, a, t.dtype, false)) return;
  tpu_val x = arg_math(b, a, 0, t.dtype), lower = number_like(b, a, 2, x), upper = number_like(b, a, 3, x);
  tpu_val low = compare_c(b, TPU_LE, x, 0), slope = mul_c(b, tpu_add(b, lower, upper), 0.5);
  o->out[1].val = arg_tensor(b, a, 1);
  if (arg_bool(b, a, 4)) {
    tpu_val u = unit(b, a, o, t.math, t.rank, t.dims);
    slope = tpu_add(b, tpu_mul(b, u, tpu_sub(b, upper, lower)), lower);
    o->out[1].val = tpu_convert(b, select_else_c(b, low, slope, 1), t.dtype);
  }
  o->out[0].val = tpu_convert(b, tpu_select(b, low, tpu_mul(b, x, slope), x), t.dtype);
}

/* --- multinomial(self [m, n] or [n], num_samples, replacement) -> [m, num_samples] indices */
/* Without replacement: the largest of p / Exp(1). */
static tpu_val sample_distinct(tpu_build *b, const tpu_args *a, tpu_outs *o, tpu_val p, int64_t samples) {
  tpu_val race = tpu_div(b, p, exponential(b, a, o, tpu_dtype_of(b, p), tpu_rank_of(b, p), tpu_dims_of(b, p)));
  tpu_val out[2] = {TPU_POISON, TPU_POISON};
  tpu_top_k(b, race, samples, true, out);
  return out[1];
}

/* With replacement: how many sums of the first probabilities lie at or below a uniform draw. */
static tpu_val sample_many(tpu_build *b, const tpu_args *a, tpu_outs *o, tpu_val p, int64_t samples) {
  int rank = tpu_rank_of(b, p), last = rank - 1;
  int64_t n = tpu_dim_of(b, p, last), dims[3], map[2] = {0, 0}, axis = rank;
  tpu_val sums = tpu_cumulative(b, TPU_MONOID_ADD, p, last, false);
  for (int d = 0; d < rank; d++) dims[d] = tpu_dim_of(b, p, d);
  dims[last] = samples;
  dims[rank] = n;
  tpu_val total = tpu_slice_dim(b, sums, last, n - 1, n, 1);
  tpu_val u = unit(b, a, o, tpu_dtype_of(b, p), rank, dims);
  tpu_val at = tpu_mul(b, u, tpu_broadcast_like(b, total, u));
  for (int d = 0; d < last; d++) map[d] = d;
  map[last] = rank;
  tpu_val below = tpu_broadcast_in_dim(b, sums, rank + 1, dims, map);
  map[last] = last;
  tpu_val draws = tpu_broadcast_in_dim(b, at, rank + 1, dims, map);
  tpu_val count = tpu_convert(b, tpu_compare(b, TPU_LE, below, draws), TPU_I32);
  count = tpu_reduce(b, TPU_MONOID_ADD, count, tpu_scalar_i(b, TPU_I32, 0), 1, &axis);
  return min_c(b, count, (double)(n - 1));
}

void lower_multinomial(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  target t;
  if (!target_of(b, a, &t)) return;
  int64_t samples = arg_int(b, a, 1, 1);
  bool replacement = arg_bool(b, a, 2);
  if (t.rank < 1 || t.rank > 2)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "prob_dist must be 1 or 2 dim");
  else if (!tpu_is_float(t.dtype))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "multinomial only supports floating-point dtypes for input, got: %s",
             tpu_dtype_scalar_name(t.dtype));
  else if (samples <= 0)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "cannot sample n_sample <= 0 samples");
  else if (!replacement && samples > t.dims[t.rank - 1])
    tpu_fail(b, TPU_INVALID_ARGUMENT, "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  if (tpu_build_failed(b)) return;
  tpu_val p = tpu_convert(b, arg_tensor(b, a, 0), t.math);
  bool distinct = !replacement || samples == 1;
  tpu_val index = distinct ? sample_distinct(b, a, o, p, samples) : sample_many(b, a, o, p, samples);
  o->out[0].val = tpu_convert(b, index, TPU_I64);
}
