/* The compiler's options and the cache's policy. */
#include "rt/runtime_test.h"

TEST(one_per_content) {
  const tpu_option ab[] = {{"a", "1"}, {"b", "true"}}, ba[] = {{"b", "true"}, {"a", "1"}}, other[] = {{"a", "1"}, {"b", "false"}};
  const tpu_option joined[] = {{"a", "1b"}}, *list;
  const tpu_options *o = tpu_options_get(ab, 2);
  CHECK(o && o == tpu_options_get(ba, 2));
  CHECK(o != tpu_options_get(other, 2) && o != tpu_options_get(ab, 1) && o != tpu_options_get(joined, 1));
  CHECK_INT(tpu_options_list(o, &list), 2);
  CHECK_STR(list[0].key, "a");
  CHECK_STR(list[1].value, "true");
  CHECK_INT(tpu_options_list(NULL, &list), 0);
  CHECK(tpu_options_get(NULL, 0) == tpu_options_get(ab, 0));
  tpu_alloc_fail_after(0);
  const tpu_options *none = tpu_options_get(ab, 2);
  tpu_alloc_fail_after(-1);
  CHECK(!none);
}

/* Compiles of a program; -1: it failed. */
static int compiles_of(const tensor *a, float by) {
  tensor b = {0};
  uint64_t before = stats_now().compiles;
  tpu_status status = scale(lane, a, by, &b);
  if (!status) status = tpu_cut(lane, 0);
  drop(&b);
  int failed = status != NULL;
  tpu_status_release(status);
  return failed ? -1 : (int)(stats_now().compiles - before);
}

TEST(part_of_the_key) {
  NEED_FAKE();
  const tpu_option fast[] = {{"fast", "true"}}, slow[] = {{"fast", "false"}};
  tensor a, b, c;
  CHECK_OK(floats(3, 5, 1, &a));
  CHECK_INT(compiles_of(&a, 2), 1);
  tpu_lane_options_set(lane, tpu_options_get(fast, 1));
  CHECK_INT(compiles_of(&a, 2), 1);
  tpu_options_set(tpu_options_get(slow, 1));
  CHECK_INT(compiles_of(&a, 2), 0); /* the lane's own win */
  CHECK(tpu_lane_options_get(lane) == tpu_options_get(fast, 1));
  tpu_lane_options_set(lane, NULL);
  CHECK_INT(compiles_of(&a, 2), 1);
  tpu_options_set(NULL);
  CHECK_INT(compiles_of(&a, 2), 0);
  /* What is pending when they change is a program of its own. */
  uint64_t before = stats_now().executes;
  CHECK_OK(scale(lane, &a, 2, &b));
  tpu_lane_options_set(lane, tpu_options_get(slow, 1));
  CHECK_OK(scale(lane, &b, 2, &c));
  CHECK_INT(stats_now().executes - before, 1);
  CHECK_OK(tpu_cut(lane, 0));
  CHECK_INT(stats_now().executes - before, 2);
  tpu_lane_options_set(lane, NULL);
  drop(&a), drop(&b), drop(&c);
  CHECK_NOTHING_LIVES();
}

static int misses;
static void note_miss(const char *text, size_t size) { misses += size > 0 && text[size - 1] == '\n' && strstr(text, "module"); }

TEST(cache_policy) {
  NEED_FAKE();
  tensor a, b;
  CHECK_OK(floats(2, 7, 1, &a));
  tpu_cache_clear();
  CHECK_INT(tpu_cache_entries(NULL, 0), 0);
  tpu_miss_hook_set(note_miss);
  CHECK_INT(compiles_of(&a, 2), 1);
  CHECK_INT(compiles_of(&a, 2), 0);
  CHECK_INT(misses, 1);
  tpu_cache_entry entry[2] = {{0}};
  CHECK_INT(tpu_cache_entries(entry, 2), 1);
  CHECK(entry[0].reads == 2 && entry[0].last_read > 1e9 && entry[0].compile_s >= 0 && entry[1].reads == 0);
  CHECK(stats_now().compile_peak_bytes > 0);
  tpu_cache_policy_set((tpu_cache_policy){.never = true});
  CHECK_INT(compiles_of(&a, 2), 1);
  CHECK_INT(compiles_of(&a, 2), 1);
  CHECK_INT(misses, 3);
  tpu_cache_policy_set((tpu_cache_policy){.only = true});
  CHECK(tpu_cache_policy_get().only && !tpu_cache_policy_get().never);
  CHECK_INT(compiles_of(&a, 2), 0);
  CHECK_OK(mm(lane, &a, &(tensor){a.s, TPU_F32, 2, {7, 2}, {1, 7}, 0}, &b));
  CHECK_ERROR(tpu_cut(lane, 0), TPU_FAILED_PRECONDITION, "only cached programs");
  tpu_cache_policy_set((tpu_cache_policy){0});
  drop(&b);
  CHECK_INT(misses, 3);
  tpu_miss_hook_set(NULL);
  drop(&a);
  CHECK_NOTHING_LIVES();
}

TEST_MAIN(TEST_CASE(one_per_content), TEST_CASE(part_of_the_key), TEST_CASE(cache_policy));
