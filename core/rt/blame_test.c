/* Failures tell where in the user's program they come from, and who holds the memory. */
#include "rt/runtime_test.h"

static char *line_text(uint64_t source) {
  char text[32];
  (void)snprintf(text, sizeof text, "line %d", (int)source);
  return tpu_strdup(text);
}

static bool has(tpu_status status, const char *text) {
  bool found = strstr(tpu_status_message(status), text) != NULL;
  if (!found) fprintf(stderr, "no \"%s\" in: %s\n", text, tpu_status_message(status));
  return found;
}

static tpu_status add_at(uint64_t source, const tensor *a, const tensor *b, tensor *out) {
  tpu_lane_source_set(lane, source);
  return call(&(spec){.aten = "add.Tensor", .n_tensors = 2, .t = {a, b}, .n_numbers = 1, .x = {2}}, out);
}

TEST(node_of_a_lane) {
  NEED_FAKE();
  tpu_lane *l = tpu_lane_create();
  CHECK(l != NULL);
  CHECK_INT(tpu_lane_node_find(l, 5), 0);
  tpu_lane_node_note(l, 0, 11);
  tpu_lane_node_note(l, 5, 12);
  CHECK_INT(tpu_lane_node_find(l, 0), 11);
  CHECK_INT(tpu_lane_node_find(l, 5), 12);
  CHECK_INT(tpu_lane_node_find(l, 6), 0);
  tpu_lane_node_note(l, 5 + (1 << 15), 13); /* the same slot of the ring */
  CHECK_INT(tpu_lane_node_find(l, 5), 0);
  CHECK_INT(tpu_lane_node_find(l, 5 + (1 << 15)), 13);
  tpu_lane_release(l);
}

TEST(program_that_fails) {
  NEED_FAKE();
  tpu_source_describer_set(line_text);
  tensor a, b, c, d;
  CHECK_OK(floats(2, 3, 0, &a));
  CHECK_OK(floats(2, 3, 9, &b));
  for (int n = 1; n <= 2; n++) { /* of one call, of several */
    tpu_cache_clear();
    CHECK_OK(add_at(7, &a, &b, &c));
    if (n == 2) CHECK_OK(add_at(8, &c, &b, &d));
    fake->fail_after(0, TPU_ABORTED);
    float r[6];
    tpu_status status = read_from(lane, n == 1 ? &c : &d, r);
    fake->fail_after(-1, 0);
    CHECK_INT(tpu_status_code(status), TPU_ABORTED);
    CHECK(has(status, "aten::add.Tensor (line 7)"));
    if (n == 2) CHECK(has(status, "a program of 2 operations, from aten::add.Tensor (line 7) to aten::add.Tensor (line 8)"));
    tpu_status_release(status);
    drop(&c);
    if (n == 2) drop(&d);
  }
  drop(&a);
  drop(&b);
  tpu_source_describer_set(NULL);
}

TEST(memory_that_runs_out) {
  NEED_FAKE();
  tpu_source_describer_set(line_text);
  const int64_t sizes[2] = {256, 256};
  static float data[256 * 256];
  tensor a, c, d;
  CHECK_OK(empty_on(0, TPU_F32, 2, sizes, &a));
  CHECK_OK(write_to(lane, &a, data));
  CHECK_OK(add_at(3, &a, &a, &c));
  float r;
  const tensor one = {c.s, TPU_F32, 0, {0}, {0}, 0};
  CHECK_OK(read_from(lane, &one, &r));
  CHECK_OK(add_at(4, &c, &c, &d));
  tpu_status status = NULL;
  for (int n = 0; n < 20 && tpu_status_code(status) != TPU_RESOURCE_EXHAUSTED; n++) { /* the execute is one of the next calls */
    tpu_status_release(status);
    fake->fail_after(n, TPU_RESOURCE_EXHAUSTED);
    status = tpu_synchronize(0);
    fake->fail_after(-1, 0);
    if (status && !strstr(tpu_status_message(status), "out of memory")) {
      tpu_status_release(status);
      status = NULL;
      drop(&d);
      CHECK_OK(add_at(4, &c, &c, &d));
    }
  }
  CHECK_INT(tpu_status_code(status), TPU_RESOURCE_EXHAUSTED);
  CHECK(has(status, "tpu:0 is out of memory: tried to allocate 262144 bytes; 524288 bytes are in use"));
  CHECK(has(status, "float32[256, 256] of 262144 bytes (line 3)"));
  CHECK(has(status, "aten::add.Tensor (line 4)"));
  tpu_status_release(status);
  drop(&a);
  drop(&c);
  drop(&d);
  tpu_source_describer_set(NULL);
}

TEST_MAIN(TEST_CASE(node_of_a_lane), TEST_CASE(program_that_fails), TEST_CASE(memory_that_runs_out));
