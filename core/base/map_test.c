#include "base/map.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "base/test.h"

TEST(basics) {
  tpu_map m = {0};
  int a, b;
  CHECK(!tpu_map_get(&m, 0) && !tpu_map_remove(&m, 0));
  CHECK(tpu_map_put(&m, 0, &a) && tpu_map_get(&m, 0) == &a);
  CHECK(tpu_map_put(&m, 0, &b) && tpu_map_get(&m, 0) == &b && m.size == 1);
  CHECK(tpu_map_remove(&m, 0) == &b && !tpu_map_get(&m, 0) && m.size == 0);
  CHECK(tpu_map_put(&m, 5, &a));
  size_t capacity = m.capacity;
  tpu_map_clear(&m);
  CHECK(!tpu_map_get(&m, 5) && m.capacity == capacity);
  tpu_map_destroy(&m);
  tpu_alloc_fail_after(0);
  CHECK(!tpu_map_put(&m, 1, &a) && m.size == 0);
  tpu_map_destroy(&m);
  CHECK_INT(tpu_alloc_live(), 0);
}

/* Against a plain array, with keys that collide. */
TEST(fuzz) {
  enum { KEYS = 400 };
  static char values[KEYS];
  bool in[KEYS] = {false};
  tpu_map m = {0};
  uint64_t random = 1;
  for (int step = 0; step < 200000; step++) {
    random = tpu_hash_u64(random + 0x9e3779b97f4a7c15u);
    size_t k = (size_t)(random >> 8) % KEYS;
    uint64_t key = (k % 7) * 3 + (k << 20); /* few home slots */
    if (random & 1) {
      CHECK(tpu_map_put(&m, key, &values[k]));
      in[k] = true;
    } else {
      CHECK(tpu_map_remove(&m, key) == (in[k] ? &values[k] : NULL));
      in[k] = false;
    }
    if (step % 1000) continue;
    size_t size = 0, at = 0, seen = 0;
    for (size_t i = 0; i < KEYS; i++) {
      CHECK(tpu_map_get(&m, (i % 7) * 3 + (i << 20)) == (in[i] ? &values[i] : NULL));
      size += in[i];
    }
    uint64_t next;
    void *value;
    while (tpu_map_next(&m, &at, &next, &value)) {
      CHECK(value == &values[next >> 20]);
      seen++;
    }
    CHECK_INT(m.size, size);
    CHECK_INT(seen, size);
  }
  tpu_map_destroy(&m);
  CHECK_INT(tpu_alloc_live(), 0);
}

TEST_MAIN(TEST_CASE(basics), TEST_CASE(fuzz));
