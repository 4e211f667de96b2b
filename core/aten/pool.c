/* Source: aten/src/ATen/native/Pool.h. */
#include "aten/pool.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "aten/nn.h"

bool pool_input(tpu_build *b, const tpu_operand *x, int spatial, pool *out_p) {
  memset(out_p, 0, sizeof *out_p);
  if (!x) return false;
  bool batched = x->rank == spatial + 2, valid = batched || x->rank == spatial + 1;
  for (int d = batched ? 1 : 0; d < x->rank && valid; d++) valid = x->sizes[d] > 0;
  if (!valid) {
    const char *sizes = dims_text(b, x->rank, x->sizes);
    if (x->rank == spatial + 1 || x->rank == spatial + 2)
      tpu_fail(b, TPU_INVALID_ARGUMENT,
               "Expected %dD or %dD (batch mode) tensor with optional 0 dim batch size for input, but got:%s", spatial + 1,
               spatial + 2, sizes);
    else
      tpu_fail(b, TPU_INVALID_ARGUMENT, "non-empty %dD or %dD (batch mode) tensor expected for input", spatial + 1, spatial + 2);
    return false;
  }
  out_p->spatial = spatial;
  out_p->rank = x->rank;
  out_p->channels_last = batched && strides_are_channels_last(x->rank, x->sizes, x->strides);
  out_p->first = out_p->channels_last ? 1 : x->rank - spatial;
  for (int d = 0; d < spatial; d++) {
    out_p->in[d] = x->sizes[x->rank - spatial + d];
    out_p->dilation[d] = out_p->stride[d] = out_p->kernel[d] = 1;
  }
  return true;
}

/* pooling_output_shape: rounding up, a window must still begin inside the input or the left padding. */
static int64_t output_size(int64_t in, int64_t kernel, int64_t padding, int64_t stride, int64_t dilation, bool up) {
  int64_t room = in + 2 * padding - dilation * (kernel - 1) - 1 + (up ? stride - 1 : 0);
  int64_t steps = room / stride - (room % stride != 0 && room < 0);
  int64_t out = steps + 1;
  if (up && (out - 1) * stride >= in + padding) out--;
  return out;
}

bool pool_window(tpu_build *b, const tpu_args *a, int i, int dilation, int ceil_mode, const char *name, pool *p) {
  static const char *const counts[] = {"", "one int", "two ints", "three ints"};
  static const char *const whats[] = {
      "kernel_size must either be a single int, or a tuple of", "stride must either be omitted, a single int, or a tuple of",
      "padding must either be a single int, or a tuple of", "dilation must be either a single int, or a tuple of"};
  char text[4][128];
  for (int k = 0; k < 4; k++) snprintf(text[k], sizeof text[k], "%s: %s %s", name, whats[k], counts[p->spatial]);
  static const int64_t zeros[POOL_MAX_SPATIAL] = {0}, ones[POOL_MAX_SPATIAL] = {1, 1, 1};
  int n = p->spatial;
  if (!arg_ints_n(b, a, i, n, NULL, text[0], p->kernel) || !arg_ints_n(b, a, i + 1, n, p->kernel, text[1], p->stride) ||
      !arg_ints_n(b, a, i + 2, n, zeros, text[2], p->padding))
    return false;
  if (dilation >= 0 && !arg_ints_n(b, a, dilation, n, ones, text[3], p->dilation)) return false;
  p->ceil_mode = arg_bool(b, a, ceil_mode);
  for (int d = 0; d < n; d++) {
    int64_t k = p->kernel[d], pad = p->padding[d];
    if (p->stride[d] == 0)
      tpu_fail(b, TPU_INVALID_ARGUMENT, "stride should not be zero");
    else if (p->stride[d] < 0)
      tpu_fail(b, TPU_INVALID_ARGUMENT, "stride should be greater than zero, but got %" PRId64, p->stride[d]);
    else if (k <= 0)
      tpu_fail(b, TPU_INVALID_ARGUMENT, "kernel size should be greater than zero, but got %s", dims_text(b, n, p->kernel));
    else if (p->dilation[d] <= 0)
      tpu_fail(b, TPU_INVALID_ARGUMENT, "dilation should be greater than zero, but got %s", dims_text(b, n, p->dilation));
    else if (pad < 0)
      tpu_fail(b, TPU_INVALID_ARGUMENT, "pad must be non-negative, but got pad: %" PRId64, pad);
    else if (pad > ((k - 1) * p->dilation[d] + 1) / 2)
      tpu_fail(b, TPU_INVALID_ARGUMENT,
               "pad should be at most half of effective kernel size, but got pad=%" PRId64 ", kernel_size=%" PRId64
               " and dilation=%" PRId64,
               pad, k, p->dilation[d]);
    if (tpu_build_failed(b)) return false;
    p->out[d] = output_size(p->in[d], k, pad, p->stride[d], p->dilation[d], p->ceil_mode);
  }
  for (int d = 0; d < n; d++) {
    if (p->out[d] >= 1) continue;
    char in[80], out[80];
    size_t at_in = 0, at_out = 0;
    for (int e = 0; e < n; e++) {
      at_in += (size_t)snprintf(in + at_in, sizeof in - at_in, "x%" PRId64, p->in[e]);
      at_out += (size_t)snprintf(out + at_out, sizeof out - at_out, "x%" PRId64, p->out[e]);
    }
    int64_t planes = tpu_dim_of(b, arg_tensor(b, a, i - 1), p->rank - n - 1);
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Given input size: (%" PRId64 "%s). Calculated output size: (%" PRId64 "%s). Output size is too small", planes, in,
             planes, out);
    return false;
  }
  return true;
}

bool pool_check_gradient(tpu_build *b, const pool *p, tpu_val g) {
  if (tpu_build_failed(b)) return false;
  if (tpu_rank_of(b, g) != p->rank) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected a gradient of %d dimensions, but got %d", p->rank, tpu_rank_of(b, g));
    return false;
  }
  for (int d = 0; d < p->spatial; d++) {
    int64_t have = tpu_dim_of(b, g, p->rank - p->spatial + d);
    if (have == p->out[d]) continue;
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected a gradient of size %" PRId64 " at dimension %d, but got %" PRId64, p->out[d],
             p->rank - p->spatial + d, have);
    return false;
  }
  return true;
}

tpu_val pool_to_order(tpu_build *b, const pool *p, tpu_val x) {
  if (!p->channels_last) return x;
  int64_t perm[TPU_MAX_RANK] = {0};
  for (int d = 1; d < p->rank - 1; d++) perm[d] = d + 1;
  perm[p->rank - 1] = 1;
  return tpu_transpose(b, x, perm);
}

tpu_val pool_from_order(tpu_build *b, const pool *p, tpu_val x) {
  if (!p->channels_last) return x;
  int64_t perm[TPU_MAX_RANK] = {0, p->rank - 1};
  for (int d = 2; d < p->rank; d++) perm[d] = d - 1;
  return tpu_transpose(b, x, perm);
}

tpu_val pool_pad(tpu_build *b, const pool *p, tpu_val x, tpu_val value) {
  int64_t lo[TPU_MAX_RANK] = {0}, hi[TPU_MAX_RANK] = {0};
  for (int d = 0; d < p->spatial; d++) {
    int64_t length = (p->out[d] - 1) * p->stride[d] + p->dilation[d] * (p->kernel[d] - 1) + 1;
    lo[p->first + d] = p->padding[d];
    hi[p->first + d] = length - p->in[d] - p->padding[d];
  }
  return tpu_pad(b, x, value, lo, hi, NULL);
}

int64_t pool_taps(const pool *p) {
  int64_t taps = 1;
  for (int d = 0; d < p->spatial; d++) taps *= p->kernel[d];
  return taps;
}

void pool_tap_position(const pool *p, int64_t tap, int64_t *out_position) {
  for (int d = p->spatial - 1; d >= 0; d--) {
    out_position[d] = tap % p->kernel[d];
    tap /= p->kernel[d];
  }
}

tpu_val pool_seen(tpu_build *b, const pool *p, tpu_val x, const int64_t *position, int from, int to) {
  for (int d = from; d < to; d++) {
    int64_t start = position[d] * p->dilation[d], span = (p->out[d] - 1) * p->stride[d] + 1;
    x = tpu_slice_dim(b, x, p->first + d, start, start + span, p->stride[d]);
  }
  return x;
}

tpu_dtype pool_index_dtype(const pool *p) {
  int64_t plane = 1;
  for (int d = 0; d < p->spatial; d++) plane *= p->in[d] + p->padding[d] + p->dilation[d] * p->kernel[d];
  return plane <= INT32_MAX ? TPU_I32 : TPU_I64;
}

tpu_val pool_window_index(tpu_build *b, const pool *p, tpu_dtype dtype, const int64_t *dims) {
  int64_t pitch = 1, constant = 0;
  tpu_val sum = TPU_POISON;
  for (int d = p->spatial - 1; d >= 0; d--) {
    tpu_val at = tpu_iota(b, dtype, p->rank, dims, p->first + d);
    at = tpu_mul(b, at, tpu_full_i(b, dtype, p->rank, dims, p->stride[d] * pitch));
    sum = sum.id ? tpu_add(b, sum, at) : at;
    constant -= p->padding[d] * pitch;
    pitch *= p->in[d];
  }
  return constant ? tpu_add(b, sum, tpu_full_i(b, dtype, p->rank, dims, constant)) : sum;
}

int64_t pool_tap_offset(const pool *p, const int64_t *position) {
  int64_t pitch = 1, offset = 0;
  for (int d = p->spatial - 1; d >= 0; d--) {
    offset += position[d] * p->dilation[d] * pitch;
    pitch *= p->in[d];
  }
  return offset;
}

tpu_val pool_scatter(tpu_build *b, tpu_monoid op, tpu_val g, tpu_val indices, int spatial, const int64_t *sizes) {
  if (tpu_build_failed(b)) return TPU_POISON;
  int rank = tpu_rank_of(b, g), lead = rank - spatial;
  int64_t out_dims[TPU_MAX_RANK], planes = 1, plane = 1, points = 1;
  for (int d = 0; d < rank; d++) {
    int64_t size = tpu_dim_of(b, g, d);
    out_dims[d] = d < lead ? size : sizes[d - lead];
    if (d < lead)
      planes *= size;
    else
      points *= size, plane *= out_dims[d];
  }
  int64_t total = planes * plane, updates = planes * points;
  tpu_dtype dtype = total <= INT32_MAX ? TPU_I32 : TPU_I64;
  const int64_t grid[2] = {planes, points}, column[2] = {updates, 1}, zero = 0;
  tpu_val base = tpu_mul(b, tpu_iota(b, dtype, 2, grid, 0), tpu_full_i(b, dtype, 2, grid, plane));
  tpu_val at = tpu_add(b, base, tpu_convert(b, tpu_reshape(b, indices, 2, grid), dtype));
  tpu_val into = tpu_full(b, tpu_dtype_of(b, g), 1, &total, 0);
  tpu_scatter_dims dims = {.n_inserted = 1, .n_map = 1, .inserted = &zero, .scatter_map = &zero, .index_vector_dim = 1};
  into = tpu_scatter(b, op, into, tpu_reshape(b, at, 2, column), tpu_reshape(b, g, 1, &updates), &dims);
  return tpu_reshape(b, into, rank, out_dims);
}
