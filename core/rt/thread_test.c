/* Threads and fork, on the fake plugin. Meant for ThreadSanitizer; everywhere it checks that nothing hangs, is lost or left. */
#include <sys/wait.h>

#include "rt/runtime_test.h"

enum { THREADS = 4, ROUNDS = 150 };

static atomic_int errors;
static void note(tpu_status status) {
  if (!status) return;
  if (atomic_fetch_add(&errors, 1) < 5) fprintf(stderr, "%s\n", tpu_status_message(status));
  tpu_status_release(status);
}

typedef struct shared {
  tensor weights[3];
  tpu_lane *lane;       /* of one_lane_two_threads */
  pthread_mutex_t turn; /* likewise */
  tensor box[THREADS];  /* values handed on */
  pthread_mutex_t box_lock;
  atomic_bool stop;
} shared;
static shared all = {.turn = PTHREAD_MUTEX_INITIALIZER, .box_lock = PTHREAD_MUTEX_INITIALIZER};

static void run_threads(int n, void *(*body)(void *)) {
  pthread_t t[THREADS + 1];
  for (int i = 0; i < n; i++)
    if (pthread_create(&t[i], NULL, body, (void *)(intptr_t)i)) abort();
  for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
}

/* --- lanes of their own on shared leaves; now and then a value made by another lane */
static void put(int slot, tensor *t) { /* takes it, gives what was there */
  pthread_mutex_lock(&all.box_lock);
  tensor was = all.box[slot];
  all.box[slot] = *t;
  pthread_mutex_unlock(&all.box_lock);
  *t = was;
}
static bool borrow(int slot, tensor *out) {
  pthread_mutex_lock(&all.box_lock);
  *out = all.box[slot];
  if (out->s) tpu_storage_retain(out->s);
  pthread_mutex_unlock(&all.box_lock);
  return out->s != NULL;
}

static void *record_body(void *arg) {
  int me = (int)(intptr_t)arg;
  tpu_lane *mine = tpu_lane_create();
  tensor state = {0};
  const int64_t sizes[2] = {4, 4};
  note(empty_on(0, TPU_F32, 2, sizes, &state));
  note(copy_to(mine, &all.weights[me % 3], &state));
  for (int i = 0; i < ROUNDS; i++) {
    tensor a = {0}, b = {0}, theirs = {0};
    note(mm(mine, &all.weights[i % 3], &all.weights[(i + 1) % 3], &a));
    note(add(mine, &a, &state, i, &b));
    note(add_into(mine, &state, &b, 1, &state));
    tensor row = rows_of(&state, i % 4, i % 4 + 1), from = rows_of(&b, 0, 1);
    note(copy_to(mine, &from, &row));
    if (borrow((me + 1) % THREADS, &theirs)) {
      note(add_into(mine, &state, &theirs, 1, &state));
      drop(&theirs); /* perhaps the last who held it */
    }
    if (i % 3 == 0) put(me, &a);
    if (i % 5 == 0) note(tpu_cut(mine, -1));
    if (i % 7 == 0) tpu_cut_later(mine);
    if (i % 11 == 0) {
      float r[16];
      note(read_from(mine, &b, r));
    }
    drop(&a), drop(&b);
  }
  drop(&state);
  tpu_lane_release(mine);
  return NULL;
}
static void *synchronize_body(void *arg) {
  if (arg != (void *)(intptr_t)THREADS) return record_body(arg);
  for (int i = 0; i < 60; i++) {
    bool done;
    tpu_stats stats;
    tpu_memory_info info;
    note(tpu_synchronize(0));
    note(tpu_query(lane, 0, &done));
    tpu_stats_get(&stats);
    tpu_memory_info_get(0, &info);
    if (i % 20 == 0) tpu_cache_clear();
  }
  return NULL;
}
TEST(many_lanes) {
  NEED_FAKE();
  for (int i = 0; i < 3; i++) CHECK_OK(floats(4, 4, (float)i, &all.weights[i]));
  run_threads(THREADS + 1, synchronize_body);
  CHECK_INT(atomic_load(&errors), 0);
  float r[16];
  for (int i = 0; i < 3; i++) {
    CHECK_OK(read_from(lane, &all.weights[i], r)); /* what all read is as it was */
    for (int k = 0; k < 16; k++) CHECK(r[k] == (float)(i + k));
    drop(&all.weights[i]);
  }
  for (int i = 0; i < THREADS; i++) drop(&all.box[i]);
  CHECK_NOTHING_LIVES();
}

/* --- a program that several threads want at once is compiled once */
static pthread_barrier_t barrier;
static void *same_program_body(void *arg) {
  (void)arg;
  tpu_lane *mine = tpu_lane_create();
  tensor a, b;
  note(mm(mine, &all.weights[0], &all.weights[0], &a));
  note(scale(mine, &a, 2, &b));
  drop(&a);
  pthread_barrier_wait(&barrier);
  note(tpu_cut(mine, -1));
  drop(&b);
  tpu_lane_release(mine);
  return NULL;
}
TEST(one_compile) {
  NEED_FAKE();
  CHECK_OK(floats(5, 5, 1, &all.weights[0]));
  pthread_barrier_init(&barrier, NULL, THREADS);
  for (int i = 0; i < 10; i++) {
    tpu_cache_clear();
    tpu_stats before = stats_now();
    run_threads(THREADS, same_program_body);
    CHECK_INT(stats_now().compiles - before.compiles, 1);
    CHECK_INT(stats_now().executes - before.executes, THREADS);
  }
  pthread_barrier_destroy(&barrier);
  CHECK_INT(atomic_load(&errors), 0);
  drop(&all.weights[0]);
  CHECK_NOTHING_LIVES();
}

/* --- one lane, by turns from two threads, as a backward pass continues its forward's */
static void *turns_body(void *arg) {
  int me = (int)(intptr_t)arg;
  for (int i = 0; i < ROUNDS; i++) {
    tensor a = {0};
    pthread_mutex_lock(&all.turn);
    note(add(all.lane, &all.weights[0], &all.weights[1], me, &a));
    note(add_into(all.lane, &all.weights[1], &a, 1, &all.weights[1]));
    if (i % 9 == 0) note(tpu_cut(all.lane, -1));
    pthread_mutex_unlock(&all.turn);
    drop(&a); /* released while the other records */
  }
  return NULL;
}
TEST(one_lane_two_threads) {
  NEED_FAKE();
  all.lane = tpu_lane_create();
  CHECK(all.lane);
  CHECK_OK(floats(4, 4, 1, &all.weights[0]));
  CHECK_OK(floats(4, 4, 1, &all.weights[1]));
  run_threads(2, turns_body);
  CHECK_INT(atomic_load(&errors), 0);
  tpu_lane_release(all.lane);
  drop(&all.weights[0]), drop(&all.weights[1]);
  CHECK_NOTHING_LIVES();
}

/* --- storages that were updated in place are dropped while the launch of the update fails */
static void *drop_body(void *arg) {
  (void)arg;
  while (!atomic_load(&all.stop)) {
    for (int i = 0; i < THREADS; i++) {
      tensor none = {0};
      put(i, &none);
      drop(&none);
    }
  }
  return NULL;
}
static void *fail_body(void *arg) {
  int me = (int)(intptr_t)arg;
  if (me == 2) return drop_body(NULL);
  tpu_lane *mine = tpu_lane_create();
  const int64_t sizes[2] = {4, 4};
  for (int i = 0; i < ROUNDS; i++) {
    tensor a = {0}, b = {0};
    note(empty_on(0, TPU_F32, 2, sizes, &a));
    note(empty_on(0, TPU_F32, 2, sizes, &b));
    note(copy_to(mine, &all.weights[0], &a));
    note(scale_into(mine, &a, 2, &a));
    note(copy_to(mine, &a, &b));
    note(scale_into(mine, &b, 2, &b));
    put(me, &a);
    put(me + 2, &b);
    drop(&a), drop(&b);
    if (i % 3) fake->fail_after(i % 4, TPU_ABORTED);
    tpu_status_release(tpu_cut(mine, -1));
  }
  tpu_lane_release(mine);
  atomic_store(&all.stop, true);
  return NULL;
}
TEST(failing_while_dropped) {
  NEED_FAKE();
  CHECK_OK(floats(4, 4, 1, &all.weights[0]));
  atomic_store(&all.stop, false);
  run_threads(3, fail_body);
  fake->fail_after(-1, 0);
  atomic_store(&errors, 0);
  for (int i = 0; i < THREADS; i++) drop(&all.box[i]);
  drop(&all.weights[0]);
  for (int d = 0; d < 2; d++) tpu_status_release(tpu_synchronize(d));
  CHECK_NOTHING_LIVES();
}

/* --- what a thread kept for reuse goes with it */
static void *exit_body(void *arg) {
  (void)arg;
  tensor t[64];
  for (int i = 0; i < 64; i++) note(floats(1, 1, 0, &t[i]));
  for (int i = 0; i < 64; i++) drop(&t[i]);
  return NULL;
}
TEST(thread_exit_frees) {
  NEED_FAKE();
  run_threads(1, exit_body); /* types are interned for ever */
  int64_t before = tpu_alloc_live();
  run_threads(THREADS, exit_body);
  CHECK_INT(tpu_alloc_live(), before);
  CHECK_INT(atomic_load(&errors), 0);
  CHECK_NOTHING_LIVES();
}

/* --- fork */
static int child_body(tensor *a, tensor *pending) {
  tensor b;
  float r[16];
  bool done;
  char *text;
  tpu_storage *s;
  tpu_event *event;
  tpu_tensor v = as_view(a);
  int wrong = 0;
#define REFUSED(call)                                                  \
  do {                                                                 \
    tpu_status status_ = (call);                                       \
    if (tpu_status_code(status_) != TPU_FAILED_PRECONDITION) {         \
      fprintf(stderr, "%s: %s\n", #call, tpu_status_message(status_)); \
      wrong++;                                                         \
    }                                                                  \
    tpu_status_release(status_);                                       \
  } while (0)
  if (!tpu_in_bad_fork()) wrong++;
  REFUSED(tpu_initialize());
  REFUSED(tpu_storage_create(0, 8, &s));
  REFUSED(add(lane, a, a, 1, &b));
  REFUSED(copy_to(lane, a, pending));
  REFUSED(write_to(lane, a, r));
  REFUSED(read_from(lane, a, r));
  REFUSED(read_from(lane, pending, r));
  REFUSED(tpu_read_async(lane, &v, r, &event));
  REFUSED(tpu_read_scalar(lane, &v, r));
  REFUSED(tpu_storage_resize(lane, a->s, 8));
  REFUSED(tpu_cut(lane, -1));
  REFUSED(tpu_synchronize(0));
  REFUSED(tpu_query(lane, 0, &done));
  REFUSED(tpu_pending_text(lane, 0, &text));
  tpu_lane *mine = tpu_lane_create();
  if (!mine) wrong++;
  tpu_cut_later(mine);
  tpu_storage_hint(a->s, &v);
  tpu_stats stats;
  tpu_memory_info info;
  tpu_stats_get(&stats);
  tpu_stats_reset();
  tpu_memory_info_get(0, &info);
  tpu_memory_reset_peak(0);
  tpu_cache_clear();
  tpu_lane_release(mine);
  tpu_lane_release(lane);
  uint64_t calls = fake->calls();
  int64_t live = fake->live(-1);
  drop(a), drop(pending);
  if (fake->live(-1) != live || fake->calls() != calls) wrong++;
  return wrong;
}
static void *busy_body(void *arg) {
  if ((int)(intptr_t)arg) return record_body(arg);
  for (int i = 0; i < 8; i++) {
    tensor a = all.weights[0], b;
    note(scale(lane, &all.weights[1], 2, &b));
    fflush(stderr);
    pid_t child = fork(); /* with every lock in whatever state */
    if (child == 0) {
      alarm(60);
      _exit(child_body(&a, &b) ? 1 : 0);
    }
    int rc = 1;
    if (waitpid(child, &rc, 0) != child || !WIFEXITED(rc) || WEXITSTATUS(rc) != 0) {
      fprintf(stderr, "child: %x\n", (unsigned)rc);
      atomic_fetch_add(&errors, 1);
    }
    drop(&b);
  }
  return NULL;
}
TEST(forked) {
  NEED_FAKE();
  for (int i = 0; i < 3; i++) CHECK_OK(floats(4, 4, (float)i, &all.weights[i]));
  run_threads(3, busy_body);
  CHECK_INT(atomic_load(&errors), 0);
  /* And one that leaves by exit. */
  pid_t child = fork();
  if (child == 0) {
    alarm(60);
    tpu_storage_release(all.weights[0].s); /* which frees nothing: the pointer stays, for leak checkers */
    exit(0);
  }
  int rc;
  CHECK(waitpid(child, &rc, 0) == child && WIFEXITED(rc) && WEXITSTATUS(rc) == 0);
  for (int i = 0; i < 3; i++) drop(&all.weights[i]);
  for (int i = 0; i < THREADS; i++) drop(&all.box[i]);
  CHECK_NOTHING_LIVES();
}

TEST_MAIN(TEST_CASE(many_lanes), TEST_CASE(one_compile), TEST_CASE(one_lane_two_threads), TEST_CASE(failing_while_dropped),
          TEST_CASE(thread_exit_frees), TEST_CASE(forked));
