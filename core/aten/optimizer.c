/* Rows: fused optimizers and loss scaling. Source: aten/src/ATen/native/cuda/fused_adam_utils.cuh, FusedSgdKernel.cu,
 * cpu/FusedAdagradKernel.cpp, cuda/AmpKernels.cu. Results keep the strides of what they replace. */
#include "aten/elementwise.h"

/* Results in the order they are returned. */
typedef struct results {
  tpu_outs *o;
  int at;
} results;

static void put(results *r, const tpu_operand *like, tpu_val val) {
  r->o->out[r->at].val = val;
  r->o->out[r->at].strides = like->strides;
  r->at++;
}

static const tpu_operand *item(tpu_build *b, const tpu_args *a, int list, int k) {
  const tpu_operand *o = arg_list_operand(b, a, list, k);
  if (!o && !tpu_build_failed(b)) tpu_fail(b, TPU_INTERNAL, "%s: a tensor of list %d is missing", a->row->aten, list);
  return o;
}

/* A list's element in its opmath type. */
static tpu_val math_item(tpu_build *b, const tpu_args *a, int list, int k, tpu_dtype math) {
  const tpu_operand *o = item(b, a, list, k);
  return o ? tpu_convert(b, o->val, math) : TPU_POISON;
}

static bool same_lengths(tpu_build *b, const tpu_args *a, int n_lists, bool last_may_be_empty) {
  int n = arg_list_size(a, 0);
  for (int i = 1; i < n_lists; i++) {
    int size = arg_list_size(a, i);
    if (size == n || (size == 0 && last_may_be_empty && i == n_lists - 1)) continue;
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Tensor lists must have the same number of tensors, got %d and %d", n, size);
    return false;
  }
  return true;
}

static tpu_val scalar_of(tpu_build *b, const tpu_args *a, int i, tpu_dtype dtype) {
  tpu_val x = arg_as(b, a, i, dtype);
  return tpu_rank_of(b, x) ? tpu_reshape(b, x, 0, NULL) : x;
}

/* 1 - number, exact where the number is near 1: the difference is taken in double. */
static tpu_val one_minus(tpu_build *b, const tpu_args *a, int i, tpu_dtype math) {
  return tpu_convert(b, c_sub(b, 1, arg_number(b, a, i, TPU_F64)), math);
}

/* What every fused step does with its gradient. Arguments: `scale` and `found` are the indices of grad_scale and found_inf. */
typedef struct step {
  tpu_build *b;
  const tpu_args *a;
  tpu_dtype dtype, math;
  tpu_val param, grad; /* in math; grad is unscaled, and negated if maximize */
  tpu_val grad_out;    /* in the gradient's dtype */
  tpu_val skip;        /* i1 scalar; poison: never */
  tpu_val kept;        /* the parameter before the step */
} step;

static bool begin(tpu_build *b, const tpu_args *a, int k, int maximize, int scale, int found, step *s) {
  const tpu_operand *param = item(b, a, 0, k), *grad = item(b, a, 1, k);
  if (!param || !grad) return false;
  *s = (step){.b = b, .a = a, .dtype = param->dtype, .math = tpu_dtype_opmath(param->dtype), .kept = param->val};
  if (!need_float(b, a, s->dtype, false)) return false;
  s->param = tpu_convert(b, param->val, s->math);
  s->grad = tpu_convert(b, grad->val, s->math);
  s->grad_out = grad->val;
  if (arg_present(a, scale)) {
    s->grad = tpu_div(b, s->grad, tpu_broadcast_like(b, scalar_of(b, a, scale, s->math), s->grad));
    s->grad_out = tpu_convert(b, s->grad, grad->dtype);
  }
  if (arg_bool(b, a, maximize)) s->grad = tpu_neg(b, s->grad);
  if (arg_present(a, found)) s->skip = compare_c(b, TPU_EQ, scalar_of(b, a, found, TPU_F32), 1);
  return true;
}

/* The new value rounded to like's dtype, or like's own where the step is skipped. */
static tpu_val settle(const step *s, const tpu_operand *like, tpu_val next) {
  next = tpu_convert(s->b, next, like->dtype);
  return s->skip.id ? tpu_select(s->b, s->skip, like->val, next) : next;
}

static tpu_val times(const step *s, tpu_val x, tpu_val scalar) { return tpu_mul(s->b, x, tpu_broadcast_like(s->b, scalar, x)); }

/* 1 - beta^step through logarithms: the difference of two numbers near 1 would lose most digits in float32. */
static tpu_val bias_correction(const step *s, int beta, tpu_val steps) {
  tpu_build *b = s->b;
  tpu_val log_beta = tpu_unary(b, TPU_HLO_LOG1P, tpu_neg(b, one_minus(b, s->a, beta, s->math)));
  return tpu_neg(b, tpu_unary(b, TPU_HLO_EXPM1, tpu_mul(b, steps, log_beta)));
}

/* _fused_adam(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, lr, beta1, beta2, weight_decay, eps, amsgrad,
 * maximize, grad_scale, found_inf) -> (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs). rule 1: adamw. */
void lower_fused_adam(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  enum { PARAM, GRAD, AVG, SQ, MAX_SQ, STEP, LR, BETA1, BETA2, DECAY, EPS, AMSGRAD, MAXIMIZE, SCALE, FOUND };
  int n = arg_list_size(a, PARAM);
  bool amsgrad = arg_bool(b, a, AMSGRAD);
  if (!same_lengths(b, a, MAX_SQ + 1, true)) return;
  int n_max = arg_list_size(a, MAX_SQ);
  outs_resize(b, o, 4 * n + n_max);
  for (int k = 0; k < n && !tpu_build_failed(b); k++) {
    step s;
    if (!begin(b, a, k, MAXIMIZE, SCALE, FOUND, &s)) return;
    const tpu_operand *avg_old = item(b, a, AVG, k), *sq_old = item(b, a, SQ, k);
    if (!avg_old || !sq_old) return;
    tpu_val lr = scalar_of(b, a, LR, s.math), decay = arg_number(b, a, DECAY, s.math);
    if (a->row->rule)
      s.param = tpu_sub(b, s.param, times(&s, s.param, tpu_mul(b, lr, decay)));
    else
      s.grad = tpu_add(b, s.grad, times(&s, s.param, decay));
    tpu_val avg = tpu_convert(b, avg_old->val, s.math), sq = tpu_convert(b, sq_old->val, s.math);
    avg = tpu_add(b, avg, times(&s, tpu_sub(b, s.grad, avg), one_minus(b, a, BETA1, s.math)));
    sq = tpu_add(b, times(&s, sq, arg_number(b, a, BETA2, s.math)), times(&s, square(b, s.grad), one_minus(b, a, BETA2, s.math)));
    tpu_val steps = math_item(b, a, STEP, k, s.math);
    if (tpu_rank_of(b, steps)) steps = tpu_reshape(b, steps, 0, NULL);
    tpu_val rate = tpu_div(b, lr, bias_correction(&s, BETA1, steps));
    tpu_val root = tpu_unary(b, TPU_HLO_SQRT, bias_correction(&s, BETA2, steps));
    tpu_val spread = sq, max_sq = TPU_POISON;
    if (amsgrad) spread = max_sq = tpu_max(b, math_item(b, a, MAX_SQ, k, s.math), sq);
    tpu_val denominator = tpu_div(b, tpu_unary(b, TPU_HLO_SQRT, spread), tpu_broadcast_like(b, root, spread));
    denominator = tpu_add(b, denominator, number_like(b, a, EPS, denominator));
    s.param = tpu_sub(b, s.param, tpu_div(b, times(&s, avg, rate), denominator));
    results r = {o, k};
    put(&r, item(b, a, PARAM, k), settle(&s, item(b, a, PARAM, k), s.param));
    r.at = n + k;
    put(&r, item(b, a, GRAD, k), s.grad_out);
    r.at = 2 * n + k;
    put(&r, avg_old, settle(&s, avg_old, avg));
    r.at = 3 * n + k;
    put(&r, sq_old, settle(&s, sq_old, sq));
    if (n_max) {
      const tpu_operand *max_old = item(b, a, MAX_SQ, k);
      r.at = 4 * n + k;
      put(&r, max_old, amsgrad ? settle(&s, max_old, max_sq) : max_old->val);
    }
  }
}

/* _fused_sgd(params, grads, momentum_buffers, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step,
 * grad_scale, found_inf) -> (params, grads, momentum_buffers) */
void lower_fused_sgd(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  enum { PARAM, GRAD, BUFFER, DECAY, MOMENTUM, LR, DAMPENING, NESTEROV, MAXIMIZE, FIRST, SCALE, FOUND };
  int n = arg_list_size(a, PARAM), n_buffers = arg_list_size(a, BUFFER);
  if (!same_lengths(b, a, BUFFER + 1, true)) return;
  outs_resize(b, o, 2 * n + n_buffers);
  for (int k = 0; k < n && !tpu_build_failed(b); k++) {
    step s;
    if (!begin(b, a, k, MAXIMIZE, SCALE, FOUND, &s)) return;
    s.grad = tpu_add(b, s.grad, times(&s, s.param, arg_number(b, a, DECAY, s.math)));
    results r = {o, 2 * n + k};
    if (n_buffers) {
      const tpu_operand *old = item(b, a, BUFFER, k);
      if (!old) return;
      tpu_val momentum = arg_number(b, a, MOMENTUM, s.math), buffer = s.grad;
      if (!arg_bool(b, a, FIRST))
        buffer = tpu_add(b, times(&s, tpu_convert(b, old->val, s.math), momentum),
                         times(&s, s.grad, c_sub(b, 1, arg_number(b, a, DAMPENING, s.math))));
      put(&r, old, settle(&s, old, buffer));
      s.grad = arg_bool(b, a, NESTEROV) ? tpu_add(b, s.grad, times(&s, buffer, momentum)) : buffer;
    }
    s.param = tpu_sub(b, s.param, times(&s, s.grad, scalar_of(b, a, LR, s.math)));
    r.at = k;
    put(&r, item(b, a, PARAM, k), settle(&s, item(b, a, PARAM, k), s.param));
    r.at = n + k;
    put(&r, item(b, a, GRAD, k), s.grad_out);
  }
}

/* _fused_adagrad(params, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps, maximize, grad_scale, found_inf) ->
 * (params, grads, state_sums[, state_steps]) */
void lower_fused_adagrad(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  enum { PARAM, GRAD, SUM, STEP, LR, LR_DECAY, DECAY, EPS, MAXIMIZE, SCALE, FOUND };
  int n = arg_list_size(a, PARAM);
  if (!same_lengths(b, a, STEP + 1, false)) return;
  outs_resize(b, o, a->n_returns * n);
  for (int k = 0; k < n && !tpu_build_failed(b); k++) {
    step s;
    if (!begin(b, a, k, MAXIMIZE, SCALE, FOUND, &s)) return;
    const tpu_operand *sum_old = item(b, a, SUM, k), *step_old = item(b, a, STEP, k);
    if (!sum_old || !step_old) return;
    s.grad = tpu_add(b, s.grad, times(&s, s.param, arg_number(b, a, DECAY, s.math)));
    tpu_val steps = tpu_convert(b, step_old->val, s.math);
    if (tpu_rank_of(b, steps)) steps = tpu_reshape(b, steps, 0, NULL);
    tpu_val slowdown = add_c(b, tpu_mul(b, add_c(b, steps, -1), arg_number(b, a, LR_DECAY, s.math)), 1);
    tpu_val rate = tpu_div(b, scalar_of(b, a, LR, s.math), slowdown);
    tpu_val sum = tpu_add(b, tpu_convert(b, sum_old->val, s.math), square(b, s.grad));
    tpu_val root = tpu_unary(b, TPU_HLO_SQRT, sum);
    root = tpu_add(b, root, number_like(b, a, EPS, root));
    s.param = tpu_sub(b, s.param, tpu_div(b, times(&s, s.grad, rate), root));
    results r = {o, k};
    put(&r, item(b, a, PARAM, k), settle(&s, item(b, a, PARAM, k), s.param));
    r.at = n + k;
    put(&r, item(b, a, GRAD, k), s.grad_out);
    r.at = 2 * n + k;
    put(&r, sum_old, settle(&s, sum_old, sum));
    if (a->n_returns < 4) continue;
    r.at = 3 * n + k;
    put(&r, step_old, step_old->val);
  }
}

/* (grads * inv_scale, found_inf: 1 if any gradient is infinite or NaN) */
void lower_amp_unscale(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int n = arg_list_size(a, 0);
  const tpu_operand *found_old = arg_operand(b, a, 1), *inverse = arg_operand(b, a, 2);
  if (!found_old || !inverse) return;
  tpu_val found = compare_c(b, TPU_NE, found_old->val, 0);
  outs_resize(b, o, n + 1);
  for (int k = 0; k < n && !tpu_build_failed(b); k++) {
    const tpu_operand *grad = item(b, a, 0, k);
    if (!grad || !need_float(b, a, grad->dtype, false)) return;
    tpu_val x = tpu_convert(b, grad->val, tpu_dtype_opmath(grad->dtype));
    tpu_val bad = tpu_not(b, tpu_unary(b, TPU_HLO_IS_FINITE, x));
    int64_t axes[TPU_MAX_RANK];
    for (int d = 0; d < grad->rank; d++) axes[d] = d;
    if (grad->rank) bad = tpu_reduce(b, TPU_MONOID_OR, bad, tpu_scalar_i(b, TPU_BOOL, 0), grad->rank, axes);
    found = tpu_or(b, found, tpu_broadcast_like(b, bad, found));
    tpu_val scale = scalar_of(b, a, 2, tpu_dtype_of(b, x));
    results r = {o, k};
    put(&r, grad, tpu_convert(b, tpu_mul(b, x, tpu_broadcast_like(b, scale, x)), grad->dtype));
  }
  results r = {o, n};
  if (o->n > n) put(&r, found_old, tpu_convert(b, found, found_old->dtype));
}

/* _amp_update_scale(scale, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval) -> (scale, growth_tracker)
 */
void lower_amp_update(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *scale = arg_operand(b, a, 0), *tracker = arg_operand(b, a, 1), *found_inf = arg_operand(b, a, 2);
  if (!scale || !tracker || !found_inf) return;
  tpu_val found = compare_c(b, TPU_NE, found_inf->val, 0);
  found = tpu_broadcast_like(b, found, scale->val);
  tpu_val successes = add_c(b, tracker->val, 1);
  tpu_val due = compare_c(b, TPU_EQ, successes, (double)arg_int(b, a, 5, 1));
  tpu_val grown = tpu_mul(b, scale->val, number_like(b, a, 3, scale->val));
  grown = tpu_select(b, tpu_unary(b, TPU_HLO_IS_FINITE, grown), grown, scale->val);
  tpu_val shrunk = tpu_mul(b, scale->val, number_like(b, a, 4, scale->val));
  tpu_val kept = tpu_select(b, tpu_broadcast_like(b, due, scale->val), grown, scale->val);
  o->out[0].val = tpu_select(b, found, shrunk, kept);
  tpu_val lost = tpu_broadcast_like(b, found, tracker->val);
  o->out[1].val = select_c(b, tpu_or(b, lost, due), 0, successes);
}
