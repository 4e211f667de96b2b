/* Programs on a real CPU plugin: TPU_TEST_CPU_PLUGIN is its path. Prints what an execute costs. */
#include <math.h>
#include <time.h>

#include "base/alloc.h"
#include "base/test.h"
#include "pjrt/client.h"

static tpu_plugin *plugin;
static tpu_client *client;

static bool open_plugin(void) {
  if (client) return true;
  const char *path = getenv("TPU_TEST_CPU_PLUGIN");
  if (!path) return false;
  tpu_status status = tpu_plugin_load(path, false, &plugin);
  if (!status) status = tpu_client_create(plugin, 2, &client);
  if (status) fprintf(stderr, "%s\n", tpu_status_message(status));
  tpu_test_failed = status != NULL;
  tpu_status_release(status);
  return client != NULL;
}
#define NEED_PLUGIN()                                                         \
  if (!getenv("TPU_TEST_CPU_PLUGIN")) SKIP("TPU_TEST_CPU_PLUGIN is not set"); \
  CHECK(open_plugin())

static tpu_status compile(const char *text, tpu_executable **out) { return tpu_compile(client, text, strlen(text), NULL, out); }
static tpu_status put(tpu_dtype dtype, int rank, const int64_t *dims, const void *data, tpu_buffer **out) {
  return tpu_buffer_from_host(client, 0, dtype, rank, dims, data, TPU_HOST_COPY, out, NULL);
}

static const char add_text[] =
    "func.func public @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) -> tensor<8x8xf32> {\n"
    "  %0 = stablehlo.add %a, %b : tensor<8x8xf32>\n"
    "  return %0 : tensor<8x8xf32>\n}\n";
static const int64_t add_dims[] = {8, 8};

TEST(client_says) {
  NEED_PLUGIN();
  CHECK_STR(tpu_client_platform_name(client), "cpu");
  CHECK_INT(tpu_client_device_count(client), 2);
  CHECK_INT(tpu_client_device_id(client, 1), 1);
  CHECK_STR(tpu_client_device_kind(client, 0), "cpu");
  int64_t version[3];
  CHECK(tpu_plugin_version(plugin, "stablehlo_current_version", version) && version[0] == 1);
  CHECK(!tpu_plugin_version(plugin, "no_such_version", version));
  tpu_memory_stats stats;
  CHECK_ERROR(tpu_client_memory_stats(client, 0, &stats), TPU_UNIMPLEMENTED, "");
}

TEST(add_on_both_devices) {
  NEED_PLUGIN();
  tpu_executable *x;
  CHECK_OK(compile(add_text, &x));
  float a[64], r[64];
  for (int i = 0; i < 64; i++) a[i] = (float)i;
  for (int device = 0; device < 2; device++) {
    tpu_buffer *in[2], *out;
    tpu_event *done;
    CHECK_OK(tpu_buffer_from_host(client, device, TPU_F32, 2, add_dims, a, TPU_HOST_COPY, &in[0], NULL));
    in[1] = in[0];
    CHECK_OK(tpu_execute(client, x, device, in, 2, NULL, 0, &out, 1, &done));
    CHECK_OK(tpu_event_await(client, done));
    CHECK(tpu_event_ready(client, done) && tpu_buffer_is_ready(client, out));
    tpu_event_destroy(client, done);
    CHECK_OK(tpu_buffer_to_host(client, out, r, sizeof r, NULL));
    for (int i = 0; i < 64; i++) CHECK(r[i] == 2 * a[i]);
    tpu_buffer *moved;
    CHECK_OK(tpu_buffer_copy_to_device(client, out, 1 - device, &moved));
    memset(r, 0, sizeof r);
    CHECK_OK(tpu_buffer_to_host(client, moved, r, sizeof r, NULL));
    CHECK(r[63] == 126);
    tpu_buffer_destroy(client, moved);
    tpu_buffer_destroy(client, out);
    tpu_buffer_destroy(client, in[0]);
  }
  tpu_executable_destroy(client, x);
}

TEST(matmul) {
  NEED_PLUGIN();
  tpu_executable *x;
  CHECK_OK(
      compile("func.func public @main(%a: tensor<2x3xf64>, %b: tensor<3x2xf64>) -> tensor<2x2xf64> {\n"
              "  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]\n"
              "    : (tensor<2x3xf64>, tensor<3x2xf64>) -> tensor<2x2xf64>\n"
              "  return %0 : tensor<2x2xf64>\n}\n",
              &x));
  const double a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {1, 0, 0, 1, 2, 2}, want[4] = {7, 8, 16, 17};
  double r[4];
  tpu_buffer *in[2], *out;
  CHECK_OK(put(TPU_F64, 2, (int64_t[]){2, 3}, a, &in[0]));
  CHECK_OK(put(TPU_F64, 2, (int64_t[]){3, 2}, b, &in[1]));
  CHECK_OK(tpu_execute(client, x, 0, in, 2, NULL, 0, &out, 1, NULL));
  CHECK_OK(tpu_buffer_to_host(client, out, r, sizeof r, NULL));
  CHECK(memcmp(r, want, sizeof r) == 0);
  tpu_buffer_destroy(client, out);
  CHECK_ERROR(tpu_execute(client, x, 0, in, 1, NULL, 0, &out, 1, NULL), TPU_INVALID_ARGUMENT, "");
  CHECK(!out);
  tpu_buffer_destroy(client, in[0]);
  tpu_buffer_destroy(client, in[1]);
  tpu_executable_destroy(client, x);
}

TEST(donation) {
  NEED_PLUGIN();
  tpu_executable *x;
  CHECK_OK(
      compile("func.func public @main(%a: tensor<64xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<64xf32>)\n"
              "    -> tensor<64xf32> {\n"
              "  %0 = stablehlo.multiply %a, %b : tensor<64xf32>\n"
              "  return %0 : tensor<64xf32>\n}\n",
              &x));
  float a[64], r[64];
  for (int i = 0; i < 64; i++) a[i] = (float)(i + 1);
  tpu_buffer *in[2], *out;
  void *before, *after;
  const int64_t dims[] = {64}, keep[] = {0};
  CHECK_OK(put(TPU_F32, 1, dims, a, &in[0]));
  CHECK_OK(put(TPU_F32, 1, dims, a, &in[1]));
  CHECK_OK(tpu_buffer_pointer(client, in[0], &before));
  CHECK_OK(tpu_execute(client, x, 0, in, 2, keep, 1, &out, 1, NULL));
  CHECK(!tpu_buffer_is_deleted(client, in[0]));
  CHECK_OK(tpu_buffer_await(client, out));
  CHECK_OK(tpu_buffer_pointer(client, out, &after));
  CHECK(before != after);
  tpu_buffer_destroy(client, out);
  CHECK_OK(tpu_execute(client, x, 0, in, 2, NULL, 0, &out, 1, NULL));
  CHECK(tpu_buffer_is_deleted(client, in[0]) && !tpu_buffer_is_deleted(client, in[1]));
  CHECK_OK(tpu_buffer_to_host(client, out, r, sizeof r, NULL));
  CHECK_OK(tpu_buffer_pointer(client, out, &after));
  CHECK(before == after && r[63] == 64 * 64);
  tpu_buffer *again;
  CHECK_ERROR(tpu_execute(client, x, 0, in, 2, NULL, 0, &again, 1, NULL), TPU_INVALID_ARGUMENT, "donated");
  CHECK(!again && !tpu_buffer_is_deleted(client, in[1]));
  tpu_program_stats stats;
  CHECK_OK(tpu_executable_stats(client, x, &stats));
  CHECK_INT(stats.argument_bytes, 512);
  CHECK_INT(stats.alias_bytes, 256);
  tpu_buffer_destroy(client, in[0]);
  tpu_buffer_destroy(client, in[1]);
  tpu_buffer_destroy(client, out);
  tpu_executable_destroy(client, x);
}

/* quirks.cpu_overrides: by default XLA drops NaN here. */
static tpu_status max_with_nan(const tpu_compile_options *options, int *out_nans) {
  static const char text[] =
      "func.func public @main(%a: tensor<64xf32>, %b: tensor<64xf32>)\n"
      "    -> (tensor<64xf32>, tensor<64xf32>, tensor<f32>) {\n"
      "  %0 = stablehlo.maximum %a, %b : tensor<64xf32>\n"
      "  %1 = stablehlo.minimum %a, %b : tensor<64xf32>\n"
      "  %i = stablehlo.constant dense<0xFF800000> : tensor<f32>\n"
      "  %2 = stablehlo.reduce(%0 init: %i) applies stablehlo.maximum across dimensions = [0]\n"
      "    : (tensor<64xf32>, tensor<f32>) -> tensor<f32>\n"
      "  return %0, %1, %2 : tensor<64xf32>, tensor<64xf32>, tensor<f32>\n}\n";
  tpu_executable *x = NULL;
  float a[64], b[64], r[64];
  for (int i = 0; i < 64; i++) {
    a[i] = i % 3 == 0 ? NAN : (float)i;
    b[i] = i % 3 == 1 ? NAN : 1.0f;
  }
  tpu_buffer *in[2] = {NULL}, *out[3] = {NULL};
  *out_nans = 0;
  tpu_status s = tpu_compile(client, text, sizeof text - 1, options, &x);
  if (!s) s = put(TPU_F32, 1, (int64_t[]){64}, a, &in[0]);
  if (!s) s = put(TPU_F32, 1, (int64_t[]){64}, b, &in[1]);
  if (!s) s = tpu_execute(client, x, 0, in, 2, NULL, 0, out, 3, NULL);
  for (int k = 0; !s && k < 3; k++) {
    size_t n = k == 2 ? 1 : 64;
    s = tpu_buffer_to_host(client, out[k], r, n * sizeof *r, NULL);
    for (size_t i = 0; !s && i < n; i++) *out_nans += isnan(r[i]) != 0;
  }
  for (int i = 0; i < 2; i++) tpu_buffer_destroy(client, in[i]);
  for (int i = 0; i < 3; i++) tpu_buffer_destroy(client, out[i]);
  tpu_executable_destroy(client, x);
  return s;
}
TEST(nan_in_maximum) {
  NEED_PLUGIN();
  int nans;
  CHECK_OK(max_with_nan(NULL, &nans));
  CHECK_INT(nans, 43 + 43 + 1);
  tpu_option fast = {"xla_cpu_enable_fast_min_max", "true"};
  CHECK_OK(max_with_nan(&(tpu_compile_options){.overrides = &fast, .override_count = 1}, &nans));
  fprintf(stderr, "with fast min and max %d of 87 NaNs are left\n", nans);
}

/* quirks.atan_is_broken: wrong with it, right without, and right with the two ways around it. */
static tpu_status atan_errors(const char *op, const tpu_option *option, int *out_errors) {
  char text[512];
  (void)snprintf(text, sizeof text,
                 "func.func public @main(%%a: tensor<64xf32>) -> tensor<64xf32> {\n"
                 "  %%one = stablehlo.constant dense<1.0> : tensor<64xf32>\n"
                 "  %%two = stablehlo.constant dense<2.0> : tensor<64xf32>\n"
                 "  %%twice = stablehlo.multiply %%two, %%a : tensor<64xf32>\n"
                 "  %%0 = stablehlo.atan2 %s : tensor<64xf32>\n"
                 "  return %%0 : tensor<64xf32>\n}\n",
                 op);
  tpu_executable *x = NULL;
  tpu_buffer *in = NULL, *out = NULL;
  float a[64], r[64];
  for (int i = 0; i < 64; i++) a[i] = (float)(i - 30) * 0.3f;
  tpu_compile_options options = {.overrides = option, .override_count = option != NULL};
  tpu_status s = tpu_compile(client, text, strlen(text), &options, &x);
  if (!s) s = put(TPU_F32, 1, (int64_t[]){64}, a, &in);
  if (!s) s = tpu_execute(client, x, 0, &in, 1, NULL, 0, &out, 1, NULL);
  if (!s) s = tpu_buffer_to_host(client, out, r, sizeof r, NULL);
  *out_errors = 0;
  for (int i = 0; !s && i < 64; i++) *out_errors += !(fabsf(r[i] - atanf(a[i])) < 1e-5f);
  tpu_buffer_destroy(client, in);
  tpu_buffer_destroy(client, out);
  tpu_executable_destroy(client, x);
  return s;
}
TEST(atan) {
  NEED_PLUGIN();
  int errors;
  tpu_option width = {"xla_cpu_prefer_vector_width", "128"};
  CHECK_OK(atan_errors("%a, %one", NULL, &errors));
  CHECK_INT(errors > 0, tpu_client_quirks(client)->atan_is_broken);
  CHECK_OK(atan_errors("%twice, %two", NULL, &errors));
  CHECK_INT(errors, 0);
  CHECK_OK(atan_errors("%a, %one", &width, &errors));
  CHECK_INT(errors, 0);
}

TEST(overrides) {
  NEED_PLUGIN();
  tpu_executable *x;
  tpu_option options[] = {{"xla_backend_optimization_level", "0"}, {"xla_cpu_enable_fast_math", "false"}};
  CHECK_OK(
      tpu_compile(client, add_text, sizeof add_text - 1, &(tpu_compile_options){.overrides = options, .override_count = 2}, &x));
  tpu_executable_destroy(client, x);
  tpu_option wrong = {"no_such_option", "1"};
  CHECK_ERROR(
      tpu_compile(client, add_text, sizeof add_text - 1, &(tpu_compile_options){.overrides = &wrong, .override_count = 1}, &x),
      TPU_INVALID_ARGUMENT, "no_such_option");
  CHECK_ERROR(compile("func.func public @main() { nonsense }", &x), TPU_INVALID_ARGUMENT, "");
}

TEST(serialize) {
  NEED_PLUGIN();
  tpu_executable *x, *y;
  char *data;
  size_t size;
  CHECK_OK(compile(add_text, &x));
  CHECK_OK(tpu_executable_serialize(client, x, &data, &size));
  tpu_executable_destroy(client, x);
  CHECK_OK(tpu_executable_deserialize(client, data, size, &y));
  tpu_free(data);
  float a[64], r[64];
  for (int i = 0; i < 64; i++) a[i] = (float)i;
  for (int device = 0; device < 2; device++) { /* portable as before */
    tpu_buffer *in[2], *out;
    CHECK_OK(tpu_buffer_from_host(client, device, TPU_F32, 2, add_dims, a, TPU_HOST_COPY, &in[0], NULL));
    in[1] = in[0];
    CHECK_OK(tpu_execute(client, y, device, in, 2, NULL, 0, &out, 1, NULL));
    CHECK_OK(tpu_buffer_to_host(client, out, r, sizeof r, NULL));
    CHECK(r[63] == 126);
    tpu_buffer_destroy(client, in[0]);
    tpu_buffer_destroy(client, out);
  }
  tpu_executable_destroy(client, y);
  tpu_status status = tpu_executable_deserialize(client, "rubbish", 7, &y);
  CHECK(status && !y);
  tpu_status_release(status);
}

TEST(round_trips) {
  NEED_PLUGIN();
  unsigned char data[48], r[48];
  for (int i = 0; i < 48; i++) data[i] = (unsigned char)(i % 2);
  for (int i = 0; i < TPU_DTYPE_COUNT; i++) {
    tpu_dtype t = (tpu_dtype)i;
    size_t size = 3 * (size_t)tpu_dtype_bytes(t);
    tpu_buffer *b;
    CHECK_OK(put(t, 1, (int64_t[]){3}, data, &b));
    memset(r, 0xee, sizeof r);
    CHECK_OK(tpu_buffer_to_host(client, b, r, size, NULL));
    CHECK(memcmp(r, data, size) == 0 && r[size < 47 ? size : 47] == (size < 47 ? 0xee : data[47]));
    tpu_buffer_destroy(client, b);
  }
  tpu_buffer *b;
  CHECK_OK(put(TPU_F32, 2, (int64_t[]){0, 3}, NULL, &b));
  CHECK_OK(tpu_buffer_to_host(client, b, NULL, 0, NULL));
  CHECK_ERROR(tpu_buffer_to_host(client, b, r, 4, NULL), TPU_INVALID_ARGUMENT, "cannot read 4 bytes");
  tpu_buffer_destroy(client, b);
}

TEST(alias) {
  NEED_PLUGIN();
  static _Alignas(64) float data[64];
  data[5] = 5;
  tpu_buffer *b;
  tpu_event *done;
  void *pointer;
  float r[64];
  CHECK_OK(tpu_buffer_from_host(client, 0, TPU_F32, 1, (int64_t[]){64}, data, TPU_HOST_ALIAS, &b, &done));
  CHECK_OK(tpu_buffer_pointer(client, b, &pointer));
  CHECK(pointer == data);
  CHECK(!tpu_event_ready(client, done));
  CHECK_OK(tpu_buffer_to_host(client, b, r, sizeof r, NULL));
  CHECK(r[5] == 5);
  tpu_buffer_destroy(client, b);
  CHECK_OK(tpu_event_await(client, done));
  tpu_event_destroy(client, done);
  CHECK_OK(tpu_buffer_from_host(client, 0, TPU_F32, 1, (int64_t[]){32}, data + 1, TPU_HOST_ALIAS, &b, &done));
  CHECK_OK(tpu_buffer_pointer(client, b, &pointer)); /* not aligned: copied */
  CHECK(pointer != data + 1);
  CHECK_OK(tpu_event_await(client, done));
  tpu_event_destroy(client, done);
  tpu_buffer_destroy(client, b);
}

TEST(out_of_memory) {
  NEED_PLUGIN();
  tpu_executable *x;
  tpu_buffer *out;
  tpu_event *done = NULL;
  CHECK_OK(
      compile("func.func public @main() -> tensor<1099511627776xf32> {\n"
              "  %0 = stablehlo.constant dense<1.0> : tensor<f32>\n"
              "  %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<1099511627776xf32>\n"
              "  return %1 : tensor<1099511627776xf32>\n}\n",
              &x));
  tpu_status status = tpu_execute(client, x, 0, NULL, 0, NULL, 0, &out, 1, &done);
  if (!status) status = tpu_event_await(client, done);
  CHECK_ERROR(status, TPU_RESOURCE_EXHAUSTED, "");
  tpu_event_destroy(client, done);
  tpu_buffer_destroy(client, out);
  tpu_executable_destroy(client, x);
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}
TEST(execute_costs) {
  NEED_PLUGIN();
  enum { ROUNDS = 200, CALLS = 100 };
  tpu_executable *x;
  CHECK_OK(compile(add_text, &x));
  float a[64] = {1};
  tpu_buffer *in[2], *out;
  CHECK_OK(put(TPU_F32, 2, add_dims, a, &in[0]));
  CHECK_OK(put(TPU_F32, 2, add_dims, a, &in[1]));
  double best = 1e9, best_wait = 1e9, best_put = 1e9, best_get = 1e9;
  for (int round = 0; round < ROUNDS; round++) {
    double start = now_us();
    for (int i = 0; i < CALLS; i++) {
      tpu_status_release(tpu_execute(client, x, 0, in, 2, NULL, 0, &out, 1, NULL));
      tpu_buffer_destroy(client, out);
    }
    double spent = now_us() - start;
    if (spent < best) best = spent;
    start = now_us();
    for (int i = 0; i < CALLS; i++) {
      tpu_event *done;
      tpu_status_release(tpu_execute(client, x, 0, in, 2, NULL, 0, &out, 1, &done));
      tpu_status_release(tpu_event_await(client, done));
      tpu_event_destroy(client, done);
      tpu_buffer_destroy(client, out);
    }
    spent = now_us() - start;
    if (spent < best_wait) best_wait = spent;
    start = now_us();
    for (int i = 0; i < CALLS; i++) {
      tpu_status_release(put(TPU_F32, 2, add_dims, a, &out));
      tpu_buffer_destroy(client, out);
    }
    spent = now_us() - start;
    if (spent < best_put) best_put = spent;
    start = now_us();
    for (int i = 0; i < CALLS; i++) tpu_status_release(tpu_buffer_to_host(client, in[0], a, sizeof a, NULL));
    spent = now_us() - start;
    if (spent < best_get) best_get = spent;
  }
  fprintf(stderr, "add 8x8, best of %d: execute %.2f us, with await %.2f us; 256 bytes: in %.2f us, out %.2f us\n", ROUNDS,
          best / CALLS, best_wait / CALLS, best_put / CALLS, best_get / CALLS);
  tpu_buffer_destroy(client, in[0]);
  tpu_buffer_destroy(client, in[1]);
  tpu_executable_destroy(client, x);
}

TEST(digest) {
  NEED_PLUGIN();
  double start = now_us();
  CHECK_INT(strlen(tpu_plugin_digest(plugin)), 64);
  fprintf(stderr, "digest of the plugin: %.0f ms\n", (now_us() - start) / 1e3);
}

TEST(end) {
  NEED_PLUGIN();
  tpu_client_destroy(client);
  client = NULL;
}

TEST_MAIN(TEST_CASE(client_says), TEST_CASE(add_on_both_devices), TEST_CASE(matmul), TEST_CASE(donation),
          TEST_CASE(nan_in_maximum), TEST_CASE(atan), TEST_CASE(overrides), TEST_CASE(serialize), TEST_CASE(round_trips),
          TEST_CASE(alias), TEST_CASE(out_of_memory), TEST_CASE(execute_costs), TEST_CASE(digest), TEST_CASE(end));
