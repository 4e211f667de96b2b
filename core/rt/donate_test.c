/* Donation, and what is left after an execute that failed, on the fake plugin. */
#include "rt/runtime_test.h"

#define EACH_MODE(m) \
  for (int m = TPU_DEFER_AND_FUSE; m <= TPU_DEFER_NEVER_AND_LAUNCH_BLOCKING; tpu_mode_set(TPU_DEFER_AND_FUSE), m++)

/* The calls of the plugin that `status_expr` makes; the plugin's n-th call is then made to fail. */
static bool has_values(const tensor *t, float first) {
  float r[64];
  tpu_status status = read_from(lane, t, r);
  if (status) {
    fprintf(stderr, "%s\n", tpu_status_message(status));
    tpu_status_release(status);
    return false;
  }
  for (int64_t i = 0; i < numel(t); i++)
    if (r[i] != first + (float)i) return false;
  return true;
}

TEST(whole_overwrite) {
  NEED_FAKE();
  EACH_MODE(mode) {
    tpu_mode_set((tpu_mode)mode);
    tensor a, b;
    CHECK_OK(floats(4, 4, 1, &a));
    CHECK_OK(floats(4, 4, 1, &b));
    tpu_stats before = stats_now();
    CHECK_OK(add_into(lane, &a, &b, 1, &a));
    CHECK_OK(tpu_cut(lane, 0));
    CHECK_INT(stats_now().donated - before.donated, 1);
    CHECK_INT(fake->live(FAKE_PJRT_BUFFERS), 2);
    CHECK_INT(fake->bytes_in_use(), 2 * 64);
    /* Through a view: the base is donated. */
    tensor row = rows_of(&a, 1, 2);
    CHECK_OK(scale_into(lane, &row, 2, &row));
    CHECK_OK(tpu_cut(lane, 0));
    CHECK_INT(stats_now().donated - before.donated, 2);
    /* Several updates of one storage in a program are one donation. */
    CHECK_OK(scale_into(lane, &b, 2, &b));
    CHECK_OK(scale_into(lane, &b, 3, &b));
    CHECK_OK(tpu_cut(lane, 0));
    CHECK_INT(stats_now().donated - before.donated, mode == TPU_DEFER_AND_FUSE ? 3 : 4);
    drop(&a), drop(&b);
    CHECK_NOTHING_LIVES();
  }
}

TEST(not_while_somebody_holds_it) {
  NEED_FAKE();
  const int64_t sizes[2] = {4, 4};
  tensor a, b, c;
  CHECK_OK(floats(4, 4, 1, &a));
  CHECK_OK(empty_on(0, TPU_F32, 2, sizes, &b));
  CHECK_OK(copy_to(lane, &a, &b));
  for (int round = 0; round < 2; round++) { /* the second time by the same program */
    tpu_stats before = stats_now();
    CHECK_OK(scale_into(lane, &a, 2, &a));
    CHECK_OK(tpu_cut(lane, 0));
    CHECK_INT(stats_now().donated - before.donated, (uint64_t)round); /* b has the first value for itself by then */
    CHECK(has_values(&b, 1));
  }
  /* Another lane's open segment reads it. */
  tpu_lane *other = tpu_lane_create();
  CHECK(other);
  CHECK_OK(scale(other, &b, 2, &c));
  tpu_stats before = stats_now();
  CHECK_OK(scale_into(lane, &b, 2, &b));
  CHECK_OK(tpu_cut(lane, 0));
  CHECK_INT(stats_now().donated, before.donated);
  CHECK_OK(tpu_cut(other, 0));
  tpu_lane_release(other);
  drop(&a), drop(&b), drop(&c);
  CHECK_NOTHING_LIVES();
}

/* a is updated in place, b is made from it, c is unrelated. The execute fails. */
TEST(failed_execute_gives_back) {
  NEED_FAKE();
  tensor a, b, c, shared, first;
  const int64_t sizes[2] = {4, 4};
  CHECK_OK(floats(4, 4, 1, &a));
  CHECK_OK(floats(4, 4, 50, &c));
  CHECK_OK(empty_on(0, TPU_F32, 2, sizes, &shared));
  CHECK_OK(empty_on(0, TPU_F32, 2, sizes, &first));
  CHECK_OK(copy_to(lane, &a, &first)); /* so a is not donated, and comes back all the same */
  for (int round = 0; round < 2; round++) {
    for (int warm = 0; warm < 2; warm++) { /* compile first, so that the next call but the transfers is the execute */
      uint64_t calls = fake->calls();
      CHECK_OK(scale_into(lane, &a, 2, &a));
      CHECK_OK(copy_to(lane, &a, &shared)); /* shares the pending value */
      CHECK_OK(add(lane, &a, &a, 1, &b));
      if (warm) fake->fail_after(1, TPU_ABORTED); /* the numbers' transfer, then the execute */
      tpu_status status = tpu_cut(lane, 0);
      fake->fail_after(-1, 0);
      (void)calls;
      if (!warm) {
        CHECK_OK(status);
        drop(&b);
        float fresh[16];
        for (int i = 0; i < 16; i++) fresh[i] = (float)(1 + i);
        CHECK_OK(write_to(lane, &a, fresh));
        if (round == 0) CHECK_OK(copy_to(lane, &a, &first));
        continue;
      }
      CHECK_ERROR(status, TPU_ABORTED, "told to fail");
    }
    float r[16];
    CHECK_ERROR(read_from(lane, &b, r), TPU_ABORTED, "told to fail");
    CHECK_ERROR(read_from(lane, &shared, r), TPU_ABORTED, "told to fail"); /* not a's old contents */
    CHECK_ERROR(scale(lane, &b, 2, &b), TPU_ABORTED, "told to fail");
    CHECK(has_values(&a, 1));
    CHECK(has_values(&c, 50));
    /* Again. */
    drop(&b);
    CHECK_OK(scale_into(lane, &a, 2, &a));
    CHECK_OK(add(lane, &a, &c, 1, &b));
    CHECK_OK(read_from(lane, &b, r));
    drop(&b);
    CHECK_OK(copy_to(lane, &c, &shared)); /* written whole, it is well again */
    CHECK(has_values(&shared, 50));
    drop(&first);
    CHECK_OK(empty_on(0, TPU_F32, 2, sizes, &first)); /* the second round donates */
    for (int i = 0; i < 16; i++) r[i] = (float)(1 + i);
    CHECK_OK(write_to(lane, &a, r));
  }
  drop(&a), drop(&c), drop(&shared), drop(&first);
  CHECK_NOTHING_LIVES();
}

/* A share of the failed update outlives the storage that was updated. */
TEST(failed_update_of_a_dropped_storage) {
  NEED_FAKE();
  const int64_t sizes[2] = {4, 4};
  for (int again = 0; again < 2; again++) {
    tensor a, b;
    float r[16];
    CHECK_OK(floats(4, 4, 1, &a));
    CHECK_OK(empty_on(0, TPU_F32, 2, sizes, &b));
    CHECK_OK(scale_into(lane, &a, 2, &a));
    CHECK_OK(copy_to(lane, &a, &b));
    if (again) CHECK_OK(scale_into(lane, &a, 2, &a));
    drop(&a);
    fake->fail_after(0, TPU_ABORTED);
    CHECK_ERROR(tpu_cut(lane, 0), TPU_ABORTED, "told to fail");
    CHECK_ERROR(read_from(lane, &b, r), TPU_ABORTED, "told to fail");
    drop(&b);
    CHECK_NOTHING_LIVES();
  }
}

TEST(failed_resize_and_undefined) {
  NEED_FAKE();
  const int64_t sizes[2] = {4, 4};
  tensor a, b, u;
  float r[16];
  CHECK_OK(floats(4, 4, 1, &a));
  CHECK_OK(tpu_storage_resize(lane, a.s, 128));
  CHECK_OK(scale_into(lane, &a, 2, &a));
  CHECK_OK(empty_on(0, TPU_F32, 2, sizes, &u));
  CHECK_OK(scale(lane, &u, 2, &b)); /* u gets zeros only to be read */
  fake->fail_after(0, TPU_ABORTED);
  CHECK_ERROR(tpu_cut(lane, 0), TPU_ABORTED, "told to fail");
  CHECK_ERROR(read_from(lane, &b, r), TPU_ABORTED, "told to fail");
  CHECK_OK(read_from(lane, &u, r));                                 /* as undefined as before */
  CHECK_ERROR(read_from(lane, &a, r), TPU_ABORTED, "told to fail"); /* what was resized does not come back */
  drop(&a), drop(&b), drop(&u);
  CHECK_NOTHING_LIVES();
}

/* In the per-op modes the call itself fails and nothing changed. */
TEST(failed_call) {
  NEED_FAKE();
  const int64_t sizes[2] = {4, 4};
  for (int mode = TPU_DEFER_NEVER; mode <= TPU_DEFER_NEVER_AND_LAUNCH_BLOCKING; mode++) {
    tpu_mode_set((tpu_mode)mode);
    tensor a, b, u, out;
    float r[16];
    tpu_generator g = {.seed = 1, .offset = 4};
    CHECK_OK(floats(4, 4, 1, &a));
    CHECK_OK(floats(4, 4, 9, &b));
    CHECK_OK(empty_on(0, TPU_F32, 2, sizes, &u));
    tensor a1 = rows_of(&a, 1, 2), b1 = rows_of(&b, 1, 2), u1 = rows_of(&u, 1, 2);
#define FAILS(call)                                     \
  do {                                                  \
    fake->fail_after(0, TPU_UNAVAILABLE);               \
    CHECK_ERROR(call, TPU_UNAVAILABLE, "told to fail"); \
    fake->fail_after(-1, 0);                            \
    CHECK(has_values(&a, 1));                           \
    CHECK(has_values(&b, 9));                           \
    CHECK_OK(read_from(lane, &u, r));                   \
  } while (0)
    FAILS(scale(lane, &a, 2, &out));
    FAILS(scale_into(lane, &a, 2, &a));
    FAILS(scale_into(lane, &b, 2, &a)); /* a is not read */
    FAILS(scale_into(lane, &b1, 2, &a1));
    FAILS(scale_into(lane, &b1, 2, &u1));
    FAILS(scale_into(lane, &b, 2, &u));
    FAILS(copy_to(lane, &b1, &a1));
    FAILS(copy_to(lane, &b1, &u1));
    FAILS(call(&(spec){.row = &uniform_row, .n_tensors = 1, .t = {&a}, .generator = &g}, &out));
    CHECK_INT(g.offset, 4);
    if (mode == TPU_DEFER_NEVER_AND_LAUNCH_BLOCKING) { /* it starts, then fails: donated inputs are gone */
      CHECK_OK(scale(lane, &a, 2, &out));
      drop(&out);
      fake->poison_next(TPU_DATA_LOSS);
      CHECK_ERROR(scale(lane, &a, 2, &out), TPU_DATA_LOSS, "poison");
      CHECK(has_values(&a, 1));
      CHECK_OK(scale_into(lane, &a, 2, &a));
      fake->poison_next(TPU_DATA_LOSS);
      CHECK_ERROR(scale_into(lane, &a, 2, &a), TPU_DATA_LOSS, "poison");
      CHECK_ERROR(read_from(lane, &a, r), TPU_DATA_LOSS, "poison");
    }
    tpu_mode_set(TPU_DEFER_AND_FUSE);
    drop(&a), drop(&b), drop(&u);
    CHECK_NOTHING_LIVES();
  }
}

/* A program that fails on the device after it was launched. */
TEST(late_failure) {
  NEED_FAKE();
  tensor a, b, c;
  float r[16];
  CHECK_OK(floats(4, 4, 1, &a));
  CHECK_OK(floats(4, 4, 9, &c));
  CHECK_OK(scale(lane, &a, 2, &b));
  fake->poison_next(TPU_DATA_LOSS);
  CHECK_OK(tpu_cut(lane, 0));
  CHECK_ERROR(read_from(lane, &b, r), TPU_DATA_LOSS, "poison");
  CHECK(has_values(&a, 1));
  CHECK(has_values(&c, 9));
  CHECK_ERROR(tpu_synchronize(0), TPU_DATA_LOSS, "poison");
  CHECK_OK(tpu_synchronize(0)); /* told once */
  drop(&a), drop(&b), drop(&c);
  CHECK_NOTHING_LIVES();
}

TEST(out_of_device_memory) {
  NEED_FAKE();
  tensor a, b, c;
  CHECK_OK(floats(4, 4, 1, &a));
  fake->set_memory_limit(fake->bytes_in_use() + 16); /* room for the numbers */
  CHECK_ERROR(floats(4, 4, 1, &c), TPU_RESOURCE_EXHAUSTED, "out of memory");
  CHECK_OK(scale(lane, &a, 2, &b));
  CHECK_ERROR(tpu_cut(lane, 0), TPU_RESOURCE_EXHAUSTED, "out of memory");
  CHECK_OK(scale_into(lane, &a, 2, &a)); /* in place it fits */
  CHECK_OK(tpu_cut(lane, 0));
  fake->set_memory_limit(-1);
  drop(&a), drop(&b);
  CHECK_NOTHING_LIVES();
}

TEST_MAIN(TEST_CASE(whole_overwrite), TEST_CASE(not_while_somebody_holds_it), TEST_CASE(failed_execute_gives_back),
          TEST_CASE(failed_update_of_a_dropped_storage), TEST_CASE(failed_resize_and_undefined), TEST_CASE(failed_call),
          TEST_CASE(late_failure), TEST_CASE(out_of_device_memory));
