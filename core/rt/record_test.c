/* Recording, cutting and reading on the fake plugin: what runs when, and what data that was only moved looks like. The plugin
 * computes zeros; values that are computed are checked by cpu_test.c. */
#include <sys/wait.h>

#include "rt/runtime_test.h"

static uint64_t executes_of_mode(int mode, uint64_t calls) { return mode == TPU_DEFER_AND_FUSE ? 1 : calls; }
#define EACH_MODE(m) \
  for (int m = TPU_DEFER_AND_FUSE; m <= TPU_DEFER_NEVER_AND_LAUNCH_BLOCKING; tpu_mode_set(TPU_DEFER_AND_FUSE), m++)

TEST(host_data) {
  NEED_FAKE();
  EACH_MODE(mode) {
    tpu_mode_set((tpu_mode)mode);
    tensor a;
    float r[12], one;
    CHECK_OK(floats(3, 4, 1, &a));
    CHECK_OK(read_from(lane, &a, r));
    for (int i = 0; i < 12; i++) CHECK(r[i] == (float)(1 + i));
    tensor t = turned(&a);
    CHECK_OK(read_from(lane, &t, r));
    for (int i = 0; i < 4; i++)
      for (int j = 0; j < 3; j++) CHECK(r[i * 3 + j] == (float)(1 + j * 4 + i));
    tensor block = rows_of(&a, 1, 3);
    block = columns_of(&block, 2, 4);
    CHECK_OK(read_from(lane, &block, r));
    CHECK(r[0] == 7 && r[1] == 8 && r[2] == 11 && r[3] == 12);
    tensor item = columns_of(&block, 1, 2);
    item.sizes[0] = 1;
    tpu_tensor v = as_view(&item);
    CHECK_OK(tpu_read_scalar(lane, &v, &one));
    CHECK(one == 8);
    /* A column-major tensor is kept in memory order. */
    tensor b = turned(&a), c;
    const int64_t sizes[2] = {4, 3};
    CHECK_OK(empty_on(0, TPU_F32, 2, sizes, &c));
    c.strides[0] = 1, c.strides[1] = 4;
    for (int i = 0; i < 12; i++) r[i] = (float)(100 + i);
    CHECK_OK(write_to(lane, &c, r));
    float back[12];
    CHECK_OK(read_from(lane, &c, back));
    CHECK(memcmp(r, back, sizeof r) == 0);
    b.s = c.s;
    tensor memory = turned(&b);
    memory.strides[0] = 4, memory.strides[1] = 1;
    CHECK_OK(read_from(lane, &memory, back));
    CHECK(back[0] == 100 && back[1] == 103 && back[4] == 101);
    drop(&a);
    drop(&c);
    CHECK_NOTHING_LIVES();
  }
}

TEST(undefined_contents) {
  NEED_FAKE();
  const int64_t sizes[2] = {2, 3};
  tensor a, b;
  float r[6] = {1, 1, 1, 1, 1, 1};
  CHECK_OK(empty_on(0, TPU_F32, 2, sizes, &a));
  CHECK_OK(read_from(lane, &a, r));
  for (int i = 0; i < 6; i++) CHECK(r[i] == 0);
  CHECK_OK(scale(lane, &a, 2, &b));
  CHECK_OK(read_from(lane, &b, r));
  drop(&b);
  CHECK_OK(copy_to(lane, &a, &a));
  drop(&a);
  /* An odd number of bytes, and none. */
  tensor odd = {.dtype = TPU_F32, .rank = 1, .sizes = {1}, .strides = {1}};
  CHECK_OK(tpu_storage_create(0, 7, &odd.s));
  CHECK_OK(scale(lane, &odd, 2, &b));
  CHECK_OK(read_from(lane, &b, r));
  drop(&b);
  drop(&odd);
  tensor none = {.dtype = TPU_F32, .rank = 2, .sizes = {0, 4}, .strides = {4, 1}};
  CHECK_OK(tpu_storage_create(0, 0, &none.s));
  CHECK_INT(tpu_storage_address(none.s), 0);
  CHECK_OK(write_to(lane, &none, NULL));
  CHECK_OK(read_from(lane, &none, NULL));
  CHECK_OK(scale(lane, &none, 2, &b));
  CHECK_OK(copy_to(lane, &b, &none));
  CHECK_OK(read_from(lane, &b, NULL));
  drop(&b);
  drop(&none);
  CHECK_NOTHING_LIVES();
}

TEST(chain) {
  NEED_FAKE();
  EACH_MODE(mode) {
    tpu_mode_set((tpu_mode)mode);
    tensor a, b, c, d;
    float r[6];
    CHECK_OK(floats(2, 3, 1, &a));
    tpu_stats before = stats_now();
    CHECK_OK(add(lane, &a, &a, 1, &b));
    CHECK_OK(mul(lane, &b, &a, &c));
    CHECK_OK(scale(lane, &c, 3, &d));
    if (mode == TPU_DEFER_AND_FUSE) CHECK_INT(stats_now().executes, before.executes);
    CHECK_OK(read_from(lane, &d, r));
    CHECK_INT(stats_now().executes - before.executes, executes_of_mode(mode, 3));
    CHECK_INT(stats_now().calls - before.calls, 3);
    CHECK_OK(read_from(lane, &b, r));
    CHECK_INT(stats_now().executes - before.executes, executes_of_mode(mode, 3));
    drop(&a), drop(&b), drop(&c), drop(&d);
    CHECK_NOTHING_LIVES();
  }
}

TEST(dead_work_is_not_run) {
  NEED_FAKE();
  tensor a, b;
  CHECK_OK(floats(2, 3, 1, &a));
  CHECK_OK(scale(lane, &a, 3, &b));
  drop(&b);
  tpu_stats before = stats_now();
  CHECK_OK(tpu_cut(lane, -1));
  CHECK_INT(stats_now().executes, before.executes);
  drop(&a);
  CHECK_NOTHING_LIVES();
}

TEST(in_place) {
  NEED_FAKE();
  EACH_MODE(mode) {
    tpu_mode_set((tpu_mode)mode);
    tensor a, b, wide;
    float r[12];
    CHECK_OK(floats(3, 4, 1, &a));
    CHECK_OK(floats(3, 4, 5, &b));
    tensor row = rows_of(&a, 1, 2), column = columns_of(&a, 2, 3), other = rows_of(&b, 0, 1);
    CHECK_OK(add_into(lane, &a, &b, 2, &a));
    CHECK_OK(add_into(lane, &row, &other, 1, &row));
    CHECK_OK(scale_into(lane, &column, 2, &column));
    CHECK_OK(copy_to(lane, &other, &row));
    CHECK_OK(read_from(lane, &a, r));
    CHECK_OK(read_from(lane, &b, r));
    for (int i = 0; i < 12; i++) CHECK(r[i] == (float)(5 + i));
    /* A destination of another dtype, whole and in part. */
    const int64_t sizes[2] = {3, 4};
    CHECK_OK(empty_on(0, TPU_F64, 2, sizes, &wide));
    double d[12];
    CHECK_OK(add_into(lane, &a, &b, 1, &wide));
    CHECK_OK(read_from(lane, &wide, d));
    tensor part = rows_of(&wide, 2, 3);
    CHECK_OK(add_into(lane, &row, &other, 1, &part));
    CHECK_OK(read_from(lane, &wide, d));
    CHECK_OK(copy_to(lane, &a, &wide));
    CHECK_OK(copy_to(lane, &row, &part));
    CHECK_OK(read_from(lane, &wide, d));
    drop(&a), drop(&b), drop(&wide);
    CHECK_NOTHING_LIVES();
  }
}

TEST(copies_share_and_diverge) {
  NEED_FAKE();
  tensor a, b;
  const int64_t sizes[2] = {2, 3};
  float r[6];
  CHECK_OK(floats(2, 3, 1, &a));
  CHECK_OK(empty_on(0, TPU_F32, 2, sizes, &b));
  tpu_stats before = stats_now();
  CHECK_OK(copy_to(lane, &a, &b));
  CHECK_INT(fake->live(FAKE_PJRT_BUFFERS), 1);
  CHECK_OK(scale_into(lane, &a, 2, &a));
  CHECK_OK(tpu_cut(lane, 0));
  CHECK_INT(stats_now().executes - before.executes, 1);
  CHECK_INT(stats_now().donated, before.donated); /* b still holds it */
  CHECK_OK(read_from(lane, &b, r));
  for (int i = 0; i < 6; i++) CHECK(r[i] == (float)(1 + i));
  CHECK_OK(read_from(lane, &a, r));
  CHECK(r[3] == 0);
  /* A copy of what is still pending. */
  CHECK_OK(scale_into(lane, &a, 2, &a));
  CHECK_OK(copy_to(lane, &a, &b));
  CHECK_OK(scale_into(lane, &b, 2, &b));
  CHECK_OK(read_from(lane, &a, r));
  CHECK_OK(read_from(lane, &b, r));
  drop(&a), drop(&b);
  CHECK_NOTHING_LIVES();
}

TEST(resize) {
  NEED_FAKE();
  tensor a, b;
  CHECK_OK(floats(2, 3, 1, &a));
  uint64_t address = tpu_storage_address(a.s);
  CHECK_OK(tpu_storage_resize(lane, a.s, 24));
  CHECK_INT(tpu_storage_address(a.s), address);
  CHECK_OK(tpu_storage_resize(lane, a.s, 48));
  CHECK_INT(tpu_storage_nbytes(a.s), 48);
  CHECK(tpu_storage_address(a.s) != address);
  a.sizes[0] = 4;
  CHECK_OK(scale(lane, &a, 2, &b));
  float r[12];
  CHECK_OK(read_from(lane, &b, r));
  CHECK_OK(tpu_storage_resize(lane, a.s, 13)); /* not a whole number of elements */
  a.sizes[0] = a.sizes[1] = 1;
  CHECK_OK(read_from(lane, &a, r));
  CHECK_OK(tpu_storage_resize(lane, a.s, 0));
  CHECK_OK(tpu_storage_resize(lane, a.s, 4));
  CHECK_OK(read_from(lane, &a, r));
  CHECK(r[0] == 0);
  CHECK_ERROR(tpu_storage_resize(lane, a.s, -1), TPU_INVALID_ARGUMENT, "");
  drop(&a), drop(&b);
  CHECK_NOTHING_LIVES();
}

TEST(results) {
  NEED_FAKE();
  tensor a, out[3];
  float r[6];
  CHECK_OK(floats(2, 3, 1, &a));
  CHECK_OK(call(&(spec){.row = &three_row, .n_tensors = 1, .t = {&a}, .n_returns = 3}, out));
  CHECK(out[0].s && !out[1].s && out[2].s);
  CHECK_OK(read_from(lane, &out[2], r));
  drop(&out[0]), drop(&out[2]);
  /* A column-major operand gives a column-major result. */
  tensor t = turned(&a);
  CHECK_OK(scale(lane, &t, 2, &out[0]));
  CHECK_INT(out[0].strides[0], 1);
  CHECK_INT(out[0].strides[1], 3);
  CHECK_OK(read_from(lane, &out[0], r));
  drop(&out[0]), drop(&a);
  CHECK_NOTHING_LIVES();
}

TEST(errors_change_nothing) {
  NEED_FAKE();
  tensor a, b, c;
  CHECK_OK(floats(2, 3, 1, &a));
  CHECK_OK(floats(2, 4, 1, &b));
  tpu_stats before = stats_now();
  CHECK_ERROR(add(lane, &a, &b, 1, &c), TPU_INVALID_ARGUMENT, "must match the size of tensor b (4)");
  CHECK_ERROR(call(&(spec){.row = &refuse_row, .n_tensors = 1, .t = {&a}}, &c), TPU_VALUE_ERROR, "refused");
  CHECK_ERROR(scale_into(lane, &a, 2, &b), TPU_INTERNAL, "sizes");
  CHECK_ERROR(copy_to(lane, &a, &b), TPU_INTERNAL, "sizes");
  CHECK_INT(stats_now().calls, before.calls);
  CHECK_INT(stats_now().signatures, before.signatures);
  tpu_storage *s;
  CHECK_ERROR(tpu_storage_create(2, 4, &s), TPU_INVALID_ARGUMENT, "tpu:2 does not exist");
  CHECK_ERROR(tpu_storage_create(0, -4, &s), TPU_INVALID_ARGUMENT, "");
  CHECK_ERROR(tpu_synchronize(7), TPU_INVALID_ARGUMENT, "tpu:7");
  drop(&a), drop(&b);
  CHECK_NOTHING_LIVES();
}

TEST(two_devices) {
  NEED_FAKE();
  EACH_MODE(mode) {
    tpu_mode_set((tpu_mode)mode);
    const int64_t sizes[2] = {2, 3};
    tensor a, b, c, d;
    float r[6];
    CHECK_OK(floats_on(0, 2, 3, 1, &a));
    CHECK_OK(empty_on(1, TPU_F32, 2, sizes, &b));
    CHECK_OK(copy_to(lane, &a, &b));
    CHECK_OK(read_from(lane, &b, r));
    for (int i = 0; i < 6; i++) CHECK(r[i] == (float)(1 + i));
    CHECK_OK(scale(lane, &b, 2, &c));
    CHECK_INT(tpu_storage_device(c.s), 1);
    CHECK_OK(scale(lane, &a, 2, &d));
    tensor from = columns_of(&a, 0, 2), to = columns_of(&c, 1, 3);
    CHECK_OK(copy_to(lane, &from, &to)); /* through views on both sides */
    CHECK_OK(copy_to(lane, &c, &d));
    CHECK_OK(read_from(lane, &d, r));
    const int64_t wide[2] = {2, 3};
    tensor w;
    CHECK_OK(empty_on(1, TPU_F64, 2, wide, &w));
    CHECK_OK(copy_to(lane, &d, &w));
    double rw[6];
    CHECK_OK(read_from(lane, &w, rw));
    drop(&a), drop(&b), drop(&c), drop(&d), drop(&w);
    CHECK_NOTHING_LIVES();
  }
}

TEST(random_state) {
  NEED_FAKE();
  EACH_MODE(mode) {
    tpu_mode_set((tpu_mode)mode);
    tensor a, u[2];
    tpu_generator g = {.seed = 7, .offset = 3};
    CHECK_OK(floats(2, 3, 1, &a));
    const spec draw = {.row = &uniform_row, .n_tensors = 1, .t = {&a}, .generator = &g};
    CHECK_OK(call(&draw, &u[0]));
    CHECK_INT(g.offset, 3 + 2); /* 6 words are two blocks */
    CHECK_OK(call(&draw, &u[1]));
    CHECK_INT(g.offset, 3 + 4);
    float r[6];
    CHECK_OK(read_from(lane, &u[0], r));
    CHECK_OK(read_from(lane, &u[1], r));
    drop(&a), drop(&u[0]), drop(&u[1]);
    CHECK_NOTHING_LIVES();
  }
}

TEST(pending_text) {
  NEED_FAKE();
  tensor a, b;
  char *text;
  CHECK_OK(floats(2, 3, 1, &a));
  CHECK_OK(tpu_pending_text(lane, 0, &text));
  CHECK_STR(text, "");
  tpu_free(text);
  CHECK_OK(add(lane, &a, &a, 2, &b));
  CHECK_OK(tpu_pending_text(lane, 0, &text));
  CHECK(strstr(text, "stablehlo.add") && strstr(text, "tensor<2x3xf32>"));
  tpu_free(text);
  drop(&a), drop(&b);
  CHECK_NOTHING_LIVES();
}

TEST(query_and_memory) {
  NEED_FAKE();
  tensor a, b;
  bool done;
  tpu_memory_info info;
  CHECK_OK(floats(64, 4, 1, &a));
  CHECK_OK(scale(lane, &a, 2, &b));
  CHECK_OK(tpu_query(lane, 0, &done));
  CHECK(done);
  tpu_memory_info_get(0, &info);
  CHECK_INT(info.allocated, 2 * 1024);
  CHECK_INT(fake->bytes_in_use(), 2 * 1024);
  drop(&b);
  tpu_memory_reset_peak(0);
  for (int i = 0; i < 3; i++) { /* donated: no second buffer at any time */
    CHECK_OK(scale_into(lane, &a, 2, &a));
    CHECK_OK(tpu_cut(lane, 0));
  }
  CHECK_INT(atomic_load(&tpu_rt.devices[0].peak), 1024);
  drop(&a);
  tpu_memory_info_get(0, &info);
  CHECK_INT(info.allocations - info.frees, 0);
  tpu_memory_info_get(9, &info);
  CHECK_INT(info.limit, -1);
  CHECK_NOTHING_LIVES();
}

TEST(released_lane) {
  NEED_FAKE();
  tensor a, b, c;
  float r[6];
  tpu_lane *other = tpu_lane_create();
  CHECK(other);
  CHECK_OK(floats(2, 3, 1, &a));
  CHECK_OK(scale(other, &a, 2, &b));
  tpu_lane_release(tpu_lane_retain(other));
  tpu_lane_release(other); /* what is pending runs when it is needed */
  CHECK_OK(scale(lane, &b, 2, &c));
  CHECK_OK(read_from(lane, &c, r));
  drop(&b), drop(&c);
  /* Nobody can ever need this. */
  other = tpu_lane_create();
  CHECK(other);
  CHECK_OK(scale(other, &a, 2, &b));
  drop(&b);
  tpu_lane_release(other);
  drop(&a);
  CHECK_INT(fake->live(FAKE_PJRT_BUFFERS), 0);
  CHECK_NOTHING_LIVES();
}

TEST(lanes_cross) {
  NEED_FAKE();
  tensor a, b, c, d;
  float r[6];
  tpu_lane *other = tpu_lane_create();
  CHECK(other);
  CHECK_OK(floats(2, 3, 1, &a));
  tpu_stats before = stats_now();
  CHECK_OK(scale(lane, &a, 2, &b));
  CHECK_OK(scale(other, &a, 3, &c)); /* both open segments read the same leaf */
  CHECK_OK(add(lane, &a, &b, 1, &d));
  CHECK_INT(stats_now().executes, before.executes);
  CHECK_OK(add_into(other, &b, &c, 1, &c)); /* b is owed by the first lane */
  CHECK_INT(stats_now().executes - before.executes, 1);
  CHECK_OK(read_from(lane, &c, r));
  CHECK_INT(stats_now().executes - before.executes, 2);
  drop(&a), drop(&b), drop(&c), drop(&d);
  tpu_lane_release(other);
  CHECK_NOTHING_LIVES();
}

TEST(precision_cuts) {
  NEED_FAKE();
  tensor a, b, c;
  char *text;
  CHECK_OK(floats(4, 4, 1, &a));
  CHECK_OK(mm(lane, &a, &a, &b));
  tpu_precision_set(TPU_PRECISION_DEFAULT);
  tpu_stats before = stats_now();
  CHECK_OK(mm(lane, &a, &a, &c));
  CHECK_INT(stats_now().executes - before.executes, 1);
  CHECK_OK(tpu_pending_text(lane, 0, &text));
  CHECK(!strstr(text, "HIGHEST"));
  tpu_free(text);
  CHECK_OK(tpu_cut(lane, 0));
  tpu_precision_set(TPU_PRECISION_HIGHEST);
  CHECK_INT(stats_now().compiles - before.compiles, 2);
  drop(&a), drop(&b), drop(&c);
  CHECK_NOTHING_LIVES();
}

/* On a platform whose memory the host cannot read; run by without_host_pointers in a process of its own. */
TEST(other_platform) {
  NEED_FAKE();
  const char *platform = getenv("FAKE_PJRT_PLATFORM");
  if (!platform || strcmp(platform, "other") != 0) return;
  EACH_MODE(mode) {
    tpu_mode_set((tpu_mode)mode);
    tensor a, b;
    float r[12];
    CHECK_OK(floats(3, 4, 1, &a));
    CHECK(!tpu_rt.quirks->host_pointers && tpu_runtime_target()->platform == TPU_TARGET_OTHER);
    CHECK_OK(read_from(lane, &a, r));
    for (int i = 0; i < 12; i++) CHECK(r[i] == (float)(1 + i));
    tpu_event *done;
    tpu_tensor v = as_view(&a);
    memset(r, 0, sizeof r);
    CHECK_OK(tpu_read_async(lane, &v, r, &done));
    CHECK(done);
    drop(&a); /* the read keeps what it needs */
    CHECK_OK(tpu_event_await(tpu_runtime_client(), done));
    tpu_event_destroy(tpu_runtime_client(), done);
    CHECK(r[11] == 12);
    CHECK_OK(floats(3, 4, 1, &a));
    tensor t = turned(&a), row = rows_of(&a, 1, 2);
    tpu_stats before = stats_now();
    CHECK_OK(read_from(lane, &t, r)); /* is brought into order on the device */
    CHECK_OK(read_from(lane, &row, r));
    CHECK_INT(stats_now().executes - before.executes, 2);
    CHECK_OK(scale(lane, &a, 2, &b));
    CHECK_OK(read_from(lane, &b, r));
    drop(&b);
    const int64_t sizes[2] = {2, 2};
    CHECK_OK(empty_on(0, TPU_F32, 2, sizes, &b));
    CHECK_OK(read_from(lane, &b, r));
    drop(&a), drop(&b);
    CHECK_NOTHING_LIVES();
  }
}
static char self[4096];
TEST(without_host_pointers) {
  NEED_FAKE();
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  CHECK(n > 0);
  pid_t child = fork();
  if (child == 0) {
    setenv("FAKE_PJRT_PLATFORM", "other", 1);
    execl(self, self, "other_platform", (char *)NULL);
    _exit(127);
  }
  int rc;
  CHECK(waitpid(child, &rc, 0) == child);
  CHECK(WIFEXITED(rc) && WEXITSTATUS(rc) == 0);
}

TEST_MAIN(TEST_CASE(host_data), TEST_CASE(undefined_contents), TEST_CASE(chain), TEST_CASE(dead_work_is_not_run),
          TEST_CASE(in_place), TEST_CASE(copies_share_and_diverge), TEST_CASE(resize), TEST_CASE(results),
          TEST_CASE(errors_change_nothing), TEST_CASE(two_devices), TEST_CASE(random_state), TEST_CASE(pending_text),
          TEST_CASE(query_and_memory), TEST_CASE(released_lane), TEST_CASE(lanes_cross), TEST_CASE(precision_cuts),
          TEST_CASE(other_platform), TEST_CASE(without_host_pointers));
