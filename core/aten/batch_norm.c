/* Batch norm and its pieces for synchronised batch norm. x is [N, C, *]; half types are computed in float32. Source:
 * aten/src/ATen/native/Normalization.cpp. */
#include <inttypes.h>
#include <string.h>

#include "aten/nn.h"
#include "aten/reduce.h"

typedef struct batch {
  tpu_val x; /* in the opmath type */
  tpu_dtype dtype, math;
  int rank, n_axes;
  int64_t axes[TPU_MAX_RANK]; /* all but the channels */
  const int64_t *dims;
  int64_t channels, count; /* count: elements a channel */
} batch;

static batch read_batch(tpu_build *b, const tpu_args *a, int i) {
  tpu_val x = arg_tensor(b, a, i);
  batch r = {.dtype = tpu_dtype_of(b, x), .rank = tpu_rank_of(b, x), .dims = tpu_dims_of(b, x), .channels = 0};
  r.math = tpu_dtype_opmath(r.dtype);
  if (tpu_build_failed(b)) return r;
  if (r.rank < 2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected input to have at least 2 dimensions, but got %d", r.rank);
    return r;
  }
  if (!tpu_is_float(r.dtype)) fail_not_implemented(b, a, r.dtype);
  r.x = tpu_convert(b, x, r.math);
  r.channels = r.dims[1];
  r.count = 1;
  for (int d = 0; d < r.rank; d++) {
    if (d == 1) continue;
    r.axes[r.n_axes++] = d;
    r.count *= r.dims[d];
  }
  return r;
}

/* Optional [C] argument in the opmath type; poison if absent. Its size is checked in at::batch_norm's words. */
static tpu_val optional_channel(tpu_build *b, const tpu_args *a, int i, const batch *r, const char *name) {
  if (i < 0 || !arg_present(a, i)) return TPU_POISON;
  tpu_val v = arg_tensor(b, a, i);
  if (tpu_build_failed(b)) return TPU_POISON;
  if (tpu_numel_of(b, v) != r->channels)
    return tpu_fail(b, TPU_INVALID_ARGUMENT, "%s should contain %" PRId64 " elements not %" PRId64, name, r->channels,
                    tpu_numel_of(b, v));
  return tpu_convert(b, v, r->math);
}

static tpu_val spread(tpu_build *b, const batch *r, tpu_val v) { return spread_dim(b, v, r->rank, r->dims, 1); }

static tpu_val channel_mean(tpu_build *b, const batch *r, tpu_val x) {
  return binary_c(b, TPU_HLO_DIVIDE, sum_over(b, x, r->n_axes, r->axes), (double)r->count);
}

static tpu_val inverse_std(tpu_build *b, tpu_val var, tpu_val eps) {
  return tpu_unary(b, TPU_HLO_RSQRT, tpu_add(b, var, tpu_broadcast_like(b, eps, var)));
}

typedef struct moments {
  tpu_val mean, var;
} moments;

static moments batch_moments(tpu_build *b, const batch *r) {
  moments m = {.mean = channel_mean(b, r, r->x)};
  tpu_val d = tpu_sub(b, r->x, spread(b, r, m.mean));
  m.var = channel_mean(b, r, tpu_mul(b, d, d));
  return m;
}

static tpu_val normalize(tpu_build *b, const batch *r, tpu_val mean, tpu_val invstd, tpu_val weight, tpu_val bias) {
  tpu_val scale = weight.id ? tpu_mul(b, invstd, weight) : invstd;
  tpu_val y = tpu_mul(b, tpu_sub(b, r->x, spread(b, r, mean)), spread(b, r, scale));
  if (bias.id) y = tpu_add(b, y, spread(b, r, bias));
  return tpu_convert(b, y, r->dtype);
}

/* running + momentum * (value - running), in running's dtype */
static tpu_val update(tpu_build *b, tpu_val running, tpu_val value, tpu_val momentum) {
  tpu_dtype dtype = tpu_dtype_of(b, running), math = tpu_dtype_of(b, value);
  tpu_val old = tpu_convert(b, running, math);
  tpu_val m = tpu_broadcast_like(b, momentum, old);
  tpu_val keep = tpu_sub(b, tpu_full_like(b, m, 1), m);
  return tpu_convert(b, tpu_add(b, tpu_mul(b, m, value), tpu_mul(b, keep, old)), dtype);
}

/* Where the arguments of an overload stand; -1: it has none. */
typedef struct positions {
  int running_mean, running_var, training, momentum, eps;
} positions;

/* Results: y, save_mean, save_invstd. With `functional`, the running statistics after the step are the last two, and a reserve of
 * no bytes is result 3 if there are six. */
static void batch_norm(tpu_build *b, const tpu_args *a, tpu_outs *o, positions p, bool training, bool functional) {
  batch r = read_batch(b, a, 0);
  if (tpu_build_failed(b)) return;
  tpu_val weight = optional_channel(b, a, 1, &r, "weight"), bias = optional_channel(b, a, 2, &r, "bias");
  tpu_val running_mean = optional_channel(b, a, p.running_mean, &r, "running_mean");
  tpu_val running_var = optional_channel(b, a, p.running_var, &r, "running_var");
  if (tpu_build_failed(b)) return;
  tpu_val eps = arg_number(b, a, p.eps, r.math), mean, invstd;
  tpu_val new_mean = p.running_mean < 0 || !arg_present(a, p.running_mean) ? TPU_POISON : arg_tensor(b, a, p.running_mean);
  tpu_val new_var = p.running_var < 0 || !arg_present(a, p.running_var) ? TPU_POISON : arg_tensor(b, a, p.running_var);
  if (training && r.count == 0) { /* nothing to learn from */
    const int64_t dims = r.channels;
    mean = tpu_full(b, r.math, 1, &dims, 0);
    invstd = mean;
  } else if (training) {
    moments m = batch_moments(b, &r);
    mean = m.mean;
    invstd = inverse_std(b, m.var, eps);
    if (functional) {
      tpu_val momentum = arg_number(b, a, p.momentum, r.math);
      double unbiased = (double)r.count / (double)(r.count - 1); /* inf for one element, as PyTorch's */
      if (new_mean.id) new_mean = update(b, new_mean, mean, momentum);
      if (new_var.id) new_var = update(b, new_var, binary_c(b, TPU_HLO_MULTIPLY, m.var, unbiased), momentum);
    }
  } else {
    if (!running_mean.id || !running_var.id) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "running_mean and running_var must be defined in evaluation mode");
      return;
    }
    mean = running_mean;
    invstd = inverse_std(b, running_var, eps);
  }
  o->out[0].val = normalize(b, &r, mean, invstd, weight, bias);
  o->out[1].val = mean;
  o->out[2].val = invstd;
  if (o->n == 4 || o->n == 6) o->out[3].val = empty_result(b, TPU_U8);
  if (!functional) return;
  tpu_out *last = &o->out[o->n - 2];
  last[0].val = new_mean;
  last[0].undefined = !new_mean.id;
  last[1].val = new_var;
  last[1].undefined = !new_var.id;
}

/* (input, weight, bias, running_mean, running_var, training, momentum, eps) */
void lower_batch_norm(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  batch_norm(b, a, o, (positions){3, 4, 5, 6, 7}, arg_bool(b, a, 5), false);
}
void lower_batch_norm_functional(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  batch_norm(b, a, o, (positions){3, 4, 5, 6, 7}, arg_bool(b, a, 5), true);
}
void lower_batch_norm_no_stats(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  batch_norm(b, a, o, (positions){-1, -1, 3, 4, 5}, arg_bool(b, a, 3), false);
}
void lower_batch_norm_no_training(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  batch_norm(b, a, o, (positions){3, 4, -1, 5, 6}, false, false);
}
void lower_batch_norm_with_update(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  batch_norm(b, a, o, (positions){3, 4, -1, 5, 6}, true, true);
}

static void channel_gradient(tpu_build *b, tpu_val sum, tpu_dtype dtype, bool wanted, tpu_out *out) {
  out->undefined = !wanted;
  if (wanted) out->val = tpu_convert(b, sum, dtype);
}

/* (grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask[, reserve]) */
void lower_batch_norm_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  batch r = read_batch(b, a, 1);
  int n_mask;
  const int64_t *mask = arg_ints(a, 9, &n_mask);
  if (tpu_build_failed(b) || n_mask != 3) return;
  bool train = arg_bool(b, a, 7);
  tpu_val g = tpu_convert(b, arg_tensor(b, a, 0), r.math), weight = optional_channel(b, a, 2, &r, "weight");
  tpu_val mean = optional_channel(b, a, train ? 5 : 3, &r, train ? "save_mean" : "running_mean"), invstd;
  if (train)
    invstd = optional_channel(b, a, 6, &r, "save_invstd");
  else
    invstd = inverse_std(b, optional_channel(b, a, 4, &r, "running_var"), arg_number(b, a, 8, r.math));
  if (tpu_build_failed(b)) return;
  if (!mean.id || !invstd.id) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "batch_norm_backward needs the statistics of its forward");
    return;
  }
  tpu_dtype affine = arg_present(a, 2) ? tpu_dtype_of(b, arg_tensor(b, a, 2)) : r.dtype;
  tpu_val d = tpu_sub(b, r.x, spread(b, &r, mean));
  tpu_val sum = sum_over(b, g, r.n_axes, r.axes), dot = sum_over(b, tpu_mul(b, g, d), r.n_axes, r.axes);
  o->out[0].undefined = !mask[0];
  if (mask[0]) {
    tpu_val gx = g;
    if (train && r.count) {
      double scale = 1.0 / (double)r.count;
      tpu_val k = tpu_mul(b, binary_c(b, TPU_HLO_MULTIPLY, dot, scale), tpu_mul(b, invstd, invstd));
      gx = tpu_sub(b, g, spread(b, &r, binary_c(b, TPU_HLO_MULTIPLY, sum, scale)));
      gx = tpu_sub(b, gx, tpu_mul(b, d, spread(b, &r, k)));
    }
    gx = tpu_mul(b, gx, spread(b, &r, weight.id ? tpu_mul(b, invstd, weight) : invstd));
    o->out[0].val = tpu_convert(b, gx, r.dtype);
    out_channels_last(b, &o->out[0], arg_operand(b, a, 1));
  }
  channel_gradient(b, tpu_mul(b, dot, invstd), affine, mask[1], &o->out[1]);
  channel_gradient(b, sum, affine, mask[2], &o->out[2]);
}

/* --- pieces that synchronised batch norm calls between its collectives */
void lower_batch_norm_stats(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  batch r = read_batch(b, a, 0);
  if (tpu_build_failed(b)) return;
  moments m = batch_moments(b, &r);
  o->out[0].val = m.mean;
  o->out[1].val = inverse_std(b, m.var, arg_number(b, a, 1, r.math));
}

/* (input, weight, bias, mean, invstd, eps) */
void lower_batch_norm_elemt(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  batch r = read_batch(b, a, 0);
  if (tpu_build_failed(b)) return;
  tpu_val weight = optional_channel(b, a, 1, &r, "weight"), bias = optional_channel(b, a, 2, &r, "bias");
  tpu_val mean = optional_channel(b, a, 3, &r, "mean"), invstd = optional_channel(b, a, 4, &r, "invstd");
  o->out[0].val = normalize(b, &r, mean, invstd, weight, bias);
}

/* (grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g) -> sum_dy, sum_dy_xmu, grad_weight, grad_bias */
void lower_batch_norm_backward_reduce(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  batch r = read_batch(b, a, 1);
  if (tpu_build_failed(b)) return;
  tpu_val g = tpu_convert(b, arg_tensor(b, a, 0), r.math);
  tpu_val mean = optional_channel(b, a, 2, &r, "mean"), invstd = optional_channel(b, a, 3, &r, "invstd");
  tpu_dtype affine = arg_present(a, 4) ? tpu_dtype_of(b, arg_tensor(b, a, 4)) : r.math;
  tpu_val d = tpu_sub(b, r.x, spread(b, &r, mean));
  tpu_val sum = sum_over(b, g, r.n_axes, r.axes), dot = sum_over(b, tpu_mul(b, g, d), r.n_axes, r.axes);
  channel_gradient(b, sum, r.math, arg_bool(b, a, 5), &o->out[0]);
  channel_gradient(b, dot, r.math, arg_bool(b, a, 5), &o->out[1]);
  channel_gradient(b, tpu_mul(b, dot, invstd), affine, arg_bool(b, a, 6), &o->out[2]);
  channel_gradient(b, sum, affine, arg_bool(b, a, 7), &o->out[3]);
}

/* (grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count): the sums are over all replicas, as are the counts [R]. */
void lower_batch_norm_backward_elemt(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  batch r = read_batch(b, a, 1);
  if (tpu_build_failed(b)) return;
  tpu_val g = tpu_convert(b, arg_tensor(b, a, 0), r.math);
  tpu_val mean = optional_channel(b, a, 2, &r, "mean"), invstd = optional_channel(b, a, 3, &r, "invstd");
  tpu_val weight = optional_channel(b, a, 4, &r, "weight");
  tpu_val sum = optional_channel(b, a, 5, &r, "sum_dy"), dot = optional_channel(b, a, 6, &r, "sum_dy_xmu");
  tpu_val count = tpu_convert(b, arg_tensor(b, a, 7), r.math);
  count = tpu_broadcast_to(b, reduce_all(b, TPU_MONOID_ADD, count), 1, &r.channels);
  tpu_val k = tpu_mul(b, tpu_div(b, dot, count), tpu_mul(b, invstd, invstd));
  tpu_val gx = tpu_sub(b, g, spread(b, &r, tpu_div(b, sum, count)));
  gx = tpu_sub(b, gx, tpu_mul(b, tpu_sub(b, r.x, spread(b, &r, mean)), spread(b, &r, k)));
  gx = tpu_mul(b, gx, spread(b, &r, weight.id ? tpu_mul(b, invstd, weight) : invstd));
  o->out[0].val = tpu_convert(b, gx, r.dtype);
  out_channels_last(b, &o->out[0], arg_operand(b, a, 1));
}
