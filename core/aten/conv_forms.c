#include <string.h>

#include "aten/conv.h"
#include "aten/nn.h"

static bool is_fast_type(tpu_build *b) { return !tpu_build_failed(b) && b->target->platform == TPU_TARGET_CPU; }

static int64_t volume(int n, const int64_t *dims) {
  int64_t product = 1;
  for (int d = 0; d < n; d++) product *= dims[d];
  return product;
}

/* --- pointwise */
bool conv_is_pointwise(tpu_build *b, const conv *c, const int64_t *w_dims) {
  if (!is_fast_type(b)) return false;
  for (int d = 0; d < c->spatial; d++)
    if (w_dims[2 + d] != 1 || c->padding[d] != 0) return false;
  return true;
}

/* Every stride-th element of the spatial dims. */
static tpu_val subsample(tpu_build *b, const conv *c, tpu_val x) {
  for (int d = 0; d < c->spatial; d++)
    if (c->stride[d] > 1) x = tpu_slice_dim(b, x, 2 + d, 0, tpu_dim_of(b, x, 2 + d), c->stride[d]);
  return x;
}

/* [N, C, *] -> [N, *, C] and back */
static tpu_val channels_to_last(tpu_build *b, tpu_val x) {
  int rank = tpu_rank_of(b, x);
  int64_t perm[TPU_MAX_RANK] = {0};
  for (int d = 1; d < rank - 1; d++) perm[d] = d + 1;
  perm[rank - 1] = 1;
  return tpu_transpose(b, x, perm);
}
static tpu_val channels_to_second(tpu_build *b, tpu_val x) {
  int rank = tpu_rank_of(b, x);
  int64_t perm[TPU_MAX_RANK] = {0, rank - 1};
  for (int d = 2; d < rank; d++) perm[d] = d - 1;
  return tpu_transpose(b, x, perm);
}

/* Is the matrix larger than one image's share of both operands? Then it should be neither repeated nor made once an image. */
static bool matrix_is_large(int64_t in, int64_t out, int64_t points) { return points == 1 || in * out > points * (in + out); }

/* x [N, C, *] by m [C, K] (transposed: [K, C]) over the channels -> [N, K, *]. m is [G, C/G, K/G] with groups. */
static tpu_val mix_channels(tpu_build *b, const conv *c, tpu_val x, tpu_val m, bool transposed) {
  int rank = tpu_rank_of(b, x);
  int64_t dims[TPU_MAX_RANK], g = c->groups;
  memcpy(dims, tpu_dims_of(b, x), sizeof *dims * (size_t)rank);
  int64_t n = dims[0], in = dims[1] / g, points = volume(c->spatial, dims + 2);
  int64_t out = tpu_dim_of(b, m, transposed ? 1 : 2);
  dims[1] = out * g;
  if (g == 1 && (c->channels_last || matrix_is_large(in, out, points))) {
    int64_t last[TPU_MAX_RANK];
    tpu_val rows = channels_to_last(b, x);
    memcpy(last, tpu_dims_of(b, rows), sizeof *last * (size_t)rank);
    m = tpu_squeeze(b, m, 0);
    rows = contract(b, tpu_reshape(b, rows, 2, (const int64_t[]){n * points, in}), m, 0, 1, transposed ? 1 : 0);
    last[rank - 1] = out;
    return channels_to_second(b, tpu_reshape(b, rows, rank, last));
  }
  x = tpu_reshape(b, x, 4, (const int64_t[]){n, g, in, points});
  const int64_t spread[4] = {n, g, tpu_dim_of(b, m, 1), tpu_dim_of(b, m, 2)}, map[3] = {1, 2, 3};
  m = tpu_broadcast_in_dim(b, m, 4, spread, map);
  return tpu_reshape(b, contract(b, m, x, 2, transposed ? 3 : 2, 2), rank, dims);
}

static tpu_val pointwise_kernel(tpu_build *b, const conv *c, tpu_val w) {
  int64_t out = tpu_dim_of(b, w, 0) / c->groups;
  return tpu_reshape(b, w, 3, (const int64_t[]){c->groups, out, tpu_dim_of(b, w, 1)});
}

tpu_val conv_pointwise(tpu_build *b, const conv *c, tpu_val x, tpu_val w) {
  return mix_channels(b, c, subsample(b, c, x), pointwise_kernel(b, c, w), true);
}

tpu_val conv_pointwise_input_gradient(tpu_build *b, const conv *c, tpu_val gy, tpu_val w, const int64_t *x_dims) {
  tpu_val gx = mix_channels(b, c, gy, pointwise_kernel(b, c, w), false);
  int64_t lo[TPU_MAX_RANK] = {0}, hi[TPU_MAX_RANK] = {0}, interior[TPU_MAX_RANK] = {0};
  for (int d = 0; d < c->spatial; d++) {
    interior[2 + d] = c->stride[d] - 1;
    hi[2 + d] = x_dims[2 + d] - ((tpu_dim_of(b, gy, 2 + d) - 1) * c->stride[d] + 1);
  }
  return tpu_pad(b, gx, tpu_scalar(b, tpu_dtype_of(b, gx), 0), lo, hi, interior);
}

tpu_val conv_pointwise_weight_gradient(tpu_build *b, const conv *c, tpu_val x, tpu_val gy, const int64_t *w_dims) {
  x = subsample(b, c, x);
  int64_t g = c->groups, n = tpu_dim_of(b, x, 0), in = w_dims[1], out = w_dims[0] / g;
  int64_t points = volume(c->spatial, tpu_dims_of(b, x) + 2);
  tpu_val gw;
  if (g == 1 && matrix_is_large(in, out, points)) {
    x = tpu_reshape(b, x, 3, (const int64_t[]){n, in, points});
    gy = tpu_reshape(b, gy, 3, (const int64_t[]){n, out, points});
    const int64_t both[2] = {0, 2};
    gw = contract_dims(b, gy, x, &(tpu_dot_dims){.n_contract = 2, .lhs_contract = both, .rhs_contract = both});
  } else {
    x = tpu_reshape(b, x, 4, (const int64_t[]){n, g, in, points});
    gy = tpu_reshape(b, gy, 4, (const int64_t[]){n, g, out, points});
    gw = sum_over(b, contract(b, gy, x, 2, 3, 3), 1, (const int64_t[]){0});
  }
  return tpu_reshape(b, gw, 2 + c->spatial, w_dims);
}

/* --- depthwise */
enum { MAX_TAPS = 64 };

bool conv_is_depthwise(tpu_build *b, const conv *c, const int64_t *w_dims) {
  return is_fast_type(b) && c->groups > 1 && w_dims[1] == 1 && volume(c->spatial, w_dims + 2) <= MAX_TAPS;
}

/* The order of dims in which the work is done: memory's. */
typedef struct order {
  int channel, first_spatial;
} order;

static order order_of(const conv *c) { return c->channels_last ? (order){1 + c->spatial, 1} : (order){1, 2}; }
static tpu_val to_order(tpu_build *b, const conv *c, tpu_val x) { return c->channels_last ? channels_to_last(b, x) : x; }
static tpu_val from_order(tpu_build *b, const conv *c, tpu_val x) { return c->channels_last ? channels_to_second(b, x) : x; }

/* Position of tap k, in row-major order of the kernel, along each spatial dim. */
static void tap_position(const conv *c, const int64_t *w_dims, int64_t k, int64_t *out_position) {
  for (int d = c->spatial - 1; d >= 0; d--) {
    out_position[d] = k % w_dims[2 + d];
    k /= w_dims[2 + d];
  }
}

/* Column k of w seen as [O, taps], spread over a value of dims along its channel dim. */
static tpu_val tap(tpu_build *b, tpu_val w, int64_t k, int rank, const int64_t *dims, int channel) {
  int64_t out = tpu_dim_of(b, w, 0);
  tpu_val column = tpu_reshape(b, tpu_slice_dim(b, w, 1, k, k + 1, 1), 1, &out);
  return spread_dim(b, column, rank, dims, channel);
}

/* Each channel repeated `times`, next to each other. */
static tpu_val repeat_channels(tpu_build *b, tpu_val x, int channel, int64_t times) {
  if (times == 1) return x;
  int rank = tpu_rank_of(b, x);
  int64_t dims[TPU_MAX_RANK + 1], map[TPU_MAX_RANK];
  for (int d = 0; d < rank; d++) {
    map[d] = d <= channel ? d : d + 1;
    dims[map[d]] = tpu_dim_of(b, x, d);
  }
  dims[channel + 1] = times;
  x = tpu_broadcast_in_dim(b, x, rank + 1, dims, map);
  dims[channel] *= times;
  for (int d = channel + 1; d < rank; d++) dims[d] = dims[d + 1];
  return tpu_reshape(b, x, rank, dims);
}

static tpu_val sum_repeated(tpu_build *b, tpu_val x, int channel, int64_t times) {
  if (times == 1) return x;
  int rank = tpu_rank_of(b, x);
  int64_t dims[TPU_MAX_RANK + 1];
  for (int d = 0; d < rank; d++) dims[d <= channel ? d : d + 1] = tpu_dim_of(b, x, d);
  dims[channel] /= times;
  dims[channel + 1] = times;
  const int64_t axis = channel + 1;
  return sum_over(b, tpu_reshape(b, x, rank + 1, dims), 1, &axis);
}

/* x padded by the convolution's padding, in its order. */
static tpu_val padded(tpu_build *b, const conv *c, tpu_val x) {
  int64_t pad[TPU_MAX_RANK] = {0};
  for (int d = 0; d < c->spatial; d++) pad[order_of(c).first_spatial + d] = c->padding[d];
  return tpu_pad(b, x, tpu_scalar(b, tpu_dtype_of(b, x), 0), pad, pad, NULL);
}

/* What tap k sees of the padded x: one element a point of y. */
static tpu_val seen_by_tap(tpu_build *b, const conv *c, tpu_val x, const int64_t *w_dims, const int64_t *y_sizes, int64_t k) {
  int64_t position[CONV_MAX_SPATIAL];
  tap_position(c, w_dims, k, position);
  for (int d = 0; d < c->spatial; d++) {
    int64_t start = position[d] * c->dilation[d], span = (y_sizes[d] - 1) * c->stride[d] + 1;
    x = tpu_slice_dim(b, x, order_of(c).first_spatial + d, start, start + span, c->stride[d]);
  }
  return x;
}

tpu_val conv_depthwise(tpu_build *b, const conv *c, tpu_val x, tpu_val w) {
  int64_t w_dims[TPU_MAX_RANK], y_sizes[CONV_MAX_SPATIAL];
  memcpy(w_dims, tpu_dims_of(b, w), sizeof *w_dims * (size_t)(2 + c->spatial));
  for (int d = 0; d < c->spatial; d++) y_sizes[d] = conv_size(c, d, tpu_dim_of(b, x, 2 + d), w_dims[2 + d]);
  int64_t taps = volume(c->spatial, w_dims + 2);
  w = tpu_reshape(b, w, 2, (const int64_t[]){w_dims[0], taps});
  x = padded(b, c, to_order(b, c, x));
  int channel = order_of(c).channel;
  tpu_val y = TPU_POISON;
  for (int64_t k = 0; k < taps && !tpu_build_failed(b); k++) {
    tpu_val seen = repeat_channels(b, seen_by_tap(b, c, x, w_dims, y_sizes, k), channel, w_dims[0] / c->groups);
    seen = tpu_mul(b, seen, tap(b, w, k, tpu_rank_of(b, seen), tpu_dims_of(b, seen), channel));
    y = k ? tpu_add(b, y, seen) : seen;
  }
  return from_order(b, c, y);
}

tpu_val conv_depthwise_input_gradient(tpu_build *b, const conv *c, tpu_val gy, tpu_val w, const int64_t *x_dims) {
  int64_t w_dims[TPU_MAX_RANK], lo[TPU_MAX_RANK] = {0}, hi[TPU_MAX_RANK] = {0}, interior[TPU_MAX_RANK] = {0};
  memcpy(w_dims, tpu_dims_of(b, w), sizeof *w_dims * (size_t)(2 + c->spatial));
  order at = order_of(c);
  for (int d = 0; d < c->spatial; d++) {
    int64_t reach = c->dilation[d] * (w_dims[2 + d] - 1), spread = (tpu_dim_of(b, gy, 2 + d) - 1) * c->stride[d] + 1;
    lo[at.first_spatial + d] = reach - c->padding[d];
    hi[at.first_spatial + d] = x_dims[2 + d] + c->padding[d] - spread;
    interior[at.first_spatial + d] = c->stride[d] - 1;
  }
  int64_t taps = volume(c->spatial, w_dims + 2);
  w = tpu_reshape(b, w, 2, (const int64_t[]){w_dims[0], taps});
  gy = tpu_pad(b, to_order(b, c, gy), tpu_scalar(b, tpu_dtype_of(b, gy), 0), lo, hi, interior);
  tpu_val gx = TPU_POISON;
  for (int64_t k = 0; k < taps && !tpu_build_failed(b); k++) {
    int64_t position[CONV_MAX_SPATIAL];
    tap_position(c, w_dims, k, position);
    tpu_val seen = gy;
    for (int d = 0; d < c->spatial; d++) {
      int64_t start = c->dilation[d] * (w_dims[2 + d] - 1 - position[d]);
      seen = tpu_slice_dim(b, seen, at.first_spatial + d, start, start + x_dims[2 + d], 1);
    }
    seen = tpu_mul(b, seen, tap(b, w, k, tpu_rank_of(b, seen), tpu_dims_of(b, seen), at.channel));
    gx = k ? tpu_add(b, gx, seen) : seen;
  }
  return from_order(b, c, sum_repeated(b, gx, at.channel, w_dims[0] / c->groups));
}

static void add_each(tpu_build *b, const tpu_val *params, tpu_val *out_returns, void *arg) {
  int n = *(int *)arg;
  for (int i = 0; i < n; i++) out_returns[i] = tpu_add(b, params[i], params[n + i]);
}

/* One reduction of several products at once: alone, a reduction over slices is not vectorised and takes 10 times longer. With the
 * channels innermost it takes 3 times longer too. */
tpu_val conv_depthwise_weight_gradient(tpu_build *b, const conv *c, tpu_val x, tpu_val gy, const int64_t *w_dims) {
  enum { AT_ONCE = 8 };
  int64_t y_sizes[CONV_MAX_SPATIAL], taps = volume(c->spatial, w_dims + 2), axes[TPU_MAX_RANK];
  for (int d = 0; d < c->spatial; d++) y_sizes[d] = tpu_dim_of(b, gy, 2 + d);
  conv rows = *c;
  rows.channels_last = false;
  if (c->channels_last) {
    x = separated(b, x);
    gy = separated(b, gy);
  }
  c = &rows;
  x = padded(b, c, x);
  int channel = 1, n_axes = 0;
  for (int d = 0; d < 2 + c->spatial; d++)
    if (d != channel) axes[n_axes++] = d;
  tpu_val columns[MAX_TAPS], products[AT_ONCE], inits[AT_ONCE];
  tpu_val zero = tpu_scalar(b, tpu_dtype_of(b, gy), 0);
  int64_t parts = (taps + AT_ONCE - 1) / AT_ONCE;
  for (int64_t part = 0; part < parts && !tpu_build_failed(b); part++) {
    int64_t first = taps * part / parts;
    int n = (int)(taps * (part + 1) / parts - first);
    for (int i = 0; i < n; i++) {
      tpu_val seen = seen_by_tap(b, c, x, w_dims, y_sizes, first + i);
      products[i] = tpu_mul(b, repeat_channels(b, seen, channel, w_dims[0] / c->groups), gy);
      inits[i] = zero;
    }
    tpu_reduce_n(b, n, products, inits, n_axes, axes, add_each, &n, columns + first);
  }
  if (tpu_build_failed(b)) return TPU_POISON;
  for (int64_t k = 0; k < taps; k++) columns[k] = tpu_unsqueeze(b, columns[k], 1);
  return tpu_reshape(b, tpu_concat(b, (int)taps, columns, 1), 2 + c->spatial, w_dims);
}
