#include "ir/expand.h"

#include "base/alloc.h"
#include "base/test.h"
#include "ir/emit.h"
#include "ir/graph_private.h"
#include "ir/interp_test.h"

static const tpu_target targets[] = {
    {.platform = TPU_TARGET_CPU, .host_custom_calls = true, .atan_is_broken = true},
    {.platform = TPU_TARGET_TPU},
    {.platform = TPU_TARGET_OTHER},
};
enum { TARGETS = sizeof targets / sizeof *targets };

/* Philox 4x32-10 as its paper writes it. */
static void philox(uint64_t seed, uint64_t counter, uint32_t out[4]) {
  uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0}, k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
  for (int r = 0; r < 10; r++) {
    uint64_t p0 = UINT64_C(0xD2511F53) * c[0], p1 = UINT64_C(0xCD9E8D57) * c[2];
    uint32_t n[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k[0], (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c[3] ^ k[1], (uint32_t)p0};
    memcpy(c, n, sizeof c);
    k[0] += 0x9E3779B9, k[1] += 0xBB67AE85;
  }
  memcpy(out, c, sizeof c);
}

static bool check_bits(tpu_dtype dtype, int rank, const int64_t *dims, uint64_t seed, uint64_t offset) {
  int64_t n = tpu_type_numel((tpu_type){dtype, rank, dims}), parts = dtype == TPU_U32 ? 4 : 2, m = (n + parts - 1) / parts;
  bool ok = true;
  for (int t = 0; t < TARGETS && ok; t++) {
    tpu_graph *g = tpu_graph_create(), *flat = tpu_graph_create();
    tpu_arena arena;
    tpu_arena_init(&arena, 0);
    tpu_build b;
    tpu_build_init(&b, g, &targets[t]);
    const int64_t two = 2;
    tpu_val bits = tpu_random_bits(&b, tpu_param(&b, TPU_U64, 1, &two), dtype, rank, dims);
    tpu_status status = tpu_build_status(&b);
    if (!status) status = tpu_graph_set_outputs(g, &bits, 1);
    if (!status) status = tpu_graph_expand(g, &targets[t], flat);
    if (!status) status = tpu_graph_verify(flat);
    const uint64_t state[2] = {seed, offset};
    const void *params[1] = {state};
    interp in = {.graph = flat, .arena = &arena, .params = params};
    ok = !status && interp_run(&in);
    if (status) fprintf(stderr, "%s\n", tpu_status_message(status));
    tpu_status_release(status);
    uint32_t n_out;
    for (int64_t e = 0; e < n && ok; e++) {
      const unsigned char *got = in.values[tpu_graph_outputs(flat, &n_out)[0].id].data;
      uint32_t word[4];
      philox(seed, offset + (uint64_t)(e % m), word);
      int64_t at = e / m;
      if (dtype == TPU_U32)
        ok = memcmp(got + 4 * e, &word[at], 4) == 0;
      else
        ok = memcmp(got + 8 * e, &word[2 * at], 8) == 0;
    }
    tpu_arena_destroy(&arena);
    tpu_graph_destroy(flat);
    tpu_graph_destroy(g);
  }
  return ok;
}

TEST(random_bits) {
  uint32_t word[4]; /* known answer of the reference implementation (Random123, kat_vectors) */
  philox(0, 0, word);
  CHECK(word[0] == 0x6627e8d5 && word[1] == 0xe169c58d && word[2] == 0xbc57ac4c && word[3] == 0x9b00dbd8);
  const int64_t sizes[6] = {1, 3, 4, 5, 64, 1001}, matrix[3] = {3, 5, 7}, none[2] = {0, 3};
  for (int i = 0; i < 6; i++) {
    CHECK(check_bits(TPU_U32, 1, &sizes[i], 0, 0));
    CHECK(check_bits(TPU_U64, 1, &sizes[i], UINT64_C(0xfedcba9876543210), UINT64_C(0xfffffffe)));
    CHECK(check_bits(TPU_U32, 1, &sizes[i], UINT64_MAX, UINT64_MAX - 1));
  }
  CHECK(check_bits(TPU_U32, 0, NULL, 5, 6));
  CHECK(check_bits(TPU_U32, 3, matrix, 42, 1234567890123));
  CHECK(check_bits(TPU_U64, 3, matrix, 42, 1234567890123));
  CHECK(check_bits(TPU_U32, 2, none, 42, 1));
}

static bool has(const tpu_graph *g, tpu_hlo op) {
  for (uint32_t i = 0; i < tpu_graph_node_count(g); i++)
    if (tpu_graph_node(g, i)->op == op) return true;
  return false;
}

static tpu_val loop_cond(tpu_build *b, const tpu_val *params, void *arg) {
  (void)arg;
  return tpu_compare(b, TPU_LT, params[0], tpu_scalar_i(b, TPU_I32, 3));
}
static void loop_body(tpu_build *b, const tpu_val *params, tpu_val *out, void *arg) {
  (void)arg;
  out[0] = tpu_add(b, params[0], tpu_scalar_i(b, TPU_I32, 1));
  out[1] = tpu_cumulative(b, TPU_MONOID_ADD, params[1], 1, false);
}

/* Params and slots keep their numbers, dead nodes go, composites go wherever they are, scopes stay. */
TEST(structure) {
  for (int t = 0; t < TARGETS; t++) {
    tpu_graph *g = tpu_graph_create(), *flat = tpu_graph_create();
    tpu_build b;
    const int64_t dims[2] = {5, 6};
    tpu_build_init(&b, g, &targets[1]);
    b.scope = 7;
    (void)tpu_param(&b, TPU_F32, 2, dims);
    tpu_val x = tpu_param(&b, TPU_F32, 2, dims), dead = tpu_slot(&b, 4, TPU_F32), live = tpu_slot(&b, 2, TPU_F32), top[2];
    (void)tpu_unary(&b, TPU_HLO_CBRT, tpu_broadcast_like(&b, dead, x));
    tpu_top_k(&b, x, 3, false, top);
    tpu_val init[2] = {tpu_scalar_i(&b, TPU_I32, 0), tpu_mul(&b, x, tpu_broadcast_like(&b, live, x))}, loop[2];
    tpu_while(&b, 2, init, loop_cond, loop_body, NULL, loop);
    tpu_val out[4] = {top[0], top[1], loop[1], tpu_unary(&b, TPU_HLO_CHLO_ATAN, loop[1])};
    CHECK_OK(tpu_build_status(&b));
    CHECK_OK(tpu_graph_set_outputs(g, out, 4));
    CHECK_OK(tpu_graph_expand(g, &targets[t], flat));
    CHECK_OK(tpu_graph_verify(flat));
    CHECK_INT(tpu_graph_param_count(flat), 2);
    CHECK_INT(tpu_graph_slot_count(flat), 5);
    CHECK(!has(flat, TPU_HLO_CBRT) && !has(flat, TPU_HLO_CUMULATIVE) && !has(flat, TPU_HLO_TOP_K));
    CHECK(has(flat, TPU_HLO_CHLO_ATAN) == !targets[t].atan_is_broken);
    uint32_t n;
    const tpu_val *outputs = tpu_graph_outputs(flat, &n);
    CHECK_INT(n, 4);
    for (uint32_t i = 0; i < n; i++) CHECK(tpu_type_equal(tpu_graph_type(flat, outputs[i]), tpu_type_of(&b, out[i])));
    for (uint32_t i = 0; i < tpu_graph_node_count(flat); i++) CHECK_INT(tpu_graph_node(flat, i)->scope, 7);
    /* Expanding what is expanded changes nothing. */
    tpu_graph *again = tpu_graph_create();
    CHECK_OK(tpu_graph_expand(flat, &targets[t], again));
    CHECK(tpu_hash_equal(tpu_graph_hash(flat), tpu_graph_hash(again)));
    tpu_graph_destroy(again);
    tpu_graph_destroy(flat);
    tpu_graph_destroy(g);
  }
}

static int count_op(const tpu_graph *g, tpu_hlo op) {
  int n = 0;
  for (uint32_t i = 0; i < tpu_graph_node_count(g); i++) n += tpu_node_at(g, i)->op == op;
  return n;
}

/* Half-precision dots other than of two matrices are widened where the target asks for it, once. */
TEST(half_dots) {
  const tpu_target widens = {.platform = TPU_TARGET_CPU, .widens_half_dots = true};
  const int64_t cube[3] = {2, 3, 3}, square[2] = {3, 3};
  for (int batched = 0; batched < 2; batched++) {
    for (int wide = 0; wide < 2; wide++) {
      tpu_graph *g = tpu_graph_create(), *flat = tpu_graph_create(), *again = tpu_graph_create();
      tpu_build b;
      tpu_build_init(&b, g, &widens);
      const int64_t zero = 0, one = 1, two = 2;
      tpu_val x = tpu_param(&b, TPU_BF16, batched ? 3 : 2, batched ? cube : square);
      tpu_dot_dims d = batched ? (tpu_dot_dims){1, 1, &zero, &zero, &two, &one} : (tpu_dot_dims){0, 1, NULL, NULL, &one, &zero};
      tpu_val y = tpu_dot_general(&b, x, x, &d, TPU_F32);
      CHECK_OK(tpu_build_status(&b));
      CHECK_OK(tpu_graph_set_outputs(g, &y, 1));
      CHECK_OK(tpu_graph_expand(g, wide ? &widens : &targets[1], flat));
      CHECK_OK(tpu_graph_verify(flat));
      CHECK_INT(count_op(flat, TPU_HLO_DOT_GENERAL), 1);
      CHECK_INT(count_op(flat, TPU_HLO_CONVERT), wide && batched);
      CHECK_OK(tpu_graph_expand(flat, &widens, again));
      CHECK_INT(count_op(again, TPU_HLO_CONVERT), batched);
      tpu_graph_destroy(again);
      tpu_graph_destroy(flat);
      tpu_graph_destroy(g);
    }
  }
}

TEST(out_of_memory) {
  int64_t live = tpu_alloc_live();
  for (int t = 0; t < TARGETS; t++) {
    bool done = false;
    tpu_graph *g = tpu_graph_create();
    tpu_build b;
    const int64_t dims[2] = {5, 70000}, two = 2;
    tpu_build_init(&b, g, &targets[t]);
    tpu_val x = tpu_param(&b, TPU_F32, 2, dims), out[4];
    tpu_top_k(&b, x, 3, true, out);
    out[2] = tpu_cumulative(&b, TPU_MONOID_MAX, x, 1, true);
    out[3] = tpu_random_bits(&b, tpu_param(&b, TPU_U64, 1, &two), TPU_U32, 2, dims);
    CHECK_OK(tpu_build_status(&b));
    CHECK_OK(tpu_graph_set_outputs(g, out, 4));
    for (int64_t n = 0; !done; n++) {
      CHECK(n < 100000);
      tpu_alloc_fail_after(n);
      tpu_graph *flat = tpu_graph_create();
      if (flat) tpu_graph_arena(flat)->block_bytes = 256;
      tpu_status status = flat ? tpu_graph_expand(g, &targets[t], flat) : NULL;
      CHECK(!status || tpu_status_code(status) == TPU_RESOURCE_EXHAUSTED);
      done = flat && !status;
      tpu_status_release(status);
      tpu_graph_destroy(flat);
    }
    tpu_alloc_fail_after(-1);
    tpu_graph_destroy(g);
  }
  CHECK_INT(tpu_alloc_live(), live);
}

TEST_MAIN(TEST_CASE(random_bits), TEST_CASE(structure), TEST_CASE(half_dots), TEST_CASE(out_of_memory));
