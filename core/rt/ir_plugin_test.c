/* Every operation, as the emitter writes it, compiles: on the CPU plugin at TPU_TEST_CPU_PLUGIN, and with TPU_TEST_LIBTPU for a
 * TPU topology. */
#include "base/alloc.h"
#include "base/test.h"
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

static bool report(tpu_hlo op, tpu_status status, const tpu_strbuf *text) {
  if (!status) return true;
  fprintf(stderr, "%s: %s\n", tpu_hlo_info_get(op)->name, tpu_status_message(status));
  if (text->data && getenv("TPU_TEST_VERBOSE")) fprintf(stderr, "%s\n", text->data);
  tpu_status_release(status);
  return false;
}

TEST(cpu) {
  const char *path = getenv("TPU_TEST_CPU_PLUGIN");
  if (!path) SKIP("TPU_TEST_CPU_PLUGIN is not set");
  tpu_plugin *plugin;
  tpu_client *client;
  CHECK_OK(tpu_plugin_load(path, false, &plugin));
  CHECK_OK(tpu_client_create(plugin, 1, &client));
  int failures = 0;
  for (int op = 0; op < TPU_HLO_CUMULATIVE; op++) {
    tpu_strbuf text = {0};
    tpu_executable *executable = NULL;
    tpu_status status = emit_sample(&cpu_target, (tpu_hlo)op, &text);
    if (!status) status = tpu_compile(client, text.data, text.size, NULL, &executable);
    if (!report((tpu_hlo)op, status, &text)) failures++;
    tpu_executable_destroy(client, executable);
    tpu_strbuf_destroy(&text);
  }
  tpu_client_destroy(client);
  CHECK_INT(failures, 0);
}

/* What libtpu's compiler has no form of. */
static bool not_on_tpu(tpu_hlo op) { return op == TPU_HLO_CUSTOM_CALL; }

TEST(tpu) {
  const char *path = getenv("TPU_TEST_LIBTPU");
  if (!path) SKIP("TPU_TEST_LIBTPU is not set");
  tpu_plugin *plugin;
  tpu_topology *topology;
  CHECK_OK(tpu_plugin_load(path, true, &plugin));
  CHECK_OK(tpu_topology_create(plugin, "v5e:1x1", &topology));
  int failures = 0;
  for (int op = 0; op < TPU_HLO_CUMULATIVE; op++) {
    tpu_strbuf text = {0};
    tpu_program_stats stats;
    if (not_on_tpu((tpu_hlo)op)) continue;
    tpu_status status = emit_sample(&tpu_target_v5e, (tpu_hlo)op, &text);
    if (!status) status = tpu_topology_compile(topology, text.data, text.size, NULL, &stats);
    if (!report((tpu_hlo)op, status, &text)) failures++;
    tpu_strbuf_destroy(&text);
  }
  tpu_topology_destroy(topology);
  CHECK_INT(failures, 0);
}

TEST_MAIN(TEST_CASE(cpu), TEST_CASE(tpu));
