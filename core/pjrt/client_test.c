/* The client on the fake plugin: the whole route, and the route with each allocation and each call failing in turn. */
#include "pjrt/client.h"

#include <dlfcn.h>
#include <pthread.h>

#include "base/alloc.h"
#include "base/test.h"
#include "pjrt/fake_plugin.h"
#include "pjrt/topology.h"

static const fake_pjrt_control *fake;
static tpu_plugin *plugin;

/* The state is donated, and returned changed. */
static const char step_text[] =
    "module @step {\n"
    "  func.func public @main(%state: tensor<4x2xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<2xi64>,\n"
    "      %scratch: tensor<4xui8> {jax.buffer_donor = true, mhlo.sharding = \"{replicated}\"})\n"
    "      -> (tensor<4x2xf32> {jax.result_info = \"a\"}, tensor<complex<f32>>) {\n"
    "  }\n"
    "}\n";

static bool open_fake(void) {
  if (fake) return true;
  const char *path = getenv("TPU_TEST_FAKE_PLUGIN");
  if (!path) return false;
  tpu_status status = tpu_plugin_load(path, false, &plugin);
  if (status) {
    fprintf(stderr, "%s\n", tpu_status_message(status));
    tpu_status_release(status);
    return false;
  }
  void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  const fake_pjrt_control *(*get)(void);
  *(void **)&get = library ? dlsym(library, "fake_pjrt_control_get") : NULL;
  if (get) fake = get();
  return fake != NULL;
}
#define NEED_FAKE() \
  if (!open_fake()) SKIP("TPU_TEST_FAKE_PLUGIN is not set or cannot be loaded")

/* Everything once. All that it makes it also destroys, whatever fails. */
static tpu_status route(void) {
  const int64_t state_dims[] = {4, 2}, x_dims[] = {2}, scratch_dims[] = {4};
  const float state[8] = {1};
  const int64_t x[2] = {1, 2};
  static _Alignas(64) const uint8_t scratch[64] = {9};
  tpu_client *client = NULL;
  tpu_executable *executable = NULL, *loaded = NULL;
  tpu_buffer *in[3] = {NULL}, *out[2] = {NULL}, *copy = NULL;
  tpu_event *host_done = NULL, *done = NULL, *read = NULL;
  char *blob = NULL;
  size_t blob_size = 0;
  float result[8];
  tpu_program_stats stats;
  tpu_option option = {"k", "1"};
  tpu_compile_options options = {.overrides = &option, .override_count = 1};

  tpu_status s = tpu_client_create(plugin, 2, &client);
  if (!s) s = tpu_compile(client, step_text, sizeof step_text - 1, &options, &executable);
  if (!s) s = tpu_executable_serialize(client, executable, &blob, &blob_size);
  if (!s) s = tpu_executable_deserialize(client, blob, blob_size, &loaded);
  if (!s) s = tpu_executable_stats(client, executable, &stats);
  if (!s) s = tpu_buffer_from_host(client, 1, TPU_F32, 2, state_dims, state, TPU_HOST_COPY, &in[0], NULL);
  if (!s) s = tpu_buffer_from_host(client, 1, TPU_I64, 1, x_dims, x, TPU_HOST_COPY, &in[1], NULL);
  if (!s) s = tpu_buffer_from_host(client, 1, TPU_U8, 1, scratch_dims, scratch, TPU_HOST_ALIAS, &in[2], &host_done);
  if (!s) s = tpu_execute(client, loaded, 1, in, 3, NULL, 0, out, 2, &done);
  if (!s) s = tpu_event_await(client, done);
  if (!s) s = tpu_buffer_copy_to_device(client, out[0], 0, &copy);
  if (!s) s = tpu_buffer_to_host(client, copy, result, sizeof result, &read);
  if (!s) s = tpu_event_await(client, read);
  if (!s) s = tpu_buffer_await(client, out[1]);
  for (int i = 0; i < 3; i++) tpu_buffer_destroy(client, in[i]);
  for (int i = 0; i < 2; i++) tpu_buffer_destroy(client, out[i]);
  tpu_buffer_destroy(client, copy);
  tpu_event_destroy(client, host_done);
  tpu_event_destroy(client, done);
  tpu_event_destroy(client, read);
  tpu_executable_destroy(client, executable);
  tpu_executable_destroy(client, loaded);
  tpu_free(blob);
  tpu_client_destroy(client);
  return s;
}

TEST(route_once) {
  NEED_FAKE();
  CHECK_OK(route());
  CHECK_INT(fake->live(-1), 0);
  CHECK_INT(fake->bytes_in_use(), 0);
}

TEST(failing_calls) {
  NEED_FAKE();
  const char *const platforms[] = {"cpu", "tpu"}; /* with and without host pointers */
  for (int p = 0; p < 2; p++) {
    fake->set_platform(platforms[p]);
    int64_t live = tpu_alloc_live(), n = 0;
    for (;; n++) {
      fake->fail_after(n, TPU_INTERNAL);
      tpu_status status = route();
      fake->fail_after(-1, 0);
      CHECK_INT(fake->live(-1), 0);
      CHECK_INT(fake->bytes_in_use(), 0);
      if (!status) {
        CHECK_INT(tpu_alloc_live(), live);
        break;
      }
      CHECK_INT(tpu_status_code(status), TPU_INTERNAL);
      CHECK(strstr(tpu_status_message(status), "was told to fail"));
      tpu_status_release(status);
      CHECK_INT(tpu_alloc_live(), live);
    }
    CHECK(n > 20);
  }
  fake->set_platform("cpu");
}

TEST(failing_allocations) {
  NEED_FAKE();
  int64_t live = tpu_alloc_live(), n = 0;
  for (;; n++) {
    tpu_alloc_fail_after(n);
    tpu_status status = route();
    tpu_alloc_fail_after(-1);
    bool ok = !status;
    if (status) CHECK_INT(tpu_status_code(status), TPU_RESOURCE_EXHAUSTED);
    tpu_status_release(status);
    CHECK_INT(fake->live(-1), 0);
    CHECK_INT(tpu_alloc_live(), live);
    if (ok) break;
  }
  CHECK(n > 10);
}

static tpu_client *new_client(void) {
  tpu_client *client = NULL;
  tpu_status_release(tpu_client_create(plugin, 2, &client));
  return client;
}

TEST(devices) {
  NEED_FAKE();
  tpu_client *client = new_client();
  CHECK(client);
  CHECK_INT(tpu_client_device_count(client), 2);
  CHECK_INT(tpu_client_device_id(client, 1), 1);
  CHECK_STR(tpu_client_device_kind(client, 1), "fake");
  CHECK_STR(tpu_client_device_kind(client, 2), "");
  CHECK_STR(tpu_client_platform_name(client), "cpu");
  CHECK_STR(tpu_client_platform_version(client), "fake");
  tpu_client_destroy(client);
  fake->set_platform("tpu"); /* refuses the option, and is asked again */
  client = new_client();
  CHECK(client);
  CHECK_INT(tpu_client_device_count(client), 4);
  CHECK(!tpu_client_quirks(client)->host_pointers);
  void *pointer;
  CHECK_ERROR(tpu_buffer_pointer(client, NULL, &pointer), TPU_UNIMPLEMENTED, "have no host address");
  tpu_client_destroy(client);
  fake->set_platform("cpu");
  CHECK_INT(fake->live(-1), 0);
}

TEST(arguments) {
  NEED_FAKE();
  tpu_client *client = new_client();
  CHECK(client);
  tpu_buffer *b;
  tpu_event *e;
  int64_t dims[] = {3, -1}, huge[] = {INT64_MAX, 2};
  float data[3] = {0};
  CHECK_ERROR(tpu_buffer_from_host(client, 2, TPU_F32, 1, dims, data, TPU_HOST_COPY, &b, NULL), TPU_INVALID_ARGUMENT,
              "device 2 does not exist: there are 2");
  CHECK_ERROR(tpu_buffer_from_host(client, 0, TPU_F32, 2, dims, data, TPU_HOST_COPY, &b, NULL), TPU_INVALID_ARGUMENT,
              "size -1 at dimension 1");
  CHECK_ERROR(tpu_buffer_from_host(client, 0, TPU_F32, 2, huge, data, TPU_HOST_COPY, &b, NULL), TPU_INVALID_ARGUMENT,
              "cannot have size");
  CHECK_ERROR(tpu_buffer_from_host(client, 0, TPU_DTYPE_NONE, 1, dims, data, TPU_HOST_COPY, &b, NULL), TPU_INVALID_ARGUMENT,
              "needs a dtype");
  CHECK_ERROR(tpu_buffer_from_host(client, 0, TPU_F32, 1, dims, NULL, TPU_HOST_COPY, &b, NULL), TPU_INVALID_ARGUMENT,
              "needs data");
  CHECK_ERROR(tpu_buffer_from_host(client, 0, TPU_F32, 1, dims, data, TPU_HOST_ALIAS, &b, NULL), TPU_INVALID_ARGUMENT,
              "needs an event");
  dims[0] = 0;
  CHECK_OK(tpu_buffer_from_host(client, 0, TPU_F32, 1, dims, NULL, TPU_HOST_COPY, &b, &e));
  CHECK(!e);
  CHECK_OK(tpu_buffer_to_host(client, b, NULL, 0, NULL));
  CHECK_ERROR(tpu_buffer_to_host(client, b, data, 4, NULL), TPU_INVALID_ARGUMENT, "cannot read 4 bytes of a buffer of 0");
  tpu_buffer_destroy(client, b);
  tpu_executable *x;
  CHECK_ERROR(tpu_compile(client, "nothing", 7, NULL, &x), TPU_INVALID_ARGUMENT, "there is no @main");
  CHECK_ERROR(tpu_executable_deserialize(client, "nothing", 7, &x), TPU_INTERNAL, "not a serialised program");
  CHECK_OK(tpu_event_await(client, NULL));
  CHECK(tpu_event_ready(client, NULL));
  tpu_client_destroy(client);
  CHECK_INT(fake->live(-1), 0);
}

TEST(donation) {
  NEED_FAKE();
  tpu_client *client = new_client();
  CHECK(client);
  tpu_executable *x;
  CHECK_OK(tpu_compile(client, step_text, sizeof step_text - 1, NULL, &x));
  const int64_t dims[] = {4, 2}, two[] = {2}, four[] = {4};
  const float state[8] = {1};
  tpu_buffer *in[3], *out[2];
  CHECK_OK(tpu_buffer_from_host(client, 0, TPU_F32, 2, dims, state, TPU_HOST_COPY, &in[0], NULL));
  CHECK_OK(tpu_buffer_from_host(client, 0, TPU_F32, 2, dims, state, TPU_HOST_COPY, &in[1], NULL));
  CHECK_OK(tpu_buffer_from_host(client, 0, TPU_U8, 1, four, state, TPU_HOST_COPY, &in[2], NULL));
  CHECK_ERROR(tpu_execute(client, x, 0, in, 3, NULL, 0, out, 2, NULL), TPU_INVALID_ARGUMENT, "has 32 bytes, not 16");
  CHECK(!out[0] && !out[1] && !tpu_buffer_is_deleted(client, in[0]));
  tpu_buffer_destroy(client, in[1]);
  CHECK_OK(tpu_buffer_from_host(client, 0, TPU_I64, 1, two, state, TPU_HOST_COPY, &in[1], NULL));

  void *before, *after;
  CHECK_OK(tpu_buffer_pointer(client, in[0], &before));
  const int64_t keep[] = {0, 2};
  CHECK_OK(tpu_execute(client, x, 0, in, 3, keep, 2, out, 2, NULL));
  CHECK(!tpu_buffer_is_deleted(client, in[0]) && !tpu_buffer_is_deleted(client, in[2]));
  CHECK_OK(tpu_buffer_pointer(client, out[0], &after));
  CHECK(before != after);
  tpu_buffer_destroy(client, out[0]);
  tpu_buffer_destroy(client, out[1]);

  CHECK_OK(tpu_execute(client, x, 0, in, 3, NULL, 0, out, 2, NULL));
  CHECK(tpu_buffer_is_deleted(client, in[0]) && tpu_buffer_is_deleted(client, in[2]));
  CHECK(!tpu_buffer_is_deleted(client, in[1]));
  CHECK_OK(tpu_buffer_pointer(client, out[0], &after));
  CHECK(before == after);
  CHECK_ERROR(tpu_buffer_await(client, in[0]), TPU_INVALID_ARGUMENT, "deleted or donated");
  for (int i = 0; i < 3; i++) tpu_buffer_destroy(client, in[i]);
  for (int i = 0; i < 2; i++) tpu_buffer_destroy(client, out[i]);
  tpu_executable_destroy(client, x);
  tpu_client_destroy(client);
  CHECK_INT(fake->live(-1), 0);
}

TEST(late_errors_and_memory) {
  NEED_FAKE();
  static const char text[] = "func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {}";
  tpu_client *client = new_client();
  CHECK(client);
  tpu_executable *x;
  CHECK_OK(tpu_compile(client, text, sizeof text - 1, NULL, &x));
  const int64_t dims[] = {4};
  float data[4] = {1, 2, 3, 4};
  tpu_buffer *in, *out, *next;
  tpu_event *done;
  CHECK_OK(tpu_buffer_from_host(client, 0, TPU_F32, 1, dims, data, TPU_HOST_COPY, &in, NULL));
  fake->poison_next(TPU_INTERNAL);
  CHECK_OK(tpu_execute(client, x, 0, &in, 1, NULL, 0, &out, 1, &done));
  CHECK_ERROR(tpu_event_await(client, done), TPU_INTERNAL, "poison");
  tpu_event_destroy(client, done);
  CHECK_OK(tpu_execute(client, x, 0, &out, 1, NULL, 0, &next, 1, NULL));
  CHECK_ERROR(tpu_buffer_to_host(client, next, data, sizeof data, NULL), TPU_INTERNAL, "poison");
  CHECK(tpu_buffer_is_ready(client, next));
  tpu_buffer_destroy(client, next);

  fake->set_memory_limit(40);
  CHECK_ERROR(tpu_execute(client, x, 0, &in, 1, NULL, 0, &next, 1, NULL), TPU_RESOURCE_EXHAUSTED, "out of memory");
  tpu_memory_stats stats;
  CHECK_OK(tpu_client_memory_stats(client, 0, &stats));
  CHECK_INT(stats.bytes_in_use, 32);
  CHECK_INT(stats.peak_bytes, 48);
  CHECK_INT(stats.bytes_limit, 40);
  fake->set_memory_limit(-1);
  tpu_buffer_destroy(client, in);
  tpu_buffer_destroy(client, out);
  tpu_executable_destroy(client, x);
  tpu_client_destroy(client);
  CHECK_INT(fake->live(-1), 0);
}

TEST(counts) {
  NEED_FAKE();
  tpu_client *client = new_client();
  CHECK(client);
  tpu_buffer *b;
  float x = 1;
  for (int i = 0; i < 5; i++) {
    CHECK_OK(tpu_buffer_from_host(client, 0, TPU_F32, 0, NULL, &x, TPU_HOST_COPY, &b, NULL));
    tpu_buffer_destroy(client, b);
  }
  tpu_call_count counts[32];
  int n = tpu_client_counts(client, counts, 32), seen = 0;
  for (int i = 0; i < n; i++) {
    if (strcmp(counts[i].name, "from_host") == 0) {
      CHECK_INT(counts[i].calls, 5);
      seen++;
    }
    if (strcmp(counts[i].name, "buffer_destroy") == 0) {
      CHECK_INT(counts[i].calls, 5);
      seen++;
    }
  }
  CHECK_INT(seen, 2);
  CHECK_INT(tpu_client_counts(client, counts, 1), 1);
  tpu_client_destroy(client);
}

TEST(topology) {
  NEED_FAKE();
  tpu_topology *t;
  CHECK_ERROR(tpu_topology_create(plugin, "", &t), TPU_INVALID_ARGUMENT, "needs a name");
  CHECK_ERROR(tpu_topology_create(plugin, "v9:1x1", &t), TPU_INVALID_ARGUMENT, "cannot describe the topology v9:1x1");
  CHECK_OK(tpu_topology_create(plugin, "fake:1x1", &t));
  tpu_program_stats stats;
  CHECK_OK(tpu_topology_compile(t, step_text, sizeof step_text - 1, NULL, &stats));
  CHECK_INT(stats.argument_bytes, 32 + 16 + 4);
  CHECK_INT(stats.alias_bytes, 32);
  CHECK(stats.flops < 0);
  for (int64_t n = 0;; n++) {
    tpu_alloc_fail_after(n);
    tpu_status status = tpu_topology_compile(t, step_text, sizeof step_text - 1, NULL, &stats);
    tpu_alloc_fail_after(-1);
    if (!status) break;
    CHECK_INT(tpu_status_code(status), TPU_RESOURCE_EXHAUSTED);
    tpu_status_release(status);
  }
  tpu_topology_destroy(t);
  CHECK_INT(fake->live(-1), 0);
}

/* One client, many threads; for the thread sanitizer. */
static void *thread_route(void *untyped) {
  tpu_client *client = untyped;
  tpu_executable *x = NULL;
  tpu_status s = tpu_compile(client, step_text, sizeof step_text - 1, NULL, &x);
  const int64_t dims[] = {4, 2}, two[] = {2}, four[] = {4};
  const float data[8] = {1};
  for (int round = 0; !s && round < 200; round++) {
    tpu_buffer *in[3] = {NULL}, *out[2] = {NULL};
    tpu_event *done = NULL;
    float result[8];
    s = tpu_buffer_from_host(client, 0, TPU_F32, 2, dims, data, TPU_HOST_COPY, &in[0], NULL);
    if (!s) s = tpu_buffer_from_host(client, 0, TPU_I64, 1, two, data, TPU_HOST_COPY, &in[1], NULL);
    if (!s) s = tpu_buffer_from_host(client, 0, TPU_U8, 1, four, data, TPU_HOST_COPY, &in[2], NULL);
    if (!s) s = tpu_execute(client, x, 0, in, 3, NULL, 0, out, 2, &done);
    if (!s) s = tpu_event_await(client, done);
    if (!s) s = tpu_buffer_to_host(client, out[0], result, sizeof result, NULL);
    tpu_event_destroy(client, done);
    for (int i = 0; i < 3; i++) tpu_buffer_destroy(client, in[i]);
    for (int i = 0; i < 2; i++) tpu_buffer_destroy(client, out[i]);
  }
  tpu_executable_destroy(client, x);
  return s;
}
TEST(threads) {
  NEED_FAKE();
  tpu_client *client = new_client();
  CHECK(client);
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, thread_route, client) == 0);
  for (int i = 0; i < 4; i++) {
    void *status;
    CHECK(pthread_join(threads[i], &status) == 0);
    CHECK_OK(status);
  }
  tpu_client_destroy(client);
  CHECK_INT(fake->live(-1), 0);
}

TEST_MAIN(TEST_CASE(route_once), TEST_CASE(failing_calls), TEST_CASE(failing_allocations), TEST_CASE(devices),
          TEST_CASE(arguments), TEST_CASE(donation), TEST_CASE(late_errors_and_memory), TEST_CASE(counts), TEST_CASE(topology),
          TEST_CASE(threads));
