/* One small program for each operation of the table, for tests: over every dtype the type rules allow where that is a matter of
 * the op, else one typical use or a few. */
#ifndef TPU_IR_SAMPLES_TEST_H
#define TPU_IR_SAMPLES_TEST_H

#include <math.h>
#include <string.h>

#include "ir/emit.h"

enum { SAMPLE_OUTPUTS = 64 };
typedef struct sample {
  tpu_build b;
  uint32_t n;
  tpu_val outputs[SAMPLE_OUTPUTS];
} sample;

#define DIMS(...) ((const int64_t[]){__VA_ARGS__})

static void sample_out(sample *s, tpu_val v) {
  if (v.id && s->n < SAMPLE_OUTPUTS) s->outputs[s->n++] = v;
}
static tpu_val f32_param(sample *s, int rank, const int64_t *dims) { return tpu_param(&s->b, TPU_F32, rank, dims); }
static tpu_val i32_param(sample *s, int rank, const int64_t *dims) { return tpu_param(&s->b, TPU_I32, rank, dims); }

/* Every dtype that the op takes, over n operands of one type. */
static void sample_elementwise(sample *s, tpu_hlo op, int n) {
  for (int t = 0; t < TPU_DTYPE_COUNT; t++) {
    if (tpu_is_float((tpu_dtype)t) && tpu_dtype_bytes((tpu_dtype)t) == 1) continue;
    if (tpu_build_failed(&s->b)) return;
    tpu_val x = tpu_param(&s->b, (tpu_dtype)t, 2, DIMS(3, 4)), y = tpu_param(&s->b, (tpu_dtype)t, 2, DIMS(3, 4));
    tpu_val out = n == 1 ? tpu_unary(&s->b, op, x) : tpu_binary(&s->b, op, x, y);
    tpu_status refused = out.id ? NULL : tpu_build_status(&s->b);
    if (tpu_status_code(refused) == TPU_INVALID_ARGUMENT) { /* not of this dtype */
      tpu_status_release(refused);
      continue;
    }
    s->b.status = refused;
    sample_out(s, out);
  }
}

static void sample_COMPARE(sample *s) {
  for (int t = 0; t < TPU_DTYPE_COUNT; t++) {
    if (tpu_is_float((tpu_dtype)t) && tpu_dtype_bytes((tpu_dtype)t) == 1) continue;
    tpu_val x = tpu_param(&s->b, (tpu_dtype)t, 1, DIMS(5)), y = tpu_param(&s->b, (tpu_dtype)t, 1, DIMS(5));
    sample_out(s, tpu_compare(&s->b, tpu_is_complex((tpu_dtype)t) ? TPU_NE : (tpu_compare_dir)(t % 6), x, y));
    if (tpu_is_float((tpu_dtype)t)) sample_out(s, tpu_compare_total(&s->b, TPU_LT, x, y));
  }
}

/* Every pair of dtypes is too much for one program: from and to f32, i32, bool and c64. */
static void sample_CONVERT(sample *s) {
  static const tpu_dtype hubs[] = {TPU_F32, TPU_I64, TPU_BOOL, TPU_C64};
  for (size_t h = 0; h < sizeof hubs / sizeof *hubs; h++) {
    tpu_val hub = tpu_param(&s->b, hubs[h], 1, DIMS(5));
    tpu_val sum = TPU_POISON;
    for (int t = 0; t < TPU_DTYPE_COUNT; t++) {
      if (t == TPU_F8E8M0FNU) continue; /* not in all plugins */
      tpu_val x = tpu_param(&s->b, (tpu_dtype)t, 1, DIMS(5));
      tpu_val there = tpu_convert(&s->b, x, hubs[h]), back = tpu_convert(&s->b, tpu_convert(&s->b, hub, (tpu_dtype)t), TPU_F64);
      there = tpu_convert(&s->b, there, TPU_F64);
      sum = sum.id ? tpu_add(&s->b, sum, tpu_add(&s->b, there, back)) : tpu_add(&s->b, there, back);
    }
    sample_out(s, sum);
  }
}

static void sample_PARAM(sample *s) {
  tpu_val unused = f32_param(s, 2, DIMS(7, 7));
  (void)unused;
  tpu_val x = f32_param(s, 2, DIMS(2, 3));
  sample_out(s, x);
  sample_out(s, x);
  sample_out(s, tpu_neg(&s->b, x));
  sample_out(s, f32_param(s, 3, DIMS(2, 0, 3)));
}

static void sample_SLOT(sample *s) {
  for (int t = 0; t < TPU_DTYPE_COUNT; t++) {
    if (tpu_is_float((tpu_dtype)t) && tpu_dtype_bytes((tpu_dtype)t) == 1) continue;
    sample_out(s, tpu_slot(&s->b, (uint32_t)(TPU_DTYPE_COUNT - t), (tpu_dtype)t));
  }
  sample_out(s, tpu_add(&s->b, tpu_slot(&s->b, 2, TPU_F32), tpu_slot(&s->b, 1, TPU_F32)));
}

static void sample_CONSTANT(sample *s) {
  static const double numbers[] = {0, -0.0, 1, -2, 0.1, 1e300, 1e-310, -1e-45};
  static const int64_t many[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, -10, 11, 12};
  int64_t flags[9]; /* bytes of bools, and of a long array */
  int64_t large[100];
  for (int i = 0; i < 100; i++) large[i] = i * 7919;
  memset(flags, 0, sizeof flags);
  ((char *)flags)[3] = 1;
  for (int t = 0; t < TPU_DTYPE_COUNT; t++) {
    if (t == TPU_F8E8M0FNU) continue;
    tpu_val sum = TPU_POISON;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
      tpu_val v = tpu_full(&s->b, (tpu_dtype)t, 1, DIMS(2), numbers[i]);
      sum = sum.id ? tpu_concat(&s->b, 2, (tpu_val[]){sum, v}, 0) : v;
    }
    sample_out(s, sum);
  }
  sample_out(s, tpu_lowest(&s->b, TPU_F32));
  sample_out(s, tpu_highest(&s->b, TPU_BF16));
  sample_out(s, tpu_lowest(&s->b, TPU_I64));
  sample_out(s, tpu_highest(&s->b, TPU_U64));
  sample_out(s, tpu_scalar(&s->b, TPU_F32, (double)NAN));
  sample_out(s, tpu_scalar(&s->b, TPU_F16, (double)NAN));
  sample_out(s, tpu_full(&s->b, TPU_F32, 2, DIMS(100, 100), 0.5));
  sample_out(s, tpu_full(&s->b, TPU_F32, 2, DIMS(0, 3), 0.5));
  sample_out(s, tpu_dense_i64(&s->b, 12, many));
  sample_out(s, tpu_dense(&s->b, TPU_I32, 3, DIMS(2, 3, 4), many));
  sample_out(s, tpu_dense(&s->b, TPU_F64, 2, DIMS(3, 4), many));
  sample_out(s, tpu_dense(&s->b, TPU_F32, 2, DIMS(10, 20), large));
  sample_out(s, tpu_dense(&s->b, TPU_C64, 1, DIMS(100), large));
  sample_out(s, tpu_dense(&s->b, TPU_I64, 1, DIMS(100), large));
  sample_out(s, tpu_dense(&s->b, TPU_BOOL, 1, DIMS(72), flags));
}

static void sample_IOTA(sample *s) {
  for (int t = 1; t < TPU_DTYPE_COUNT; t++)
    if (!(tpu_is_float((tpu_dtype)t) && tpu_dtype_bytes((tpu_dtype)t) == 1))
      sample_out(s, tpu_iota(&s->b, (tpu_dtype)t, 2, DIMS(3, 4), t % 2));
}

static void sample_COMPLEX(sample *s) {
  tpu_val x = tpu_complex(&s->b, f32_param(s, 1, DIMS(4)), f32_param(s, 1, DIMS(4)));
  sample_out(s, x);
  sample_out(s, tpu_complex(&s->b, tpu_param(&s->b, TPU_F64, 0, NULL), tpu_param(&s->b, TPU_F64, 0, NULL)));
}

static void sample_CLAMP(sample *s) {
  tpu_val x = f32_param(s, 1, DIMS(4));
  sample_out(s, tpu_clamp(&s->b, tpu_scalar(&s->b, TPU_F32, 0), x, tpu_scalar(&s->b, TPU_F32, 6)));
  sample_out(s, tpu_clamp(&s->b, f32_param(s, 1, DIMS(4)), x, f32_param(s, 1, DIMS(4))));
}

static void sample_SELECT(sample *s) {
  tpu_val x = f32_param(s, 1, DIMS(4)), y = f32_param(s, 1, DIMS(4));
  sample_out(s, tpu_select(&s->b, tpu_param(&s->b, TPU_BOOL, 1, DIMS(4)), x, y));
  sample_out(s, tpu_select(&s->b, tpu_param(&s->b, TPU_BOOL, 0, NULL), x, y));
}

static void sample_REDUCE_PRECISION(sample *s) { sample_out(s, tpu_reduce_precision(&s->b, f32_param(s, 1, DIMS(4)), 5, 10)); }

static void sample_BITCAST_CONVERT(sample *s) {
  tpu_val x = f32_param(s, 2, DIMS(3, 4));
  sample_out(s, tpu_bitcast(&s->b, x, TPU_U32, 2, DIMS(3, 4)));
  sample_out(s, tpu_bitcast(&s->b, x, TPU_U8, 3, DIMS(3, 4, 4)));
  sample_out(s, tpu_bitcast(&s->b, tpu_param(&s->b, TPU_BF16, 2, DIMS(3, 2)), TPU_I32, 1, DIMS(3)));
}

static void sample_BROADCAST_IN_DIM(sample *s) {
  sample_out(s, tpu_broadcast_in_dim(&s->b, f32_param(s, 2, DIMS(4, 1)), 3, DIMS(5, 3, 4), DIMS(2, 1)));
  sample_out(s, tpu_broadcast_to(&s->b, f32_param(s, 0, NULL), 2, DIMS(2, 3)));
}

static void sample_CONCATENATE(sample *s) {
  tpu_val x[] = {f32_param(s, 2, DIMS(3, 1)), f32_param(s, 2, DIMS(3, 0)), f32_param(s, 2, DIMS(3, 4))};
  sample_out(s, tpu_concat(&s->b, 3, x, 1));
}

static void sample_DYNAMIC_SLICE(sample *s) {
  tpu_val at[] = {i32_param(s, 0, NULL), i32_param(s, 0, NULL)};
  sample_out(s, tpu_dynamic_slice(&s->b, f32_param(s, 2, DIMS(8, 8)), at, DIMS(2, 3)));
}

static void sample_DYNAMIC_UPDATE_SLICE(sample *s) {
  tpu_val at[] = {tpu_slot(&s->b, 0, TPU_I64), tpu_slot(&s->b, 1, TPU_I64)};
  sample_out(s, tpu_dynamic_update_slice(&s->b, f32_param(s, 2, DIMS(8, 8)), f32_param(s, 2, DIMS(2, 3)), at));
}

static void sample_PAD(sample *s) {
  tpu_val x = f32_param(s, 2, DIMS(3, 4)), zero = tpu_scalar(&s->b, TPU_F32, 0);
  sample_out(s, tpu_pad(&s->b, x, zero, DIMS(1, -1), DIMS(0, 2), DIMS(0, 1)));
}

static void sample_RESHAPE(sample *s) { sample_out(s, tpu_reshape(&s->b, f32_param(s, 2, DIMS(3, 4)), 3, DIMS(2, 1, 6))); }
static void sample_REVERSE(sample *s) { sample_out(s, tpu_reverse(&s->b, f32_param(s, 2, DIMS(3, 4)), 2, DIMS(1, 0))); }
static void sample_SLICE(sample *s) {
  sample_out(s, tpu_slice(&s->b, f32_param(s, 2, DIMS(3, 9)), DIMS(1, 0), DIMS(3, 8), DIMS(1, 3)));
}
static void sample_TRANSPOSE(sample *s) { sample_out(s, tpu_transpose(&s->b, f32_param(s, 3, DIMS(2, 3, 4)), DIMS(2, 0, 1))); }

static void sample_CHOLESKY(sample *s) {
  sample_out(s, tpu_cholesky(&s->b, f32_param(s, 3, DIMS(2, 4, 4)), true));
  sample_out(s, tpu_cholesky(&s->b, tpu_param(&s->b, TPU_F64, 2, DIMS(4, 4)), false));
}

static void sample_CONVOLUTION(sample *s) {
  tpu_conv_dims d = {.spatial = 2,
                     .strides = DIMS(2, 1),
                     .pad_lo = DIMS(1, 1),
                     .pad_hi = DIMS(1, 0),
                     .lhs_dilation = DIMS(1, 1),
                     .rhs_dilation = DIMS(1, 2),
                     .lhs_batch = 0,
                     .lhs_feature = 1,
                     .rhs_in = 1,
                     .rhs_out = 0,
                     .out_batch = 0,
                     .out_feature = 1,
                     .lhs_spatial = DIMS(2, 3),
                     .rhs_spatial = DIMS(2, 3),
                     .out_spatial = DIMS(2, 3),
                     .feature_groups = 2,
                     .batch_groups = 1};
  tpu_val x = f32_param(s, 4, DIMS(2, 4, 9, 9)), k = f32_param(s, 4, DIMS(6, 2, 3, 3));
  sample_out(s, tpu_convolution(&s->b, x, k, &d, TPU_DTYPE_NONE));
  static const bool reversal[] = {true, false};
  d.reversal = reversal;
  d.lhs_dilation = DIMS(2, 2);
  d.strides = DIMS(1, 1);
  sample_out(s, tpu_convolution(&s->b, tpu_param(&s->b, TPU_BF16, 4, DIMS(2, 4, 5, 5)),
                                tpu_param(&s->b, TPU_BF16, 4, DIMS(6, 2, 3, 3)), &d, TPU_F32));
  tpu_conv_dims point = {.spatial = 0, .rhs_in = 1, .lhs_feature = 1, .out_feature = 1, .feature_groups = 1, .batch_groups = 1};
  sample_out(s, tpu_convolution(&s->b, f32_param(s, 2, DIMS(3, 4)), f32_param(s, 2, DIMS(5, 4)), &point, TPU_DTYPE_NONE));
}

static void sample_DOT_GENERAL(sample *s) {
  tpu_val x = f32_param(s, 4, DIMS(2, 5, 3, 8)), y = f32_param(s, 4, DIMS(2, 6, 3, 8)); /* [B, S, H, D] */
  tpu_val q = tpu_transpose(&s->b, x, DIMS(0, 2, 1, 3)), k = tpu_transpose(&s->b, y, DIMS(0, 2, 3, 1));
  sample_out(s, tpu_matmul(&s->b, tpu_reshape(&s->b, q, 3, DIMS(6, 5, 8)), tpu_reshape(&s->b, k, 3, DIMS(6, 8, 6))));
  tpu_val u = tpu_param(&s->b, TPU_BF16, 2, DIMS(3, 4)), v = tpu_param(&s->b, TPU_BF16, 2, DIMS(4, 5));
  sample_out(s, tpu_matmul(&s->b, u, v));
  sample_out(s, tpu_dot_general(&s->b, u, v, &(tpu_dot_dims){0, 1, NULL, NULL, DIMS(1), DIMS(0)}, TPU_F32));
  tpu_val i = tpu_param(&s->b, TPU_I8, 1, DIMS(4));
  sample_out(s, tpu_dot_general(&s->b, i, i, &(tpu_dot_dims){0, 1, NULL, NULL, DIMS(0), DIMS(0)}, TPU_I32));
  tpu_val c = tpu_param(&s->b, TPU_C64, 2, DIMS(4, 4)), d = tpu_param(&s->b, TPU_F64, 2, DIMS(4, 4));
  sample_out(s, tpu_matmul(&s->b, c, c));
  sample_out(s, tpu_matmul(&s->b, d, d));
}

static void sample_FFT(sample *s) {
  tpu_val x = f32_param(s, 2, DIMS(4, 6)), c = tpu_param(&s->b, TPU_C64, 2, DIMS(4, 6));
  sample_out(s, tpu_fft(&s->b, x, TPU_RFFT, 2, DIMS(4, 6)));
  sample_out(s, tpu_fft(&s->b, c, TPU_FFT, 1, DIMS(6)));
  sample_out(s, tpu_fft(&s->b, c, TPU_IFFT, 1, DIMS(6)));
  sample_out(s, tpu_fft(&s->b, c, TPU_IRFFT, 1, DIMS(10)));
}

static void sample_GATHER(sample *s) {
  tpu_val x = f32_param(s, 2, DIMS(10, 4)), i = tpu_param(&s->b, TPU_I64, 2, DIMS(3, 5));
  tpu_gather_dims rows = {.n_offset = 1,
                          .n_collapsed = 1,
                          .n_map = 1,
                          .offset = DIMS(2),
                          .collapsed = DIMS(0),
                          .start_index_map = DIMS(0),
                          .index_vector_dim = 2};
  sample_out(s, tpu_gather(&s->b, x, i, &rows, DIMS(1, 4)));
  tpu_gather_dims along = {.n_collapsed = 1,
                           .n_batch = 1,
                           .n_map = 1,
                           .collapsed = DIMS(1),
                           .operand_batch = DIMS(0),
                           .indices_batch = DIMS(0),
                           .start_index_map = DIMS(1),
                           .index_vector_dim = 2,
                           .sorted = true};
  sample_out(s, tpu_gather(&s->b, f32_param(s, 2, DIMS(3, 4)), i, &along, DIMS(1, 1)));
}

static void sample_two_sums(tpu_build *b, const tpu_val *p, tpu_val *out, void *arg) {
  (void)arg;
  out[0] = tpu_add(b, p[0], tpu_mul(b, p[2], tpu_scalar(b, TPU_F32, 2)));
  out[1] = tpu_max(b, p[1], p[3]);
}

static void sample_REDUCE(sample *s) {
  static const tpu_dtype types[] = {TPU_F32, TPU_BF16, TPU_I64, TPU_BOOL, TPU_U8};
  for (int t = 0; t < 5; t++) {
    tpu_val x = tpu_param(&s->b, types[t], 3, DIMS(3, 4, 5));
    sample_out(s, tpu_reduce(&s->b, TPU_MONOID_MAX, x, tpu_lowest(&s->b, types[t]), 2, DIMS(0, 2)));
    sample_out(s, tpu_reduce(&s->b, TPU_MONOID_ADD, x, tpu_scalar(&s->b, types[t], 0), 3, DIMS(0, 1, 2)));
    if (!tpu_is_float(types[t]))
      sample_out(s, tpu_reduce(&s->b, TPU_MONOID_AND, x, tpu_scalar_i(&s->b, types[t], -1), 1, DIMS(0)));
  }
  tpu_val xs[2] = {f32_param(s, 2, DIMS(3, 4)), i32_param(s, 2, DIMS(3, 4))};
  tpu_val inits[2] = {tpu_scalar(&s->b, TPU_F32, 0), tpu_lowest(&s->b, TPU_I32)}, out[2];
  tpu_reduce_n(&s->b, 2, xs, inits, 1, DIMS(1), sample_two_sums, NULL, out);
  sample_out(s, out[0]);
  sample_out(s, out[1]);
}

static void sample_REDUCE_WINDOW(sample *s) {
  tpu_val x = f32_param(s, 4, DIMS(2, 3, 8, 8));
  tpu_window w = {.dims = DIMS(1, 1, 3, 3), .strides = DIMS(1, 1, 2, 2), .pad_lo = DIMS(0, 0, 1, 1), .pad_hi = DIMS(0, 0, 0, 1)};
  sample_out(s, tpu_reduce_window(&s->b, TPU_MONOID_MAX, x, tpu_lowest(&s->b, TPU_F32), &w));
  w.dilation = DIMS(1, 1, 2, 1);
  w.base_dilation = DIMS(1, 1, 1, 2);
  tpu_val xs[2] = {x, i32_param(s, 4, DIMS(2, 3, 8, 8))}, inits[2] = {tpu_scalar(&s->b, TPU_F32, 0), tpu_lowest(&s->b, TPU_I32)},
          out[2];
  sample_out(s, tpu_reduce_window(&s->b, TPU_MONOID_ADD, x, tpu_scalar(&s->b, TPU_F32, 0), &w));
  w.base_dilation = NULL;
  tpu_reduce_window_n(&s->b, 2, xs, inits, &w, sample_two_sums, NULL, out);
  sample_out(s, out[0]);
  sample_out(s, out[1]);
}

static void sample_SCATTER(sample *s) {
  tpu_val x = f32_param(s, 2, DIMS(10, 4)), i = tpu_param(&s->b, TPU_I64, 1, DIMS(3)), u = f32_param(s, 2, DIMS(3, 4));
  tpu_scatter_dims rows = {.n_window = 1,
                           .n_inserted = 1,
                           .n_map = 1,
                           .window = DIMS(1),
                           .inserted = DIMS(0),
                           .scatter_map = DIMS(0),
                           .index_vector_dim = 1};
  sample_out(s, tpu_scatter(&s->b, TPU_MONOID_ADD, x, i, u, &rows));
  sample_out(s, tpu_scatter(&s->b, TPU_MONOID_ASSIGN, x, i, u, &rows));
  tpu_scatter_dims along = {.n_inserted = 1,
                            .n_batch = 1,
                            .n_map = 1,
                            .inserted = DIMS(1),
                            .operand_batch = DIMS(0),
                            .indices_batch = DIMS(0),
                            .scatter_map = DIMS(1),
                            .index_vector_dim = 2,
                            .unique = true};
  tpu_val at = i32_param(s, 2, DIMS(10, 2));
  sample_out(s, tpu_scatter(&s->b, TPU_MONOID_MAX, x, at, f32_param(s, 2, DIMS(10, 2)), &along));
}

static void sample_SELECT_AND_SCATTER(sample *s) {
  tpu_val x = f32_param(s, 4, DIMS(2, 3, 8, 8)), source = f32_param(s, 4, DIMS(2, 3, 4, 4)); /* TPUs want two more dims */
  tpu_window w = {.dims = DIMS(1, 1, 2, 3), .strides = DIMS(1, 1, 2, 2), .pad_hi = DIMS(0, 0, 0, 1)};
  sample_out(s, tpu_select_and_scatter(&s->b, x, source, tpu_scalar(&s->b, TPU_F32, 0), TPU_GE, &w));
}

/* NaN last, with a constant from outside the region. */
static tpu_val sample_less(tpu_build *b, const tpu_val *p, void *arg) {
  tpu_val outside = *(tpu_val *)arg;
  return tpu_compare_total(b, TPU_LT, tpu_add(b, p[0], outside), p[1]);
}

static void sample_SORT(sample *s) {
  tpu_val zero = tpu_scalar(&s->b, TPU_F32, 0);
  tpu_val xs[2] = {f32_param(s, 2, DIMS(3, 9)), tpu_iota(&s->b, TPU_I32, 2, DIMS(3, 9), 1)}, out[2];
  tpu_sort(&s->b, 2, xs, 1, true, sample_less, &zero, out);
  sample_out(s, out[0]);
  sample_out(s, out[1]);
  tpu_sort(&s->b, 1, xs, 0, false, sample_less, &zero, out);
  sample_out(s, out[0]);
}

static void sample_TRIANGULAR_SOLVE(sample *s) {
  tpu_val a = f32_param(s, 3, DIMS(2, 4, 4)), y = f32_param(s, 3, DIMS(2, 4, 3)), z = f32_param(s, 3, DIMS(2, 3, 4));
  sample_out(s, tpu_triangular_solve(&s->b, a, y, true, true, false, 0));
  sample_out(s, tpu_triangular_solve(&s->b, a, z, false, false, true, 1));
  tpu_val c = tpu_param(&s->b, TPU_C64, 2, DIMS(4, 4));
  sample_out(s, tpu_triangular_solve(&s->b, c, c, true, true, false, 2));
}

static void sample_CUSTOM_CALL(sample *s) {
  tpu_type types[2] = {{TPU_F32, 2, DIMS(4, 3)}, {TPU_F32, 1, DIMS(3)}};
  tpu_val x = f32_param(s, 2, DIMS(4, 3)), out[2];
  tpu_custom_call(&s->b, "Qr", "", 1, &x, 2, types, out);
  sample_out(s, out[0]);
  sample_out(s, out[1]);
}

static void sample_OPTIMIZATION_BARRIER(sample *s) {
  tpu_val xs[2] = {f32_param(s, 1, DIMS(4)), i32_param(s, 0, NULL)}, out[2];
  tpu_barrier(&s->b, 2, xs, out);
  sample_out(s, out[0]);
  sample_out(s, out[1]);
  tpu_barrier(&s->b, 1, xs, out);
  sample_out(s, out[0]);
}

static void sample_RNG_BIT_GENERATOR(sample *s) {
  tpu_val out[2];
  tpu_rng_bits(&s->b, tpu_param(&s->b, TPU_U64, 1, DIMS(2)), TPU_U32, 2, DIMS(3, 5), out);
  sample_out(s, out[0]);
  sample_out(s, out[1]);
}

typedef struct sample_loop {
  tpu_val limit, step; /* from around the loop */
} sample_loop;
static tpu_val sample_while_cond(tpu_build *b, const tpu_val *p, void *arg) {
  return tpu_compare(b, TPU_LT, p[0], ((sample_loop *)arg)->limit);
}
static void sample_while_body(tpu_build *b, const tpu_val *p, tpu_val *out, void *arg) {
  tpu_val sum = tpu_reduce(b, TPU_MONOID_ADD, p[1], tpu_scalar(b, TPU_F32, 0), 1, DIMS(0));
  out[0] = tpu_add(b, p[0], tpu_scalar_i(b, TPU_I32, 1));
  out[1] = tpu_add(b, p[1], tpu_mul(b, tpu_broadcast_like(b, sum, p[1]), ((sample_loop *)arg)->step));
}

static void sample_WHILE(sample *s) {
  sample_loop loop = {i32_param(s, 0, NULL), f32_param(s, 1, DIMS(4))};
  tpu_val init[2] = {tpu_scalar_i(&s->b, TPU_I32, 0), f32_param(s, 1, DIMS(4))}, out[2];
  tpu_while(&s->b, 2, init, sample_while_cond, sample_while_body, &loop, out);
  sample_out(s, out[0]);
  sample_out(s, out[1]);
}

static void sample_if_true(tpu_build *b, tpu_val *out, void *arg) {
  tpu_val *x = arg;
  out[0] = tpu_add(b, x[0], x[1]);
  out[1] = x[0];
}
static void sample_if_false(tpu_build *b, tpu_val *out, void *arg) {
  tpu_val *x = arg;
  out[0] = tpu_mul(b, x[0], tpu_full_like(b, x[0], 3));
  out[1] = x[1];
}

static void sample_IF(sample *s) {
  tpu_val x[2] = {f32_param(s, 1, DIMS(4)), f32_param(s, 1, DIMS(4))}, out[2];
  tpu_if(&s->b, tpu_param(&s->b, TPU_BOOL, 0, NULL), 2, sample_if_true, sample_if_false, x, out);
  sample_out(s, out[0]);
  sample_out(s, out[1]);
}

static void sample_CUMULATIVE(sample *s) {
  sample_out(s, tpu_cumulative(&s->b, TPU_MONOID_ADD, f32_param(s, 2, DIMS(3, 9)), 1, false));
  sample_out(s, tpu_cumulative(&s->b, TPU_MONOID_MAX, i32_param(s, 2, DIMS(3, 9)), 0, true));
}

static void sample_TOP_K(sample *s) {
  tpu_val out[2];
  tpu_top_k(&s->b, f32_param(s, 2, DIMS(3, 9)), 4, true, out);
  sample_out(s, out[0]);
  sample_out(s, out[1]);
}

static void sample_RANDOM_BITS(sample *s) {
  tpu_val state = tpu_param(&s->b, TPU_U64, 1, DIMS(2));
  sample_out(s, tpu_random_bits(&s->b, state, TPU_U32, 2, DIMS(3, 5)));
  sample_out(s, tpu_random_bits(&s->b, state, TPU_U64, 1, DIMS(7)));
}

/* Builds the program of `op` in `graph` and sets its outputs. */
static inline tpu_status sample_build(tpu_graph *graph, const tpu_target *target, tpu_hlo op) {
  static void (*const makers[TPU_HLO_COUNT])(sample *) = {
#define MAKER(name) [TPU_HLO_##name] = sample_##name
      MAKER(PARAM),
      MAKER(SLOT),
      MAKER(CONSTANT),
      MAKER(IOTA),
      MAKER(COMPLEX),
      MAKER(CLAMP),
      MAKER(COMPARE),
      MAKER(CONVERT),
      MAKER(SELECT),
      MAKER(REDUCE_PRECISION),
      MAKER(BITCAST_CONVERT),
      MAKER(BROADCAST_IN_DIM),
      MAKER(CONCATENATE),
      MAKER(DYNAMIC_SLICE),
      MAKER(DYNAMIC_UPDATE_SLICE),
      MAKER(PAD),
      MAKER(RESHAPE),
      MAKER(REVERSE),
      MAKER(SLICE),
      MAKER(TRANSPOSE),
      MAKER(CHOLESKY),
      MAKER(CONVOLUTION),
      MAKER(DOT_GENERAL),
      MAKER(FFT),
      MAKER(GATHER),
      MAKER(REDUCE),
      MAKER(REDUCE_WINDOW),
      MAKER(SCATTER),
      MAKER(SELECT_AND_SCATTER),
      MAKER(SORT),
      MAKER(TRIANGULAR_SOLVE),
      MAKER(CUSTOM_CALL),
      MAKER(OPTIMIZATION_BARRIER),
      MAKER(RNG_BIT_GENERATOR),
      MAKER(WHILE),
      MAKER(IF),
      MAKER(CUMULATIVE),
      MAKER(TOP_K),
      MAKER(RANDOM_BITS),
#undef MAKER
  };
  sample s = {.n = 0};
  tpu_build_init(&s.b, graph, target);
  if (makers[op])
    makers[op](&s);
  else
    sample_elementwise(&s, op, tpu_hlo_info_get(op)->operands);
  TPU_TRY(tpu_build_status(&s.b));
  if (!s.n) return tpu_error(TPU_INTERNAL, "no sample of %s", tpu_hlo_info_get(op)->name);
  return tpu_graph_set_outputs(graph, s.outputs, s.n);
}

#endif
