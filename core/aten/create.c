/* Rows: tensors from nothing, copies. The .rule of a row is the index of its dtype argument. Source:
 * aten/src/ATen/native/TensorFactories.cpp, RangeFactories.cpp. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "aten/elementwise.h"
#include "base/strbuf.h"

static bool check_sizes(tpu_build *b, int n, const int64_t *sizes) {
  for (int d = 0; d < n; d++) {
    if (sizes[d] >= 0) continue;
    tpu_strbuf s = {0};
    for (int i = 0; i < n; i++) tpu_strbuf_printf(&s, i ? ", %" PRId64 : "%" PRId64, sizes[i]);
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Trying to create tensor with negative dimension %" PRId64 ": [%s]", sizes[d],
             s.data ? s.data : "");
    tpu_strbuf_destroy(&s);
    return false;
  }
  return true;
}

/* Strides of a result shaped like operand 0 by the memory format at argument i (NONE: preserve). */
static void format_strides(tpu_build *b, const tpu_args *a, int i, tpu_out *out) {
  enum { CONTIGUOUS, PRESERVE, CHANNELS_LAST, CHANNELS_LAST_3D };
  int64_t format = arg_int(b, a, i, PRESERVE);
  const tpu_operand *self = arg_operand(b, a, 0);
  if (!self || tpu_build_failed(b)) return;
  int64_t *strides = tpu_build_alloc(b, sizeof *strides * (size_t)(self->rank ? self->rank : 1));
  if (!strides) return;
  if (format == CHANNELS_LAST || format == CHANNELS_LAST_3D) {
    int rank = format == CHANNELS_LAST ? 4 : 5;
    if (self->rank != rank) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "required rank %d tensor to use channels_last%s format", rank, rank == 4 ? "" : "_3d");
      return;
    }
    strides_channels_last(self->rank, self->sizes, strides);
  } else if (format == PRESERVE) {
    strides_preserve(self->rank, self->sizes, self->strides, strides);
  } else {
    strides_contiguous(self->rank, self->sizes, strides);
  }
  out->strides = strides;
}

/* zeros, ones, new_zeros, new_ones: sizes before the dtype; hlo: the value. */
void lower_constant(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int n, at = a->row->rule;
  const int64_t *sizes = arg_ints(a, at - 1, &n);
  tpu_dtype like = a->arg[0].kind == TPU_ARG_TENSOR ? tpu_dtype_of(b, arg_tensor(b, a, 0)) : default_dtype(a);
  if (check_sizes(b, n, sizes)) o->out[0].val = tpu_full_i(b, arg_dtype(a, at, like), n, sizes, a->row->hlo);
}

static tpu_dtype number_result(const tpu_args *a, tpu_dtype number) {
  if (is_whole(number)) return number;
  return tpu_is_complex(number) ? tpu_dtype_complex(default_dtype(a)) : default_dtype(a);
}

/* full, new_full: sizes and value before the dtype. */
void lower_full(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int n, at = a->row->rule;
  const int64_t *sizes = arg_ints(a, at - 2, &n);
  tpu_dtype like =
      a->arg[0].kind == TPU_ARG_TENSOR ? tpu_dtype_of(b, arg_tensor(b, a, 0)) : number_result(a, arg_number_dtype(a, at - 1));
  if (!check_sizes(b, n, sizes)) return;
  o->out[0].val = tpu_broadcast_to(b, arg_number(b, a, at - 1, arg_dtype(a, at, like)), n, sizes);
}

/* zeros_like, ones_like (hlo: the value), full_like (hlo -1: the value before the dtype). */
void lower_like(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *self = arg_operand(b, a, 0);
  if (!self) return;
  int at = a->row->rule;
  tpu_dtype dtype = arg_dtype(a, at, self->dtype);
  if (a->row->hlo < 0)
    o->out[0].val = tpu_broadcast_to(b, arg_number(b, a, at - 1, dtype), self->rank, self->sizes);
  else
    o->out[0].val = tpu_full_i(b, dtype, self->rank, self->sizes, a->row->hlo);
  format_strides(b, a, at + 4, &o->out[0]);
}

void lower_scalar_tensor(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  o->out[0].val = arg_number(b, a, 0, arg_dtype(a, 1, default_dtype(a)));
}

void lower_to_copy(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  o->out[0].val = tpu_convert(b, x, arg_dtype(a, 1, tpu_dtype_of(b, x)));
  format_strides(b, a, 6, &o->out[0]);
}

/* copy(self, src): src in self's type and sizes */
void lower_copy(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *self = arg_operand(b, a, 0);
  if (!self) return;
  tpu_val src = tpu_convert(b, arg_tensor(b, a, 1), self->dtype);
  o->out[0].val = tpu_broadcast_to(b, src, self->rank, self->sizes);
}

/* --- ranges */
static tpu_val counter(tpu_build *b, tpu_dtype dtype, int64_t n) { return tpu_iota(b, dtype, 1, &n, 0); }

static bool is_integer(double x) { return x == floor(x) && fabs(x) < 0x1p62; }

/* start + i * step for i < n, exact for whole numbers. */
static tpu_val range_values(tpu_build *b, tpu_dtype dtype, int64_t n, double start, double step) {
  if (is_whole(dtype)) start = trunc(start), step = trunc(step);
  if (!is_integer(start) || !is_integer(step)) {
    tpu_val i = mul_c(b, counter(b, TPU_F64, n), step);
    return tpu_convert(b, start == 0 ? i : add_c(b, i, start), dtype);
  }
  bool narrow = fabs(start) < 0x1p30 && fabs(step) * (double)(n ? n : 1) < 0x1p30;
  tpu_val i = counter(b, narrow ? TPU_I32 : TPU_I64, n);
  tpu_val scale = tpu_full_i(b, narrow ? TPU_I32 : TPU_I64, 1, &n, (int64_t)step);
  tpu_val shift = tpu_full_i(b, narrow ? TPU_I32 : TPU_I64, 1, &n, (int64_t)start);
  if (step != 1) i = tpu_mul(b, i, scale);
  if (start != 0) i = tpu_add(b, i, shift);
  return tpu_convert(b, i, dtype);
}

/* arange (rule 1: end; 2: start, end; 3: start, end, step), range (hlo 1: end included). */
void lower_arange(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int at = a->row->rule;
  bool inclusive = a->row->hlo != 0, whole = true;
  for (int i = 0; i < at; i++) whole = whole && is_whole(arg_number_dtype(a, i));
  tpu_dtype dtype = arg_dtype(a, at, whole && !inclusive ? TPU_I64 : default_dtype(a));
  double start = at > 1 ? arg_static(b, a, 0) : 0, end = arg_static(b, a, at > 1 ? 1 : 0);
  double step = at > 2 ? arg_static(b, a, 2) : 1;
  if (tpu_build_failed(b)) return;
  if (step == 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "step must be nonzero");
    return;
  }
  if (!isfinite(start) || !isfinite(end)) {
    const char *texts[2];
    double ends[2] = {start, end};
    char buffers[2][32];
    for (int i = 0; i < 2; i++) {
      snprintf(buffers[i], sizeof buffers[i], "%g", ends[i]);
      texts[i] = buffers[i];
    }
    tpu_fail(b, TPU_INVALID_ARGUMENT, "unsupported range: %s -> %s", texts[0], texts[1]);
    return;
  }
  if (step > 0 ? end < start : end > start) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "upper bound and lower bound inconsistent with step sign");
    return;
  }
  double from = start, to = end, by = step;
  if (dtype == TPU_I64) from = trunc(from), to = trunc(to), by = trunc(by);
  if (by == 0) {
    tpu_fail(b, TPU_VALUE_ERROR, "step must be nonzero");
    return;
  }
  double count = inclusive ? floor((to - from) / by) + 1 : ceil((to - from) / by);
  if (!(count < 0x1p53)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "invalid size, possible overflow?");
    return;
  }
  o->out[0].val = range_values(b, dtype, (int64_t)count, start, step);
}

/* tpu::arange(int n, Scalar start, Scalar step, ScalarType dtype): the values of an arange whose length is known, with start and
 * step as run-time numbers. */
void lower_arange_sized(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int64_t n = arg_int(b, a, 0, 0);
  bool whole = is_whole(arg_number_dtype(a, 1)) && is_whole(arg_number_dtype(a, 2));
  tpu_dtype dtype = arg_dtype(a, 3, whole ? TPU_I64 : default_dtype(a));
  tpu_dtype math = whole || is_whole(dtype) ? TPU_I64 : TPU_F64;
  if (!check_sizes(b, 1, &n)) return;
  tpu_val i = counter(b, math, n);
  i = tpu_add(b, tpu_mul(b, i, number_like(b, a, 2, i)), number_like(b, a, 1, i));
  o->out[0].val = tpu_convert(b, i, dtype);
}

/* linspace(start, end, steps), logspace(start, end, steps, base): from both ends, so that both are exact. */
void lower_linspace(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int at = a->row->rule;
  bool logarithmic = at == 4;
  tpu_dtype ends[2];
  for (int i = 0; i < 2; i++) {
    tpu_val x = arg_tensor(b, a, i);
    if (tpu_rank_of(b, x) > 0) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "%s only supports 0-dimensional start and end tensors, but got %s with %d dimension(s).",
               logarithmic ? "logspace" : "linspace", i ? "end" : "start", tpu_rank_of(b, x));
      return;
    }
    ends[i] = tpu_dtype_of(b, x);
  }
  int64_t n = arg_int(b, a, 2, 0);
  if (n < 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "number of steps must be non-negative");
    return;
  }
  bool complex_ends = tpu_is_complex(ends[0]) || tpu_is_complex(ends[1]);
  tpu_dtype dtype = arg_dtype(a, at, complex_ends ? tpu_dtype_complex(default_dtype(a)) : default_dtype(a));
  tpu_dtype math = is_whole(dtype) ? TPU_F64 : tpu_dtype_opmath(dtype);
  tpu_val i = counter(b, tpu_dtype_real(math), n);
  i = tpu_convert(b, i, math);
  /* Whole results start from whole ends. */
  tpu_val start = tpu_convert(b, is_whole(dtype) ? arg_as(b, a, 0, dtype) : arg_as(b, a, 0, math), math);
  tpu_val end = tpu_convert(b, is_whole(dtype) ? arg_as(b, a, 1, dtype) : arg_as(b, a, 1, math), math);
  start = tpu_broadcast_to(b, start, 1, &n);
  end = tpu_broadcast_to(b, end, 1, &n);
  tpu_val y = start;
  if (n > 1) {
    tpu_val step = div_c(b, tpu_sub(b, end, start), (double)(n - 1));
    tpu_val low = tpu_add(b, start, tpu_mul(b, step, i));
    tpu_val high = tpu_sub(b, end, tpu_mul(b, step, c_sub(b, (double)(n - 1), i)));
    tpu_val first = compare_c(b, TPU_LT, counter(b, TPU_I32, n), (double)(n / 2));
    y = tpu_select(b, first, low, high);
  }
  if (logarithmic) y = tpu_binary(b, TPU_HLO_POWER, number_like(b, a, 3, y), y);
  o->out[0].val = tpu_convert(b, y, dtype);
}

/* eye(n), eye.m(n, m): rule is the dtype's index, so also the number of sizes. */
void lower_eye(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int at = a->row->rule;
  int64_t dims[2];
  for (int i = 0; i < 2; i++) {
    dims[i] = arg_int(b, a, at > 1 ? i : 0, 0);
    if (dims[i] >= 0) continue;
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s must be greater or equal to 0, got %" PRId64, i ? "m" : "n", dims[i]);
    return;
  }
  tpu_val diagonal = tpu_compare(b, TPU_EQ, tpu_iota(b, TPU_I32, 2, dims, 0), tpu_iota(b, TPU_I32, 2, dims, 1));
  o->out[0].val = tpu_convert(b, diagonal, arg_dtype(a, at, default_dtype(a)));
}
