/* Resampling of planes: one small linear map a dim. Coordinates: aten/src/ATen/native/UpSample.h and cpu/UpSampleKernel.cpp, in
 * float (double for float64) as there. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "aten/banded.h"
#include "aten/nn.h"
#include "aten/pool.h"

typedef enum kind { NEAREST, NEAREST_EXACT, LINEAR, CUBIC, LINEAR_AA, CUBIC_AA, LANCZOS_AA } kind;

typedef struct coordinates {
  kind kind;
  bool align_corners, wide; /* wide: computed in double */
  double scale_factor;      /* the user's; <= 0: none */
} coordinates;

static double narrow(const coordinates *c, double x) { return c->wide ? x : (double)(float)x; }

/* Input elements per output element. */
static double step_of(const coordinates *c, int64_t in, int64_t out) {
  if (c->align_corners) return out > 1 ? narrow(c, (double)(in - 1) / (double)(out - 1)) : 0;
  if (c->scale_factor > 0) return narrow(c, 1.0 / c->scale_factor);
  return narrow(c, (double)in / (double)out);
}

static int64_t clamp_index(int64_t i, int64_t size) { return i < 0 ? 0 : i >= size ? size - 1 : i; }

static bool nearest_map(tpu_build *b, const coordinates *c, int64_t in, int64_t out, banded *m) {
  if (!banded_init(b, in, out, 1, m)) return false;
  coordinates single = *c;
  single.align_corners = false;
  double step = step_of(&single, in, out);
  for (int64_t o = 0; o < out; o++) {
    double at = c->kind == NEAREST_EXACT ? narrow(c, ((double)o + 0.5) * step) : narrow(c, (double)o * step);
    int64_t index = (int64_t)floor(at);
    if (c->kind == NEAREST && out == in) index = o;
    if (c->kind == NEAREST && out == 2 * in) index = o / 2;
    m->index[o] = index < in - 1 ? index : in - 1;
    m->weight[o] = 1;
  }
  return true;
}

/* Keys' convolution kernel at distance x. */
static double cubic(double x, double a) {
  x = fabs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

static double source_index(const coordinates *c, double step, int64_t o) {
  if (c->align_corners) return narrow(c, step * (double)o);
  double at = narrow(c, narrow(c, step * ((double)o + 0.5)) - 0.5);
  return c->kind == LINEAR && at < 0 ? 0 : at;
}

static bool interpolating_map(tpu_build *b, const coordinates *c, int64_t in, int64_t out, banded *m) {
  int64_t taps = c->kind == LINEAR ? 2 : 4;
  if (in == out && c->kind == LINEAR) taps = 1;
  if (!banded_init(b, in, out, taps, m)) return false;
  double step = step_of(c, in, out);
  for (int64_t o = 0; o < out; o++) {
    int64_t *index = m->index + o * taps;
    double *weight = m->weight + o * taps;
    if (taps == 1) {
      index[0] = o;
      weight[0] = 1;
      continue;
    }
    double at = source_index(c, step, o);
    int64_t base = (int64_t)floor(at);
    if (base > in - 1) base = in - 1;
    double part = narrow(c, at - (double)base);
    part = part < 0 ? 0 : part > 1 ? 1 : part;
    for (int64_t t = 0; t < taps; t++) {
      int64_t offset = c->kind == LINEAR ? t : t - 1;
      index[t] = clamp_index(base + offset, in);
      weight[t] = c->kind == LINEAR ? (t ? part : 1 - part) : cubic(part - (double)offset, -0.75);
    }
  }
  return true;
}

static double filter(kind k, double x) {
  static const double pi = 3.14159265358979323846;
  if (k == CUBIC_AA) return cubic(x, -0.5);
  x = fabs(x);
  if (k == LINEAR_AA) return x < 1 ? 1 - x : 0;
  if (x >= 3) return 0;
  return x == 0 ? 1 : sin(pi * x) * sin(pi * x / 3) / (pi * x * pi * x / 3);
}

static bool antialiased_map(tpu_build *b, const coordinates *c, int64_t in, int64_t out, banded *m) {
  double step = step_of(c, in, out), reach = c->kind == LINEAR_AA ? 1 : c->kind == CUBIC_AA ? 2 : 3;
  double support = step >= 1 ? reach * step : reach, inverse = step >= 1 ? 1 / step : 1;
  int64_t taps = (int64_t)ceil(support) * 2 + 1;
  if (!banded_init(b, in, out, taps, m)) return false;
  for (int64_t o = 0; o < out; o++) {
    double center = step * ((double)o + 0.5), total = 0;
    int64_t first = (int64_t)(center - support + 0.5), end = (int64_t)(center + support + 0.5);
    if (first < 0) first = 0;
    if (end > in) end = in;
    int64_t n = end - first < taps ? end - first : taps;
    for (int64_t t = 0; t < n; t++) {
      m->index[o * taps + t] = first + t;
      total += m->weight[o * taps + t] = filter(c->kind, ((double)(first + t) - center + 0.5) * inverse);
    }
    for (int64_t t = 0; t < n && total != 0; t++) m->weight[o * taps + t] /= total;
  }
  return true;
}

static bool make_map(tpu_build *b, const coordinates *c, int64_t in, int64_t out, banded *m) {
  if (c->kind == NEAREST || c->kind == NEAREST_EXACT) return nearest_map(b, c, in, out, m);
  if (c->kind == LINEAR || c->kind == CUBIC) return interpolating_map(b, c, in, out, m);
  return antialiased_map(b, c, in, out, m);
}

static bool check_sizes(tpu_build *b, const tpu_operand *x, int spatial, const int64_t *in, int64_t n_out, const int64_t *out) {
  if (n_out != spatial) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "It is expected output_size equals to %d, but got size %" PRId64, spatial, n_out);
    return false;
  }
  bool positive = true;
  for (int d = 0; d < spatial; d++) positive = positive && in[d] > 0 && out[d] > 0;
  if (!positive) {
    static const char *const names[3][3] = {{"W"}, {"H", "W"}, {"D", "H", "W"}};
    char text[2][96];
    for (int k = 0; k < 2; k++) {
      size_t at = 0;
      for (int d = 0; d < spatial; d++)
        at += (size_t)snprintf(text[k] + at, sizeof text[k] - at, "%s%s: %" PRId64, d ? ", " : "", names[spatial - 1][d],
                               k ? out[d] : in[d]);
    }
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Input and output sizes should be greater than 0, but got input (%s) output (%s)", text[0],
             text[1]);
    return false;
  }
  bool empty = x->rank != spatial + 2;
  for (int d = 1; d < x->rank; d++) empty = empty || x->sizes[d] == 0;
  if (!empty) return true;
  tpu_fail(b, TPU_INVALID_ARGUMENT, "Non-empty %dD data tensor expected but got a tensor with sizes %s", spatial + 2,
           dims_text(b, x->rank, x->sizes));
  return false;
}

/* Nearest moves elements and takes any dtype; the others average floats (uint8, with rounding, is left to the CPU). */
static bool is_resampled(tpu_build *b, const tpu_args *a, kind k, tpu_dtype dtype) {
  if (tpu_is_float(dtype) || ((k == NEAREST || k == NEAREST_EXACT) && dtype == TPU_U8)) return true;
  fail_not_implemented(b, a, dtype);
  return false;
}

/* Forward: (self, output_size, [align_corners,] scales..). Backward: (grad_output, output_size, input_size, [align_corners,]
 * scales..). The row's rule is the number of spatial dims, hlo the kind. */
static void upsample(tpu_build *b, const tpu_args *a, tpu_outs *o, bool backward) {
  const tpu_operand *x = arg_operand(b, a, 0);
  int spatial = a->row->rule, n_out, n_in = 0, at = backward ? 3 : 2;
  kind k = (kind)a->row->hlo;
  const int64_t *out = arg_ints(a, 1, &n_out), *in = backward ? arg_ints(a, 2, &n_in) : NULL;
  if (!x) return;
  if (backward && n_in != spatial + 2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "It is expected input_size equals to %d, but got size %d", spatial + 2, n_in);
    return;
  }
  if (!backward && x->rank != spatial + 2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "It is expected input_size equals to %d, but got size %d", spatial + 2, x->rank);
    return;
  }
  const int64_t *in_sizes = backward ? in + 2 : x->sizes + 2;
  if (!check_sizes(b, x, spatial, in_sizes, n_out, out) || !is_resampled(b, a, k, x->dtype)) return;
  for (int d = 0; d < spatial && backward; d++) {
    if (x->sizes[2 + d] == out[d]) continue;
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Expected grad_output to have the same shape as output; output.size(%d) = %" PRId64
             " but got grad_output.size(%d) = %" PRId64,
             2 + d, out[d], 2 + d, x->sizes[2 + d]);
    return;
  }
  coordinates c = {.kind = k, .wide = x->dtype == TPU_F64};
  if (k != NEAREST && k != NEAREST_EXACT) c.align_corners = arg_bool(b, a, at++);
  banded maps[POOL_MAX_SPATIAL];
  for (int d = 0; d < spatial; d++) {
    banded map;
    c.scale_factor = arg_present(a, at + d) ? arg_static(b, a, at + d) : 0;
    if (!make_map(b, &c, in_sizes[d], out[d], &map)) return;
    maps[d] = map;
    if (backward && !banded_transpose(b, &map, &maps[d])) return;
  }
  bool exact = !backward && (k == NEAREST || k == NEAREST_EXACT);
  pool p = {.spatial = spatial, .rank = spatial + 2, .first = 2};
  p.channels_last = strides_are_channels_last(x->rank, x->sizes, x->strides);
  if (p.channels_last) p.first = 1;
  tpu_val v = exact ? x->val : tpu_convert(b, x->val, tpu_dtype_opmath(x->dtype));
  v = banded_apply_each(b, spatial, maps, pool_to_order(b, &p, v), p.first);
  o->out[0].val = tpu_convert(b, pool_from_order(b, &p, v), x->dtype);
  if (!(backward && k == CUBIC)) out_channels_last(b, &o->out[0], x); /* that one is always row-major */
}
void lower_upsample(tpu_build *b, const tpu_args *a, tpu_outs *o) { upsample(b, a, o, false); }
void lower_upsample_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) { upsample(b, a, o, true); }
