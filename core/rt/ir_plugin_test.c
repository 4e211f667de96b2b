/* Programs as the emitter writes them, on real compilers: every operation compiles, and what runs gives the right numbers. On the
 * CPU plugin at TPU_TEST_CPU_PLUGIN, and with TPU_TEST_LIBTPU for a TPU topology. */
#include "base/alloc.h"
#include "base/test.h"
#include "ir/eval_test.h"
#include "ir/fuzz_test.h"
#include "ir/number.h"
#include "ir/samples_test.h"
#include "pjrt/client.h"
#include "pjrt/topology.h"

static const tpu_target cpu_target = {.platform = TPU_TARGET_CPU, .precision = TPU_PRECISION_HIGHEST, .host_custom_calls = true};
static const tpu_target tpu_target_v5e = {.platform = TPU_TARGET_TPU, .precision = TPU_PRECISION_HIGHEST};

/* The text of an operation's program. */
static tpu_status emit_sample(const tpu_target *target, tpu_hlo op, tpu_strbuf *text) {
  tpu_graph *graph = tpu_graph_create();
  tpu_module module;
  if (!graph) return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  tpu_status status = sample_build(graph, target, op);
  if (!status) status = tpu_graph_verify(graph);
  if (!status) status = tpu_graph_emit(graph, target, "sample", NULL, 0, text, &module);
  tpu_graph_destroy(graph);
  return status;
}

/* TPU_TEST_OP: the one operation to try. */
static bool is_wanted(tpu_hlo op) {
  const char *only = getenv("TPU_TEST_OP");
  return !only || strcmp(only, tpu_hlo_info_get(op)->name) == 0;
}

static bool report(tpu_hlo op, tpu_status status, const tpu_strbuf *text) {
  if (!status) return true;
  fprintf(stderr, "%s: %s\n", tpu_hlo_info_get(op)->name, tpu_status_message(status));
  if (text->data && getenv("TPU_TEST_VERBOSE")) fprintf(stderr, "%s\n", text->data);
  tpu_status_release(status);
  return false;
}

static tpu_plugin *cpu_plugin;
static tpu_client *cpu_client;

/* The client of the CPU tests, made once; NULL and a reason if there is none. */
static tpu_status open_cpu(void) {
  if (cpu_client) return NULL;
  TPU_TRY(tpu_plugin_load(getenv("TPU_TEST_CPU_PLUGIN"), false, &cpu_plugin));
  return tpu_client_create(cpu_plugin, 1, &cpu_client);
}
#define NEED_CPU()                                                            \
  if (!getenv("TPU_TEST_CPU_PLUGIN")) SKIP("TPU_TEST_CPU_PLUGIN is not set"); \
  CHECK_OK(open_cpu())

/* Compiles and runs a graph. arguments: host data of the module's arguments with their types; results[i] gets output i. */
static tpu_status run_graph(tpu_graph *g, const void *const *param_data, const void *const pack_data[TPU_PACK_COUNT],
                            void *const *results) {
  tpu_strbuf text = {0};
  tpu_module m;
  tpu_executable *executable = NULL;
  tpu_buffer *inputs[SAMPLE_OUTPUTS] = {NULL}, *outputs[SAMPLE_OUTPUTS] = {NULL};
  uint32_t n = 0, n_outputs;
  const tpu_val *values = tpu_graph_outputs(g, &n_outputs);
  tpu_status status = tpu_graph_emit(g, &cpu_target, "values", NULL, 0, &text, &m);
  if (!status) status = tpu_compile(cpu_client, text.data, text.size, NULL, &executable);
  for (uint32_t i = 0; i < m.n_params && !status; i++) {
    tpu_type t = {TPU_F32, 0, NULL};
    for (uint32_t k = 0; k < tpu_graph_node_count(g); k++) {
      const tpu_node *node = tpu_graph_node(g, k);
      if (node->op == TPU_HLO_PARAM && tpu_node_attr(node, 0) == m.params[i])
        t = tpu_graph_type(g, (tpu_val){node->first_result});
    }
    status =
        tpu_buffer_from_host(cpu_client, 0, t.dtype, t.rank, t.dims, param_data[m.params[i]], TPU_HOST_COPY, &inputs[n++], NULL);
  }
  for (int pack = 0; pack < TPU_PACK_COUNT && !status; pack++) {
    int64_t size = m.pack_size[pack];
    if (size)
      status = tpu_buffer_from_host(cpu_client, 0, pack == TPU_PACK_F64 ? TPU_F64 : TPU_U32, 1, &size, pack_data[pack],
                                    TPU_HOST_COPY, &inputs[n++], NULL);
  }
  if (!status) status = tpu_execute(cpu_client, executable, 0, inputs, n, NULL, 0, outputs, n_outputs, NULL);
  for (uint32_t i = 0; i < n_outputs && !status; i++) {
    tpu_type t = tpu_graph_type(g, values[i]);
    status = tpu_buffer_to_host(cpu_client, outputs[i], results[i], (size_t)(tpu_type_numel(t) * tpu_dtype_bytes(t.dtype)), NULL);
  }
  for (int i = 0; i < SAMPLE_OUTPUTS; i++) {
    tpu_buffer_destroy(cpu_client, inputs[i]);
    tpu_buffer_destroy(cpu_client, outputs[i]);
  }
  tpu_executable_destroy(cpu_client, executable);
  tpu_strbuf_destroy(&text);
  return status;
}

/* A slot of every dtype, packed as emit.h says, arrives as the number that was put in. */
TEST(slots) {
  NEED_CPU();
  tpu_graph *g = tpu_graph_create();
  tpu_build b;
  tpu_build_init(&b, g, &cpu_target);
  enum { N = 15 };
  static const tpu_dtype types[N] = {TPU_F32, TPU_F16,  TPU_BF16, TPU_I8,  TPU_U8,  TPU_I16, TPU_U16, TPU_I32,
                                     TPU_U32, TPU_BOOL, TPU_I64,  TPU_U64, TPU_C64, TPU_F64, TPU_C128};
  static const double numbers[N] = {0.1, -1.5, 3, -7, 200, -30000, 60000, -2e9, 4e9, 1, -5e17, 1.7e19, -2.5, 1e300, 0.1};
  tpu_val out[N];
  for (int i = 0; i < N; i++) out[i] = tpu_slot(&b, (uint32_t)(N - i), types[i]);
  CHECK_OK(tpu_graph_set_outputs(g, out, N));
  tpu_strbuf text = {0};
  tpu_module m;
  CHECK_OK(tpu_graph_emit(g, &cpu_target, "slots", NULL, 0, &text, &m));
  tpu_strbuf_destroy(&text);
  uint32_t words[64] = {0};
  double doubles[8] = {0};
  for (uint32_t k = 0; k < m.n_slots; k++) {
    const tpu_slot_use *u = &m.slots[k];
    double v = numbers[N - (int)u->index];
    float narrow = (float)v;
    uint64_t wide = u->dtype == TPU_U64 ? (uint64_t)v : (uint64_t)(int64_t)v;
    if (u->pack == TPU_PACK_F64)
      doubles[u->at] = v;
    else if (tpu_is_float(u->dtype) || u->dtype == TPU_C64)
      memcpy(&words[u->at], &narrow, sizeof narrow);
    else
      words[u->at] = (uint32_t)wide;
    if (u->dtype == TPU_I64 || u->dtype == TPU_U64) words[u->at + 1] = (uint32_t)(wide >> 32);
    if (u->dtype == TPU_C64) memcpy(&words[u->at + 1], &(float){4}, 4);
    if (u->dtype == TPU_C128) doubles[u->at + 1] = 4;
  }
  char elements[N][TPU_ELEMENT_BYTES], want[TPU_ELEMENT_BYTES];
  void *results[N];
  for (int i = 0; i < N; i++) results[i] = elements[i];
  CHECK_OK(run_graph(g, NULL, (const void *[]){words, doubles}, results));
  for (int i = 0; i < N; i++) {
    if (types[i] == TPU_I64 || types[i] == TPU_I32)
      tpu_number_from_int(types[i], (int64_t)numbers[i], want);
    else
      tpu_number_from_double(types[i], numbers[i], want);
    if (types[i] == TPU_C64) memcpy(want + 4, &(float){4}, 4);
    if (types[i] == TPU_C128) memcpy(want + 8, &(double){4}, 8);
    if (memcmp(want, elements[i], (size_t)tpu_dtype_bytes(types[i])) != 0) CHECK_FAIL("%s differs", tpu_dtype_name(types[i]));
  }
  tpu_graph_destroy(g);
}

/* Constants come back bit for bit, folded conversions are what the plugin computes. */
TEST(constants) {
  NEED_CPU();
  static const double numbers[] = {0, -0.0, 1, -2, 0.1, 1e38, 1e-40, 65504, 300, -1.5, 7e-8, 1e300};
  enum { N = sizeof numbers / sizeof *numbers };
  for (int t = 0; t < TPU_DTYPE_COUNT; t++) {
    if (t == TPU_F8E8M0FNU) continue;
    tpu_graph *g = tpu_graph_create();
    tpu_build b;
    tpu_build_init(&b, g, &cpu_target);
    size_t size = (size_t)tpu_dtype_bytes((tpu_dtype)t);
    char data[N * TPU_ELEMENT_BYTES], splats[N][TPU_ELEMENT_BYTES], dense[N * TPU_ELEMENT_BYTES];
    tpu_val out[N + 1];
    void *results[N + 1] = {dense};
    for (int i = 0; i < N; i++) {
      tpu_number_from_double((tpu_dtype)t, numbers[i], data + (size_t)i * size);
      out[i + 1] = tpu_full(&b, (tpu_dtype)t, 0, NULL, numbers[i]);
      results[i + 1] = splats[i];
    }
    out[0] = tpu_dense(&b, (tpu_dtype)t, 1, DIMS(N), data);
    CHECK_OK(tpu_build_status(&b));
    CHECK_OK(tpu_graph_set_outputs(g, out, N + 1));
    CHECK_OK(run_graph(g, NULL, (const void *[]){NULL, NULL}, results));
    if (memcmp(dense, data, N * size) != 0) CHECK_FAIL("%s: dense differs", tpu_dtype_name((tpu_dtype)t));
    for (int i = 0; i < N; i++)
      if (memcmp(splats[i], data + (size_t)i * size, size) != 0)
        CHECK_FAIL("%s: %g differs", tpu_dtype_name((tpu_dtype)t), numbers[i]);
    tpu_graph_destroy(g);
  }
}

TEST(conversions) {
  NEED_CPU();
  static const float numbers[] = {0, -0.0f, 0.4f, 1.5f, -1.5f, 200, 300, -300, 65000, -40000, 3e9f, 1e6f, 0.1f};
  enum { N = sizeof numbers / sizeof *numbers };
  static const tpu_dtype types[] = {TPU_BOOL, TPU_U8,  TPU_I8,   TPU_I16, TPU_U16, TPU_I64,
                                    TPU_U32,  TPU_F16, TPU_BF16, TPU_F64, TPU_C64};
  enum { TYPES = sizeof types / sizeof *types };
  tpu_graph *g = tpu_graph_create();
  tpu_build b;
  tpu_build_init(&b, g, &cpu_target);
  tpu_val x = tpu_param(&b, TPU_F32, 1, DIMS(N)), out[TYPES];
  char data[TYPES][N * TPU_ELEMENT_BYTES];
  void *results[TYPES];
  for (int t = 0; t < TYPES; t++) {
    out[t] = tpu_convert(&b, x, types[t]);
    results[t] = data[t];
  }
  CHECK_OK(tpu_build_status(&b));
  CHECK_OK(tpu_graph_set_outputs(g, out, TYPES));
  CHECK_OK(run_graph(g, (const void *[]){numbers}, (const void *[]){NULL, NULL}, results));
  for (int t = 0; t < TYPES; t++) {
    size_t size = (size_t)tpu_dtype_bytes(types[t]);
    for (int i = 0; i < N; i++) {
      tpu_val folded = tpu_convert(&b, tpu_scalar(&b, TPU_F32, (double)numbers[i]), types[t]);
      const tpu_node *node = tpu_producer_is(g, folded, TPU_HLO_CONSTANT);
      if (!node) continue; /* to complex: not folded */
      if (memcmp(tpu_node_attrs(node)->data, data[t] + (size_t)i * size, size) != 0)
        CHECK_FAIL("%g to %s differs", (double)numbers[i], tpu_dtype_name(types[t]));
    }
  }
  tpu_graph_destroy(g);
}

/* Random graphs mean on the plugin what they mean to the evaluator. */
TEST(random_graphs) {
  NEED_CPU();
  for (uint64_t seed = 1; seed <= 10; seed++) {
    uint64_t r = seed * 104729;
    tpu_graph *g = tpu_graph_create();
    tpu_arena arena;
    tpu_arena_init(&arena, 0);
    tpu_build b;
    tpu_build_init(&b, g, &cpu_target);
    tpu_val pool[FUZZ_POOL];
    tpu_type types[FUZZ_POOL];
    const void *params[FUZZ_POOL];
    int n = 0, n_params = 0;
    for (int tries = 0; tries < 200 && n < 30; tries++) {
      fuzz_step s;
      if (!fuzz_plan(&r, 3, n, types, &s)) continue;
      tpu_val x[2] = {{0}};
      for (int i = 0; i < s.n_operands; i++) x[i] = pool[s.operands[i]];
      pool[n] = fuzz_apply(&b, &s, x);
      types[n] = tpu_type_of(&b, pool[n]);
      if (s.kind == FUZZ_PARAM) {
        interp_value v = {types[n], tpu_arena_calloc(&arena, 1, interp_bytes(types[n]) + 16)};
        for (int64_t i = 0; i < tpu_type_numel(types[n]); i++) interp_put(&v, i, fuzz_below(&r, 7) - 3);
        params[n_params++] = v.data;
      }
      n++;
    }
    void *results[FUZZ_POOL];
    for (int i = 0; i < n; i++) results[i] = tpu_arena_calloc(&arena, 1, interp_bytes(types[i]) + 16);
    CHECK_OK(tpu_build_status(&b));
    CHECK_OK(tpu_graph_set_outputs(g, pool, (uint32_t)n));
    CHECK_OK(run_graph(g, params, (const void *[]){NULL, NULL}, results));
    interp in = {.graph = g, .arena = &arena, .params = params};
    CHECK(fuzz_eval(&in));
    for (int i = 0; i < n; i++)
      if (memcmp(in.values[pool[i].id].data, results[i], interp_bytes(types[i])) != 0)
        CHECK_FAIL("seed %d: value %d differs", (int)seed, i);
    tpu_arena_destroy(&arena);
    tpu_graph_destroy(g);
  }
}

TEST(cpu) {
  NEED_CPU();
  int failures = 0;
  for (int op = 0; op < TPU_HLO_CUMULATIVE; op++) {
    tpu_strbuf text = {0};
    tpu_executable *executable = NULL;
    if (!is_wanted((tpu_hlo)op)) continue;
    tpu_status status = emit_sample(&cpu_target, (tpu_hlo)op, &text);
    if (!status) status = tpu_compile(cpu_client, text.data, text.size, NULL, &executable);
    if (!report((tpu_hlo)op, status, &text)) failures++;
    tpu_executable_destroy(cpu_client, executable);
    tpu_strbuf_destroy(&text);
  }
  CHECK_INT(failures, 0);
}

/* What libtpu's compiler has no form of. */
static bool not_on_tpu(tpu_hlo op) { return op == TPU_HLO_CUSTOM_CALL; }

TEST(tpu) {
  const char *path = getenv("TPU_TEST_LIBTPU");
  if (!path || !*path) SKIP("TPU_TEST_LIBTPU names no library");
  tpu_plugin *plugin;
  tpu_topology *topology;
  CHECK_OK(tpu_plugin_load(path, true, &plugin));
  CHECK_OK(tpu_topology_create(plugin, "v5e:1x1", &topology));
  int failures = 0;
  for (int op = 0; op < TPU_HLO_CUMULATIVE; op++) {
    tpu_strbuf text = {0};
    tpu_program_stats stats;
    if (not_on_tpu((tpu_hlo)op) || !is_wanted((tpu_hlo)op)) continue;
    tpu_status status = emit_sample(&tpu_target_v5e, (tpu_hlo)op, &text);
    if (!status) status = tpu_topology_compile(topology, text.data, text.size, NULL, &stats);
    if (!report((tpu_hlo)op, status, &text)) failures++;
    tpu_strbuf_destroy(&text);
  }
  tpu_topology_destroy(topology);
  CHECK_INT(failures, 0);
}

TEST_MAIN(TEST_CASE(slots), TEST_CASE(constants), TEST_CASE(conversions), TEST_CASE(random_graphs), TEST_CASE(cpu),
          TEST_CASE(tpu));
