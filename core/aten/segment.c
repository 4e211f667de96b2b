/* segment_reduce. Source: aten/src/ATen/native/SegmentReduce.cpp. */
#include <math.h>
#include <string.h>

#include "aten/indexing.h"

typedef struct segments {
  const tpu_operand *data;
  int axis, rank;
  int64_t count; /* segments */
  index_reduction op;
  tpu_val id;      /* I32 [data dims up to axis]: the segment of each element; `count` for none */
  tpu_val lengths; /* I32 [.., count] */
  int64_t out_dims[TPU_MAX_RANK];
} segments;

static bool parse(tpu_build *b, const char *name, index_reduction *out) {
  static const char *const names[] = {"sum", "prod", "mean", "max", "min"};
  for (int i = 0; i < 5; i++)
    if (strcmp(name, names[i]) == 0) {
      *out = (index_reduction)i;
      return true;
    }
  tpu_fail(b, TPU_INVALID_ARGUMENT, "unsupported reduction given! %s", name);
  return false;
}

/* The segment of an element: how many end at or before it. */
static void find_segments(tpu_build *b, segments *s, tpu_val ends, tpu_val lengths) {
  int axis = s->axis, rank = axis + 2;
  int64_t dims[TPU_MAX_RANK], ends_map[TPU_MAX_RANK], reduced = axis + 1;
  const int64_t *data = s->data->sizes;
  for (int d = 0; d < axis; d++) {
    dims[d] = data[d];
    ends_map[d] = d;
  }
  dims[axis] = data[axis];
  dims[axis + 1] = s->count;
  ends_map[axis] = axis + 1;
  s->lengths = lengths;
  if (s->count == 0 || tpu_numel_of(b, s->data->val) == 0) {
    s->id = tpu_full(b, TPU_I32, axis + 1, dims, 0);
    return;
  }
  if (axis == 0) {
    s->id = index_count_ends(b, ends, data[0]);
    return;
  }
  tpu_val end = tpu_broadcast_in_dim(b, ends, rank, dims, ends_map);
  tpu_val passed = tpu_compare(b, TPU_LE, end, tpu_iota(b, TPU_I32, rank, dims, axis));
  s->id = tpu_reduce(b, TPU_MONOID_ADD, tpu_convert(b, passed, TPU_I32), tpu_scalar_i(b, TPU_I32, 0), 1, &reduced);
}

/* i_lengths, i_offsets, i_axis: argument numbers */
static bool read_segments(tpu_build *b, const tpu_args *a, int i_data, int i_reduce, int i_lengths, int i_offsets, int i_axis,
                          segments *out) {
  const tpu_operand *data = arg_operand(b, a, i_data);
  bool by_lengths = arg_present(a, i_lengths), by_offsets = arg_present(a, i_offsets);
  *out = (segments){.data = data};
  if (!data || !parse(b, arg_str(a, i_reduce), &out->op)) return false;
  out->axis = arg_dim(b, a, i_axis, data->rank);
  if (!tpu_build_failed(b) && !by_lengths && !by_offsets)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "segment_reduce(): Either lengths or offsets must be defined.");
  if (tpu_build_failed(b)) return false;
  const tpu_operand *given = arg_operand(b, a, by_offsets ? i_offsets : i_lengths);
  if (!given) return false;
  if (given->rank != out->axis + 1 || given->rank > data->rank) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "segment_reduce(): Expected axis to be the last dimension of %s but got %d.",
             by_offsets ? "offsets" : "lengths", out->axis);
    return false;
  }
  int axis = out->axis;
  tpu_val x = tpu_convert(b, given->val, TPU_I32), ends, lengths;
  out->count = given->sizes[axis] - by_offsets;
  if (by_offsets) {
    ends = tpu_slice_dim(b, x, axis, 1, out->count + 1, 1);
    lengths = tpu_sub(b, ends, tpu_slice_dim(b, x, axis, 0, out->count, 1));
  } else {
    lengths = x;
    ends = out->count ? tpu_cumulative(b, TPU_MONOID_ADD, x, axis, false) : x;
  }
  find_segments(b, out, ends, lengths);
  out->rank = data->rank;
  memcpy(out->out_dims, data->sizes, sizeof *out->out_dims * (size_t)data->rank);
  out->out_dims[axis] = out->count;
  return !tpu_build_failed(b);
}

/* x of dims [.., n] beside every element of a slice: repeated along the dims after axis. */
static tpu_val spread(tpu_build *b, const segments *s, tpu_val x, int64_t n) {
  int64_t dims[TPU_MAX_RANK], map[TPU_MAX_RANK];
  memcpy(dims, s->data->sizes, sizeof *dims * (size_t)s->rank);
  dims[s->axis] = n;
  for (int d = 0; d <= s->axis; d++) map[d] = d;
  return tpu_broadcast_in_dim(b, x, s->rank, dims, map);
}

/* As index_scatter takes it: same along the dims after axis. */
static tpu_val element_index(tpu_build *b, const segments *s, int64_t *out_strides) {
  for (int d = 0; d < s->rank; d++) out_strides[d] = d <= s->axis;
  return spread(b, s, s->id, s->data->sizes[s->axis]);
}

static tpu_val reduce_segments(tpu_build *b, const segments *s, tpu_monoid op, tpu_val start, tpu_val x) {
  int64_t strides[TPU_MAX_RANK];
  tpu_val index = element_index(b, s, strides);
  return index_scatter(b, op, tpu_broadcast_to(b, start, s->rank, s->out_dims), s->axis, index, strides, x);
}

static tpu_val of_element(tpu_build *b, const segments *s, tpu_val per_segment) {
  int64_t strides[TPU_MAX_RANK];
  tpu_val index = element_index(b, s, strides);
  return index_gather(b, per_segment, s->axis, index, strides);
}

static tpu_val initial_value(tpu_build *b, const tpu_args *a, int i, index_reduction op, tpu_dtype dtype) {
  if (arg_present(a, i)) return arg_number(b, a, i, dtype);
  double value = op == INDEX_PROD ? 1 : op == INDEX_AMAX ? -INFINITY : op == INDEX_AMIN ? INFINITY : 0;
  return tpu_scalar(b, dtype, value);
}

static const tpu_monoid monoids[] = {TPU_MONOID_ADD, TPU_MONOID_MUL, TPU_MONOID_ADD, TPU_MONOID_MAX, TPU_MONOID_MIN};

/* segment_reduce(data, reduce, *, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None) */
void lower_segment_reduce(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  segments s;
  if (arg_present(a, 3)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "segment_reduce(): indices based reduction is not supported yet.");
    return;
  }
  if (!read_segments(b, a, 0, 1, 2, 4, 5, &s)) return;
  if (!tpu_is_float(s.data->dtype)) {
    fail_not_implemented(b, a, s.data->dtype);
    return;
  }
  tpu_dtype math = tpu_dtype_opmath(s.data->dtype);
  tpu_val x = tpu_convert(b, s.data->val, math);
  tpu_val y = reduce_segments(b, &s, monoids[s.op], initial_value(b, a, 7, s.op, math), x);
  if (s.op == INDEX_MEAN && s.count) {
    tpu_val length = spread(b, &s, s.lengths, s.count), zero = tpu_full_like(b, length, 0);
    tpu_val is_empty = tpu_compare(b, TPU_EQ, length, zero);
    tpu_val mean = tpu_div(b, y, tpu_convert(b, length, math));
    tpu_val without = arg_present(a, 7) ? y : tpu_full_like(b, y, (double)NAN);
    y = tpu_select(b, is_empty, without, mean);
  }
  o->out[0].val = tpu_convert(b, y, s.data->dtype);
}

/* d prod / d x: the product of the others. Zeros and NaNs cannot be divided out of the product. */
static tpu_val product_of_others(tpu_build *b, const segments *s, tpu_val x, tpu_val output, tpu_val start) {
  tpu_dtype dtype = tpu_dtype_of(b, x);
  tpu_val zero = tpu_full_like(b, x, 0), one = tpu_full_like(b, x, 1), none = tpu_scalar(b, dtype, 0);
  tpu_val is_zero = tpu_compare(b, TPU_EQ, x, zero), is_nan = tpu_is_nan(b, x);
  tpu_val special = tpu_or(b, is_zero, is_nan);
  tpu_val plain = of_element(b, s, reduce_segments(b, s, TPU_MONOID_MUL, start, tpu_select(b, special, one, x)));
  tpu_val zeros = tpu_convert(b, is_zero, dtype), nans = tpu_convert(b, is_nan, dtype);
  tpu_val other_zeros = tpu_sub(b, of_element(b, s, reduce_segments(b, s, TPU_MONOID_ADD, none, zeros)), zeros);
  tpu_val other_nans = tpu_sub(b, of_element(b, s, reduce_segments(b, s, TPU_MONOID_ADD, none, nans)), nans);
  tpu_val excluded = tpu_select(b, tpu_compare(b, TPU_GT, other_zeros, zero), zero, plain);
  excluded = tpu_select(b, tpu_compare(b, TPU_GT, other_nans, zero), tpu_full_like(b, x, (double)NAN), excluded);
  return tpu_select(b, special, excluded, tpu_div(b, of_element(b, s, output), x));
}

/* _segment_reduce_backward(grad, output, data, reduce, *, lengths=None, offsets=None, axis=0, initial=None) */
void lower_segment_reduce_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  segments s;
  tpu_val grad = arg_tensor(b, a, 0), output = arg_tensor(b, a, 1);
  if (!read_segments(b, a, 2, 3, 4, 5, 6, &s)) return;
  if (tpu_numel_of(b, s.data->val) == 0 || s.count == 0) {
    o->out[0].val = tpu_full_like(b, s.data->val, 0);
    return;
  }
  tpu_dtype dtype = s.data->dtype, math = tpu_dtype_opmath(dtype);
  tpu_val x = tpu_convert(b, s.data->val, math), zero = tpu_full_like(b, x, 0), y;
  grad = tpu_convert(b, grad, math);
  output = tpu_convert(b, output, math);
  if (s.op == INDEX_MEAN) {
    tpu_val length = tpu_convert(b, spread(b, &s, s.lengths, s.count), math);
    grad = tpu_div(b, grad, tpu_max(b, length, tpu_full_like(b, length, 1)));
  }
  y = of_element(b, &s, grad);
  if (s.op == INDEX_AMAX || s.op == INDEX_AMIN) {
    tpu_val hit = tpu_or(b, tpu_compare(b, TPU_EQ, x, of_element(b, &s, output)), tpu_is_nan(b, x));
    tpu_val count = reduce_segments(b, &s, TPU_MONOID_ADD, tpu_scalar(b, math, 0), tpu_convert(b, hit, math));
    y = tpu_select(b, hit, tpu_div(b, y, of_element(b, &s, count)), zero);
  } else if (s.op == INDEX_PROD) {
    y = tpu_mul(b, y, product_of_others(b, &s, x, output, initial_value(b, a, 7, s.op, math)));
  }
  tpu_val in_none = spread(b, &s, tpu_compare(b, TPU_GE, s.id, tpu_full_like(b, s.id, (double)s.count)), s.data->sizes[s.axis]);
  o->out[0].val = tpu_convert(b, tpu_select(b, in_none, zero, y), dtype);
}
