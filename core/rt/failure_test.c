/* Every route of the runtime with its n-th allocation and its n-th call of the plugin failing: it fails or succeeds, everything
 * else is intact, and nothing is left when all is dropped. */
#include <sys/wait.h>

#include "rt/runtime_test.h"

static bool same_data(const tensor *t, const float *want) {
  static float r[4096];
  tpu_status status = read_from(lane, t, r);
  if (status) fprintf(stderr, "read: %s\n", tpu_status_message(status));
  tpu_status_release(status);
  return !status && memcmp(r, want, sizeof(float) * (size_t)numel(t)) == 0;
}

/* --- initialisation: once a process, so in children */
enum { BY_ALLOCATION, BY_CALL };
static void arm(int how, int n) {
  if (how == BY_ALLOCATION)
    tpu_alloc_fail_after(n);
  else
    fake->fail_after(n, TPU_ABORTED);
}
static void disarm(void) {
  tpu_alloc_fail_after(-1);
  fake->fail_after(-1, 0);
}
static tpu_code expected(int how) { return how == BY_ALLOCATION ? TPU_RESOURCE_EXHAUSTED : TPU_ABORTED; }

/* 0: succeeded, 1: failed as it should, 2: wrong. */
static int initialize_failing(int how, int n) {
  arm(how, n);
  tpu_status status = tpu_initialize();
  disarm();
  if (!status) {
    tpu_storage *s;
    status = tpu_storage_create(1, 8, &s);
    if (!status) tpu_storage_release(s);
    return status ? 2 : 0;
  }
  bool good = tpu_status_code(status) == expected(how) && fake->live(-1) == 0 && !tpu_is_initialized();
  tpu_status again = tpu_initialize();
  good = good && tpu_status_code(again) == expected(how) && tpu_runtime_client() == NULL && tpu_device_count() == 0;
  if (!good) fprintf(stderr, "init, %d: %s, %d objects\n", n, tpu_status_message(status), (int)fake->live(-1));
  tpu_status_release(again);
  tpu_status_release(status);
  return good ? 1 : 2;
}
TEST(initialize) {
  NEED_FAKE();
  for (int how = BY_ALLOCATION; how <= BY_CALL; how++) {
    int failed = 0, n;
    for (n = 0; n < 200; n++) {
      fflush(stderr);
      pid_t child = fork();
      if (child == 0) _exit(initialize_failing(how, n));
      int rc;
      CHECK(waitpid(child, &rc, 0) == child && WIFEXITED(rc));
      CHECK(WEXITSTATUS(rc) != 2);
      failed += WEXITSTATUS(rc);
      if (WEXITSTATUS(rc) == 0 && n > failed + 4) break;
    }
    CHECK(failed > 3 && n < 200);
  }
}

/* --- routes: x and y are given, with data; all that a route makes it drops */
typedef struct given {
  tensor x, y, far; /* far: on the other device */
} given;

static tpu_status route_record(const given *g) {
  tensor z = {0}, p = {0}, out[3] = {{0}}, u = {0};
  tpu_generator random = {.seed = 3};
  tpu_status s = add(lane, &g->x, &g->y, 2, &z);
  if (!s) s = mul(lane, &z, &g->x, &p);
  if (!s) s = call(&(spec){.row = &three_row, .n_tensors = 1, .t = {&p}, .n_returns = 3}, out);
  if (!s) s = call(&(spec){.row = &uniform_row, .n_tensors = 1, .t = {&p}, .generator = &random}, &u);
  if (!s) s = scale_into(lane, &z, 2, &z);
  if (!s) s = tpu_cut(lane, -1);
  drop(&z), drop(&p), drop(&u), drop(&out[0]), drop(&out[2]);
  return s;
}

static tpu_status route_in_place(const given *g) {
  tensor row = rows_of(&g->y, 1, 2), from = rows_of(&g->x, 0, 1), column = columns_of(&g->y, 0, 1);
  tpu_status s = add_into(lane, &g->y, &g->x, 1, &g->y);
  if (!s) s = scale_into(lane, &row, 2, &row);
  if (!s) s = copy_to(lane, &from, &row);
  if (!s) s = scale_into(lane, &column, 2, &column);
  if (!s) s = tpu_cut(lane, -1);
  return s;
}

static tpu_status route_donate(const given *g) {
  tpu_status s = NULL;
  for (int i = 0; !s && i < 2; i++) {
    s = add_into(lane, &g->y, &g->x, 1, &g->y);
    if (!s) s = tpu_cut(lane, 0);
  }
  return s;
}

static tpu_status route_copy(const given *g) {
  tensor a = {0}, wide = {0};
  tpu_status s = empty_on(0, TPU_F32, 2, g->x.sizes, &a);
  if (!s) s = copy_to(lane, &g->x, &a);
  if (!s) s = empty_on(0, TPU_F64, 2, g->x.sizes, &wide);
  if (!s) s = copy_to(lane, &a, &wide);
  tensor half = rows_of(&g->x, 1, 3), to = rows_of(&wide, 0, 2);
  if (!s) s = copy_to(lane, &half, &to);
  if (!s) s = tpu_cut(lane, -1);
  drop(&a), drop(&wide);
  return s;
}

static tpu_status route_across(const given *g) {
  tensor a = {0};
  tpu_status s = empty_on(1, TPU_F32, 2, g->x.sizes, &a);
  if (!s) s = copy_to(lane, &g->x, &a);
  tensor half = rows_of(&g->x, 1, 2), to = rows_of(&a, 0, 1);
  if (!s) s = copy_to(lane, &half, &to);
  if (!s) s = add_into(lane, &g->far, &a, 1, &g->far);
  if (!s) s = copy_to(lane, &g->far, &g->y);
  if (!s) s = tpu_cut(lane, -1);
  drop(&a);
  return s;
}

static tpu_status route_host(const given *g) {
  static float data[4096];
  tensor column = columns_of(&g->y, 1, 2), t = turned(&g->y), u = {0};
  tpu_status s = write_to(lane, &column, data);
  if (!s) s = write_to(lane, &t, data);
  if (!s) s = read_from(lane, &t, data);
  if (!s) s = read_from(lane, &column, data);
  if (!s) s = empty_on(0, TPU_F32, 2, g->x.sizes, &u);
  if (!s) s = read_from(lane, &u, data);
  drop(&u);
  if (!s) s = tpu_synchronize(0);
  bool done;
  if (!s) s = tpu_query(lane, 0, &done);
  return s;
}

static tpu_status route_resize(const given *g) {
  tensor a = {0};
  tpu_status s = empty_on(0, TPU_F32, 2, g->x.sizes, &a);
  if (!s) s = copy_to(lane, &g->x, &a);
  if (!s) s = tpu_storage_resize(lane, a.s, tpu_storage_nbytes(a.s) * 2);
  if (!s) s = tpu_storage_resize(lane, a.s, tpu_storage_nbytes(a.s) / 4 + 1);
  if (!s) s = tpu_cut(lane, -1);
  drop(&a);
  return s;
}

static tpu_status route_lanes(const given *g) {
  tensor a = {0}, b = {0};
  tpu_lane *other = tpu_lane_create();
  if (!other) return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  tpu_status s = scale(lane, &g->x, 2, &a);
  if (!s) s = scale(other, &g->x, 3, &b);
  if (!s) s = add_into(other, &b, &a, 1, &b);
  char *text = NULL;
  if (!s) s = tpu_pending_text(other, 0, &text);
  tpu_free(text);
  tpu_lane_release(other);
  if (!s) s = add_into(lane, &b, &a, 1, &b);
  if (!s) s = tpu_cut(lane, -1);
  drop(&a), drop(&b);
  return s;
}

/* Sizes that keep changing: the later ones are run by a bounded program. */
static tpu_status route_grow(const given *g) {
  static float data[4096];
  tpu_status s = NULL;
  for (int64_t n = 1; !s && n < 8; n++) {
    tensor a = {0}, b = {0}, c = {0};
    s = floats(n, 2, 1, &a);
    if (!s) s = add(lane, &a, &a, 1, &b);
    if (!s) s = add(lane, &b, &a, 1, &c);
    if (!s) s = tpu_cut(lane, 0);
    if (!s) s = add_into(lane, &c, &b, 1, &c);
    if (!s) s = read_from(lane, &c, data);
    drop(&a), drop(&b), drop(&c);
  }
  return s ? s : add_into(lane, &g->y, &g->x, 1, &g->y);
}

static const struct {
  const char *name;
  tpu_status (*run)(const given *g);
} routes[] = {{"record", route_record}, {"in place", route_in_place}, {"donate", route_donate},
              {"copy", route_copy},     {"across", route_across},     {"host", route_host},
              {"resize", route_resize}, {"lanes", route_lanes},       {"grow", route_grow}};

static int fresh_size; /* no signature is known before */

typedef struct job {
  size_t route;
  const given *g;
  int how, n;
  tpu_status status;
} job;
static void *job_run(void *arg) {
  job *j = arg;
  arm(j->how, j->n);
  j->status = routes[j->route].run(j->g);
  disarm();
  return NULL;
}
/* A thread that is new has no values and storages in store. */
static tpu_status run_on_new_thread(size_t r, const given *g, int how, int n) {
  job j = {r, g, how, n, NULL};
  pthread_t thread;
  if (pthread_create(&thread, NULL, job_run, &j)) return tpu_error(TPU_UNKNOWN, "no thread");
  pthread_join(thread, NULL);
  return j.status;
}

/* One attempt; *out_failed tells whether the route failed. */
static bool attempt(size_t r, int how, int n, int mode, bool *out_failed) {
  static float before[4096];
  given g;
  int64_t columns = 3 + fresh_size++ % 1000;
  tpu_status status = floats(3, columns, 1, &g.x);
  if (!status) status = floats(3, columns, 2, &g.y);
  if (!status) status = floats_on(1, 3, columns, 3, &g.far);
  if (status) {
    fprintf(stderr, "given: %s\n", tpu_status_message(status));
    return false;
  }
  for (int64_t i = 0; i < 3 * columns; i++) before[i] = (float)(1 + i);
  tpu_cache_clear();
  tpu_mode_set((tpu_mode)mode);
  status = run_on_new_thread(r, &g, how, n);
  tpu_mode_set(TPU_DEFER_AND_FUSE);
  bool good = true;
  *out_failed = status != NULL;
  if (status && tpu_status_code(status) != expected(how)) {
    fprintf(stderr, "%s:%d: %s\n", tpu_status_file(status), tpu_status_line(status), tpu_status_message(status));
    good = false;
  }
  tpu_status_release(status);
  if (!same_data(&g.x, before)) good = false;
  /* y is as it was, or was written; it can always be read, but for what was donated before a late failure. */
  static float r_y[4096];
  tpu_status read = read_from(lane, &g.y, r_y);
  if (read && mode != TPU_DEFER_NEVER_AND_LAUNCH_BLOCKING) {
    fprintf(stderr, "y is lost: %s\n", tpu_status_message(read));
    good = false;
  }
  tpu_status far = read_from(lane, &g.far, r_y);
  bool lost = read || far;
  tpu_status_release(read);
  tpu_status_release(far);
  if (!lost) { /* the same again works */
    status = routes[r].run(&g);
    if (status) {
      fprintf(stderr, "again: %s:%d: %s\n", tpu_status_file(status), tpu_status_line(status), tpu_status_message(status));
      good = false;
    }
    tpu_status_release(status);
  }
  drop(&g.x), drop(&g.y), drop(&g.far);
  for (int d = 0; d < 2; d++) tpu_status_release(tpu_synchronize(d));
  tpu_cache_clear();
  if (tpu_live_storages() || tpu_live_values() || fake->live(-1) != fake->live(FAKE_PJRT_CLIENTS)) {
    fprintf(stderr, "left: %d storages, %d values, %d objects\n", (int)tpu_live_storages(), (int)tpu_live_values(),
            (int)fake->live(-1) - 1);
    good = false;
  }
  if (!good)
    fprintf(stderr, "  %s, %s %d, mode %s\n", routes[r].name, how == BY_CALL ? "call" : "allocation", n, mode_names[mode]);
  return good;
}

static void every_failure(int how) {
  CHECK_OK(tpu_initialize());
  for (size_t r = 0; r < sizeof routes / sizeof *routes; r++)
    for (int mode = 0; mode < 3; mode++) {
      int failures = 0, clean = 0;
      for (int n = 0; clean < 12; n++) {
        bool failed;
        CHECK(attempt(r, how, n, mode, &failed));
        failures += failed;
        clean = failed ? 0 : clean + 1;
        CHECK(n < 3000);
      }
      if (getenv("TPU_TEST_VERBOSE")) fprintf(stderr, "%s, %s: %d failures\n", routes[r].name, mode_names[mode], failures);
      CHECK(failures > 1);
    }
}
TEST(allocations) {
  NEED_FAKE();
  every_failure(BY_ALLOCATION);
}
TEST(calls) {
  NEED_FAKE();
  every_failure(BY_CALL);
}

TEST_MAIN(TEST_CASE(initialize), TEST_CASE(allocations), TEST_CASE(calls));
