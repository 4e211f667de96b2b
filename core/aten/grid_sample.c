/* grid_sampler_2d and _3d with their gradients. Source: aten/src/ATen/native/GridSampler.{h,cpp}. */
#include "aten/indexing.h"

enum { BILINEAR, NEAREST, BICUBIC };
enum { PAD_ZEROS, PAD_BORDER, PAD_REFLECTION };
enum { MOST_AXES = 3, MOST_TAPS = 4 };

/* Where one axis is sampled: `n` positions with their weights, each [points]. */
typedef struct taps {
  int n;
  tpu_val at[MOST_TAPS];                       /* I32, inside the input */
  tpu_val inside[MOST_TAPS];                   /* false: counts as 0 */
  tpu_val weight[MOST_TAPS], slope[MOST_TAPS]; /* slope: d weight / d grid coordinate */
} taps;

typedef struct sampler {
  const tpu_operand *input, *grid;
  int64_t mode, padding;
  bool align;
  int n_axes;                             /* axis 0 is the input's last dim, as in the grid */
  int64_t batch, channels, points, cells; /* points: of one batch entry in the grid; cells: in the input */
  tpu_dtype math;
  taps axes[MOST_AXES];
} sampler;

static tpu_val times(tpu_build *b, tpu_val x, double c) { return binary_c(b, TPU_HLO_MULTIPLY, x, c); }
static tpu_val plus(tpu_build *b, tpu_val x, double c) { return binary_c(b, TPU_HLO_ADD, x, c); }

static tpu_val truth(tpu_build *b, tpu_compare_dir dir, tpu_val x, double c) {
  return tpu_compare(b, dir, x, tpu_full_like(b, x, c));
}

/* x brought between low / 2 and high / 2 by reflection; multiplies *slope (may be NULL) by the derivative. */
static tpu_val reflect(tpu_build *b, tpu_val x, int64_t low, int64_t high, tpu_val *slope) {
  tpu_val zero = tpu_full_like(b, x, 0);
  if (low == high) {
    if (slope) *slope = zero;
    return zero;
  }
  double least = (double)low / 2, span = (double)(high - low) / 2;
  tpu_val from = plus(b, x, -least), distance = tpu_unary(b, TPU_HLO_ABS, from);
  tpu_val extra = tpu_binary(b, TPU_HLO_REMAINDER, distance, tpu_full_like(b, x, span));
  tpu_val flips = tpu_unary(b, TPU_HLO_FLOOR, tpu_div(b, distance, tpu_full_like(b, x, span)));
  tpu_val even = truth(b, TPU_EQ, tpu_binary(b, TPU_HLO_REMAINDER, flips, tpu_full_like(b, x, 2)), 0);
  if (slope) {
    tpu_val negative = tpu_compare(b, TPU_LT, from, zero), kept = tpu_compare(b, TPU_NE, even, negative);
    *slope = tpu_select(b, kept, *slope, tpu_neg(b, *slope));
  }
  return tpu_select(b, even, plus(b, extra, least), plus(b, tpu_neg(b, extra), span + least));
}

static tpu_val pad_coordinate(tpu_build *b, const sampler *s, tpu_val x, int64_t size, tpu_val *slope) {
  if (s->padding == PAD_ZEROS) return x;
  if (s->padding == PAD_REFLECTION)
    x = s->align ? reflect(b, x, 0, 2 * (size - 1), slope) : reflect(b, x, -1, 2 * size - 1, slope);
  tpu_val below = truth(b, TPU_LE, x, 0), above = truth(b, TPU_GE, x, (double)(size - 1));
  if (slope) *slope = tpu_select(b, tpu_or(b, below, above), tpu_full_like(b, x, 0), *slope);
  x = tpu_select(b, below, tpu_full_like(b, x, 0), x);
  return tpu_select(b, above, tpu_full_like(b, x, (double)(size - 1)), x);
}

/* x is a whole number, maybe outside or NaN. */
static void set_tap(tpu_build *b, taps *t, int i, tpu_val x, int64_t size) {
  t->inside[i] = tpu_and(b, truth(b, TPU_GE, x, 0), truth(b, TPU_LE, x, (double)(size - 1)));
  t->at[i] = tpu_convert(b, tpu_select(b, t->inside[i], x, tpu_full_like(b, x, 0)), TPU_I32);
}

/* Cubic convolution with A = -0.75: near for |x| <= 1, far for 1 < |x| < 2, and their derivatives. */
static tpu_val polynomial(tpu_build *b, tpu_val x, double c3, double c2, double c1, double c0) {
  tpu_val y = plus(b, times(b, x, c3), c2);
  y = plus(b, tpu_mul(b, y, x), c1);
  return plus(b, tpu_mul(b, y, x), c0);
}
static tpu_val cubic_near(tpu_build *b, tpu_val x) { return polynomial(b, x, 1.25, -2.25, 0, 1); }
static tpu_val cubic_far(tpu_build *b, tpu_val x) { return polynomial(b, x, -0.75, 3.75, -6, 3); }
static tpu_val cubic_near_slope(tpu_build *b, tpu_val x) { return polynomial(b, x, 0, 3.75, -4.5, 0); }
static tpu_val cubic_far_slope(tpu_build *b, tpu_val x) { return polynomial(b, x, 0, -2.25, 7.5, -6); }

static void cubic_taps(tpu_build *b, const sampler *s, tpu_val x, int64_t size, tpu_val slope, taps *t) {
  tpu_val whole = tpu_unary(b, TPU_HLO_FLOOR, x), f = tpu_sub(b, x, whole), rest = plus(b, tpu_neg(b, f), 1);
  tpu_val before = plus(b, f, 1), after = plus(b, rest, 1);
  t->n = 4;
  for (int i = 0; i < 4; i++) set_tap(b, t, i, pad_coordinate(b, s, plus(b, whole, i - 1), size, NULL), size);
  t->weight[0] = cubic_far(b, before);
  t->weight[1] = cubic_near(b, f);
  t->weight[2] = cubic_near(b, rest);
  t->weight[3] = cubic_far(b, after);
  t->slope[0] = tpu_mul(b, cubic_far_slope(b, before), slope);
  t->slope[1] = tpu_mul(b, cubic_near_slope(b, f), slope);
  t->slope[2] = tpu_neg(b, tpu_mul(b, cubic_near_slope(b, rest), slope));
  t->slope[3] = tpu_neg(b, tpu_mul(b, cubic_far_slope(b, after), slope));
}

static void axis_taps(tpu_build *b, const sampler *s, tpu_val coordinate, int64_t size, taps *t) {
  double scale = s->align ? (double)(size - 1) / 2 : (double)size / 2;
  tpu_val x = plus(b, coordinate, 1), slope = tpu_full_like(b, x, scale);
  x = s->align ? times(b, times(b, x, 0.5), (double)(size - 1)) : times(b, plus(b, times(b, x, (double)size), -1), 0.5);
  if (s->mode == BICUBIC) {
    cubic_taps(b, s, x, size, slope, t);
    return;
  }
  x = pad_coordinate(b, s, x, size, &slope);
  if (s->mode == NEAREST) {
    t->n = 1;
    set_tap(b, t, 0, tpu_unary(b, TPU_HLO_ROUND_EVEN, x), size);
    t->weight[0] = tpu_full_like(b, x, 1);
    t->slope[0] = tpu_full_like(b, x, 0);
    return;
  }
  tpu_val whole = tpu_unary(b, TPU_HLO_FLOOR, x), f = tpu_sub(b, x, whole);
  t->n = 2;
  set_tap(b, t, 0, whole, size);
  set_tap(b, t, 1, plus(b, whole, 1), size);
  t->weight[0] = plus(b, tpu_neg(b, f), 1);
  t->weight[1] = f;
  t->slope[0] = tpu_neg(b, slope);
  t->slope[1] = slope;
}

static bool check(tpu_build *b, const sampler *s) {
  const tpu_operand *x = s->input, *grid = s->grid;
  int rank = s->n_axes + 2;
  if (x->rank != rank || grid->rank != rank)
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "grid_sampler(): expected %dD input and grid with same number of dimensions, but got input with sizes %s and "
             "grid with sizes %s",
             rank, index_dims_text(b, x->rank, x->sizes), index_dims_text(b, grid->rank, grid->sizes));
  else if (x->sizes[0] != grid->sizes[0])
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "grid_sampler(): expected grid and input to have same batch size, but got input with sizes %s and grid with "
             "sizes %s",
             index_dims_text(b, rank, x->sizes), index_dims_text(b, rank, grid->sizes));
  else if (grid->sizes[rank - 1] != s->n_axes)
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "grid_sampler(): expected grid to have size %d in last dimension, but got grid with sizes %s", s->n_axes,
             index_dims_text(b, rank, grid->sizes));
  else if (s->mode == BICUBIC && s->n_axes != 2)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "grid_sampler(): bicubic interpolation only supports 4D input");
  else if (x->dtype != grid->dtype)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "expected scalar type %s but found %s", tpu_dtype_scalar_name(x->dtype),
             tpu_dtype_scalar_name(grid->dtype));
  for (int d = 2; d < rank && !tpu_build_failed(b); d++)
    if (x->sizes[d] == 0)
      tpu_fail(b, TPU_INVALID_ARGUMENT,
               "grid_sampler(): expected input to have non-empty spatial dimensions, but input has sizes %s with dimension "
               "%d being empty",
               index_dims_text(b, rank, x->sizes), d);
  return !tpu_build_failed(b);
}

/* i: the argument number of `input`; the others follow it */
static bool read_sampler(tpu_build *b, const tpu_args *a, int i, int n_axes, sampler *s) {
  *s = (sampler){.input = arg_operand(b, a, i),
                 .grid = arg_operand(b, a, i + 1),
                 .n_axes = n_axes,
                 .mode = arg_int(b, a, i + 2, 0),
                 .padding = arg_int(b, a, i + 3, 0),
                 .align = arg_bool(b, a, i + 4)};
  if (tpu_build_failed(b) || !check(b, s)) return false;
  s->batch = s->input->sizes[0];
  s->channels = s->input->sizes[1];
  s->math = tpu_dtype_opmath(s->input->dtype);
  s->points = s->cells = 1;
  for (int d = 0; d < n_axes; d++) {
    s->points *= s->grid->sizes[1 + d];
    s->cells *= s->input->sizes[2 + d];
  }
  int64_t n = s->batch * s->points, table[2] = {n, n_axes};
  tpu_val grid = tpu_reshape(b, tpu_convert(b, s->grid->val, s->math), 2, table);
  for (int axis = 0; axis < n_axes; axis++) {
    tpu_val coordinate = tpu_reshape(b, tpu_slice_dim(b, grid, 1, axis, axis + 1, 1), 1, &n);
    axis_taps(b, s, coordinate, s->input->sizes[s->input->rank - 1 - axis], &s->axes[axis]);
  }
  return !tpu_build_failed(b);
}

/* [batch, channels, inner..] -> [batch * inner, channels]: rows to gather */
static tpu_val to_rows(tpu_build *b, const sampler *s, tpu_val x, int64_t inner) {
  int64_t dims[3] = {s->batch, s->channels, inner}, rows[2] = {s->batch * inner, s->channels};
  x = tpu_reshape(b, tpu_convert(b, x, s->math), 3, dims);
  return tpu_reshape(b, tpu_transpose(b, x, (int64_t[]){0, 2, 1}), 2, rows);
}
static tpu_val from_rows(tpu_build *b, const sampler *s, tpu_val rows, int64_t inner) {
  int64_t dims[3] = {s->batch, inner, s->channels};
  return tpu_transpose(b, tpu_reshape(b, rows, 3, dims), (int64_t[]){0, 2, 1});
}

/* One combination of taps: the row of the input, and the product of the weights, where axis `sloped` gives its slope (-1: none).
 */
typedef struct corner {
  int tap[MOST_AXES];
} corner;

static bool next_corner(const sampler *s, corner *c) {
  for (int axis = 0; axis < s->n_axes; axis++) {
    if (++c->tap[axis] < s->axes[axis].n) return true;
    c->tap[axis] = 0;
  }
  return false;
}

static tpu_val corner_row(tpu_build *b, const sampler *s, const corner *c, tpu_val *out_inside) {
  int64_t n = s->batch * s->points, pair[2] = {s->batch, s->points}, stride = 1;
  tpu_val row = tpu_reshape(b, tpu_iota(b, TPU_I32, 2, pair, 0), 1, &n), inside = TPU_POISON;
  row = tpu_mul(b, row, tpu_full_i(b, TPU_I32, 1, &n, s->cells));
  for (int axis = 0; axis < s->n_axes; axis++) {
    const taps *t = &s->axes[axis];
    row = tpu_add(b, row, tpu_mul(b, t->at[c->tap[axis]], tpu_full_i(b, TPU_I32, 1, &n, stride)));
    tpu_val here = t->inside[c->tap[axis]];
    inside = inside.id ? tpu_and(b, inside, here) : here;
    stride *= s->input->sizes[s->input->rank - 1 - axis];
  }
  *out_inside = inside;
  return row;
}

static tpu_val corner_weight(tpu_build *b, const sampler *s, const corner *c, tpu_val inside, int sloped) {
  tpu_val w = TPU_POISON;
  for (int axis = 0; axis < s->n_axes; axis++) {
    const taps *t = &s->axes[axis];
    tpu_val factor = axis == sloped ? t->slope[c->tap[axis]] : t->weight[c->tap[axis]];
    w = w.id ? tpu_mul(b, w, factor) : factor;
  }
  return tpu_select(b, inside, w, tpu_full_like(b, w, 0));
}

static tpu_val beside_channels(tpu_build *b, const sampler *s, tpu_val x) {
  int64_t dims[2] = {s->batch * s->points, s->channels}, to_row = 0;
  return tpu_broadcast_in_dim(b, x, 2, dims, &to_row);
}

static void sample(tpu_build *b, const tpu_args *a, tpu_outs *o, int n_axes) {
  sampler s;
  if (!read_sampler(b, a, 0, n_axes, &s)) return;
  int64_t dims[MOST_AXES + 2] = {s.batch, s.channels};
  for (int d = 0; d < n_axes; d++) dims[2 + d] = s.grid->sizes[1 + d];
  tpu_val rows = to_rows(b, &s, s.input->val, s.cells), y = TPU_POISON, inside;
  corner c = {{0}};
  do {
    tpu_val row = corner_row(b, &s, &c, &inside);
    tpu_val part = index_read_rows(b, rows, 0, row);
    part = tpu_mul(b, part, beside_channels(b, &s, corner_weight(b, &s, &c, inside, -1)));
    part = tpu_select(b, beside_channels(b, &s, inside), part, tpu_full_like(b, part, 0)); /* 0 * inf */
    y = y.id ? tpu_add(b, y, part) : part;
  } while (next_corner(&s, &c) && !tpu_build_failed(b));
  y = tpu_reshape(b, from_rows(b, &s, y, s.points), n_axes + 2, dims);
  o->out[0].val = tpu_convert(b, y, s.input->dtype);
}

static void sample_backward(tpu_build *b, const tpu_args *a, tpu_outs *o, int n_axes) {
  sampler s;
  int n_mask;
  const int64_t *mask = arg_ints(a, 6, &n_mask);
  bool wants_input = n_mask < 1 || mask[0], wants_grid = n_mask < 2 || mask[1];
  tpu_val grad = arg_tensor(b, a, 0);
  if (!read_sampler(b, a, 1, n_axes, &s)) return;
  int64_t n = s.batch * s.points, all[2] = {s.batch * s.cells, s.channels}, columns = 1;
  tpu_val grad_rows = to_rows(b, &s, grad, s.points), rows = to_rows(b, &s, s.input->val, s.cells), inside;
  tpu_val grad_input = tpu_full(b, s.math, 2, all, 0), grad_grid[MOST_AXES];
  for (int axis = 0; axis < n_axes; axis++) grad_grid[axis] = tpu_full(b, s.math, 1, &n, 0);
  corner c = {{0}};
  do {
    tpu_val row = corner_row(b, &s, &c, &inside);
    if (wants_input) {
      tpu_val part = tpu_mul(b, grad_rows, beside_channels(b, &s, corner_weight(b, &s, &c, inside, -1)));
      tpu_val target = tpu_select(b, inside, row, tpu_full_like(b, row, (double)all[0])); /* outside: dropped */
      grad_input = index_write_rows(b, TPU_MONOID_ADD, grad_input, 0, target, part);
    }
    if (!wants_grid || s.mode == NEAREST) continue;
    tpu_val product = tpu_mul(b, grad_rows, index_read_rows(b, rows, 0, row));
    tpu_val along = tpu_reduce(b, TPU_MONOID_ADD, product, tpu_scalar(b, s.math, 0), 1, &columns);
    along = tpu_select(b, inside, along, tpu_full_like(b, along, 0));
    for (int axis = 0; axis < n_axes; axis++)
      grad_grid[axis] = tpu_add(b, grad_grid[axis], tpu_mul(b, along, corner_weight(b, &s, &c, inside, axis)));
  } while (next_corner(&s, &c) && !tpu_build_failed(b));
  o->out[0].undefined = !wants_input;
  o->out[1].undefined = !wants_grid;
  if (wants_input) {
    tpu_val y = tpu_reshape(b, from_rows(b, &s, grad_input, s.cells), s.input->rank, s.input->sizes);
    o->out[0].val = tpu_convert(b, y, s.input->dtype);
  }
  if (wants_grid) {
    int64_t column[2] = {n, 1};
    for (int axis = 0; axis < n_axes; axis++) grad_grid[axis] = tpu_reshape(b, grad_grid[axis], 2, column);
    tpu_val y = tpu_reshape(b, tpu_concat(b, n_axes, grad_grid, 1), s.grid->rank, s.grid->sizes);
    o->out[1].val = tpu_convert(b, y, s.grid->dtype);
  }
}

/* (input, grid, interpolation_mode, padding_mode, align_corners) */
void lower_grid_sampler_2d(tpu_build *b, const tpu_args *a, tpu_outs *o) { sample(b, a, o, 2); }
void lower_grid_sampler_3d(tpu_build *b, const tpu_args *a, tpu_outs *o) { sample(b, a, o, 3); }
/* (grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask) -> (grad_input, grad_grid) */
void lower_grid_sampler_2d_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) { sample_backward(b, a, o, 2); }
void lower_grid_sampler_3d_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) { sample_backward(b, a, o, 3); }
