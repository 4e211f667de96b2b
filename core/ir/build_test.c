#include "ir/build.h"

#include <math.h>

#include "base/alloc.h"
#include "base/test.h"
#include "ir/graph_private.h"
#include "ir/samples_test.h"

static const tpu_target target = {.platform = TPU_TARGET_CPU, .precision = TPU_PRECISION_HIGHEST};

typedef struct fixture {
  tpu_graph *g;
  tpu_build b;
} fixture;

static fixture begin(void) {
  fixture f = {.g = tpu_graph_create()};
  tpu_build_init(&f.b, f.g, &target);
  return f;
}
static void end(fixture *f) {
  tpu_status_release(tpu_build_status(&f->b));
  tpu_graph_destroy(f->g);
}
static tpu_val param(fixture *f, tpu_dtype t, int rank, const int64_t *dims) { return tpu_param(&f->b, t, rank, dims); }
static bool is_type(fixture *f, tpu_val v, tpu_dtype t, int rank, const int64_t *dims) {
  return v.id && tpu_type_equal(tpu_type_of(&f->b, v), (tpu_type){t, rank, dims});
}
static bool is_splat(fixture *f, tpu_val v, double want) {
  double have;
  return tpu_is_splat(&f->b, v, &have) && have == want;
}
static tpu_hlo op_of(fixture *f, tpu_val v) {
  const tpu_node *node = tpu_producer_of(f->g, v);
  return node ? (tpu_hlo)node->op : TPU_HLO_COUNT;
}
static tpu_val operand_of(fixture *f, tpu_val v, int i) { return tpu_producer_of(f->g, v)->operands[i]; }

#define SAME(a, b) CHECK((a).id != 0 && (a).id == (b).id)

/* Every sample builds and verifies: types by rule. */
TEST(samples) {
  for (int op = 0; op < TPU_HLO_COUNT; op++) {
    tpu_graph *g = tpu_graph_create();
    tpu_status status = sample_build(g, &target, (tpu_hlo)op);
    if (!status) status = tpu_graph_verify(g);
    tpu_graph_destroy(g);
    status = tpu_status_prefix(status, "%s: ", tpu_hlo_info_get((tpu_hlo)op)->name);
    CHECK_OK(status);
  }
}

TEST(types) {
  fixture f = begin();
  tpu_build *b = &f.b;
  tpu_val x = param(&f, TPU_F32, 2, DIMS(3, 4)), c = param(&f, TPU_C64, 1, DIMS(5)), i = param(&f, TPU_I64, 2, DIMS(3, 4));
  CHECK(is_type(&f, tpu_add(b, x, x), TPU_F32, 2, DIMS(3, 4)));
  CHECK(is_type(&f, tpu_compare(b, TPU_LT, x, x), TPU_BOOL, 2, DIMS(3, 4)));
  CHECK(is_type(&f, tpu_unary(b, TPU_HLO_ABS, c), TPU_F32, 1, DIMS(5)));
  CHECK(is_type(&f, tpu_unary(b, TPU_HLO_IS_FINITE, x), TPU_BOOL, 2, DIMS(3, 4)));
  CHECK(is_type(&f, tpu_convert(b, i, TPU_BF16), TPU_BF16, 2, DIMS(3, 4)));
  CHECK(is_type(&f, tpu_transpose(b, x, DIMS(1, 0)), TPU_F32, 2, DIMS(4, 3)));
  CHECK(is_type(&f, tpu_slice_dim(b, x, 1, 1, 4, 2), TPU_F32, 2, DIMS(3, 2)));
  CHECK(is_type(&f, tpu_unsqueeze(b, x, 2), TPU_F32, 3, DIMS(3, 4, 1)));
  CHECK(is_type(&f, tpu_squeeze(b, tpu_unsqueeze(b, x, 0), 0), TPU_F32, 2, DIMS(3, 4)));
  CHECK(is_type(&f, tpu_broadcast_to(b, x, 3, DIMS(2, 3, 4)), TPU_F32, 3, DIMS(2, 3, 4)));
  CHECK(is_type(&f, tpu_matmul(b, x, tpu_transpose(b, x, DIMS(1, 0))), TPU_F32, 2, DIMS(3, 3)));
  CHECK(is_type(&f, tpu_reduce(b, TPU_MONOID_ADD, x, tpu_scalar(b, TPU_F32, 0), 1, DIMS(0)), TPU_F32, 1, DIMS(4)));
  CHECK(is_type(&f, tpu_fft(b, x, TPU_RFFT, 1, DIMS(4)), TPU_C64, 2, DIMS(3, 3)));
  tpu_val top[2];
  tpu_top_k(b, x, 2, true, top);
  CHECK(is_type(&f, top[0], TPU_F32, 2, DIMS(3, 2)) && is_type(&f, top[1], TPU_I32, 2, DIMS(3, 2)));
  CHECK(is_type(&f, tpu_slot(b, 3, TPU_F64), TPU_F64, 0, NULL));
  CHECK_INT(tpu_graph_slot_count(f.g), 4);
  CHECK_INT(tpu_graph_param_count(f.g), 3);
  CHECK_OK(tpu_build_status(b));
  end(&f);
}

/* The first failure stays, what follows is poison, and the message says what was wrong. */
#define FAILS(expr, code, text)                   \
  do {                                            \
    tpu_val fails_ = (expr);                      \
    CHECK_INT(fails_.id, 0);                      \
    CHECK_INT(tpu_add(b, x, x).id, 0);            \
    CHECK_ERROR(tpu_build_status(b), code, text); \
  } while (0)

TEST(errors) {
  fixture f = begin();
  tpu_build *b = &f.b;
  tpu_val x = param(&f, TPU_F32, 2, DIMS(3, 4)), y = param(&f, TPU_F32, 2, DIMS(4, 3)), i = param(&f, TPU_I32, 0, NULL);
  FAILS(tpu_add(b, x, y), TPU_INVALID_ARGUMENT, "add: operand types f32[3,4] and f32[4,3] differ");
  FAILS(tpu_exp(b, i), TPU_INVALID_ARGUMENT, "exponential: i32 operands are not supported");
  FAILS(tpu_reshape(b, x, 1, DIMS(11)), TPU_INVALID_ARGUMENT, "reshape: f32[3,4] has not as many elements as f32[11]");
  FAILS(tpu_transpose(b, x, DIMS(1, 1)), TPU_INVALID_ARGUMENT, "transpose: dim 1 is given twice");
  FAILS(tpu_slice_dim(b, x, 2, 0, 1, 1), TPU_INVALID_ARGUMENT, "2 is not a dimension of rank 2");
  FAILS(tpu_slice_dim(b, x, 1, 3, 5, 1), TPU_INVALID_ARGUMENT, "slice: [3:5:1] of dim 1 of f32[3,4]");
  FAILS(tpu_broadcast_to(b, x, 2, DIMS(3, 5)), TPU_INVALID_ARGUMENT, "dim 1 of f32[3,4] does not fit dim 1 of f32[3,5]");
  FAILS(tpu_matmul(b, x, x), TPU_INVALID_ARGUMENT, "dot_general: contracting dims 4 and 3 differ");
  FAILS(tpu_select(b, x, x, x), TPU_INVALID_ARGUMENT, "select: predicate f32[3,4] does not fit f32[3,4]");
  FAILS(tpu_reduce(b, TPU_MONOID_ADD, x, i, 1, DIMS(0)), TPU_INVALID_ARGUMENT, "reduce: initial value i32[] for f32[3,4]");
  FAILS(tpu_reduce(b, TPU_MONOID_ADD, x, tpu_scalar(b, TPU_F32, 0), 1, DIMS(2)), TPU_INVALID_ARGUMENT,
        "axis 2 is not a dimension of rank 2");
  FAILS(tpu_lowest(b, TPU_C64), TPU_INVALID_ARGUMENT, "complex numbers have no order");
  FAILS(tpu_full(b, TPU_F32, 2, DIMS(INT64_MAX, INT64_MAX), 1), TPU_INVALID_ARGUMENT, "Storage size calculation overflowed");
  FAILS(tpu_param(b, TPU_F32, 65, NULL), TPU_INVALID_ARGUMENT, "at most 64 are supported");
  FAILS(tpu_param(b, TPU_DTYPE_NONE, 0, NULL), TPU_INTERNAL, "255 is not a dtype");
  FAILS(tpu_binary(b, TPU_HLO_ADD, x, (tpu_val){12345}), TPU_INTERNAL, "operand 1 is not a value of this graph");
  FAILS(tpu_concat(b, 2, (tpu_val[]){x, y}, 0), TPU_INVALID_ARGUMENT, "operand 1, f32[4,3], does not fit f32[3,4] along dim 0");
  FAILS(tpu_cumulative(b, TPU_MONOID_ADD, x, 2, false), TPU_INVALID_ARGUMENT, "CUMULATIVE: dim 2 of f32[3,4]");
  /* Poison without a failure stays silent. */
  CHECK_INT(tpu_add(b, x, TPU_POISON).id, 0);
  CHECK_INT(tpu_matmul(b, TPU_POISON, x).id, 0);
  CHECK_INT(tpu_reduce(b, TPU_MONOID_ADD, TPU_POISON, i, 0, NULL).id, 0);
  CHECK_OK(tpu_build_status(b));
  CHECK_INT(tpu_fail(b, TPU_VALUE_ERROR, "first %d", 1).id, 0);
  CHECK_INT(tpu_fail(b, TPU_TYPE_ERROR, "second").id, 0);
  CHECK_ERROR(tpu_build_status(b), TPU_VALUE_ERROR, "first 1");
  end(&f);
}

TEST(shape_folds) {
  fixture f = begin();
  tpu_build *b = &f.b;
  tpu_val x = param(&f, TPU_F32, 3, DIMS(2, 3, 4)), y = param(&f, TPU_F32, 2, DIMS(3, 1));
  SAME(tpu_reshape(b, x, 3, DIMS(2, 3, 4)), x);
  SAME(tpu_reshape(b, tpu_reshape(b, x, 1, DIMS(24)), 3, DIMS(2, 3, 4)), x);
  SAME(tpu_transpose(b, x, DIMS(0, 1, 2)), x);
  SAME(tpu_transpose(b, tpu_transpose(b, x, DIMS(2, 0, 1)), DIMS(1, 2, 0)), x);
  CHECK(op_of(&f, tpu_transpose(b, y, DIMS(1, 0))) == TPU_HLO_RESHAPE);
  SAME(tpu_slice(b, x, DIMS(0, 0, 0), DIMS(2, 3, 4), NULL), x);
  tpu_val twice = tpu_slice_dim(b, tpu_slice_dim(b, x, 2, 1, 4, 2), 2, 1, 2, 1);
  SAME(operand_of(&f, twice, 0), x);
  SAME(twice, tpu_slice_dim(b, x, 2, 3, 4, 1));
  SAME(tpu_broadcast_to(b, x, 3, DIMS(2, 3, 4)), x);
  tpu_val wide = tpu_broadcast_to(b, tpu_broadcast_to(b, y, 2, DIMS(3, 4)), 3, DIMS(2, 3, 4));
  SAME(operand_of(&f, wide, 0), y);
  tpu_val row = param(&f, TPU_F32, 1, DIMS(3));
  tpu_val spread = tpu_broadcast_to(b, tpu_unsqueeze(b, row, 1), 3, DIMS(2, 3, 4));
  SAME(operand_of(&f, spread, 0), row);
  CHECK(op_of(&f, tpu_broadcast_to(b, row, 2, DIMS(1, 3))) == TPU_HLO_RESHAPE);
  tpu_val zero = tpu_scalar(b, TPU_F32, 0);
  SAME(tpu_pad(b, x, zero, DIMS(0, 0, 0), DIMS(0, 0, 0), NULL), x);
  CHECK(op_of(&f, tpu_pad(b, x, zero, DIMS(0, -1, 0), DIMS(0, 0, 0), NULL)) == TPU_HLO_SLICE);
  SAME(tpu_concat(b, 1, &x, 0), x);
  SAME(tpu_reverse(b, y, 1, DIMS(1)), y);
  SAME(tpu_dynamic_update_slice(b, x, x, (tpu_val[]){zero, zero, zero}), x);
  tpu_val at[3] = {tpu_scalar_i(b, TPU_I32, 0), tpu_scalar_i(b, TPU_I32, 9), tpu_scalar_i(b, TPU_I32, -1)};
  SAME(tpu_dynamic_slice(b, x, at, DIMS(2, 2, 3)), tpu_slice(b, x, DIMS(0, 1, 0), DIMS(2, 3, 3), NULL));
  tpu_val splat = tpu_full(b, TPU_F32, 2, DIMS(3, 1), 7);
  CHECK(is_splat(&f, tpu_broadcast_to(b, splat, 2, DIMS(3, 5)), 7) && is_splat(&f, tpu_transpose(b, splat, DIMS(1, 0)), 7));
  CHECK(is_splat(&f, tpu_reshape(b, splat, 1, DIMS(3)), 7) && is_splat(&f, tpu_slice_dim(b, splat, 0, 1, 2, 1), 7));
  CHECK_OK(tpu_build_status(b));
  end(&f);
}

TEST(number_folds) {
  fixture f = begin();
  tpu_build *b = &f.b;
  tpu_val x = param(&f, TPU_F32, 1, DIMS(4)), i = param(&f, TPU_I32, 1, DIMS(4)), p = param(&f, TPU_BOOL, 1, DIMS(4));
  tpu_val zero = tpu_full_like(b, x, 0), one = tpu_full_like(b, x, 1), minus = tpu_full_like(b, x, -0.0);
  CHECK(op_of(&f, tpu_add(b, x, zero)) == TPU_HLO_ADD); /* -0.0 + 0.0 is 0.0 */
  SAME(tpu_add(b, x, minus), x);
  SAME(tpu_sub(b, x, zero), x);
  CHECK(op_of(&f, tpu_sub(b, zero, x)) == TPU_HLO_SUBTRACT);
  SAME(tpu_mul(b, one, x), x);
  SAME(tpu_div(b, x, one), x);
  CHECK(op_of(&f, tpu_div(b, one, x)) == TPU_HLO_DIVIDE);
  CHECK(op_of(&f, tpu_mul(b, x, zero)) == TPU_HLO_MULTIPLY); /* NaN */
  SAME(tpu_add(b, tpu_full_like(b, i, 0), i), i);
  SAME(tpu_and(b, p, tpu_full_like(b, p, 1)), p);
  SAME(tpu_neg(b, tpu_neg(b, x)), x);
  SAME(tpu_not(b, tpu_not(b, p)), p);
  tpu_val third = tpu_scalar(b, TPU_F32, 1.0 / 3);
  CHECK(is_splat(&f, tpu_add(b, third, third), (double)((float)(1.0 / 3) + (float)(1.0 / 3))));
  CHECK(is_splat(&f, tpu_mul(b, tpu_scalar_i(b, TPU_I8, 100), tpu_scalar_i(b, TPU_I8, 2)), 200 - 256));
  CHECK(op_of(&f, tpu_div(b, third, tpu_scalar(b, TPU_F32, 0))) == TPU_HLO_DIVIDE);
  CHECK(is_splat(&f, tpu_compare(b, TPU_LT, tpu_scalar(b, TPU_F32, 1), tpu_scalar(b, TPU_F32, 2)), 1));
  CHECK(is_splat(&f, tpu_compare(b, TPU_NE, tpu_scalar(b, TPU_F32, (double)NAN), third), 1));
  SAME(tpu_select(b, tpu_scalar_i(b, TPU_BOOL, 0), x, one), one);
  SAME(tpu_select(b, p, x, x), x);
  SAME(tpu_select(b, tpu_not(b, p), x, one), tpu_select(b, p, one, x));
  CHECK(is_splat(&f, tpu_scalar_i(b, TPU_U64, -1), 18446744073709551616.0));
  CHECK(is_splat(&f, tpu_lowest(b, TPU_I64), -9223372036854775808.0) && is_splat(&f, tpu_highest(b, TPU_I8), 127));
  CHECK(is_splat(&f, tpu_lowest(b, TPU_BF16), -(double)INFINITY) && is_splat(&f, tpu_highest(b, TPU_F8E4M3FN), 448));
  CHECK(is_splat(&f, tpu_dense(b, TPU_I32, 1, DIMS(3), (int32_t[]){5, 5, 5}), 5));
  CHECK(!is_splat(&f, tpu_dense(b, TPU_I32, 1, DIMS(3), (int32_t[]){5, 5, 6}), 5));
  SAME(tpu_reduce(b, TPU_MONOID_ADD, x, tpu_scalar(b, TPU_F32, 0), 0, NULL), x);
  CHECK_OK(tpu_build_status(b));
  end(&f);
}

TEST(conversions) {
  fixture f = begin();
  tpu_build *b = &f.b;
  tpu_val x = param(&f, TPU_BF16, 1, DIMS(4)), w = param(&f, TPU_F32, 1, DIMS(4)), i = param(&f, TPU_I32, 1, DIMS(4));
  tpu_val c = param(&f, TPU_C64, 1, DIMS(4)), h = param(&f, TPU_U8, 1, DIMS(4));
  SAME(tpu_convert(b, x, TPU_BF16), x);
  SAME(tpu_convert(b, tpu_convert(b, x, TPU_F32), TPU_BF16), x);
  tpu_val down = tpu_convert(b, tpu_convert(b, w, TPU_BF16), TPU_F32); /* rounds */
  CHECK(op_of(&f, down) == TPU_HLO_CONVERT && op_of(&f, operand_of(&f, down, 0)) == TPU_HLO_CONVERT);
  SAME(tpu_convert(b, tpu_convert(b, i, TPU_I64), TPU_F32), tpu_convert(b, i, TPU_F32));
  CHECK(op_of(&f, operand_of(&f, tpu_convert(b, tpu_convert(b, i, TPU_F32), TPU_I64), 0)) == TPU_HLO_CONVERT);
  SAME(tpu_convert(b, tpu_convert(b, h, TPU_BF16), TPU_I32), tpu_convert(b, h, TPU_I32));
  tpu_val flag = tpu_convert(b, w, TPU_BOOL);
  CHECK(op_of(&f, flag) == TPU_HLO_COMPARE);
  CHECK_INT(tpu_node_attr(tpu_producer_of(f.g, flag), 0), TPU_NE); /* NaN is true */
  CHECK(op_of(&f, tpu_convert(b, c, TPU_BOOL)) == TPU_HLO_OR);
  CHECK(op_of(&f, operand_of(&f, tpu_convert(b, c, TPU_F64), 0)) == TPU_HLO_REAL);
  CHECK(op_of(&f, tpu_convert(b, w, TPU_C64)) == TPU_HLO_COMPLEX);
  /* float -> uint8 by way of a wide integer: 300 becomes 44, not 255. */
  tpu_val byte = tpu_convert(b, w, TPU_U8);
  CHECK(is_type(&f, operand_of(&f, byte, 0), TPU_I32, 1, DIMS(4)));
  CHECK(is_splat(&f, tpu_convert(b, tpu_scalar(b, TPU_F32, 300), TPU_U8), 44));
  CHECK(is_splat(&f, tpu_convert(b, tpu_scalar(b, TPU_F32, -1.5), TPU_U8), 255));
  CHECK(is_splat(&f, tpu_convert(b, tpu_scalar(b, TPU_F32, (double)NAN), TPU_BOOL), 1));
  CHECK_OK(tpu_build_status(b));
  end(&f);
}

static tpu_dot_dims dot_of(fixture *f, tpu_val v) { return tpu_attrs_dot(tpu_node_attrs(tpu_producer_of(f->g, v))); }

TEST(contraction_folds) {
  fixture f = begin();
  tpu_build *b = &f.b;
  tpu_val x = param(&f, TPU_F32, 2, DIMS(5, 8)), w = param(&f, TPU_F32, 2, DIMS(6, 8));
  tpu_val y = tpu_matmul(b, x, tpu_transpose(b, w, DIMS(1, 0)));
  SAME(operand_of(&f, y, 1), w);
  CHECK_INT(dot_of(&f, y).rhs_contract[0], 1);
  /* Below a conversion too. */
  tpu_val h = tpu_convert(b, x, TPU_BF16);
  y = tpu_matmul(b, h, tpu_convert(b, tpu_transpose(b, w, DIMS(1, 0)), TPU_BF16));
  CHECK(op_of(&f, operand_of(&f, y, 1)) == TPU_HLO_CONVERT);
  SAME(operand_of(&f, operand_of(&f, y, 1), 0), w);
  /* Free dims that would change their order stay transposed. */
  tpu_val u = param(&f, TPU_F32, 3, DIMS(2, 3, 8));
  y = tpu_dot_general(b, tpu_transpose(b, u, DIMS(1, 0, 2)), w, &(tpu_dot_dims){0, 1, NULL, NULL, DIMS(2), DIMS(1)},
                      TPU_DTYPE_NONE);
  CHECK(op_of(&f, operand_of(&f, y, 0)) == TPU_HLO_TRANSPOSE);
  /* Attention: [B, S, H, D] -> [B*H, S, D] on both sides. */
  tpu_val q = param(&f, TPU_F32, 4, DIMS(2, 5, 3, 8)), k = param(&f, TPU_F32, 4, DIMS(2, 7, 3, 8));
  tpu_val qt = tpu_reshape(b, tpu_transpose(b, q, DIMS(0, 2, 1, 3)), 3, DIMS(6, 5, 8));
  tpu_val kt = tpu_reshape(b, tpu_transpose(b, k, DIMS(0, 2, 3, 1)), 3, DIMS(6, 8, 7));
  y = tpu_matmul(b, qt, kt);
  CHECK(is_type(&f, y, TPU_F32, 3, DIMS(6, 5, 7)) && op_of(&f, y) == TPU_HLO_RESHAPE);
  tpu_val dot = operand_of(&f, y, 0);
  SAME(operand_of(&f, dot, 0), q);
  SAME(operand_of(&f, dot, 1), k);
  CHECK(is_type(&f, dot, TPU_F32, 4, DIMS(2, 3, 5, 7)));
  /* A kernel kept as HWIO and an image as NHWC. */
  tpu_val image = param(&f, TPU_F32, 4, DIMS(2, 9, 9, 4)), kernel = param(&f, TPU_F32, 4, DIMS(3, 3, 4, 6));
  tpu_conv_dims d = {.spatial = 2,
                     .rhs_in = 1,
                     .lhs_feature = 1,
                     .out_feature = 1,
                     .feature_groups = 1,
                     .batch_groups = 1,
                     .lhs_spatial = DIMS(2, 3),
                     .rhs_spatial = DIMS(2, 3),
                     .out_spatial = DIMS(2, 3)};
  y = tpu_convolution(b, tpu_transpose(b, image, DIMS(0, 3, 1, 2)), tpu_transpose(b, kernel, DIMS(3, 2, 0, 1)), &d,
                      TPU_DTYPE_NONE);
  CHECK(is_type(&f, y, TPU_F32, 4, DIMS(2, 6, 7, 7)));
  SAME(operand_of(&f, y, 0), image);
  SAME(operand_of(&f, y, 1), kernel);
  CHECK_OK(tpu_build_status(b));
  CHECK_OK(tpu_graph_verify(f.g));
  end(&f);
}

TEST_MAIN(TEST_CASE(samples), TEST_CASE(types), TEST_CASE(errors), TEST_CASE(shape_folds), TEST_CASE(number_folds),
          TEST_CASE(conversions), TEST_CASE(contraction_folds));
