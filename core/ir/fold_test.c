/* What the builder folds means the same as what it was given: random sequences of calls, evaluated once as the graph that comes
 * out and once call by call on opaque operands. */
#include "base/alloc.h"
#include "base/test.h"
#include "ir/emit.h"
#include "ir/eval_test.h"
#include "ir/fuzz_test.h"

static const tpu_target target = {.platform = TPU_TARGET_CPU};

/* One step on opaque operands: a graph of its own. */
static bool eval_step(const fuzz_step *s, tpu_arena *arena, const interp_value *const *operands, interp_value *out) {
  tpu_graph *g = tpu_graph_create();
  tpu_build b;
  tpu_build_init(&b, g, &target);
  tpu_val x[2] = {{0}};
  const void *data[2] = {NULL, NULL};
  for (int i = 0; i < s->n_operands; i++) {
    tpu_type t = operands[i]->type;
    x[i] = tpu_param(&b, t.dtype, t.rank, t.dims);
    data[i] = operands[i]->data;
  }
  bool plain = s->n_operands && s->kind != FUZZ_DOT && s->kind != FUZZ_CONVERT && s->kind != FUZZ_CONCAT;
  tpu_val result = plain ? fuzz_apply_plain(&b, s, x) : fuzz_apply(&b, s, x);
  tpu_status status = tpu_build_status(&b);
  interp in = {.graph = g, .arena = arena, .params = data};
  bool ok = !status && fuzz_eval(&in);
  if (ok) {
    *out = in.values[result.id];
    out->type.dims = tpu_arena_copy(arena, out->type.dims, sizeof *out->type.dims * (size_t)out->type.rank);
  } else {
    fprintf(stderr, "step %d: %s %s\n", (int)s->kind, status ? tpu_status_message(status) : "", in.refused ? in.refused : "");
  }
  tpu_status_release(status);
  tpu_graph_destroy(g);
  return ok;
}

static bool run_sequence(uint64_t seed, int64_t *out_nodes, int64_t *out_calls) {
  tpu_graph *g = tpu_graph_create();
  tpu_arena arena;
  tpu_arena_init(&arena, 0);
  tpu_build b;
  tpu_build_init(&b, g, &target);
  tpu_val pool[FUZZ_POOL];
  tpu_type types[FUZZ_POOL];
  interp_value reference[FUZZ_POOL];
  const void *params[FUZZ_POOL];
  int n = 0, n_params = 0;
  bool ok = true;
  for (int tries = 0; tries < 200 && n < 40 && ok; tries++) {
    fuzz_step s;
    if (!fuzz_plan(&seed, 3, n, types, &s)) continue;
    tpu_val x[2] = {{0}};
    const interp_value *data[2] = {NULL, NULL};
    for (int i = 0; i < s.n_operands; i++) {
      x[i] = pool[s.operands[i]];
      data[i] = &reference[s.operands[i]];
    }
    pool[n] = fuzz_apply(&b, &s, x);
    if (b.status) {
      fprintf(stderr, "step %d: %s\n", (int)s.kind, tpu_status_message(b.status));
      ok = false;
      break;
    }
    types[n] = tpu_type_of(&b, pool[n]);
    if (s.kind == FUZZ_PARAM) {
      reference[n].type = types[n];
      reference[n].data = tpu_arena_calloc(&arena, 1, interp_bytes(types[n]) + 16);
      for (int64_t i = 0; i < tpu_type_numel(types[n]); i++) interp_put(&reference[n], i, fuzz_below(&seed, 7) - 3);
      params[n_params++] = reference[n].data;
    } else {
      ok = eval_step(&s, &arena, data, &reference[n]);
      if (ok && !tpu_type_equal(types[n], reference[n].type)) {
        fprintf(stderr, "step %d: types differ\n", (int)s.kind);
        ok = false;
      }
    }
    n++;
  }
  tpu_status status = tpu_build_status(&b);
  if (!status) status = tpu_graph_verify(g);
  if (status) fprintf(stderr, "%s\n", tpu_status_message(status));
  interp in = {.graph = g, .arena = &arena, .params = params};
  ok = ok && !status && fuzz_eval(&in);
  if (in.refused) fprintf(stderr, "%s is not known to the evaluator\n", in.refused);
  for (int i = 0; i < n && ok; i++) {
    ok = memcmp(in.values[pool[i].id].data, reference[i].data, interp_bytes(types[i])) == 0;
    if (!ok) fprintf(stderr, "value %d (%%%u) differs\n", i, pool[i].id);
  }
  if (!ok) {
    tpu_strbuf text = {0};
    tpu_graph_print(g, &text);
    if (text.data) fprintf(stderr, "%s", text.data);
    tpu_strbuf_destroy(&text);
  }
  *out_nodes += tpu_graph_node_count(g);
  *out_calls += n;
  tpu_status_release(status);
  tpu_arena_destroy(&arena);
  tpu_graph_destroy(g);
  return ok;
}

TEST(folds_keep_values) {
  int64_t nodes = 0, calls = 0;
  for (uint64_t seed = 1; seed <= 3000; seed++) {
    if (!run_sequence(seed * 1000, &nodes, &calls)) CHECK_FAIL("seed %llu", (unsigned long long)seed);
  }
  fprintf(stderr, "%lld calls made %lld nodes\n", (long long)calls, (long long)nodes);
}

TEST_MAIN(TEST_CASE(folds_keep_values));
