#include "ir/graph.h"

#include "base/alloc.h"
#include "base/test.h"
#include "ir/fuzz_test.h"
#include "ir/graph_private.h"
#include "ir/samples_test.h"

static const tpu_target target = {.platform = TPU_TARGET_CPU, .precision = TPU_PRECISION_HIGHEST};

TEST(equal_nodes_are_one) {
  tpu_graph *g = tpu_graph_create();
  tpu_build b;
  tpu_build_init(&b, g, &target);
  tpu_val x = tpu_param(&b, TPU_F32, 2, DIMS(3, 4)), y = tpu_param(&b, TPU_F32, 2, DIMS(3, 4));
  CHECK(x.id != y.id);
  CHECK_INT(tpu_add(&b, x, y).id, tpu_add(&b, x, y).id);
  CHECK(tpu_add(&b, x, y).id != tpu_add(&b, y, x).id);
  CHECK_INT(tpu_slice_dim(&b, x, 1, 1, 2, 1).id, tpu_slice_dim(&b, x, 1, 1, 2, 1).id);
  CHECK(tpu_slice_dim(&b, x, 1, 1, 2, 1).id != tpu_slice_dim(&b, x, 1, 2, 3, 1).id);
  CHECK(tpu_reshape(&b, x, 1, DIMS(12)).id != tpu_reshape(&b, x, 2, DIMS(2, 6)).id);
  CHECK_INT(tpu_slot(&b, 1, TPU_F32).id, tpu_slot(&b, 1, TPU_F32).id);
  CHECK(tpu_slot(&b, 1, TPU_F32).id != tpu_slot(&b, 1, TPU_F64).id);
  b.slot_base = 1;
  CHECK_INT(tpu_slot(&b, 0, TPU_F32).id, tpu_slot(&b, 0, TPU_F32).id);
  tpu_val early[600]; /* over several chunks and sizes of the table */
  for (int i = 0; i < 600; i++) early[i] = tpu_scalar_i(&b, TPU_I64, i);
  for (int i = 0; i < 600; i++) CHECK_INT(tpu_scalar_i(&b, TPU_I64, i).id, early[i].id);
  /* A constant inside an isolated region is not the one outside. */
  tpu_val sum = tpu_reduce(&b, TPU_MONOID_ADD, x, tpu_scalar(&b, TPU_F32, 0), 1, DIMS(0));
  CHECK(sum.id != tpu_reduce(&b, TPU_MONOID_ADD, x, tpu_scalar(&b, TPU_F32, 0), 1, DIMS(0)).id);
  CHECK_OK(tpu_build_status(&b));
  CHECK_OK(tpu_graph_verify(g));
  uint32_t nodes = tpu_graph_node_count(g);
  tpu_graph_reset(g);
  CHECK(nodes > 600 && tpu_graph_node_count(g) == 0 && tpu_graph_param_count(g) == 0 && tpu_graph_slot_count(g) == 0);
  tpu_build_init(&b, g, &target);
  x = tpu_param(&b, TPU_F32, 0, NULL);
  CHECK_INT(tpu_graph_node_count(g), 1);
  CHECK_INT(tpu_add(&b, x, x).id, tpu_add(&b, x, x).id);
  tpu_graph_destroy(g);
}

TEST(outputs) {
  tpu_graph *g = tpu_graph_create();
  tpu_build b;
  tpu_build_init(&b, g, &target);
  tpu_val x = tpu_param(&b, TPU_F32, 1, DIMS(3)), none = TPU_POISON;
  CHECK_ERROR(tpu_graph_set_outputs(g, &none, 1), TPU_INTERNAL, "output 0 is not a value");
  tpu_val sum = tpu_reduce(&b, TPU_MONOID_ADD, x, tpu_scalar(&b, TPU_F32, 0), 1, DIMS(0));
  tpu_val inner = {sum.id - 1}; /* the region's sum */
  CHECK_ERROR(tpu_graph_set_outputs(g, &inner, 1), TPU_INTERNAL, "nested block");
  CHECK_OK(tpu_graph_set_outputs(g, &sum, 1));
  uint32_t n;
  CHECK(tpu_graph_outputs(g, &n)[0].id == sum.id && n == 1);
  tpu_graph_destroy(g);
}

static tpu_val capture_less(tpu_build *b, const tpu_val *p, void *arg) {
  return tpu_compare(b, TPU_LT, tpu_add(b, p[0], *(tpu_val *)arg), p[1]);
}

TEST(verify_finds) {
  tpu_graph *g = tpu_graph_create();
  tpu_build b;
  tpu_build_init(&b, g, &target);
  tpu_val x = tpu_param(&b, TPU_F32, 1, DIMS(3)), y = tpu_exp(&b, tpu_neg(&b, x)), out;
  CHECK_OK(tpu_graph_verify(g));
  tpu_node *node = tpu_node_at(g, 1);
  uint16_t op = node->op;
  node->op = TPU_HLO_NOT;
  CHECK_ERROR(tpu_graph_verify(g), TPU_INTERNAL, "node 1 (not): f32 operands are not supported");
  node->op = TPU_HLO_IS_FINITE;
  CHECK_ERROR(tpu_graph_verify(g), TPU_INTERNAL, "node 1 (is_finite): result 0 is f32[3], by its rule i1[3]");
  node->op = TPU_HLO_ADD;
  CHECK_ERROR(tpu_graph_verify(g), TPU_INTERNAL, "1 operands");
  node->op = op;
  const tpu_val *operands = node->operands;
  node->operands = &y;
  CHECK_ERROR(tpu_graph_verify(g), TPU_INTERNAL, "value 3 is used before it is made");
  node->operands = operands;
  CHECK_OK(tpu_graph_verify(g));
  /* A comparator that uses a value of the outside: no plugin could take it. */
  tpu_val scalar = tpu_param(&b, TPU_F32, 0, NULL);
  tpu_sort(&b, 1, &x, 0, true, capture_less, &scalar, &out);
  CHECK_OK(tpu_build_status(&b));
  CHECK_ERROR(tpu_graph_verify(g), TPU_INTERNAL, "captured by a region");
  tpu_graph_destroy(g);
}

/* --- hash and text */

typedef struct program {
  tpu_hash hash;
  char *text;   /* with the params that the arguments stand for */
  char *copied; /* the same of a copy */
} program;

static tpu_status print_program(tpu_graph *g, tpu_hash *out_hash, char **out_text) {
  tpu_strbuf s = {0};
  tpu_module m;
  *out_hash = tpu_graph_hash(g);
  TPU_TRY(tpu_graph_emit(g, &target, "fuzz", NULL, 0, &s, &m));
  for (uint32_t i = 0; i < m.n_params; i++) tpu_strbuf_printf(&s, "param %u\n", m.params[i]);
  for (uint32_t i = 0; i < m.n_slots; i++) tpu_strbuf_printf(&s, "slot %u\n", m.slots[i].index);
  *out_text = tpu_strbuf_take(&s);
  return *out_text ? NULL : tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
}

/* A short program over few types, so that different seeds often give the same. */
static tpu_status random_program(uint64_t seed, program *out) {
  tpu_graph *g = tpu_graph_create(), *copy = tpu_graph_create();
  tpu_build b;
  tpu_build_init(&b, g, &target);
  tpu_val pool[FUZZ_POOL] = {{0}}, outputs[2];
  tpu_type types[FUZZ_POOL];
  int n = 0, want = 1 + (int)fuzz_below(&seed, 5);
  for (int tries = 0; tries < 40 && n < want; tries++) {
    fuzz_step s;
    if (!fuzz_plan(&seed, 2, n, types, &s)) continue;
    s.dtype = TPU_I32;
    if (s.kind == FUZZ_PARAM && s.rank > 1) s.rank = 1;
    tpu_val x[2] = {{0}};
    for (int i = 0; i < s.n_operands; i++) x[i] = pool[s.operands[i]];
    pool[n] = fuzz_apply(&b, &s, x);
    types[n] = tpu_type_of(&b, pool[n]);
    n++;
  }
  if (fuzz_below(&seed, 2)) pool[n++] = tpu_slot(&b, (uint32_t)fuzz_below(&seed, 2), TPU_I32);
  uint32_t n_outputs = 1 + (uint32_t)fuzz_below(&seed, 2);
  for (uint32_t i = 0; i < n_outputs; i++) outputs[i] = pool[fuzz_below(&seed, n)];
  tpu_status status = tpu_build_status(&b);
  if (!status) status = tpu_graph_set_outputs(g, outputs, n_outputs);
  if (!status) status = tpu_graph_verify(g);
  if (!status) status = print_program(g, &out->hash, &out->text);
  /* Copied node by node it is the same. */
  tpu_hash hash = {0, 0};
  tpu_val *map = tpu_calloc(g->n_values, sizeof *map);
  tpu_build_init(&b, copy, &target);
  for (uint32_t i = 0; i < g->n_nodes && !status; i++) tpu_graph_copy_node(&b, g, i, map, NULL, NULL);
  if (!status) status = tpu_build_status(&b);
  for (uint32_t i = 0; i < n_outputs; i++) outputs[i] = map[outputs[i].id];
  if (!status) status = tpu_graph_set_outputs(copy, outputs, n_outputs);
  if (!status) status = print_program(copy, &hash, &out->copied);
  if (!status && (!tpu_hash_equal(hash, out->hash) || strcmp(out->text, out->copied) != 0))
    status = tpu_error(TPU_INTERNAL, "the copy differs:\n%s%s", out->text, out->copied);
  tpu_free(map);
  tpu_graph_destroy(copy);
  tpu_graph_destroy(g);
  return status;
}

TEST(equal_hash_means_equal_text) {
  enum { N = 1500 };
  static program programs[N];
  int same = 0;
  for (int i = 0; i < N; i++) CHECK_OK(random_program((uint64_t)(i + 1) * 7919, &programs[i]));
  for (int i = 0; i < N; i++) {
    for (int k = 0; k < i; k++) {
      bool hash = tpu_hash_equal(programs[i].hash, programs[k].hash), text = strcmp(programs[i].text, programs[k].text) == 0;
      if (hash != text)
        CHECK_FAIL("programs %d and %d: hashes %s\n%s%s", i, k, hash ? "equal" : "differ", programs[i].text, programs[k].text);
      same += text;
    }
  }
  for (int i = 0; i < N; i++) {
    tpu_free(programs[i].text);
    tpu_free(programs[i].copied);
  }
  CHECK(same > 100);
  fprintf(stderr, "%d pairs of equal programs\n", same);
}

/* Dead nodes, the order of parameters' making and the scope do not count. */
TEST(hash_ignores) {
  tpu_hash h[3];
  for (int k = 0; k < 3; k++) {
    tpu_graph *g = tpu_graph_create();
    tpu_build b;
    tpu_build_init(&b, g, &target);
    b.scope = (uint32_t)k;
    tpu_val x = tpu_param(&b, TPU_F32, 1, DIMS(3));
    if (k == 1) (void)tpu_exp(&b, x);
    tpu_val z = k == 2 ? tpu_slot(&b, 1, TPU_F32) : TPU_POISON, y = tpu_slot(&b, 0, TPU_F32);
    if (k != 2) z = tpu_slot(&b, 1, TPU_F32);
    tpu_val out[3] = {tpu_neg(&b, x), y, z};
    CHECK_OK(tpu_build_status(&b));
    CHECK_OK(tpu_graph_set_outputs(g, out, 3));
    h[k] = tpu_graph_hash(g);
    tpu_graph_destroy(g);
  }
  CHECK(tpu_hash_equal(h[0], h[1]) && tpu_hash_equal(h[0], h[2]));
}

/* --- out of memory */

/* All samples in one graph after the other; the n-th allocation fails. */
static tpu_status build_all(tpu_hlo op) {
  tpu_graph *g = tpu_graph_create();
  if (!g) return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  tpu_strbuf text = {0};
  tpu_module m;
  tpu_status status = sample_build(g, &target, op);
  if (!status) status = tpu_graph_verify(g);
  (void)tpu_graph_hash(g);
  if (!status && op < TPU_HLO_CUMULATIVE) status = tpu_graph_emit(g, &target, "sample", NULL, 0, &text, &m);
  tpu_graph_print(g, &text);
  tpu_strbuf_destroy(&text);
  tpu_graph_destroy(g);
  return status;
}

TEST(allocation_failures) {
  int64_t live = tpu_alloc_live(), failures = 0;
  for (int op = 0; op < TPU_HLO_COUNT; op++) {
    /* Some failures only cost sharing, or end a listing; so success once is not yet the end. */
    for (int64_t n = 0, successes = 0; successes < 12; n++) {
      tpu_alloc_fail_after(n);
      tpu_status status = build_all((tpu_hlo)op);
      tpu_alloc_fail_after(-1);
      tpu_code code = tpu_status_code(status);
      tpu_status_release(status);
      CHECK_INT(tpu_alloc_live(), live);
      successes = code == TPU_OK ? successes + 1 : 0;
      failures += code != TPU_OK;
      if (code != TPU_OK && code != TPU_RESOURCE_EXHAUSTED)
        CHECK_FAIL("%s: allocation %lld gave %s", tpu_hlo_info_get((tpu_hlo)op)->name, (long long)n, tpu_code_name(code));
    }
  }
  CHECK(failures > 500);
}

TEST_MAIN(TEST_CASE(equal_nodes_are_one), TEST_CASE(outputs), TEST_CASE(verify_finds), TEST_CASE(equal_hash_means_equal_text),
          TEST_CASE(hash_ignores), TEST_CASE(allocation_failures));
