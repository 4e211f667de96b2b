/* Average pooling. Sums are made in the opmath type. Source: aten/src/ATen/native/cpu/AvgPoolKernel.cpp,
 * AdaptiveAveragePooling.cpp. */
#include <inttypes.h>
#include <string.h>

#include "aten/banded.h"
#include "aten/nn.h"
#include "aten/pool.h"

enum { MAX_TAPS_AT_ONCE = 16 };

/* Sums over windows of `kernel` taps, `stride` apart, along dims `from` .. `to` - 1 of x, which is already padded. */
static tpu_val shifted_sum(tpu_build *b, const pool *p, tpu_val x, int from, int to) {
  pool part = *p;
  for (int d = 0; d < p->spatial; d++)
    if (d < from || d >= to) part.kernel[d] = 1;
  int64_t taps = pool_taps(&part), position[POOL_MAX_SPATIAL];
  tpu_val sum = TPU_POISON;
  for (int64_t k = 0; k < taps && !tpu_build_failed(b); k++) {
    pool_tap_position(&part, k, position);
    tpu_val seen = pool_seen(b, p, x, position, from, to);
    sum = k ? tpu_add(b, sum, seen) : seen;
  }
  return sum;
}

static tpu_val window_sum(tpu_build *b, const pool *p, tpu_val x) {
  if (b->target->platform != TPU_TARGET_CPU) {
    int64_t dims[TPU_MAX_RANK], strides[TPU_MAX_RANK];
    for (int d = 0; d < p->rank; d++) dims[d] = strides[d] = 1;
    for (int d = 0; d < p->spatial; d++) dims[p->first + d] = p->kernel[d], strides[p->first + d] = p->stride[d];
    return tpu_reduce_window(b, TPU_MONOID_ADD, x, tpu_scalar(b, tpu_dtype_of(b, x), 0),
                             &(tpu_window){.dims = dims, .strides = strides});
  }
  if (pool_taps(p) <= MAX_TAPS_AT_ONCE) return shifted_sum(b, p, x, 0, p->spatial);
  for (int d = p->spatial - 1; d >= 0; d--) { /* one dim after another, for as many additions as the sides add up to */
    x = shifted_sum(b, p, x, d, d + 1);
    if (d) x = separated(b, x);
  }
  return x;
}

/* Windows that tile the plane exactly: [.., out, kernel, ..] reduced. */
static bool tiles(const pool *p) {
  for (int d = 0; d < p->spatial; d++)
    if (p->padding[d] || p->stride[d] != p->kernel[d] || p->kernel[d] * p->out[d] != p->in[d]) return false;
  return true;
}

static tpu_val tile_sum(tpu_build *b, const pool *p, tpu_val x) {
  int64_t split[TPU_MAX_RANK], whole[TPU_MAX_RANK], axes[TPU_MAX_RANK];
  int n = 0, n_axes = 0;
  for (int d = 0; d < p->rank; d++) {
    int s = d - p->first;
    bool spatial = s >= 0 && s < p->spatial;
    whole[d] = spatial ? p->out[s] : tpu_dim_of(b, x, d);
    if (!spatial || p->out[s] != 1) split[n++] = whole[d];
    if (!spatial) continue;
    axes[n_axes++] = n;
    split[n++] = p->kernel[s];
  }
  return tpu_reshape(b, sum_over(b, tpu_reshape(b, x, n, split), n_axes, axes), p->rank, whole);
}

/* Elements that window o of dim d averages over. */
static int64_t window_count(const pool *p, int d, int64_t o, bool include_pad) {
  int64_t start = o * p->stride[d] - p->padding[d], end = start + p->kernel[d];
  if (include_pad) return (end < p->in[d] + p->padding[d] ? end : p->in[d] + p->padding[d]) - start;
  return (end < p->in[d] ? end : p->in[d]) - (start > 0 ? start : 0);
}

/* x [.., out, ..] divided by each window's number of elements. */
static tpu_val divide_by_counts(tpu_build *b, const pool *p, tpu_val x, bool include_pad, int64_t divisor_override) {
  tpu_dtype dtype = tpu_dtype_of(b, x);
  tpu_val product = TPU_POISON;
  int64_t constant = divisor_override ? divisor_override : 1;
  for (int d = 0; d < p->spatial && !divisor_override; d++) {
    int64_t *counts = tpu_build_alloc(b, sizeof *counts * (size_t)p->out[d]);
    if (!counts) return TPU_POISON;
    bool same = true;
    for (int64_t o = 0; o < p->out[d]; o++) {
      counts[o] = window_count(p, d, o, include_pad);
      same = same && counts[o] == counts[0];
    }
    if (same) {
      constant *= counts[0];
      continue;
    }
    tpu_val along = tpu_convert(b, tpu_dense(b, TPU_I64, 1, &p->out[d], counts), dtype);
    along = spread_dim(b, along, p->rank, tpu_dims_of(b, x), p->first + d);
    product = product.id ? tpu_mul(b, product, along) : along;
  }
  tpu_val rest = tpu_full_i(b, dtype, p->rank, tpu_dims_of(b, x), constant);
  return tpu_div(b, x, product.id ? tpu_mul(b, product, rest) : rest);
}

/* divisor_override in argument i: 0 if there is none. */
static bool read_divisor(tpu_build *b, const tpu_args *a, int i, int64_t *out) {
  *out = arg_int(b, a, i, 0);
  if (arg_present(a, i) && *out == 0) tpu_fail(b, TPU_INVALID_ARGUMENT, "divisor must be not zero");
  return !tpu_build_failed(b);
}

static const char *name_of(int spatial) { return spatial == 2 ? "avg_pool2d" : "avg_pool3d"; }

static bool is_averaged(tpu_build *b, const tpu_args *a, tpu_dtype dtype) {
  if (tpu_is_float(dtype) || dtype == TPU_I64) return true;
  fail_not_implemented(b, a, dtype);
  return false;
}

/* (self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override) */
void lower_avg_pool(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *x = arg_operand(b, a, 0);
  pool p;
  int64_t divisor;
  if (!pool_input(b, x, a->row->rule, &p)) return;
  if (!pool_window(b, a, 1, -1, 4, name_of(p.spatial), &p) || !read_divisor(b, a, 6, &divisor)) return;
  if (!is_averaged(b, a, x->dtype)) return;
  tpu_val v = pool_to_order(b, &p, tpu_convert(b, x->val, tpu_dtype_opmath(x->dtype)));
  if (tiles(&p))
    v = tile_sum(b, &p, v);
  else
    v = window_sum(b, &p, pool_pad(b, &p, v, tpu_scalar(b, tpu_dtype_of(b, v), 0)));
  v = divide_by_counts(b, &p, v, arg_bool(b, a, 5), divisor);
  o->out[0].val = tpu_convert(b, pool_from_order(b, &p, v), x->dtype);
  out_channels_last(b, &o->out[0], x);
}

/* g spread over its window's taps: the transpose of window_sum. */
static tpu_val spread_over_windows(tpu_build *b, const pool *p, tpu_val g) {
  if (tiles(p)) {
    int64_t dims[TPU_MAX_RANK], map[TPU_MAX_RANK], whole[TPU_MAX_RANK];
    int n = 0;
    for (int d = 0; d < p->rank; d++) {
      int s = d - p->first;
      map[d] = n;
      dims[n++] = tpu_dim_of(b, g, d);
      whole[d] = dims[n - 1];
      if (s < 0 || s >= p->spatial) continue;
      dims[n++] = p->kernel[s];
      whole[d] *= p->kernel[s];
    }
    return tpu_reshape(b, tpu_broadcast_in_dim(b, g, n, dims, map), p->rank, whole);
  }
  int64_t lo[TPU_MAX_RANK] = {0}, hi[TPU_MAX_RANK] = {0}, interior[TPU_MAX_RANK] = {0};
  pool back = *p;
  for (int d = 0; d < p->spatial; d++) {
    int64_t span = (p->out[d] - 1) * p->stride[d] + 1;
    lo[p->first + d] = p->kernel[d] - 1 - p->padding[d];
    hi[p->first + d] = p->in[d] + p->padding[d] - span;
    interior[p->first + d] = p->stride[d] - 1;
    back.stride[d] = 1;
    back.padding[d] = 0;
    back.out[d] = p->in[d];
  }
  return window_sum(b, &back, tpu_pad(b, g, tpu_scalar(b, tpu_dtype_of(b, g), 0), lo, hi, interior));
}

/* (grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override) */
void lower_avg_pool_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *x = arg_operand(b, a, 1);
  tpu_val g = arg_tensor(b, a, 0);
  pool p;
  int64_t divisor;
  if (!pool_input(b, x, a->row->rule, &p)) return;
  if (!pool_window(b, a, 2, -1, 5, name_of(p.spatial), &p) || !read_divisor(b, a, 7, &divisor)) return;
  if (!pool_check_gradient(b, &p, g) || !is_averaged(b, a, x->dtype)) return;
  g = pool_to_order(b, &p, tpu_convert(b, g, tpu_dtype_opmath(x->dtype)));
  g = spread_over_windows(b, &p, divide_by_counts(b, &p, g, arg_bool(b, a, 6), divisor));
  o->out[0].val = tpu_convert(b, pool_from_order(b, &p, g), x->dtype);
  out_channels_last(b, &o->out[0], x);
}

/* --- adaptive: window o of a dim is [o * in / out, ceil((o + 1) * in / out)) */
static bool adaptive_map(tpu_build *b, int64_t in, int64_t out, banded *m) {
  int64_t most = 0;
  for (int64_t o = 0; o < out; o++) {
    int64_t count = ((o + 1) * in + out - 1) / out - o * in / out;
    if (count > most) most = count;
  }
  if (!banded_init(b, in, out, most, m)) return false;
  for (int64_t o = 0; o < out; o++) {
    int64_t start = o * in / out, count = ((o + 1) * in + out - 1) / out - start;
    for (int64_t t = 0; t < count; t++) {
      m->index[o * most + t] = start + t;
      m->weight[o * most + t] = 1.0 / (double)count;
    }
  }
  return true;
}

static bool adaptive_pool(tpu_build *b, const tpu_args *a, const tpu_operand *x, int spatial, const int64_t *size, int n,
                          pool *p) {
  const char *name = spatial == 2 ? "adaptive_avg_pool2d" : "adaptive_avg_pool3d";
  if (!x) return false;
  if (n != spatial)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s: output_size must be %d", name, spatial);
  else if (x->rank != spatial + 1 && x->rank != spatial + 2)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s(): Expected %dD or %dD tensor, but got %s", name, spatial + 1, spatial + 2,
             dims_text(b, x->rank, x->sizes));
  for (int d = x->rank - spatial - 1; d < x->rank && d >= 0 && !tpu_build_failed(b); d++)
    if (x->sizes[d] == 0)
      tpu_fail(b, TPU_INVALID_ARGUMENT,
               "%s(): Expected input to have non-zero size for non-batch dimensions, but input has sizes %s with "
               "dimension %d being empty",
               name, dims_text(b, x->rank, x->sizes), d);
  if (tpu_build_failed(b) || !pool_input(b, x, spatial, p)) return false;
  if (!tpu_is_float(x->dtype)) {
    fail_not_implemented(b, a, x->dtype);
    return false;
  }
  for (int d = 0; d < spatial; d++) {
    if (size[d] < 0) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "%s: elements of output_size must be greater than or equal to 0 but received %s", name,
               dims_text(b, n, size));
      return false;
    }
    p->out[d] = size[d];
    if (size[d] && p->in[d] % size[d] == 0) p->kernel[d] = p->stride[d] = p->in[d] / size[d];
  }
  return true;
}

/* (self, output_size) */
void lower_adaptive_avg_pool(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *x = arg_operand(b, a, 0);
  pool p;
  int n;
  const int64_t *size = arg_ints(a, 1, &n);
  if (!adaptive_pool(b, a, x, a->row->rule, size, n, &p)) return;
  tpu_val v = pool_to_order(b, &p, tpu_convert(b, x->val, tpu_dtype_opmath(x->dtype)));
  if (tiles(&p)) {
    v = divide_by_counts(b, &p, tile_sum(b, &p, v), true, 0);
  } else {
    banded maps[POOL_MAX_SPATIAL];
    for (int d = 0; d < p.spatial; d++)
      if (!adaptive_map(b, p.in[d], p.out[d], &maps[d])) return;
    v = banded_apply_each(b, p.spatial, maps, v, p.first);
  }
  o->out[0].val = tpu_convert(b, pool_from_order(b, &p, v), x->dtype);
  out_channels_last(b, &o->out[0], x);
}

/* (grad_output, self) */
void lower_adaptive_avg_pool_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *g = arg_operand(b, a, 0), *x = arg_operand(b, a, 1);
  pool p;
  int spatial = a->row->rule;
  if (!g || !x) return;
  if (g->rank != x->rank) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected a gradient of %d dimensions, but got %d", x->rank, g->rank);
    return;
  }
  if (!adaptive_pool(b, a, x, spatial, g->sizes + (g->rank - spatial), spatial, &p)) return;
  tpu_val v = pool_to_order(b, &p, tpu_convert(b, g->val, tpu_dtype_opmath(x->dtype)));
  if (tiles(&p)) {
    v = spread_over_windows(b, &p, divide_by_counts(b, &p, v, true, 0));
  } else {
    banded maps[POOL_MAX_SPATIAL], forward;
    for (int d = 0; d < spatial; d++)
      if (!adaptive_map(b, p.in[d], p.out[d], &forward) || !banded_transpose(b, &forward, &maps[d])) return;
    v = banded_apply_each(b, spatial, maps, v, p.first);
  }
  o->out[0].val = tpu_convert(b, pool_from_order(b, &p, v), x->dtype);
  out_channels_last(b, &o->out[0], x);
}
