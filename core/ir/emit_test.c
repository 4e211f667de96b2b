#include "ir/emit.h"

#include "base/alloc.h"
#include "base/test.h"
#include "ir/samples_test.h"

static const tpu_target target = {.platform = TPU_TARGET_CPU, .precision = TPU_PRECISION_HIGHEST};

typedef struct fixture {
  tpu_graph *g;
  tpu_build b;
  tpu_strbuf text;
  tpu_module m;
} fixture;

static fixture begin(void) {
  fixture f = {.g = tpu_graph_create()};
  tpu_build_init(&f.b, f.g, &target);
  return f;
}
static tpu_status emit(fixture *f, uint32_t n, const tpu_val *outputs, uint32_t n_aliases, const tpu_alias *aliases) {
  tpu_strbuf_clear(&f->text);
  TPU_TRY(tpu_build_status(&f->b));
  TPU_TRY(tpu_graph_set_outputs(f->g, outputs, n));
  TPU_TRY(tpu_graph_verify(f->g));
  return tpu_graph_emit(f->g, &target, "test", aliases, n_aliases, &f->text, &f->m);
}
static void end(fixture *f) {
  tpu_strbuf_destroy(&f->text);
  tpu_graph_destroy(f->g);
}
#define HAS(s) CHECK(strstr(f.text.data, (s)))
#define HAS_NOT(s) CHECK(!strstr(f.text.data, (s)))

TEST(whole_module) {
  fixture f = begin();
  tpu_val x = tpu_param(&f.b, TPU_F32, 2, DIMS(2, 3));
  (void)tpu_exp(&f.b, x); /* nobody needs it */
  tpu_val y = tpu_reduce(&f.b, TPU_MONOID_MAX, x, tpu_lowest(&f.b, TPU_F32), 1, DIMS(1));
  CHECK_OK(emit(&f, 1, &y, 0, NULL));
  CHECK_STR(f.text.data,
            "module @test {\n"
            "  func.func public @main(%0: tensor<2x3xf32>) -> (tensor<2xf32>) {\n"
            "    %1 = \"stablehlo.constant\"() {value = dense<0xFF800000> : tensor<f32>} : () -> tensor<f32>\n"
            "    %2 = \"stablehlo.reduce\"(%0, %1) ({\n"
            "    ^bb0(%3: tensor<f32>, %4: tensor<f32>):\n"
            "    %5 = \"stablehlo.maximum\"(%3, %4) : (tensor<f32>, tensor<f32>) -> tensor<f32>\n"
            "    \"stablehlo.return\"(%5) : (tensor<f32>) -> ()\n"
            "    }) {dimensions = array<i64: 1>} : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>\n"
            "    \"func.return\"(%2) : (tensor<2xf32>) -> ()\n"
            "  }\n"
            "}\n");
  CHECK_INT(f.m.n_params, 1);
  CHECK_INT(f.m.n_slots, 0);
  end(&f);
}

TEST(params_and_aliases) {
  fixture f = begin();
  tpu_val p[4];
  for (int i = 0; i < 4; i++) p[i] = tpu_param(&f.b, TPU_F32, 1, DIMS(i == 3 ? 5 : 4));
  tpu_val out[3] = {tpu_neg(&f.b, p[2]), tpu_exp(&f.b, p[0]), tpu_exp(&f.b, p[3])};
  /* Param 1 is unused: no argument, and its alias means nothing. */
  CHECK_OK(emit(&f, 3, out, 2, (tpu_alias[]){{2, 1}, {1, 0}}));
  CHECK_INT(f.m.n_params, 3);
  CHECK(f.m.params[0] == 0 && f.m.params[1] == 2 && f.m.params[2] == 3);
  HAS("@main(%0: tensor<4xf32>, %1: tensor<4xf32> {tf.aliasing_output = 1 : i32}, %2: tensor<5xf32>)");
  CHECK_ERROR(emit(&f, 3, out, 1, (tpu_alias[]){{0, 2}}), TPU_INTERNAL, "param 0 cannot alias output 2"); /* types differ */
  CHECK_ERROR(emit(&f, 3, out, 2, (tpu_alias[]){{0, 1}, {2, 1}}), TPU_INTERNAL, "cannot alias");
  CHECK_ERROR(emit(&f, 3, out, 1, (tpu_alias[]){{0, 9}}), TPU_INTERNAL, "cannot alias");
  CHECK_OK(tpu_graph_set_outputs(f.g, out, 3));
  CHECK_ERROR(tpu_graph_emit(f.g, &target, "bad name", NULL, 0, &f.text, &f.m), TPU_INVALID_ARGUMENT, "no module name");
  end(&f);
}

TEST(slots) {
  fixture f = begin();
  tpu_val out[] = {tpu_slot(&f.b, 5, TPU_I64), tpu_slot(&f.b, 2, TPU_F64), tpu_slot(&f.b, 2, TPU_F32),
                   tpu_slot(&f.b, 7, TPU_C128), tpu_slot(&f.b, 0, TPU_BOOL)};
  (void)tpu_slot(&f.b, 1, TPU_I32); /* unused: takes no room */
  CHECK_OK(emit(&f, 5, out, 0, NULL));
  CHECK_INT(f.m.n_slots, 5);
  CHECK_INT(f.m.pack_size[TPU_PACK_WORDS], 1 + 1 + 2);
  CHECK_INT(f.m.pack_size[TPU_PACK_F64], 1 + 2);
  static const tpu_slot_use want[] = {{0, TPU_BOOL, TPU_PACK_WORDS, 0},
                                      {2, TPU_F32, TPU_PACK_WORDS, 1},
                                      {2, TPU_F64, TPU_PACK_F64, 0},
                                      {5, TPU_I64, TPU_PACK_WORDS, 2},
                                      {7, TPU_C128, TPU_PACK_F64, 1}};
  for (int i = 0; i < 5; i++) {
    const tpu_slot_use *u = &f.m.slots[i];
    CHECK(u->index == want[i].index && u->dtype == want[i].dtype && u->pack == want[i].pack && u->at == want[i].at);
  }
  HAS("@main(%0: tensor<4xui32>, %1: tensor<3xf64>)");
  end(&f);
}

TEST(constants) {
  fixture f = begin();
  tpu_build *b = &f.b;
  tpu_val out[] = {tpu_scalar(b, TPU_F32, 0.1),
                   tpu_scalar(b, TPU_F64, -2),
                   tpu_scalar(b, TPU_BF16, (double)NAN),
                   tpu_scalar(b, TPU_F16, 1e-7),
                   tpu_scalar(b, TPU_F32, -0.0),
                   tpu_dense(b, TPU_I32, 2, DIMS(2, 2), (int32_t[]){1, -2, 3, 4}),
                   tpu_dense(b, TPU_BOOL, 1, DIMS(2), (bool[]){true, false}),
                   tpu_dense(b, TPU_C64, 1, DIMS(2), (float[]){1, 0.5f, 0, 2}),
                   tpu_full(b, TPU_F32, 2, DIMS(64, 64), 3),
                   tpu_full(b, TPU_F32, 1, DIMS(0), 3),
                   tpu_scalar_i(b, TPU_U64, -1)};
  CHECK_OK(emit(&f, sizeof out / sizeof *out, out, 0, NULL));
  HAS("dense<0x3DCCCCCD> : tensor<f32>");
  HAS("dense<-2.0> : tensor<f64>");
  HAS("dense<0x7FC0> : tensor<bf16>");
  HAS("dense<0x0002> : tensor<f16>");
  HAS("dense<0x80000000> : tensor<f32>");
  HAS("dense<[[1, -2], [3, 4]]> : tensor<2x2xi32>");
  HAS("dense<[true, false]> : tensor<2xi1>");
  HAS("dense<[(1.0, 0x3F000000), (0.0, 2.0)]> : tensor<2xcomplex<f32>>");
  HAS("dense<3.0> : tensor<f32>"); /* and a broadcast: no literal of 4,096 elements */
  HAS("{broadcast_dimensions = array<i64>} : (tensor<f32>) -> tensor<64x64xf32>");
  HAS_NOT("> : tensor<64x64xf32>}");
  HAS("dense<> : tensor<0xf32>");
  HAS("dense<18446744073709551615> : tensor<ui64>");
  end(&f);
}

static tpu_val less_shifted(tpu_build *b, const tpu_val *p, void *arg) {
  return tpu_compare(b, TPU_LT, tpu_add(b, p[0], *(tpu_val *)arg), p[1]);
}

/* A constant of the outside is made again inside the region, and both uses outside still see the first. */
TEST(constants_sink) {
  fixture f = begin();
  tpu_val x = tpu_param(&f.b, TPU_F32, 1, DIMS(9)), c = tpu_scalar(&f.b, TPU_F32, 5), out[2];
  tpu_sort(&f.b, 1, &x, 0, true, less_shifted, &c, out);
  out[1] = c;
  CHECK_OK(emit(&f, 2, out, 0, NULL));
  const char *first = strstr(f.text.data, "dense<5.0>");
  CHECK(first && strstr(first + 1, "dense<5.0>"));
  HAS("    %1 = \"stablehlo.constant\"() {value = dense<5.0>");
  HAS("\"func.return\"(%2, %1)");
  end(&f);
}

TEST(refuses_composites) {
  fixture f = begin();
  tpu_val y = tpu_cumulative(&f.b, TPU_MONOID_ADD, tpu_param(&f.b, TPU_F32, 1, DIMS(9)), 0, false);
  CHECK_ERROR(emit(&f, 1, &y, 0, NULL), TPU_INTERNAL, "CUMULATIVE is not expanded");
  end(&f);
}

TEST(precision_follows_target) {
  static const tpu_precision precisions[] = {TPU_PRECISION_DEFAULT, TPU_PRECISION_HIGH, TPU_PRECISION_HIGHEST};
  static const char *const texts[] = {NULL, "#stablehlo<precision HIGH>", "#stablehlo<precision HIGHEST>"};
  tpu_hash hashes[3];
  for (int i = 0; i < 3; i++) {
    fixture f = begin();
    tpu_target t = target;
    t.precision = precisions[i];
    f.b.target = &t;
    tpu_val x = tpu_param(&f.b, TPU_F32, 2, DIMS(4, 4)), h = tpu_param(&f.b, TPU_BF16, 2, DIMS(4, 4));
    tpu_val out[2] = {tpu_matmul(&f.b, x, x), tpu_matmul(&f.b, h, h)};
    CHECK_OK(emit(&f, 2, out, 0, NULL));
    if (texts[i])
      HAS(texts[i]);
    else
      HAS_NOT("precision_config");
    hashes[i] = tpu_graph_hash(f.g);
    end(&f);
  }
  CHECK(!tpu_hash_equal(hashes[0], hashes[1]) && !tpu_hash_equal(hashes[1], hashes[2]));
}

TEST(prints) {
  fixture f = begin();
  tpu_val x = tpu_param(&f.b, TPU_F32, 2, DIMS(2, 3));
  tpu_val y = tpu_cumulative(&f.b, TPU_MONOID_ADD, tpu_add(&f.b, x, tpu_full_like(&f.b, x, 1.5)), 1, true);
  CHECK_OK(tpu_build_status(&f.b));
  CHECK_OK(tpu_graph_set_outputs(f.g, &y, 1));
  tpu_graph_print(f.g, &f.text);
  CHECK_STR(f.text.data,
            "%1 f32[2,3] = PARAM {0}\n%2 f32[2,3] = constant {1.5}\n%3 f32[2,3] = add %1, %2\n"
            "%4 f32[2,3] = CUMULATIVE %3 {0, 1, 1}\nreturn %4\n");
  end(&f);
}

TEST_MAIN(TEST_CASE(whole_module), TEST_CASE(params_and_aliases), TEST_CASE(slots), TEST_CASE(constants),
          TEST_CASE(constants_sink), TEST_CASE(refuses_composites), TEST_CASE(precision_follows_target), TEST_CASE(prints));
