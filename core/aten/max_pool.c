/* Max pooling with indices (flat in the input's plane). Of equal values the first in row-major order wins, of NaN the last.
 * Source: aten/src/ATen/native/cpu/MaxPoolKernel.cpp, DilatedMaxPool3d.cpp, AdaptiveMaxPooling2d.cpp. */
#include <inttypes.h>
#include <string.h>

#include "aten/banded.h"
#include "aten/nn.h"
#include "aten/pool.h"

typedef struct best {
  tpu_val value, index;
} best;

/* Where `seen` beats what is best so far. forced: a predicate that takes it in any case, or poison. */
static best keep_better(tpu_build *b, best so_far, best seen, tpu_val forced) {
  tpu_val take = tpu_compare(b, TPU_GT, seen.value, so_far.value);
  if (tpu_is_float(tpu_dtype_of(b, seen.value))) take = tpu_or(b, take, tpu_is_nan(b, seen.value));
  if (forced.id) take = tpu_or(b, take, forced);
  return (best){tpu_select(b, take, seen.value, so_far.value), tpu_select(b, take, seen.index, so_far.index)};
}

/* Along dim d of the result: the first tap that is not in the padding, [dims]. */
static tpu_val first_inside(tpu_build *b, const pool *p, int d, tpu_dtype dtype, const int64_t *dims) {
  tpu_val at = tpu_iota(b, dtype, p->rank, dims, p->first + d);
  at = tpu_mul(b, at, tpu_full_i(b, dtype, p->rank, dims, -p->stride[d]));
  at = tpu_add(b, at, tpu_full_i(b, dtype, p->rank, dims, p->padding[d] + p->dilation[d] - 1));
  at = tpu_max(b, at, tpu_full_i(b, dtype, p->rank, dims, 0));
  return p->dilation[d] == 1 ? at : tpu_div(b, at, tpu_full_i(b, dtype, p->rank, dims, p->dilation[d]));
}

/* All taps in one pass; index: relative to the window's first tap until the end. */
static best scan_taps(tpu_build *b, const pool *p, tpu_val x) {
  int64_t dims[TPU_MAX_RANK], position[POOL_MAX_SPATIAL], pitch = 1;
  memcpy(dims, tpu_dims_of(b, x), sizeof *dims * (size_t)p->rank);
  for (int d = 0; d < p->spatial; d++) dims[p->first + d] = p->out[d];
  tpu_dtype index_dtype = pool_index_dtype(p);
  tpu_val lowest = tpu_lowest(b, tpu_dtype_of(b, x));
  best so_far = {tpu_broadcast_to(b, lowest, p->rank, dims), tpu_full_i(b, index_dtype, p->rank, dims, 0)};
  for (int d = p->spatial - 1; d >= 0; d--) {
    if (p->padding[d]) {
      tpu_val step = tpu_full_i(b, index_dtype, p->rank, dims, p->dilation[d] * pitch);
      so_far.index = tpu_add(b, so_far.index, tpu_mul(b, first_inside(b, p, d, index_dtype, dims), step));
    }
    pitch *= p->in[d];
  }
  x = pool_pad(b, p, x, lowest);
  int64_t taps = pool_taps(p);
  for (int64_t k = 0; k < taps && !tpu_build_failed(b); k++) {
    pool_tap_position(p, k, position);
    tpu_val offset = tpu_full_i(b, index_dtype, p->rank, dims, pool_tap_offset(p, position));
    so_far = keep_better(b, so_far, (best){pool_seen(b, p, x, position, 0, p->spatial), offset}, TPU_POISON);
  }
  so_far.index = tpu_add(b, so_far.index, pool_window_index(b, p, index_dtype, dims));
  return so_far;
}

/* Flat plane index of each element of a plane that begins `origin` before the input's, [dims]. */
static tpu_val plane_index(tpu_build *b, const pool *p, const int64_t *dims, const int64_t *origin) {
  tpu_dtype dtype = pool_index_dtype(p);
  tpu_val sum = tpu_full_i(b, dtype, p->rank, dims, 0);
  int64_t pitch = 1;
  for (int d = p->spatial - 1; d >= 0; d--) {
    tpu_val at = tpu_sub(b, tpu_iota(b, dtype, p->rank, dims, p->first + d), tpu_full_i(b, dtype, p->rank, dims, origin[d]));
    sum = tpu_add(b, sum, tpu_mul(b, at, tpu_full_i(b, dtype, p->rank, dims, pitch)));
    pitch *= p->in[d];
  }
  return sum;
}

static void separate(tpu_build *b, best *x) {
  const tpu_val both[2] = {x->value, x->index};
  tpu_val apart[2];
  tpu_barrier(b, 2, both, apart);
  *x = (best){apart[0], apart[1]};
}

/* One dim after another, from the last: as many comparisons as the kernel's sides add up to. */
static best scan_dims(tpu_build *b, const pool *p, tpu_val x) {
  best so_far = {pool_pad(b, p, x, tpu_lowest(b, tpu_dtype_of(b, x))), TPU_POISON};
  so_far.index = plane_index(b, p, tpu_dims_of(b, so_far.value), p->padding);
  for (int d = p->spatial - 1; d >= 0 && !tpu_build_failed(b); d--) {
    best from = so_far;
    int64_t position[POOL_MAX_SPATIAL] = {0};
    tpu_val first = TPU_POISON;
    for (int64_t k = 0; k < p->kernel[d]; k++) {
      position[d] = k;
      best seen = {pool_seen(b, p, from.value, position, d, d + 1), pool_seen(b, p, from.index, position, d, d + 1)};
      if (k == 0) {
        so_far = seen;
        if (p->padding[d]) first = first_inside(b, p, d, TPU_I32, tpu_dims_of(b, seen.value));
        continue;
      }
      tpu_val forced = TPU_POISON;
      if (k <= (p->padding[d] + p->dilation[d] - 1) / p->dilation[d] && first.id)
        forced = tpu_compare(b, TPU_EQ, first, tpu_full_i(b, TPU_I32, p->rank, tpu_dims_of(b, first), k));
      so_far = keep_better(b, so_far, seen, forced);
    }
    if (d) separate(b, &so_far);
  }
  return so_far;
}

static void set_results(tpu_build *b, const pool *p, best y, const tpu_operand *x, tpu_outs *o) {
  o->out[0].val = pool_from_order(b, p, y.value);
  o->out[1].val = pool_from_order(b, p, tpu_convert(b, y.index, TPU_I64));
  for (int i = 0; i < 2; i++) out_channels_last(b, &o->out[i], x);
}

enum { MAX_TAPS_AT_ONCE = 25 };

/* (self, kernel_size, stride, padding, dilation, ceil_mode); the row's rule is the number of spatial dims. */
void lower_max_pool(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *x = arg_operand(b, a, 0);
  pool p;
  if (!pool_input(b, x, a->row->rule, &p)) return;
  if (!pool_window(b, a, 1, 4, 5, p.spatial == 2 ? "max_pool2d" : "max_pool3d", &p)) return;
  if (x->dtype == TPU_BOOL || tpu_is_complex(x->dtype)) {
    fail_not_implemented(b, a, x->dtype);
    return;
  }
  tpu_val v = pool_to_order(b, &p, x->val);
  set_results(b, &p, pool_taps(&p) <= MAX_TAPS_AT_ONCE ? scan_taps(b, &p, v) : scan_dims(b, &p, v), x, o);
}

/* Each window's gradient to the place of its maximum, by scattering: what XLA's CPU backend does best (6 ms; 29 for the sum
 * below, 163 for select_and_scatter). */
static void scatter_gradient(tpu_build *b, tpu_val g, tpu_val indices, const tpu_operand *x, int spatial, tpu_outs *o) {
  tpu_val into = tpu_convert(b, g, tpu_dtype_opmath(x->dtype));
  into = pool_scatter(b, TPU_MONOID_ADD, into, indices, spatial, x->sizes + (x->rank - spatial));
  o->out[0].val = tpu_convert(b, into, x->dtype);
  out_channels_last(b, &o->out[0], x);
}

/* The same as a sum over taps, each gradient placed where its tap reads: no scatter, for targets where that is slow. */
static tpu_val sum_of_taps(tpu_build *b, const pool *p, tpu_val g, tpu_val indices) {
  tpu_dtype index_dtype = pool_index_dtype(p);
  g = pool_to_order(b, p, g);
  indices = tpu_convert(b, pool_to_order(b, p, indices), index_dtype);
  tpu_val offset = tpu_sub(b, indices, pool_window_index(b, p, index_dtype, tpu_dims_of(b, g)));
  tpu_val zero = tpu_full_like(b, g, 0), sum = TPU_POISON;
  int64_t taps = pool_taps(p), position[POOL_MAX_SPATIAL];
  for (int64_t k = 0; k < taps && !tpu_build_failed(b); k++) {
    int64_t lo[TPU_MAX_RANK] = {0}, hi[TPU_MAX_RANK] = {0}, interior[TPU_MAX_RANK] = {0};
    pool_tap_position(p, k, position);
    for (int d = 0; d < p->spatial; d++) {
      int64_t start = position[d] * p->dilation[d] - p->padding[d], span = (p->out[d] - 1) * p->stride[d] + 1;
      lo[p->first + d] = start;
      hi[p->first + d] = p->in[d] - start - span;
      interior[p->first + d] = p->stride[d] - 1;
    }
    tpu_val chosen =
        tpu_compare(b, TPU_EQ, offset, tpu_full_i(b, index_dtype, p->rank, tpu_dims_of(b, offset), pool_tap_offset(p, position)));
    tpu_val placed = tpu_pad(b, tpu_select(b, chosen, g, zero), tpu_scalar(b, tpu_dtype_of(b, g), 0), lo, hi, interior);
    sum = k ? tpu_add(b, sum, placed) : placed;
  }
  return pool_from_order(b, p, sum);
}

/* (grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices) */
void lower_max_pool_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *x = arg_operand(b, a, 1);
  tpu_val g = arg_tensor(b, a, 0), indices = arg_tensor(b, a, 7);
  pool p;
  if (!pool_input(b, x, a->row->rule, &p)) return;
  if (!pool_window(b, a, 2, 5, 6, p.spatial == 2 ? "max_pool2d" : "max_pool3d", &p)) return;
  if (!pool_check_gradient(b, &p, g) || !pool_check_gradient(b, &p, indices)) return;
  if (b->target->platform == TPU_TARGET_CPU || pool_taps(&p) > MAX_TAPS_AT_ONCE || tpu_numel_of(b, g) == 0) {
    scatter_gradient(b, g, indices, x, p.spatial, o);
    return;
  }
  tpu_val gx = sum_of_taps(b, &p, tpu_convert(b, g, tpu_dtype_opmath(x->dtype)), indices);
  o->out[0].val = tpu_convert(b, gx, x->dtype);
  out_channels_last(b, &o->out[0], x);
}

/* --- adaptive: window o of a dim is [o * in / out, ceil((o + 1) * in / out)) */
static bool adaptive_input(tpu_build *b, const tpu_args *a, const tpu_operand *x, int spatial, const char *name, pool *p) {
  int n;
  const int64_t *size = arg_ints(a, 1, &n);
  if (!x) return false;
  if (n != spatial) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s(): internal error: output_size.size() must be %d", name, spatial);
    return false;
  }
  if (x->rank != spatial + 1 && x->rank != spatial + 2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s(): Expected %dD or %dD tensor, but got: %s", name, spatial + 1, spatial + 2,
             dims_text(b, x->rank, x->sizes));
    return false;
  }
  for (int d = x->rank - spatial - 1; d < x->rank; d++) {
    if (x->sizes[d] > 0) continue;
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "%s(): Expected input to have non-zero size for non-batch dimensions, but input has sizes %s with dimension "
             "%d being empty",
             name, dims_text(b, x->rank, x->sizes), d);
    return false;
  }
  if (!pool_input(b, x, spatial, p)) return false;
  for (int d = 0; d < spatial; d++) {
    p->out[d] = size[d];
    if (size[d] < 0) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "Trying to create tensor with negative dimension %" PRId64, size[d]);
      return false;
    }
  }
  return true;
}

static best adaptive_scan(tpu_build *b, const pool *p, tpu_val x) {
  static const int64_t origin[POOL_MAX_SPATIAL] = {0};
  best so_far = {x, plane_index(b, p, tpu_dims_of(b, x), origin)};
  for (int d = p->spatial - 1; d >= 0 && !tpu_build_failed(b); d--) {
    int64_t in = p->in[d], out = p->out[d], most = in / (out ? out : 1) + 2;
    int64_t *at = tpu_build_alloc(b, sizeof *at * (size_t)(out ? out : 1));
    if (!at) break;
    best from = so_far;
    for (int64_t k = 0; k < most; k++) {
      for (int64_t o = 0; o < out; o++) { /* past its end a window's last element comes again, and changes nothing */
        int64_t end = ((o + 1) * in + out - 1) / out, index = o * in / out + k;
        at[o] = index < end ? index : end - 1;
      }
      best seen = {take_dim(b, from.value, p->first + d, out, at), take_dim(b, from.index, p->first + d, out, at)};
      so_far = k ? keep_better(b, so_far, seen, TPU_POISON) : seen;
    }
    if (d) separate(b, &so_far);
  }
  return so_far;
}

void lower_adaptive_max_pool(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *x = arg_operand(b, a, 0);
  pool p;
  int spatial = a->row->rule;
  if (!adaptive_input(b, a, x, spatial, spatial == 2 ? "adaptive_max_pool2d" : "adaptive_max_pool3d", &p)) return;
  if (!tpu_is_float(x->dtype)) {
    fail_not_implemented(b, a, x->dtype);
    return;
  }
  bool regular = true;
  for (int d = 0; d < spatial; d++) regular = regular && p.out[d] && p.in[d] % p.out[d] == 0;
  tpu_val v = pool_to_order(b, &p, x->val);
  if (!regular) {
    set_results(b, &p, adaptive_scan(b, &p, v), x, o);
    return;
  }
  for (int d = 0; d < spatial; d++) p.kernel[d] = p.stride[d] = p.in[d] / p.out[d];
  set_results(b, &p, pool_taps(&p) <= MAX_TAPS_AT_ONCE ? scan_taps(b, &p, v) : scan_dims(b, &p, v), x, o);
}

/* (grad_output, self, indices) */
void lower_adaptive_max_pool_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *x = arg_operand(b, a, 1);
  if (x) scatter_gradient(b, arg_tensor(b, a, 0), arg_tensor(b, a, 2), x, a->row->rule, o);
}

/* (self, indices, output_size[, stride, padding]) */
void lower_max_unpool(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *x = arg_operand(b, a, 0), *at = arg_operand(b, a, 1);
  int spatial = a->row->rule, n;
  const int64_t *size = arg_ints(a, 2, &n);
  if (!x || !at) return;
  if (at->dtype != TPU_I64) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "elements in indices should be type int64 but got: %s", tpu_dtype_scalar_name(at->dtype));
    return;
  }
  if (n != spatial) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "There should be exactly %s elements in output_size, but got %d elements.",
             spatial == 2 ? "two (height, width)" : "three (depth, height, width)", n);
    return;
  }
  if (x->rank != spatial + 1 && x->rank != spatial + 2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Input to max_unpooling%dd should be a %dd or %dd Tensor, but got a tensor with %d dimensions.", spatial,
             spatial + 1, spatial + 2, x->rank);
    return;
  }
  if (at->rank != x->rank || memcmp(at->sizes, x->sizes, sizeof *x->sizes * (size_t)x->rank) != 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Expected shape of indices to be same as that of the input tensor (%s) but got indices tensor with shape: %s",
             dims_text(b, x->rank, x->sizes), dims_text(b, at->rank, at->sizes));
    return;
  }
  o->out[0].val = pool_scatter(b, TPU_MONOID_ASSIGN, x->val, at->val, spatial, size);
}
