/* im2col and col2im: sliding blocks as columns, kh + kw slices instead of kh kw. */
#include <inttypes.h>

#include "aten/shape.h"

typedef struct blocks {
  int64_t kernel[2], dilation[2], pad[2], stride[2], out[2]; /* out: blocks along height and width */
} blocks;

static bool positive_pair(tpu_build *b, const int64_t *v, const char *what, const char *name) {
  if (v[0] > 0 && v[1] > 0) return true;
  tpu_fail(b, TPU_INVALID_ARGUMENT, "%s should be greater than zero, but got %s_height: %" PRId64 " %s_width: %" PRId64, what,
           name, v[0], name, v[1]);
  return false;
}

static bool read_pair(tpu_build *b, const tpu_args *a, int i, int64_t *out, const char *name) {
  int n;
  const int64_t *v = arg_ints(a, i, &n);
  if (n == 1 || n == 2) {
    out[0] = v[0];
    out[1] = v[n - 1];
    return true;
  }
  if (!tpu_build_failed(b)) tpu_fail(b, TPU_INVALID_ARGUMENT, "It is expected %s equals to 2, but got size %d", name, n);
  return false;
}

/* Kernel, dilation, padding and stride at arguments i .. i + 3. */
static bool read_blocks(tpu_build *b, const tpu_args *a, int i, const int64_t image[2], blocks *out) {
  if (!read_pair(b, a, i, out->kernel, "kernel_size") || !read_pair(b, a, i + 1, out->dilation, "dilation") ||
      !read_pair(b, a, i + 2, out->pad, "padding") || !read_pair(b, a, i + 3, out->stride, "stride"))
    return false;
  if (!positive_pair(b, out->kernel, "kernel size", "kernel") || !positive_pair(b, out->dilation, "dilation", "dilation") ||
      !positive_pair(b, out->stride, "stride", "stride"))
    return false;
  if (out->pad[0] < 0 || out->pad[1] < 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "padding should be non-negative, but got pad_height: %" PRId64 " pad_width: %" PRId64,
             out->pad[0], out->pad[1]);
    return false;
  }
  for (int k = 0; k < 2; k++) {
    int64_t room = image[k] + 2 * out->pad[k] - out->dilation[k] * (out->kernel[k] - 1) - 1;
    out->out[k] = room < 0 ? 0 : room / out->stride[k] + 1;
  }
  if (out->out[0] >= 1 && out->out[1] >= 1) return true;
  tpu_fail(b, TPU_INVALID_ARGUMENT,
           "Given input with spatial size (%" PRId64 ", %" PRId64 "), kernel_size=(%" PRId64 ", %" PRId64 "), dilation=(%" PRId64
           ", %" PRId64 "), padding=(%" PRId64 ", %" PRId64 "), calculated shape of the array of sliding blocks as (%" PRId64
           ", %" PRId64 "), but its components must be at least one.",
           image[0], image[1], out->kernel[0], out->kernel[1], out->dilation[0], out->dilation[1], out->pad[0], out->pad[1],
           out->out[0], out->out[1]);
  return false;
}

/* [.., S, ..] -> [.., K, O, ..]: element (k, o) is k dilation + o stride. */
static tpu_val windows(tpu_build *b, tpu_val x, int dim, int64_t kernel, int64_t dilation, int64_t stride, int64_t out) {
  if (stride == kernel && dilation == 1 && out * stride <= tpu_dim_of(b, x, dim)) {
    int rank = tpu_rank_of(b, x);
    int64_t dims[TPU_MAX_RANK], perm[TPU_MAX_RANK];
    x = tpu_slice_dim(b, x, dim, 0, out * stride, 1);
    for (int i = 0; i < rank + 1; i++) {
      dims[i] = i == dim ? out : i == dim + 1 ? kernel : tpu_dim_of(b, x, i < dim ? i : i - 1);
      perm[i] = i == dim ? dim + 1 : i == dim + 1 ? dim : i;
    }
    return tpu_transpose(b, tpu_reshape(b, x, rank + 1, dims), perm);
  }
  tpu_val *parts = tpu_build_alloc(b, sizeof *parts * (size_t)kernel);
  if (!parts) return TPU_POISON;
  for (int64_t k = 0; k < kernel && !tpu_build_failed(b); k++) {
    int64_t start = k * dilation;
    parts[k] = tpu_unsqueeze(b, tpu_slice_dim(b, x, dim, start, start + (out - 1) * stride + 1, stride), dim);
  }
  return kernel == 1 ? parts[0] : tpu_concat(b, (int)kernel, parts, dim);
}

/* The transpose of windows: [.., K, O, ..] at dim -> [.., size, ..], overlapping elements added up. */
static tpu_val overlap_add(tpu_build *b, tpu_val x, int dim, int64_t size, int64_t dilation, int64_t stride) {
  int64_t kernel = tpu_dim_of(b, x, dim), out = tpu_dim_of(b, x, dim + 1);
  int64_t lo[TPU_MAX_RANK] = {0}, hi[TPU_MAX_RANK] = {0}, between[TPU_MAX_RANK] = {0};
  tpu_val zero = tpu_scalar(b, tpu_dtype_of(b, x), 0), sum = TPU_POISON;
  between[dim] = stride - 1;
  for (int64_t k = 0; k < kernel && !tpu_build_failed(b); k++) {
    lo[dim] = k * dilation;
    hi[dim] = size - k * dilation - (out - 1) * stride - 1;
    tpu_val part = tpu_squeeze(b, tpu_slice_dim(b, x, dim, k, k + 1, 1), dim);
    part = tpu_pad(b, part, zero, lo, hi, between);
    sum = sum.id ? tpu_add(b, sum, part) : part;
  }
  return sum;
}

/* im2col(self [N, C, H, W] or [C, H, W], kernel, dilation, padding, stride) -> [N, C kh kw, L] */
void lower_im2col(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int rank = tpu_rank_of(b, x);
  if (tpu_build_failed(b)) return;
  bool good = rank == 3 || rank == 4;
  for (int i = rank == 4 ? 1 : 0; good && i < rank; i++) good = tpu_dim_of(b, x, i) != 0;
  if (!good) {
    tpu_fail(
        b, TPU_INVALID_ARGUMENT,
        "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, but got: %s",
        shape_text(rank, tpu_dims_of(b, x), (char[256]){0}, 256));
    return;
  }
  blocks s;
  int h = rank - 2;
  int64_t image[2] = {tpu_dim_of(b, x, h), tpu_dim_of(b, x, h + 1)}, lo[4] = {0}, hi[4] = {0};
  if (!read_blocks(b, a, 1, image, &s)) return;
  for (int k = 0; k < 2; k++) lo[h + k] = hi[h + k] = s.pad[k];
  x = tpu_pad(b, x, tpu_scalar(b, tpu_dtype_of(b, x), 0), lo, hi, NULL);
  x = windows(b, x, h, s.kernel[0], s.dilation[0], s.stride[0], s.out[0]);     /* [N, C, kh, oh, W] */
  x = windows(b, x, h + 2, s.kernel[1], s.dilation[1], s.stride[1], s.out[1]); /* [N, C, kh, oh, kw, ow] */
  int64_t perm[6] = {0, 1, 2, 4, 3, 5}, perm3[5] = {0, 1, 3, 2, 4};
  int64_t channels = tpu_dim_of(b, x, h - 1) * s.kernel[0] * s.kernel[1],
          dims[3] = {rank == 4 ? tpu_dim_of(b, x, 0) : 0, channels, s.out[0] * s.out[1]};
  x = tpu_transpose(b, x, rank == 4 ? perm : perm3);
  o->out[0].val = rank == 4 ? tpu_reshape(b, x, 3, dims) : tpu_reshape(b, x, 2, dims + 1);
}

/* col2im(self [N, C kh kw, L] or [C kh kw, L], output_size, kernel, dilation, padding, stride) -> [N, C, H, W] */
void lower_col2im(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int rank = tpu_rank_of(b, x);
  if (tpu_build_failed(b)) return;
  bool good = rank == 2 || rank == 3;
  for (int i = rank == 3 ? 1 : 0; good && i < rank; i++) good = tpu_dim_of(b, x, i) != 0;
  if (!good) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Expected 2D or 3D (batch mode) tensor for input with possibly 0 batch size and non-zero dimensions for input, but "
             "got: %s",
             shape_text(rank, tpu_dims_of(b, x), (char[256]){0}, 256));
    return;
  }
  blocks s;
  int64_t image[2];
  if (!read_pair(b, a, 1, image, "output_size") || !read_blocks(b, a, 2, image, &s)) return;
  int64_t plane = s.kernel[0] * s.kernel[1], rows = tpu_dim_of(b, x, rank - 2), columns = tpu_dim_of(b, x, rank - 1);
  if (rows % plane != 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Expected size of input's dimension 1 to be divisible by the product of kernel_size, but got input.size(1)=%" PRId64
             " and kernel_size=(%" PRId64 ", %" PRId64 ").",
             rows, s.kernel[0], s.kernel[1]);
    return;
  }
  if (columns != s.out[0] * s.out[1]) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Given output_size=(%" PRId64 ", %" PRId64 "), kernel_size=(%" PRId64 ", %" PRId64 "), dilation=(%" PRId64
             ", %" PRId64 "), padding=(%" PRId64 ", %" PRId64 "), stride=(%" PRId64 ", %" PRId64
             "), expected size of input's dimension 2 to match the calculated "
             "number of sliding blocks %" PRId64 " * %" PRId64 " = %" PRId64 ", but got input.size(2)=%" PRId64 ".",
             image[0], image[1], s.kernel[0], s.kernel[1], s.dilation[0], s.dilation[1], s.pad[0], s.pad[1], s.stride[0],
             s.stride[1], s.out[0], s.out[1], s.out[0] * s.out[1], columns);
    return;
  }
  int64_t batch = rank == 3 ? tpu_dim_of(b, x, 0) : 1, perm[6] = {0, 1, 2, 4, 3, 5};
  int64_t dims[6] = {batch, rows / plane, s.kernel[0], s.kernel[1], s.out[0], s.out[1]};
  tpu_dtype dtype = tpu_dtype_of(b, x);
  x = tpu_convert(b, tpu_transpose(b, tpu_reshape(b, x, 6, dims), perm), tpu_dtype_opmath(dtype)); /* [N, C, kh, oh, kw, ow] */
  x = overlap_add(b, x, 4, image[1] + 2 * s.pad[1], s.dilation[1], s.stride[1]);
  x = overlap_add(b, x, 2, image[0] + 2 * s.pad[0], s.dilation[0], s.stride[0]);
  int64_t start[4] = {0, 0, s.pad[0], s.pad[1]}, limit[4] = {batch, rows / plane, s.pad[0] + image[0], s.pad[1] + image[1]};
  x = tpu_convert(b, tpu_slice(b, x, start, limit, NULL), dtype);
  int64_t out[4] = {batch, rows / plane, image[0], image[1]};
  o->out[0].val = rank == 3 ? x : tpu_reshape(b, x, 3, out + 1);
}
