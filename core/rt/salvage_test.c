/* A program of several calls fails: only what depends on the call at fault does. (The fake plugin computes nothing: that the rest
 * has its right values is tested on a real one.) */
#include "rt/runtime_test.h"

/* [n, 1] + [1, n], beside small calls, in memory that has no room for it. */
TEST(one_call_is_too_big) {
  NEED_FAKE();
  enum { N = 64 };
  for (int late = 0; late < 2; late++) { /* the big one comes first, or after the small ones */
    tensor column, row, small, twice, state, big = {0}, after;
    CHECK_OK(floats(N, 1, 0, &column));
    CHECK_OK(floats(1, N, 0, &row));
    CHECK_OK(floats(1, 4, 3, &state));
    CHECK_OK(tpu_synchronize(0));
    if (!late) CHECK_OK(mul(lane, &column, &row, &big));
    CHECK_OK(scale(lane, &row, 2, &small));
    CHECK_OK(scale_into(lane, &state, 10, &state));
    if (late) CHECK_OK(mul(lane, &column, &row, &big));
    CHECK_OK(add(lane, &big, &big, 1, &after));
    CHECK_OK(add(lane, &small, &small, 1, &twice));
    fake->set_memory_limit(fake->bytes_in_use() + 8 * N * 4);
    tpu_status status = tpu_cut(lane, 0);
    CHECK_INT(tpu_status_code(status), TPU_RESOURCE_EXHAUSTED);
    CHECK(strstr(tpu_status_message(status), "aten::mul.Tensor") && !strstr(tpu_status_message(status), "a program of"));
    tpu_status_release(status);
    float r[N * N];
    CHECK_ERROR(read_from(lane, &big, r), TPU_RESOURCE_EXHAUSTED, "aten::mul.Tensor");
    CHECK_ERROR(read_from(lane, &after, r), TPU_RESOURCE_EXHAUSTED, "aten::mul.Tensor");
    CHECK_OK(read_from(lane, &small, r));
    CHECK_OK(read_from(lane, &twice, r));
    CHECK_OK(read_from(lane, &state, r));
    fake->set_memory_limit(-1);
    drop(&big), drop(&after);
    CHECK_OK(mul(lane, &column, &row, &big)); /* now there is room */
    CHECK_OK(read_from(lane, &big, r));
    drop(&column), drop(&row), drop(&small), drop(&twice), drop(&state), drop(&big);
    CHECK_NOTHING_LIVES();
  }
}

/* State that the failing call was to update keeps what it had. */
TEST(state_comes_back) {
  NEED_FAKE();
  enum { N = 64 };
  tensor wide, state, other;
  CHECK_OK(floats(N, 1, 0, &wide));
  CHECK_OK(floats(1, N, 0, &state));
  CHECK_OK(floats(1, 4, 1, &other));
  CHECK_OK(tpu_synchronize(0));
  tensor big;
  CHECK_OK(mul(lane, &wide, &state, &big));
  tensor first = rows_of(&big, 0, 1);
  CHECK_OK(add_into(lane, &state, &first, 1, &state));
  CHECK_OK(scale_into(lane, &other, 2, &other));
  fake->set_memory_limit(fake->bytes_in_use() + 4 * N * 4);
  tpu_status_release(tpu_cut(lane, 0));
  fake->set_memory_limit(-1);
  float r[N];
  CHECK_OK(read_from(lane, &state, r));
  for (int i = 0; i < N; i++) CHECK(r[i] == (float)i);
  CHECK_OK(read_from(lane, &other, r));
  drop(&wide), drop(&state), drop(&other), drop(&big);
  CHECK_NOTHING_LIVES();
}

/* A failure that does not come again costs nothing but time; one of the device itself is nobody's fault. */
TEST(by_kind_of_failure) {
  NEED_FAKE();
  for (int device = 0; device < 2; device++) {
    tensor a, b, c;
    CHECK_OK(floats(2, 3, 1, &a));
    CHECK_OK(scale(lane, &a, 2, &b));
    CHECK_OK(add(lane, &b, &a, 1, &c));
    fake->fail_after(0, device ? TPU_UNAVAILABLE : TPU_INTERNAL);
    tpu_status status = tpu_cut(lane, 0);
    fake->fail_after(-1, 0);
    CHECK_INT(tpu_status_code(status), device ? TPU_UNAVAILABLE : TPU_OK);
    tpu_status_release(status);
    float r[6];
    if (!device) CHECK_OK(read_from(lane, &c, r));
    drop(&a), drop(&b), drop(&c);
    tpu_cache_clear();
    CHECK_NOTHING_LIVES();
  }
}

TEST_MAIN(TEST_CASE(one_call_is_too_big), TEST_CASE(state_comes_back), TEST_CASE(by_kind_of_failure));
