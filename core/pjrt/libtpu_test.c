/* Compiling for a TPU without one: TPU_TEST_LIBTPU is libtpu's path. */
#include <time.h>

#include "base/test.h"
#include "pjrt/topology.h"

static const char text[] =
    "func.func public @main(%a: tensor<128x256xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<256x256xf32>)\n"
    "    -> tensor<128x256xf32> {\n"
    "  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]\n"
    "    : (tensor<128x256xf32>, tensor<256x256xf32>) -> tensor<128x256xf32>\n"
    "  %1 = stablehlo.tanh %0 : tensor<128x256xf32>\n"
    "  return %1 : tensor<128x256xf32>\n}\n";

TEST(compile) {
  const char *path = getenv("TPU_TEST_LIBTPU");
  if (!path || !*path) SKIP("TPU_TEST_LIBTPU names no library");
  tpu_plugin *plugin;
  tpu_topology *t;
  CHECK_OK(tpu_plugin_load(path, true, &plugin));
  CHECK_ERROR(tpu_topology_create(plugin, "v99:1x1", &t), TPU_INVALID_ARGUMENT, "v99:1x1");
  const char *const names[] = {"v5e:1x1", "v6e:1x1", "v5e:2x2"};
  for (int i = 0; i < 3; i++) {
    CHECK_OK(tpu_topology_create(plugin, names[i], &t));
    tpu_program_stats s;
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    CHECK_OK(tpu_topology_compile(t, text, sizeof text - 1, NULL, &s));
    clock_gettime(CLOCK_MONOTONIC, &to);
    fprintf(stderr, "%s: %.0f ms; flops %.3g, bytes accessed %.3g, optimal %.3g s, arguments %lld, alias %lld, peak %lld\n",
            names[i], (double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) / 1e6, s.flops,
            s.bytes_accessed, s.optimal_seconds, (long long)s.argument_bytes, (long long)s.alias_bytes, (long long)s.peak_bytes);
    CHECK(s.flops > 1e7 && s.bytes_accessed > 0 && s.optimal_seconds > 0 && s.code_bytes > 0);
    CHECK_INT(s.argument_bytes, (128 + 256) * 256 * 4);
    CHECK_INT(s.alias_bytes, 128 * 256 * 4);
    CHECK_ERROR(tpu_topology_compile(t, "func.func public @main() { nonsense }", 37, NULL, &s), TPU_INVALID_ARGUMENT, "");
    tpu_topology_destroy(t);
  }
}

/* bfloat16 sums of three, whose intermediate rounding XLA leaves out unless told not to. */
static const char rounded[] =
    "func.func public @main(%a: tensor<1024x128xbf16>, %b: tensor<1024x128xbf16>) -> tensor<1024x128xbf16> {\n"
    "  %0 = stablehlo.add %a, %b : tensor<1024x128xbf16>\n"
    "  %1 = stablehlo.convert %0 : (tensor<1024x128xbf16>) -> tensor<1024x128xf32>\n"
    "  %2 = stablehlo.tanh %1 : tensor<1024x128xf32>\n"
    "  %3 = stablehlo.convert %2 : (tensor<1024x128xf32>) -> tensor<1024x128xbf16>\n"
    "  return %3 : tensor<1024x128xbf16>\n}\n";

TEST(options) {
  const char *path = getenv("TPU_TEST_LIBTPU");
  if (!path || !*path) SKIP("TPU_TEST_LIBTPU names no library");
  tpu_plugin *plugin;
  tpu_topology *t;
  tpu_program_stats s;
  CHECK_OK(tpu_plugin_load(path, true, &plugin));
  CHECK_OK(tpu_topology_create(plugin, "v5e:1x1", &t));
  const tpu_option some[] = {
      {"xla_allow_excess_precision", "false"}, {"xla_optimization_level", "O1"}, {"xla_memory_fitting_level", "O3"}};
  for (int n = 0; n <= 3; n++) {
    CHECK_OK(tpu_topology_compile(t, rounded, sizeof rounded - 1, &(tpu_compile_options){some, n, 0, 0}, &s));
    CHECK(s.code_bytes > 0);
  }
  const tpu_option wrong = {"no_such_option", "1"};
  CHECK_ERROR(tpu_topology_compile(t, rounded, sizeof rounded - 1, &(tpu_compile_options){&wrong, 1, 0, 0}, &s),
              TPU_INVALID_ARGUMENT, "no_such_option");
  tpu_topology_destroy(t);
}

TEST_MAIN(TEST_CASE(compile), TEST_CASE(options));
