#include "aten/conv.h"

#include <string.h>

#include "aten/nn.h"

static bool on_cpu(const tpu_build *b) { return b->target->platform == TPU_TARGET_CPU; }

/* XLA's CPU backend computes half types in float32 anyway, and only float32 takes its fast path. */
tpu_val conv_operand(tpu_build *b, tpu_val x) { return on_cpu(b) ? tpu_convert(b, x, tpu_dtype_opmath(tpu_dtype_of(b, x))) : x; }

int64_t conv_size(const conv *c, int d, int64_t x_size, int64_t kernel_size) {
  int64_t span = c->dilation[d] * (kernel_size - 1) + 1, room = x_size + 2 * c->padding[d] - span;
  return room < 0 ? 0 : room / c->stride[d] + 1;
}

/* Which logical dim plays which role; spatial dims are always 2 and up. */
typedef struct roles {
  int x_batch, x_feature, w_in, w_out, y_batch, y_feature;
} roles;

typedef struct window {
  int64_t stride[CONV_MAX_SPATIAL], lo[CONV_MAX_SPATIAL], hi[CONV_MAX_SPATIAL], x_dilation[CONV_MAX_SPATIAL],
      w_dilation[CONV_MAX_SPATIAL];
  int64_t feature_groups, batch_groups;
} window;

/* perm such that transpose gives [first, spatial.., last]. */
static void spatial_inside(int spatial, int first, int last, int64_t *out_perm) {
  out_perm[0] = first;
  for (int d = 0; d < spatial; d++) out_perm[1 + d] = 2 + d;
  out_perm[1 + spatial] = last;
}

static tpu_val convolve(tpu_build *b, const conv *c, tpu_val x, tpu_val w, const window *win, roles r) {
  tpu_dtype dtype = tpu_dtype_of(b, x), math = tpu_dtype_opmath(dtype);
  tpu_conv_dims dims = {.spatial = c->spatial,
                        .strides = win->stride,
                        .pad_lo = win->lo,
                        .pad_hi = win->hi,
                        .lhs_dilation = win->x_dilation,
                        .rhs_dilation = win->w_dilation,
                        .feature_groups = win->feature_groups,
                        .batch_groups = win->batch_groups};
  int64_t from1[CONV_MAX_SPATIAL], from2[CONV_MAX_SPATIAL], from0[CONV_MAX_SPATIAL];
  for (int d = 0; d < c->spatial; d++) from0[d] = d, from1[d] = 1 + d, from2[d] = 2 + d;
  tpu_dtype out_dtype = math == dtype ? TPU_DTYPE_NONE : math;
  if (!on_cpu(b)) { /* layouts are the compiler's business */
    dims.lhs_batch = r.x_batch, dims.lhs_feature = r.x_feature;
    dims.rhs_in = r.w_in, dims.rhs_out = r.w_out;
    dims.out_batch = r.y_batch, dims.out_feature = r.y_feature;
    dims.lhs_spatial = dims.rhs_spatial = dims.out_spatial = from2;
    return tpu_convolution(b, x, w, &dims, out_dtype);
  }
  /* The order its fast path wants; where memory is channels_last the transposes fold away. */
  int64_t perm[TPU_MAX_RANK], kernel_perm[TPU_MAX_RANK], back[TPU_MAX_RANK];
  spatial_inside(c->spatial, r.x_batch, r.x_feature, perm);
  for (int d = 0; d < c->spatial; d++) kernel_perm[d] = 2 + d;
  kernel_perm[c->spatial] = r.w_in;
  kernel_perm[c->spatial + 1] = r.w_out;
  dims.lhs_batch = dims.out_batch = 0;
  dims.lhs_feature = dims.out_feature = 1 + c->spatial;
  dims.rhs_in = c->spatial, dims.rhs_out = c->spatial + 1;
  dims.lhs_spatial = dims.out_spatial = from1;
  dims.rhs_spatial = from0;
  tpu_val y = tpu_convolution(b, tpu_transpose(b, x, perm), tpu_transpose(b, w, kernel_perm), &dims, out_dtype);
  back[r.y_batch] = 0;
  back[r.y_feature] = 1 + c->spatial;
  for (int d = 0; d < c->spatial; d++) back[2 + d] = 1 + d;
  return tpu_transpose(b, y, back);
}

static bool is_empty(tpu_build *b, tpu_val x, tpu_val y) {
  return tpu_build_failed(b) || tpu_numel_of(b, x) == 0 || tpu_numel_of(b, y) == 0;
}

static tpu_val zeros(tpu_build *b, tpu_val like, int rank, const int64_t *dims) {
  return tpu_full(b, tpu_dtype_opmath(tpu_dtype_of(b, like)), rank, dims, 0);
}

tpu_val conv_forward(tpu_build *b, const conv *c, tpu_val x, tpu_val w) {
  if (tpu_build_failed(b)) return TPU_POISON;
  const int64_t *w_dims = tpu_dims_of(b, w);
  if (is_empty(b, x, w)) {
    int64_t dims[TPU_MAX_RANK] = {tpu_dim_of(b, x, 0), w_dims[0]};
    for (int d = 0; d < c->spatial; d++) dims[2 + d] = conv_size(c, d, tpu_dim_of(b, x, 2 + d), w_dims[2 + d]);
    return zeros(b, x, 2 + c->spatial, dims);
  }
  if (conv_is_pointwise(b, c, w_dims)) return conv_pointwise(b, c, x, w);
  if (conv_is_depthwise(b, c, w_dims)) return conv_depthwise(b, c, x, w);
  window win = {.feature_groups = c->groups, .batch_groups = 1};
  for (int d = 0; d < c->spatial; d++) {
    win.stride[d] = c->stride[d];
    win.lo[d] = win.hi[d] = c->padding[d];
    win.x_dilation[d] = 1;
    win.w_dilation[d] = c->dilation[d];
  }
  return convolve(b, c, x, w, &win, (roles){0, 1, 1, 0, 0, 1});
}

/* [G * O', C', *] -> [O', G * C', *]: the kernel of the transposed convolution, its out dim being 1. */
static tpu_val swap_groups(tpu_build *b, tpu_val w, int64_t groups) {
  if (groups == 1) return w;
  int rank = tpu_rank_of(b, w);
  int64_t dims[TPU_MAX_RANK + 1], perm[TPU_MAX_RANK + 1];
  const int64_t *from = tpu_dims_of(b, w);
  dims[0] = groups, dims[1] = from[0] / groups;
  for (int d = 1; d < rank; d++) dims[1 + d] = from[d];
  for (int d = 0; d <= rank; d++) perm[d] = d;
  perm[0] = 1, perm[1] = 0;
  w = tpu_transpose(b, tpu_reshape(b, w, rank + 1, dims), perm);
  dims[0] = dims[1], dims[1] = groups * dims[2];
  for (int d = 2; d < rank; d++) dims[d] = dims[d + 1];
  return tpu_reshape(b, w, rank, dims);
}

tpu_val conv_input_gradient(tpu_build *b, const conv *c, tpu_val gy, tpu_val w, const int64_t *x_dims) {
  if (is_empty(b, gy, w)) return tpu_build_failed(b) ? TPU_POISON : zeros(b, gy, 2 + c->spatial, x_dims);
  const int64_t *w_dims = tpu_dims_of(b, w), *y_dims = tpu_dims_of(b, gy);
  if (conv_is_pointwise(b, c, w_dims)) return conv_pointwise_input_gradient(b, c, gy, w, x_dims);
  if (conv_is_depthwise(b, c, w_dims)) return conv_depthwise_input_gradient(b, c, gy, w, x_dims);
  window win = {.feature_groups = c->groups, .batch_groups = 1};
  int64_t spatial_dims[CONV_MAX_SPATIAL];
  for (int d = 0; d < c->spatial; d++) {
    int64_t span = c->dilation[d] * (w_dims[2 + d] - 1) + 1, spread = c->stride[d] * (y_dims[2 + d] - 1) + 1;
    win.stride[d] = 1;
    win.lo[d] = span - 1 - c->padding[d];
    win.hi[d] = x_dims[2 + d] + span - 1 - spread - win.lo[d];
    win.x_dilation[d] = c->stride[d];
    win.w_dilation[d] = c->dilation[d];
    spatial_dims[d] = 2 + d;
  }
  w = tpu_reverse(b, swap_groups(b, w, c->groups), c->spatial, spatial_dims);
  return convolve(b, c, gy, w, &win, (roles){0, 1, 0, 1, 0, 1});
}

static tpu_val dense_weight_gradient(tpu_build *b, const conv *c, tpu_val x, tpu_val gy, const int64_t *w_dims, int64_t groups) {
  const int64_t *x_dims = tpu_dims_of(b, x), *y_dims = tpu_dims_of(b, gy);
  window win = {.feature_groups = 1, .batch_groups = groups};
  for (int d = 0; d < c->spatial; d++) {
    int64_t span = c->dilation[d] * (w_dims[2 + d] - 1) + 1, spread = c->stride[d] * (y_dims[2 + d] - 1) + 1;
    win.stride[d] = c->dilation[d];
    win.lo[d] = c->padding[d];
    win.hi[d] = spread - x_dims[2 + d] + span - 1 - c->padding[d];
    win.x_dilation[d] = 1;
    win.w_dilation[d] = c->stride[d];
  }
  return convolve(b, c, x, gy, &win, (roles){1, 0, 0, 1, 1, 0});
}

enum { MAX_PARTS = 8, MAX_BLOCKS = 64 };

static int64_t parts_of(int64_t groups) {
  int64_t n = groups < MAX_PARTS ? groups : MAX_PARTS;
  while (groups % n) n--;
  return n;
}

/* w [p * O', p * I', *] -> its p blocks on the diagonal, [p * O', I', *]. */
static tpu_val diagonal_blocks(tpu_build *b, tpu_val w, int64_t p, const int64_t *w_dims) {
  int64_t out = tpu_dim_of(b, w, 0) / p, in = w_dims[1];
  tpu_val blocks[MAX_BLOCKS];
  for (int64_t i = 0; i < p; i++) {
    tpu_val rows = tpu_slice_dim(b, w, 0, i * out, (i + 1) * out, 1);
    blocks[i] = tpu_slice_dim(b, rows, 1, i * in, (i + 1) * in, 1);
  }
  return tpu_concat(b, (int)p, blocks, 0);
}

/* XLA's CPU backend runs batch_group_count as a plain loop, 100 times slower than a convolution for each part of the groups.
 * Groups of one part are convolved as if they were one, and the blocks that pair different groups dropped: more products, but no
 * more convolutions to compile than MAX_PARTS. */
static tpu_val weight_gradient_by_parts(tpu_build *b, const conv *c, tpu_val x, tpu_val gy, const int64_t *w_dims) {
  int64_t n = parts_of(c->groups);
  int64_t p = c->groups / n, in = w_dims[1] * p, out = w_dims[0] / n;
  tpu_val parts[MAX_PARTS];
  for (int64_t i = 0; i < n; i++) {
    tpu_val xs = tpu_slice_dim(b, x, 1, i * in, (i + 1) * in, 1);
    tpu_val ys = tpu_slice_dim(b, gy, 1, i * out, (i + 1) * out, 1);
    parts[i] = dense_weight_gradient(b, c, xs, ys, w_dims, 1);
    if (p > 1) parts[i] = diagonal_blocks(b, parts[i], p, w_dims);
  }
  return tpu_concat(b, (int)n, parts, 0);
}

tpu_val conv_weight_gradient(tpu_build *b, const conv *c, tpu_val x, tpu_val gy, const int64_t *w_dims) {
  int64_t numel = 1;
  for (int d = 0; d < 2 + c->spatial; d++) numel *= w_dims[d];
  if (is_empty(b, x, gy) || numel == 0) return tpu_build_failed(b) ? TPU_POISON : zeros(b, x, 2 + c->spatial, w_dims);
  if (conv_is_pointwise(b, c, w_dims)) return conv_pointwise_weight_gradient(b, c, x, gy, w_dims);
  if (conv_is_depthwise(b, c, w_dims)) return conv_depthwise_weight_gradient(b, c, x, gy, w_dims);
  if (c->groups > 1 && parts_of(c->groups) * MAX_BLOCKS >= c->groups && on_cpu(b))
    return weight_gradient_by_parts(b, c, x, gy, w_dims);
  return dense_weight_gradient(b, c, x, gy, w_dims, c->groups);
}
