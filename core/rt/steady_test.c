/* How often programs are compiled when the same work comes again, on the fake plugin. */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rt/runtime_test.h"

typedef struct model {
  tensor w[3], velocity[3];
} model;
static tpu_status model_make(model *m) {
  *m = (model){0};
  for (int i = 0; i < 3; i++) {
    TPU_TRY(floats(8, 8, (float)i, &m->w[i]));
    TPU_TRY(floats(8, 8, 0, &m->velocity[i]));
  }
  return NULL;
}
static void model_drop(model *m) {
  for (int i = 0; i < 3; i++) drop(&m->w[i]), drop(&m->velocity[i]);
}

enum { HOLD_LOSS = 1, HOLD_HIDDEN = 2, HOLD_GRADS = 4, HOLD_ALL = 7 };
typedef struct held {
  tensor loss, hidden, grads[3];
} held;
static void held_drop(held *h) {
  drop(&h->loss), drop(&h->hidden);
  for (int i = 0; i < 3; i++) drop(&h->grads[i]);
}

/* A stand-in for a training step with momentum. What `hold` names outlives the step. */
static tpu_status step(model *m, const tensor *x, double lr, int hold, held *out) {
  tensor h[4] = {{0}}, g[3] = {{0}}, loss = {0};
  *out = (held){0};
  tpu_status s = NULL;
  for (int i = 0; i < 3; i++) s = tpu_status_join(s, mm(lane, i ? &h[i - 1] : x, &m->w[i], &h[i]));
  if (!s) s = call(&(spec){.aten = "sum", .n_tensors = 1, .t = {&h[2]}}, &loss);
  for (int i = 2; !s && i >= 0; i--) s = mm(lane, &h[i], &m->w[i], &g[i]);
  for (int i = 0; !s && i < 3; i++) {
    s = scale_into(lane, &m->velocity[i], 0.9, &m->velocity[i]);
    if (!s) s = add_into(lane, &m->velocity[i], &g[i], 1, &m->velocity[i]);
    if (!s) s = add_into(lane, &m->w[i], &m->velocity[i], -lr, &m->w[i]);
  }
  if (hold & HOLD_LOSS) out->loss = loss, loss.s = NULL;
  if (hold & HOLD_HIDDEN) out->hidden = h[1], h[1].s = NULL;
  for (int i = 0; i < 3; i++) {
    if (hold & HOLD_GRADS) out->grads[i] = g[i], g[i].s = NULL;
    drop(&g[i]), drop(&h[i]);
  }
  drop(&loss);
  return s;
}

TEST(one_step_one_program) {
  NEED_FAKE();
  model m;
  tensor x;
  held h;
  CHECK_OK(model_make(&m));
  tpu_stats before = stats_now();
  for (int i = 0; i < 20; i++) {
    CHECK_OK(floats(8, 8, (float)i, &x)); /* a new batch */
    CHECK_OK(step(&m, &x, 0.1 / (1 + i), HOLD_LOSS, &h));
    float loss;
    CHECK_OK(read_from(lane, &h.loss, &loss));
    held_drop(&h);
    drop(&x);
  }
  tpu_stats after = stats_now();
  CHECK_INT(after.compiles - before.compiles, 1);
  CHECK_INT(after.executes - before.executes, 20);
  CHECK_INT(after.donated - before.donated, 20 * 6);
  model_drop(&m);
  CHECK_NOTHING_LIVES();
}

TEST(what_lives_does_not_matter) {
  NEED_FAKE();
  model m;
  tensor x;
  held h[3];
  memset(h, 0, sizeof h);
  CHECK_OK(model_make(&m));
  CHECK_OK(floats(8, 8, 1, &x));
  tpu_cache_clear();
  tpu_stats before = stats_now();
  unsigned random = 1;
  for (int i = 0; i < 60; i++) { /* who holds what, and how long, varies */
    random = random * 1103515245u + 12345u;
    held_drop(&h[i % 3]);
    int hold = i < 2 ? (i ? HOLD_HIDDEN : HOLD_LOSS) : (int)(random >> 16) & HOLD_ALL;
    CHECK_OK(step(&m, &x, 0.1, hold, &h[i % 3]));
    if (i > 2 && (random >> 28 & 1)) held_drop(&h[i % 3]);
    CHECK_OK(tpu_cut(lane, -1));
  }
  tpu_stats after = stats_now();
  CHECK_INT(after.executes - before.executes, 60);
  CHECK(after.compiles - before.compiles <= 4); /* each union is larger than the one before: three kinds of things */
  CHECK(after.compiles - before.compiles >= 2);
  uint64_t settled = after.compiles;
  for (int i = 0; i < 16; i++) {
    held_drop(&h[0]);
    CHECK_OK(step(&m, &x, 0.1, i & HOLD_ALL, &h[0]));
    CHECK_OK(tpu_cut(lane, -1));
  }
  CHECK_INT(stats_now().compiles, settled);
  for (int i = 0; i < 3; i++) held_drop(&h[i]);
  model_drop(&m);
  drop(&x);
  CHECK_NOTHING_LIVES(); /* surplus outputs were dropped */
}

TEST(numbers_never_compile) {
  NEED_FAKE();
  tensor a, b;
  tpu_generator g = {.seed = 1};
  CHECK_OK(floats(4, 4, 1, &a));
  tpu_stats before = stats_now();
  for (int i = 0; i < 10; i++) {
    tensor c, d;
    g.seed = (uint64_t)i * 77;
    CHECK_OK(scale(lane, &a, 1.5 * i, &b));
    CHECK_OK(add(lane, &b, &a, -i, &c));
    CHECK_OK(call(&(spec){.row = &uniform_row, .n_tensors = 1, .t = {&a}, .generator = &g}, &d));
    CHECK_OK(tpu_cut(lane, -1));
    drop(&b), drop(&c), drop(&d);
  }
  CHECK_INT(stats_now().compiles - before.compiles, 1);
  CHECK_INT(stats_now().executes - before.executes, 10);
  drop(&a);
  CHECK_NOTHING_LIVES();
}

/* A cache of keys written at `pos` and read whole: the second position compiles once more, later ones never. */
TEST(moving_offsets) {
  NEED_FAKE();
  tensor cache, x;
  CHECK_OK(floats(32, 4, 0, &cache));
  CHECK_OK(floats(1, 4, 9, &x));
  tpu_stats before = stats_now();
  for (int pos = 0; pos < 32; pos++) {
    tensor k, y, at = rows_of(&cache, pos, pos + 1);
    CHECK_OK(scale(lane, &x, 2, &k));
    CHECK_OK(copy_to(lane, &k, &at));
    CHECK_OK(scale(lane, &cache, 3, &y));
    CHECK_OK(tpu_cut(lane, -1));
    CHECK_INT(stats_now().compiles - before.compiles, pos == 0 ? 1 : 2);
    drop(&k), drop(&y);
  }
  CHECK_INT(stats_now().donated - before.donated, 32);
  drop(&cache), drop(&x);
  CHECK_NOTHING_LIVES();
}

/* A prompt of seven rows, then one row after the other: what is learnt of the offsets holds for all of them. */
TEST(prompt_then_rows) {
  NEED_FAKE();
  tensor cache, x;
  CHECK_OK(floats(32, 4, 0, &cache));
  CHECK_OK(floats(1, 4, 9, &x));
  static const int positions[] = {0, 7, 8, 9, 31, 2};
  tpu_cache_clear();
  tpu_stats before = stats_now();
  for (int i = 0; i < 6; i++) {
    tensor at = rows_of(&cache, positions[i], positions[i] + 1);
    CHECK_OK(copy_to(lane, &x, &at));
    CHECK_OK(tpu_cut(lane, -1));
  }
  CHECK_INT(stats_now().compiles - before.compiles, 2);
  /* Parts of a row after parts at whole rows: once more. */
  tensor row = rows_of(&cache, 3, 4), at = row;
  at.offset++;
  for (int i = 0; i < 3; i++, at.offset++) {
    CHECK_OK(copy_to(lane, &x, &at));
    CHECK_OK(tpu_cut(lane, -1));
  }
  CHECK_INT(stats_now().compiles - before.compiles, 3);
  drop(&cache), drop(&x);
  CHECK_NOTHING_LIVES();
}

/* Two offsets that begin to move at different times. */
TEST(offsets_move_one_after_the_other) {
  NEED_FAKE();
  tensor a;
  CHECK_OK(floats(32, 4, 0, &a));
  tpu_stats before = stats_now();
  for (int i = 0; i < 30; i++) {
    tensor y, z, p = rows_of(&a, i % 10, i % 10 + 1), q = rows_of(&a, 4 + i / 10, 5 + i / 10);
    CHECK_OK(scale(lane, &p, 2, &y));
    CHECK_OK(scale(lane, &q, 2, &z));
    CHECK_OK(tpu_cut(lane, -1));
    drop(&y), drop(&z);
  }
  CHECK_INT(stats_now().compiles - before.compiles, 3);
  drop(&a);
  CHECK_NOTHING_LIVES();
}

TEST(loop_without_cuts) {
  NEED_FAKE();
  enum { PERIOD = 7, ROUNDS = 2400 };
  tensor w[PERIOD], x;
  for (int i = 0; i < PERIOD; i++) CHECK_OK(floats(4, 4, (float)i, &w[i]));
  CHECK_OK(floats(4, 4, 3, &x));
  uint64_t settled = 0, launched = 0;
  tpu_stats before = stats_now();
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < PERIOD; i++) {
      /* Writes through views record more than one thing a call, copies none that counts. */
      tensor part = rows_of(&w[i], 0, 2), other = rows_of(&w[i], 2, 4);
      if (i % 3 == 0)
        CHECK_OK(add_into(lane, &part, &other, 1, &part));
      else
        CHECK_OK(add_into(lane, &w[i], &x, 1, &w[i]));
      if (i == 5) CHECK_OK(copy_to(lane, &part, &other));
    }
    if (round == ROUNDS / 2) settled = stats_now().compiles, launched = stats_now().executes;
  }
  CHECK(launched > before.executes); /* it was cut */
  CHECK(stats_now().executes > launched);
  CHECK_INT(stats_now().compiles, settled); /* always at the same place */
  CHECK(settled - before.compiles <= 3);
  CHECK_OK(tpu_cut(lane, -1));
  for (int i = 0; i < PERIOD; i++) drop(&w[i]);
  drop(&x);
  CHECK_NOTHING_LIVES();
}

/* The first row of tables of different widths: its stride tells how wide, the program must not. */
TEST(leading_ones) {
  NEED_FAKE();
  tpu_stats before = stats_now();
  for (int i = 0; i < 6; i++) {
    tensor x, y, z;
    const int64_t sizes[2] = {1, 8};
    CHECK_OK(empty_on(0, TPU_F32, 2, sizes, &x));
    CHECK_OK(empty_on(0, TPU_F32, 2, sizes, &z));
    x.strides[0] = z.strides[0] = 8 + i;
    CHECK_OK(write_to(lane, &x, (float[8]){1, 2, 3, 4, 5, 6, 7, 8}));
    CHECK_OK(call(&(spec){.aten = "neg", .n_tensors = 1, .t = {&x}}, &y));
    CHECK_INT(y.strides[0], 8);
    CHECK_OK(copy_to(lane, &y, &z));
    CHECK_OK(scale_into(lane, &z, 2, &z));
    float got[8];
    CHECK_OK(read_from(lane, &z, got));
    drop(&x), drop(&y), drop(&z);
  }
  CHECK_INT((long long)(stats_now().compiles - before.compiles), 1);
  CHECK_INT((long long)(stats_now().signatures - before.signatures), 2);
}

TEST(cut_later) {
  NEED_FAKE();
  model m;
  tensor x;
  held h;
  CHECK_OK(model_make(&m));
  CHECK_OK(floats(8, 8, 1, &x));
  tpu_cache_clear();
  tpu_stats before = stats_now();
  for (int i = 0; i < 10; i++) {
    CHECK_OK(step(&m, &x, 0.1, HOLD_LOSS, &h));
    tpu_cut_later(lane);
    held_drop(&h);
  }
  CHECK_INT(stats_now().executes - before.executes, 9); /* the last waits for a next call */
  CHECK_OK(tpu_synchronize(0));
  CHECK_INT(stats_now().executes - before.executes, 10);
  CHECK_INT(stats_now().compiles - before.compiles, 1);
  model_drop(&m);
  drop(&x);
  CHECK_NOTHING_LIVES();
}

/* A stream that never repeats is cut at the size limit. */
TEST(size_limit) {
  NEED_FAKE();
  tensor a, b, keep[4] = {{0}};
  CHECK_OK(floats(64, 64, 1, &a));
  tpu_stats before = stats_now();
  for (int i = 0; i < TPU_SEGMENT_MAX_RECORDS + 8; i++) {
    tensor part = rows_of(&a, 0, 1 + i % 64);
    part = columns_of(&part, 0, 1 + i / 64 % 64);
    if (i / 4096 == 1) part = turned(&part);
    if (i / 4096 == 2)
      CHECK_OK(add(lane, &part, &part, 2, &b));
    else
      CHECK_OK(scale(lane, &part, 2, &b));
    drop(&keep[i % 4]);
    keep[i % 4] = b;
  }
  CHECK_INT(stats_now().executes - before.executes, 1);
  for (int i = 0; i < 4; i++) drop(&keep[i]);
  drop(&a);
  CHECK_NOTHING_LIVES();
}

TEST(cache_clear) {
  NEED_FAKE();
  tensor a, b;
  CHECK_OK(floats(3, 3, 1, &a));
  uint64_t compiles = stats_now().compiles;
  for (int i = 0; i < 2; i++) {
    CHECK_OK(scale(lane, &a, 2, &b));
    CHECK_OK(tpu_cut(lane, -1));
    drop(&b);
    tpu_cache_clear();
    CHECK_INT(fake->live(FAKE_PJRT_EXECUTABLES), 0);
    CHECK_INT(stats_now().compiles - compiles, i + 1);
  }
  drop(&a);
  CHECK_NOTHING_LIVES();
}

/* Distinct shapes for ever: what memory keeps of them is bounded, and what is used stays. */
TEST(programs_are_bounded) {
  NEED_FAKE();
  tensor used, b;
  CHECK_OK(floats(3, 3, 1, &used));
  CHECK_OK(scale(lane, &used, 2, &b));
  CHECK_OK(tpu_cut(lane, -1));
  drop(&b);
  for (int64_t n = 1; n <= TPU_MOST_EXECUTABLES + 600; n++) {
    tensor a;
    CHECK_OK(floats(1 + n / 50, 10 + n % 50, 1, &a));
    CHECK_OK(scale(lane, &a, 2, &b));
    CHECK_OK(tpu_cut(lane, -1));
    drop(&b), drop(&a);
    CHECK_OK(scale(lane, &used, 2, &b));
    CHECK_OK(tpu_cut(lane, -1));
    drop(&b);
    /* the plugin has two objects for each */
    CHECK(fake->live(FAKE_PJRT_EXECUTABLES) <= 2 * TPU_MOST_EXECUTABLES);
  }
  uint64_t compiles = stats_now().compiles;
  CHECK_OK(scale(lane, &used, 2, &b));
  CHECK_OK(tpu_cut(lane, -1));
  CHECK_INT(stats_now().compiles - compiles, 0);
  drop(&b), drop(&used);
  tpu_cache_clear();
  CHECK_NOTHING_LIVES();
}

/* A CPU plugin maps the code of each executable, and is stopped with the process when no region is left to map. */
TEST(regions_are_bounded) {
  NEED_FAKE();
  long most = 0;
  FILE *f = fopen("/proc/sys/vm/max_map_count", "r");
  if (f && fscanf(f, "%ld", &most) != 1) most = 0;
  if (f) fclose(f);
  if (!most) SKIP("the number of regions of a process is unknown");
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (size_t)most / 2 + 1000;
  char *filler = mmap(NULL, pages * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(filler != MAP_FAILED);
  for (size_t i = 0; i < pages; i += 2) CHECK_INT(mprotect(filler + i * page, page, PROT_READ), 0);
  tensor a, b;
  for (int64_t n = 1; n <= 300; n++) {
    CHECK_OK(floats(1 + n / 50, 10 + n % 50, 1, &a));
    CHECK_OK(scale(lane, &a, 2, &b));
    CHECK_OK(tpu_cut(lane, -1));
    drop(&b), drop(&a);
  }
  CHECK(fake->live(FAKE_PJRT_EXECUTABLES) <= 2 * 100); /* the plugin has two objects for each */
  munmap(filler, pages * page);
  tpu_cache_clear();
  CHECK_NOTHING_LIVES();
}

/* State that starts as one number everywhere and is updated: the first step is the same program as the next ones. */
TEST(filled_state) {
  NEED_FAKE();
  tensor x, state;
  CHECK_OK(floats(4, 4, 1, &x));
  uint64_t compiles = stats_now().compiles;
  CHECK_OK(zeros(lane, &x, &state));
  uint64_t executes = stats_now().executes;
  CHECK_OK(tpu_cut(lane, -1));
  CHECK_INT(stats_now().executes - executes, 0); /* nobody asked yet */
  for (int i = 0; i < 4; i++) {
    CHECK_OK(add_into(lane, &state, &x, 1, &state));
    CHECK_OK(tpu_cut(lane, -1));
    CHECK_INT(stats_now().compiles - compiles, 1);
  }
  drop(&state);
  /* Read only: a constant of the program, however often it is read; the storage keeps the number. */
  tensor sum[2];
  CHECK_OK(zeros(lane, &x, &state));
  for (int i = 0; i < 2; i++) {
    CHECK_OK(add(lane, &state, &x, 1, &sum[0]));
    CHECK_OK(add(lane, &x, &state, 1, &sum[1]));
    CHECK_OK(tpu_cut(lane, -1));
    drop(&sum[0]), drop(&sum[1]);
    CHECK_INT(stats_now().compiles - compiles, 2);
  }
  float data[16];
  for (int i = 0; i < 16; i++) data[i] = 5;
  CHECK_OK(read_from(lane, &state, data));
  for (int i = 0; i < 16; i++) CHECK(data[i] == 0);
  drop(&state), drop(&x);
  tpu_cache_clear();
  CHECK_NOTHING_LIVES();
}

/* Programs that take much memory are not queued without end. */
TEST(big_programs_are_paced) {
  NEED_FAKE();
  const int64_t sizes[2] = {512, 512};
  static float data[512 * 512];
  tensor a, r[8];
  CHECK_OK(empty_on(0, TPU_F32, 2, sizes, &a));
  CHECK_OK(write_to(lane, &a, data));
  CHECK_OK(tpu_synchronize(0));
  for (int i = 0; i < 8; i++) {
    CHECK_OK(add(lane, &a, &a, i, &r[i]));
    CHECK_OK(tpu_cut(lane, 0));
    CHECK(tpu_rt.devices[0].n_big >= 1 && tpu_rt.devices[0].n_big <= TPU_BIG_IN_FLIGHT);
    CHECK_INT(tpu_rt.devices[0].n_pending, 0);
    bool done;
    CHECK_OK(tpu_query(lane, 0, &done));
    CHECK(done);
  }
  CHECK_OK(tpu_synchronize(0));
  CHECK_INT(tpu_rt.devices[0].n_big, 0);
  for (int i = 0; i < 8; i++) drop(&r[i]);
  drop(&a);
  CHECK_NOTHING_LIVES();
}

TEST_MAIN(TEST_CASE(programs_are_bounded), TEST_CASE(regions_are_bounded), TEST_CASE(filled_state),
          TEST_CASE(one_step_one_program), TEST_CASE(what_lives_does_not_matter), TEST_CASE(numbers_never_compile),
          TEST_CASE(moving_offsets), TEST_CASE(prompt_then_rows), TEST_CASE(offsets_move_one_after_the_other),
          TEST_CASE(loop_without_cuts), TEST_CASE(leading_ones), TEST_CASE(cut_later), TEST_CASE(size_limit),
          TEST_CASE(cache_clear), TEST_CASE(big_programs_are_paced));
