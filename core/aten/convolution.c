/* The rows of convolution. Checks and their words: aten/src/ATen/native/Convolution.cpp. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "aten/conv.h"
#include "aten/elementwise.h"
#include "aten/nn.h"

/* A convolution's arguments from `stride` on: stride, padding, dilation, transposed, output_padding, groups. */
typedef struct params {
  conv c;
  bool transposed;
  int64_t output_padding[CONV_MAX_SPATIAL];
} params;

static bool read_ints(tpu_build *b, const tpu_args *a, int i, int spatial, const char *name, int64_t *out) {
  int n;
  const int64_t *ints = arg_ints(a, i, &n);
  if (n != 1 && n != spatial) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "expected %s to be a single integer value or a list of %d values to match the convolution dimensions, but "
             "got %s=%s",
             name, spatial, name, dims_text(b, n, ints));
    return false;
  }
  for (int d = 0; d < spatial; d++) out[d] = ints[n == 1 ? 0 : d];
  return true;
}

static bool any_below(int n, const int64_t *ints, int64_t least) {
  for (int d = 0; d < n; d++)
    if (ints[d] < least) return true;
  return false;
}

static bool read_params(tpu_build *b, const tpu_args *a, int i, tpu_val w, params *out) {
  memset(out, 0, sizeof *out);
  conv *c = &out->c;
  c->spatial = tpu_rank_of(b, w) - 2;
  if (tpu_build_failed(b)) return false;
  if (c->spatial < 1) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "weight should have at least three dimensions");
    return false;
  }
  if (!read_ints(b, a, i, c->spatial, "stride", c->stride) || !read_ints(b, a, i + 1, c->spatial, "padding", c->padding) ||
      !read_ints(b, a, i + 2, c->spatial, "dilation", c->dilation) ||
      !read_ints(b, a, i + 4, c->spatial, "output_padding", out->output_padding))
    return false;
  out->transposed = arg_bool(b, a, i + 3);
  c->groups = arg_int(b, a, i + 5, 1);
  if (any_below(c->spatial, c->padding, 0))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "negative padding is not supported");
  else if (any_below(c->spatial, out->output_padding, 0))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "negative output_padding is not supported");
  else if (any_below(c->spatial, c->stride, 1))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "non-positive stride is not supported");
  else if (any_below(c->spatial, c->dilation, 1))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "dilation should be greater than zero, but got %s", dims_text(b, c->spatial, c->dilation));
  else if (c->groups < 1)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "non-positive groups is not supported");
  return !tpu_build_failed(b);
}

/* "(2 x 3)" */
static const char *sizes_text(tpu_build *b, int n, const int64_t *sizes) {
  enum { CHARS = 24 };
  char *text = tpu_build_alloc(b, (size_t)n * CHARS + 1);
  if (!text) return "";
  size_t at = 0;
  for (int d = 0; d < n; d++) at += (size_t)snprintf(text + at, CHARS, d ? " x %" PRId64 : "%" PRId64, sizes[d]);
  return text;
}

static bool check_channels(tpu_build *b, const params *p, tpu_type x, tpu_type w) {
  int64_t groups = p->c.groups;
  const char *weight = dims_text(b, w.rank, w.dims);
  if (x.rank != w.rank)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected %dD (unbatched) or %dD (batched) input to conv%s%dd, but got input of size: %s",
             w.rank - 1, w.rank, p->transposed ? "_transpose" : "", w.rank - 2, dims_text(b, x.rank, x.dims));
  else if (w.dims[0] < groups)
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Given groups=%" PRId64 ", expected weight to be at least %" PRId64
             " at dimension 0, but got weight of size %s instead",
             groups, groups, weight);
  else if (w.dims[0] % groups)
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Given groups=%" PRId64 ", expected weight to be divisible by %" PRId64
             " at dimension 0, but got weight of size [%s] instead",
             groups, groups, weight);
  else if (!p->transposed && x.dims[1] != w.dims[1] * groups)
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Given groups=%" PRId64 ", weight of size %s, expected input%s to have %" PRId64 " channels, but got %" PRId64
             " channels instead",
             groups, weight, dims_text(b, x.rank, x.dims), w.dims[1] * groups, x.dims[1]);
  else if (p->transposed && x.dims[1] != w.dims[0])
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Given transposed=1, weight of size %s, expected input%s to have %" PRId64 " channels, but got %" PRId64
             " channels instead",
             weight, dims_text(b, x.rank, x.dims), w.dims[0], x.dims[1]);
  return !tpu_build_failed(b);
}

static void check_output_padding(tpu_build *b, const params *p) {
  static const char *const names[3][3] = {{"width"}, {"height", "width"}, {"depth", "height", "width"}};
  int n = p->c.spatial;
  for (int d = 0; d < n; d++) {
    if (p->output_padding[d] < p->c.stride[d] || p->output_padding[d] < p->c.dilation[d]) continue;
    char text[640];
    size_t at = 0;
    const int64_t *const values[3] = {p->output_padding, p->c.stride, p->c.dilation};
    static const char *const kinds[3] = {"output_padding", "stride", "dilation"};
    for (int k = 0; k < 3; k++)
      for (int e = 0; e < n && n <= 3; e++)
        at += (size_t)snprintf(text + at, sizeof text - at, " %s_%s: %" PRId64, kinds[k], names[n - 1][e], values[k][e]);
    tpu_fail(b, TPU_INVALID_ARGUMENT, "output padding must be smaller than either stride or dilation, but got%s",
             n <= 3 ? text : "");
    return;
  }
}

/* The result's dims. */
static bool result_dims(tpu_build *b, const params *p, tpu_type x, tpu_type w, int64_t *out) {
  const conv *c = &p->c;
  int64_t padded[CONV_MAX_SPATIAL], kernel[CONV_MAX_SPATIAL];
  bool fits = true;
  out[0] = x.dims[0];
  out[1] = p->transposed ? w.dims[1] * c->groups : w.dims[0];
  for (int d = 0; d < c->spatial; d++) {
    int64_t size = x.dims[2 + d], span = c->dilation[d] * (w.dims[2 + d] - 1);
    padded[d] = size + 2 * c->padding[d];
    kernel[d] = span + 1;
    if (p->transposed)
      out[2 + d] = (size - 1) * c->stride[d] - 2 * c->padding[d] + span + p->output_padding[d] + 1;
    else
      out[2 + d] = conv_size(c, d, size, w.dims[2 + d]);
    fits = fits && (p->transposed ? out[2 + d] > 0 : padded[d] >= kernel[d]);
  }
  if (fits) return true;
  if (p->transposed)
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Given input size per channel: (%s). Calculated output size per channel: (%s). Output size is too small",
             sizes_text(b, c->spatial, x.dims + 2), sizes_text(b, c->spatial, out + 2));
  else
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Calculated padded input size per channel: (%s). Kernel size: (%s). Kernel size can't be greater than "
             "actual input size",
             sizes_text(b, c->spatial, padded), sizes_text(b, c->spatial, kernel));
  return false;
}

static bool is_channels_last(const tpu_operand *x) { return x && strides_are_channels_last(x->rank, x->sizes, x->strides); }

/* The result's memory format: channels_last if the input's or the kernel's is (at::native's mkldnn and cudnn rule). */
static void like_input_or_weight(tpu_build *b, tpu_out *out, const tpu_operand *x, const tpu_operand *w) {
  out_channels_last(b, out, is_channels_last(w) ? w : x);
}

/* (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups) */
void lower_convolution(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *xo = arg_operand(b, a, 0), *wo = arg_operand(b, a, 1);
  if (!xo || !wo) return;
  tpu_val x = xo->val, w = wo->val;
  params p;
  if (!read_params(b, a, 3, w, &p)) return;
  tpu_type xt = tpu_type_of(b, x), wt = tpu_type_of(b, w);
  if (!check_channels(b, &p, xt, wt)) return;
  tpu_val bias = arg_present(a, 2) ? arg_tensor(b, a, 2) : TPU_POISON;
  int64_t dims[TPU_MAX_RANK];
  int64_t channels = p.transposed ? wt.dims[1] * p.c.groups : wt.dims[0];
  if (bias.id && (tpu_rank_of(b, bias) != 1 || tpu_dim_of(b, bias, 0) != channels)) {
    char given[32] = "";
    if (p.transposed) snprintf(given, sizeof given, "transposed=1, ");
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Given %sweight of size %s, expected bias to be 1-dimensional with %" PRId64
             " elements, but got bias of size %s instead",
             given, dims_text(b, wt.rank, wt.dims), channels, dims_text(b, tpu_rank_of(b, bias), tpu_dims_of(b, bias)));
    return;
  }
  if (xt.dtype != wt.dtype)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Input type (%s) and weight type (%s) should be the same", tpu_dtype_c_name(xt.dtype),
             tpu_dtype_c_name(wt.dtype));
  else if (bias.id && tpu_dtype_of(b, bias) != xt.dtype)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Input type (%s) and bias type (%s) should be the same", tpu_dtype_c_name(xt.dtype),
             tpu_dtype_c_name(tpu_dtype_of(b, bias)));
  else if (xt.dtype == TPU_BOOL)
    fail_not_implemented(b, a, xt.dtype);
  if (p.transposed) check_output_padding(b, &p);
  if (tpu_build_failed(b) || !result_dims(b, &p, xt, wt, dims)) return;
  p.c.channels_last = is_channels_last(xo);
  x = conv_operand(b, x);
  w = conv_operand(b, w);
  tpu_val y = p.transposed ? conv_input_gradient(b, &p.c, x, w, dims) : conv_forward(b, &p.c, x, w);
  if (bias.id) y = tpu_add(b, y, spread_dim(b, tpu_convert(b, bias, tpu_dtype_of(b, y)), xt.rank, dims, 1));
  o->out[0].val = tpu_convert(b, y, xt.dtype);
  like_input_or_weight(b, &o->out[0], xo, wo);
}

/* (grad_output, input, weight, [bias_sizes,] stride, padding, dilation, transposed, output_padding, groups, output_mask) */
static void convolution_backward(tpu_build *b, const tpu_args *a, tpu_outs *o, int first) {
  const tpu_operand *go = arg_operand(b, a, 0), *xo = arg_operand(b, a, 1), *wo = arg_operand(b, a, 2);
  if (!go || !xo || !wo) return;
  params p;
  if (!read_params(b, a, first, wo->val, &p)) return;
  tpu_type xt = tpu_type_of(b, xo->val), wt = tpu_type_of(b, wo->val);
  int64_t dims[TPU_MAX_RANK];
  if (!check_channels(b, &p, xt, wt) || !result_dims(b, &p, xt, wt, dims)) return;
  int n_mask;
  const int64_t *mask = arg_ints(a, first + 6, &n_mask);
  if (n_mask != 3) return;
  tpu_type gt = tpu_type_of(b, go->val);
  if (gt.rank != xt.rank || memcmp(gt.dims, dims, sizeof *dims * (size_t)xt.rank) != 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected grad_output to be of size %s, but got %s", dims_text(b, xt.rank, dims),
             dims_text(b, gt.rank, gt.dims));
    return;
  }
  p.c.channels_last = is_channels_last(xo) || is_channels_last(go);
  tpu_val g = conv_operand(b, tpu_convert(b, go->val, xt.dtype)), x = conv_operand(b, xo->val), w = conv_operand(b, wo->val);
  for (int i = 0; i < 3; i++) o->out[i].undefined = !mask[i];
  if (mask[0]) {
    tpu_val gx = p.transposed ? conv_forward(b, &p.c, g, w) : conv_input_gradient(b, &p.c, g, w, xt.dims);
    o->out[0].val = tpu_convert(b, gx, xt.dtype);
    like_input_or_weight(b, &o->out[0], xo, wo);
  }
  if (mask[1]) {
    tpu_val gw = p.transposed ? conv_weight_gradient(b, &p.c, g, x, wt.dims) : conv_weight_gradient(b, &p.c, x, g, wt.dims);
    o->out[1].val = tpu_convert(b, gw, wt.dtype);
    like_input_or_weight(b, &o->out[1], wo, xo);
  }
  if (mask[2]) {
    int64_t axes[TPU_MAX_RANK];
    for (int d = 0; d <= p.c.spatial; d++) axes[d] = d ? 1 + d : 0;
    tpu_val sum = tpu_convert(b, g, tpu_dtype_opmath(xt.dtype));
    o->out[2].val = tpu_convert(b, sum_over(b, sum, 1 + p.c.spatial, axes), xt.dtype);
  }
}
void lower_convolution_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) { convolution_backward(b, a, o, 4); }
void lower_convolution_backward_overrideable(tpu_build *b, const tpu_args *a, tpu_outs *o) { convolution_backward(b, a, o, 3); }
