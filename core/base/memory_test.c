#include <stdint.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/strbuf.h"
#include "base/test.h"

TEST(alloc) {
  int64_t live = tpu_alloc_live();
  void *p = tpu_malloc(0);
  CHECK(p);
  p = tpu_realloc(p, 100);
  CHECK_INT(tpu_alloc_live(), live + 1);
  char *z = tpu_calloc(3, 5);
  for (int i = 0; i < 15; i++) CHECK_INT(z[i], 0);
  CHECK(!tpu_calloc(SIZE_MAX / 2, 3));
  tpu_free(z);
  tpu_free(p);
  tpu_free(NULL);
  tpu_alloc_fail_after(1);
  p = tpu_malloc(1);
  CHECK(p && !tpu_malloc(1));
  void *q = tpu_malloc(1); /* fails once only */
  CHECK(q);
  tpu_free(p);
  tpu_free(q);
  CHECK_INT(tpu_alloc_live(), live);
}

TEST(sizes) {
  int64_t out = -7;
  CHECK(!tpu_size_mul(INT64_MAX / 2, 3, &out) && !tpu_size_mul(-1, 2, &out) && !tpu_size_add(INT64_MAX, 1, &out));
  CHECK_INT(out, -7);
  CHECK(tpu_size_mul(INT64_MAX, 1, &out) && out == INT64_MAX);
  CHECK(tpu_size_mul(INT64_MAX, 0, &out) && out == 0);
  CHECK(tpu_size_add(INT64_MAX, 0, &out) && out == INT64_MAX);
}

TEST(arena) {
  tpu_arena a;
  tpu_arena_init(&a, 256);
  for (int round = 0; round < 3; round++) {
    for (size_t i = 0; i < 100; i++) {
      char *p = tpu_arena_alloc(&a, i);
      CHECK(p && (uintptr_t)p % 16 == 0);
      memset(p, 0xff, i);
    }
    char *big = tpu_arena_calloc(&a, 1000, 8);
    CHECK(big && big[7999] == 0);
    CHECK_STR(tpu_arena_strdup(&a, "word"), "word");
    tpu_arena_reset(&a);
    CHECK_INT(tpu_alloc_live(), 1);
  }
  tpu_arena_mark mark = tpu_arena_save(&a);
  void *first = tpu_arena_alloc(&a, 8);
  for (int i = 0; i < 1000; i++) CHECK(tpu_arena_alloc(&a, 64));
  tpu_arena_restore(&a, mark);
  CHECK(tpu_arena_alloc(&a, 8) == first);
  tpu_arena_destroy(&a);
  CHECK_INT(tpu_alloc_live(), 0);

  tpu_arena_init(&a, 64); /* a mark taken while empty */
  mark = tpu_arena_save(&a);
  CHECK(tpu_arena_alloc(&a, 1000));
  tpu_arena_restore(&a, mark);
  tpu_alloc_fail_after(0);
  CHECK(!tpu_arena_alloc(&a, 4000) && !tpu_arena_alloc(&a, 1) && a.failed);
  tpu_arena_reset(&a);
  CHECK(tpu_arena_alloc(&a, 1) && !a.failed);
  CHECK(!tpu_arena_alloc(&a, SIZE_MAX) && !tpu_arena_calloc(&a, SIZE_MAX / 2, 3));
  tpu_arena_destroy(&a);
  CHECK_INT(tpu_alloc_live(), 0);
}

TEST(arena_steady_state) {
  tpu_arena a;
  tpu_arena_init(&a, 0);
  for (int i = 0; i < 2000; i++) CHECK(tpu_arena_alloc(&a, 100));
  for (int i = 0; i < 8; i++) { /* until one block holds it all */
    tpu_arena_reset(&a);
    for (int j = 0; j < 100; j++) CHECK(tpu_arena_alloc(&a, 100));
  }
  tpu_arena_reset(&a);
  tpu_alloc_fail_after(0);
  for (int j = 0; j < 100; j++) CHECK(tpu_arena_alloc(&a, 100));
  tpu_alloc_fail_after(-1);
  tpu_arena_destroy(&a);
}

TEST(strbuf) {
  tpu_strbuf s = {0};
  tpu_strbuf_put_i64(&s, INT64_MIN);
  tpu_strbuf_put(&s, " ");
  tpu_strbuf_put_u64(&s, UINT64_MAX);
  tpu_strbuf_printf(&s, " %s", "end");
  CHECK_STR(s.data, "-9223372036854775808 18446744073709551615 end");
  tpu_strbuf_clear(&s);
  CHECK_STR(s.data, "");
  for (int i = 0; i < 1000; i++) tpu_strbuf_put_n(&s, "abcde", 5);
  CHECK_INT(strlen(s.data), 5000);
  char *text = tpu_strbuf_take(&s);
  CHECK(text && strlen(text) == 5000 && !s.data);
  tpu_free(text);
  text = tpu_strbuf_take(&s); /* an empty one gives "" */
  CHECK_STR(text, "");
  tpu_free(text);
  tpu_alloc_fail_after(0);
  tpu_strbuf_put(&s, "x");
  tpu_strbuf_put(&s, "y");
  CHECK(s.failed && !tpu_strbuf_take(&s));
  CHECK_INT(tpu_alloc_live(), 0);
}

TEST_MAIN(TEST_CASE(alloc), TEST_CASE(sizes), TEST_CASE(arena), TEST_CASE(arena_steady_state), TEST_CASE(strbuf));
