/* Real results on the CPU plugin at TPU_TEST_CPU_PLUGIN: arithmetic, views, writes, copies and random numbers in every mode, and
 * sequences of views and writes against a plain model of them, cut at random places. */
#include <math.h>

#include "rt/runtime_test.h"

static bool open_cpu(void) {
  if (lane) return true;
  configure(getenv("TPU_TEST_CPU_PLUGIN"), NULL, 0);
  tpu_status status = tpu_initialize();
  if (status) fprintf(stderr, "%s\n", tpu_status_message(status));
  tpu_test_failed = status != NULL;
  tpu_status_release(status);
  lane = tpu_lane_create();
  return !tpu_test_failed && lane;
}
#define NEED_CPU()                                                            \
  if (!getenv("TPU_TEST_CPU_PLUGIN")) SKIP("TPU_TEST_CPU_PLUGIN is not set"); \
  CHECK(open_cpu())
#define EACH_MODE(m) \
  for (int m = TPU_DEFER_AND_FUSE; m <= TPU_DEFER_NEVER_AND_LAUNCH_BLOCKING; tpu_mode_set(TPU_DEFER_AND_FUSE), m++)
#define CHECK_EMPTY()                                             \
  do {                                                            \
    for (int d_ = 0; d_ < 2; d_++) CHECK_OK(tpu_synchronize(d_)); \
    CHECK_INT(tpu_live_storages(), 0);                            \
    CHECK_INT(tpu_live_values(), 0);                              \
  } while (0)

TEST(arithmetic) {
  NEED_CPU();
  EACH_MODE(mode) {
    tpu_mode_set((tpu_mode)mode);
    tensor a, b, c, d, e;
    float r[9];
    CHECK_OK(floats(3, 3, 1, &a));
    CHECK_OK(floats(3, 3, -2, &b));
    CHECK_OK(add(lane, &a, &b, 0.5, &c));
    CHECK_OK(mul(lane, &c, &a, &d));
    CHECK_OK(mm(lane, &a, &b, &e));
    CHECK_OK(read_from(lane, &d, r));
    for (int i = 0; i < 9; i++) CHECK(r[i] == ((float)(1 + i) + 0.5f * (float)(i - 2)) * (float)(1 + i));
    CHECK_OK(read_from(lane, &e, r));
    for (int i = 0; i < 3; i++)
      for (int j = 0; j < 3; j++) {
        float want = 0;
        for (int k = 0; k < 3; k++) want += (float)(1 + i * 3 + k) * (float)(k * 3 + j - 2);
        CHECK(r[i * 3 + j] == want);
      }
    /* Operands that are views, and a result in column-major order. */
    drop(&e);
    tensor at = turned(&a);
    CHECK_OK(mm(lane, &at, &b, &e));
    CHECK_OK(read_from(lane, &e, r));
    CHECK(r[0] == 1 * -2 + 4 * 1 + 7 * 4);
    drop(&d);
    CHECK_OK(scale(lane, &at, 2, &d));
    CHECK_OK(read_from(lane, &d, r));
    CHECK(r[1] == 8 && r[3] == 4);
    drop(&a), drop(&b), drop(&c), drop(&d), drop(&e);
    CHECK_EMPTY();
  }
}

TEST(writes_through_views) {
  NEED_CPU();
  EACH_MODE(mode) {
    tpu_mode_set((tpu_mode)mode);
    tensor a, wide, whole;
    const int64_t sizes[2] = {3, 4}, line[1] = {4};
    float r[12];
    double w[12];
    CHECK_OK(floats(3, 4, 0, &a));
    tensor row = rows_of(&a, 1, 2), column = columns_of(&a, 2, 3);
    CHECK_OK(scale_into(lane, &row, 10, &row));
    CHECK_OK(add_into(lane, &column, &column, 1, &column));
    CHECK_OK(read_from(lane, &a, r));
    const float want[12] = {0, 1, 4, 3, 40, 50, 120, 70, 8, 9, 20, 11};
    CHECK(memcmp(r, want, sizeof r) == 0);
    /* Into a destination of another dtype, in part and whole. */
    CHECK_OK(empty_on(0, TPU_F64, 2, sizes, &wide));
    tensor part = rows_of(&wide, 2, 3);
    CHECK_OK(scale_into(lane, &row, 0.5, &part));
    CHECK_OK(read_from(lane, &wide, w));
    CHECK(w[0] == 0 && w[7] == 0 && w[8] == 20 && w[9] == 25 && w[10] == 60 && w[11] == 35);
    CHECK_OK(scale_into(lane, &a, 2, &wide));
    CHECK_OK(read_from(lane, &wide, w));
    for (int i = 0; i < 12; i++) CHECK(w[i] == 2 * want[i]);
    /* Host data into a part; the rest stays. */
    const float fresh[4] = {-1, -2, -3, -4};
    tensor last = rows_of(&a, 2, 3);
    CHECK_OK(write_to(lane, &last, fresh));
    CHECK_OK(read_from(lane, &a, r));
    CHECK(memcmp(r, want, 8 * sizeof *r) == 0 && memcmp(r + 8, fresh, sizeof fresh) == 0);
    /* Bytes read as another type. */
    CHECK_OK(empty_on(0, TPU_I32, 1, line, &whole));
    tensor as_int = whole;
    int32_t bits[4];
    as_int.s = a.s, as_int.offset = 8;
    CHECK_OK(copy_to(lane, &as_int, &whole));
    CHECK_OK(read_from(lane, &whole, bits));
    CHECK(memcmp(bits, fresh, sizeof bits) == 0);
    drop(&a), drop(&wide), drop(&whole);
    CHECK_EMPTY();
  }
}

TEST(resize) {
  NEED_CPU();
  EACH_MODE(mode) {
    tpu_mode_set((tpu_mode)mode);
    tensor a;
    float r[12];
    CHECK_OK(floats(2, 3, 1, &a));
    CHECK_OK(scale_into(lane, &a, 2, &a));
    CHECK_OK(tpu_storage_resize(lane, a.s, 48));
    a.sizes[0] = 4;
    tensor lower = rows_of(&a, 2, 4), upper = rows_of(&a, 0, 2);
    CHECK_OK(scale_into(lane, &upper, 1, &lower));
    CHECK_OK(read_from(lane, &a, r));
    for (int i = 0; i < 12; i++) CHECK(r[i] == (float)(2 * (1 + i % 6)));
    CHECK_OK(tpu_storage_resize(lane, a.s, 21));
    a.sizes[0] = 1;
    CHECK_OK(scale(lane, &a, 3, &lower));
    CHECK_OK(read_from(lane, &lower, r));
    for (int i = 0; i < 3; i++) CHECK(r[i] == (float)(6 * (1 + i)));
    drop(&a), drop(&lower);
    CHECK_EMPTY();
  }
}

TEST(random_numbers) {
  NEED_CPU();
  float first[64], r[64];
  EACH_MODE(mode) {
    tpu_mode_set((tpu_mode)mode);
    tpu_generator g = {.seed = 12345678901234567u};
    tensor a, u[3];
    CHECK_OK(floats(8, 8, 0, &a));
    for (int i = 0; i < 3; i++) {
      if (i == 2) g.offset = 0;
      CHECK_OK(call(&(spec){.row = &uniform_row, .n_tensors = 1, .t = {&a}, .generator = &g}, &u[i]));
    }
    CHECK_OK(read_from(lane, &u[0], r));
    float sum = 0;
    for (int i = 0; i < 64; i++) {
      CHECK(r[i] >= 0 && r[i] < 1);
      sum += r[i];
    }
    CHECK(sum > 20 && sum < 44);
    if (mode == TPU_DEFER_AND_FUSE) memcpy(first, r, sizeof r);
    CHECK(memcmp(first, r, sizeof r) == 0); /* whatever the mode */
    CHECK_OK(read_from(lane, &u[2], r));
    CHECK(memcmp(first, r, sizeof r) == 0); /* the same offset again */
    CHECK_OK(read_from(lane, &u[1], r));
    int equal = 0;
    for (int i = 0; i < 64; i++) equal += r[i] == first[i];
    CHECK(equal < 4);
    drop(&a);
    for (int i = 0; i < 3; i++) drop(&u[i]);
    CHECK_EMPTY();
  }
}

/* Sizes that keep changing share programs; what was made is larger than it tells. */
TEST(many_sizes) {
  NEED_CPU();
  EACH_MODE(mode) {
    tpu_mode_set((tpu_mode)mode);
    tpu_stats before, after;
    float r[200];
    tpu_cache_clear();
    tpu_stats_get(&before);
    for (int64_t n = 3; n < 20; n++) {
      tensor a, b, c, d;
      CHECK_OK(floats(n, 3, 1, &a));
      CHECK_OK(add(lane, &a, &a, 1, &b));
      CHECK_OK(mul(lane, &b, &a, &c));
      CHECK_OK(tpu_cut(lane, 0));
      tensor rows = rows_of(&c, 1, 3), t = turned(&c);
      CHECK_OK(scale_into(lane, &rows, -1, &rows));
      CHECK_OK(mm(lane, &t, &a, &d));
      CHECK_OK(read_from(lane, &c, r));
      for (int64_t i = 0; i < 3 * n; i++) CHECK(r[i] == (i >= 3 && i < 9 ? -2.0f : 2.0f) * (float)((i + 1) * (i + 1)));
      CHECK_OK(read_from(lane, &d, r));
      float want = 0;
      for (int64_t i = 0; i < n; i++) {
        float x = (float)(3 * i + 1);
        want += (i == 1 || i == 2 ? -2.0f : 2.0f) * x * x * x;
      }
      CHECK(fabsf(r[0] - want) <= 1e-5f * fabsf(want));
      drop(&a), drop(&b), drop(&c), drop(&d);
    }
    tpu_stats_get(&after);
    CHECK(after.compiles - before.compiles <= 28); /* not one for each of 17 sizes and 2 or more segments */
    CHECK_EMPTY();
  }
}

TEST(two_devices) {
  NEED_CPU();
  EACH_MODE(mode) {
    tpu_mode_set((tpu_mode)mode);
    tensor a, b, c;
    const int64_t sizes[2] = {2, 3};
    float r[6];
    CHECK_OK(floats_on(0, 2, 3, 1, &a));
    CHECK_OK(empty_on(1, TPU_F32, 2, sizes, &b));
    CHECK_OK(scale_into(lane, &a, 2, &a));
    CHECK_OK(copy_to(lane, &a, &b));
    CHECK_OK(scale(lane, &b, 10, &c));
    tensor from = columns_of(&a, 0, 1), to = columns_of(&c, 2, 3);
    CHECK_OK(copy_to(lane, &from, &to));
    CHECK_OK(copy_to(lane, &c, &a));
    CHECK_OK(read_from(lane, &a, r));
    const float want[6] = {20, 40, 2, 80, 100, 8};
    CHECK(memcmp(r, want, sizeof r) == 0);
    drop(&a), drop(&b), drop(&c);
    CHECK_EMPTY();
  }
}

/* w -= lr * (w - target), by the same program each time, its memory donated. */
TEST(descent) {
  NEED_CPU();
  tensor w, target, g;
  float r[12], host[12];
  CHECK_OK(floats(3, 4, 0, &w));
  CHECK_OK(floats(3, 4, 100, &target));
  for (int i = 0; i < 12; i++) host[i] = (float)i;
  tpu_stats before = stats_now();
  for (int step = 0; step < 20; step++) {
    double lr = 1.0 / (2 << step % 3);
    CHECK_OK(add(lane, &w, &target, -1, &g));
    CHECK_OK(add_into(lane, &w, &g, -lr, &w));
    drop(&g);
    CHECK_OK(tpu_cut(lane, -1));
    for (int i = 0; i < 12; i++) host[i] -= (float)lr * (host[i] - (float)(100 + i));
  }
  CHECK_INT(stats_now().compiles - before.compiles, 1);
  CHECK_INT(stats_now().donated - before.donated, 20);
  CHECK_OK(read_from(lane, &w, r));
  for (int i = 0; i < 12; i++) CHECK(fabsf(r[i] - host[i]) < 1e-4f);
  drop(&w), drop(&target);
  CHECK_EMPTY();
}

/* Rows written at positions that move, in the same program. */
TEST(moving_writes) {
  NEED_CPU();
  tensor cache, x;
  float r[64];
  CHECK_OK(floats(16, 4, 0, &cache));
  tpu_stats before = stats_now();
  for (int pos = 0; pos < 16; pos += 2) {
    CHECK_OK(floats(1, 4, (float)(1000 + pos), &x));
    tensor at = rows_of(&cache, pos, pos + 1), y;
    CHECK_OK(scale_into(lane, &x, 1, &x));
    CHECK_OK(copy_to(lane, &x, &at));
    CHECK_OK(scale(lane, &cache, 2, &y));
    CHECK_OK(read_from(lane, &y, r));
    for (int i = 0; i < 64; i++) {
      int row = i / 4;
      CHECK(r[i] == (row % 2 == 0 && row <= pos ? 2 * (float)(1000 + row + i % 4) : 2 * (float)i));
    }
    drop(&x), drop(&y);
  }
  CHECK_INT(stats_now().compiles - before.compiles, 2);
  drop(&cache);
  CHECK_EMPTY();
}

/* --- sequences against a model */
enum { STORES = 4, ELEMENTS = 24 };
typedef struct model {
  tensor t[STORES]; /* [6, 4]: float32 twice, float64, int64 */
  double data[STORES][ELEMENTS];
} model;
static unsigned state;
static int pick(int n) {
  state = state * 1664525u + 1013904223u;
  return (int)((state >> 8) % (unsigned)n);
}
static double as_dtype(tpu_dtype dtype, double v) {
  return dtype == TPU_I64 ? trunc(v) : dtype == TPU_F32 ? (double)(float)v : v;
}

/* Views of [2, 2], by number; or the whole, as [6, 4] and [4, 6]. */
static tensor view_of(const tensor *t, int which) {
  tensor v = *t;
  if (which == 0) return v;
  if (which == 1) return turned(t);
  v.sizes[0] = v.sizes[1] = 2;
  static const int64_t forms[][3] = {{4, 1, 0}, {4, 1, 10}, {8, 2, 1}, {1, 4, 5}, {12, 3, 0}, {2, 1, 20}, {1, 2, 3}, {4, 2, 9}};
  const int64_t *f = forms[(which - 2) % 8];
  v.strides[0] = f[0], v.strides[1] = f[1], v.offset = f[2];
  return v;
}
static void load(const model *m, int s, const tensor *v, double *out) {
  for (int64_t i = 0; i < v->sizes[0]; i++)
    for (int64_t j = 0; j < v->sizes[1]; j++)
      out[i * v->sizes[1] + j] = m->data[s][v->offset + i * v->strides[0] + j * v->strides[1]];
}
static void store(model *m, int s, const tensor *v, const double *in) {
  for (int64_t i = 0; i < v->sizes[0]; i++)
    for (int64_t j = 0; j < v->sizes[1]; j++)
      m->data[s][v->offset + i * v->strides[0] + j * v->strides[1]] = as_dtype(v->dtype, in[i * v->sizes[1] + j]);
}
static tpu_status model_make(model *m) {
  static const tpu_dtype dtypes[STORES] = {TPU_F32, TPU_F32, TPU_F64, TPU_I64};
  const int64_t sizes[2] = {6, 4};
  memset(m, 0, sizeof *m);
  for (int s = 0; s < STORES; s++) {
    TPU_TRY(empty_on(0, dtypes[s], 2, sizes, &m->t[s]));
    for (int i = 0; i < ELEMENTS; i++) m->data[s][i] = s == 1 ? 0 : i * (s + 1) - 20;
    float f[ELEMENTS];
    double d[ELEMENTS];
    int64_t n[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) f[i] = (float)m->data[s][i], d[i] = m->data[s][i], n[i] = (int64_t)m->data[s][i];
    if (s != 1)
      TPU_TRY(write_to(lane, &m->t[s], s == 0 ? (void *)f : s == 2 ? (void *)d : (void *)n)); /* 1 stays undefined: zeros */
  }
  return NULL;
}
static bool agrees(const model *m, int s) {
  union {
    float f[ELEMENTS];
    double d[ELEMENTS];
    int64_t n[ELEMENTS];
  } r;
  tpu_status status = read_from(lane, &m->t[s], &r);
  if (status) fprintf(stderr, "%s\n", tpu_status_message(status));
  bool good = !status;
  tpu_status_release(status);
  for (int i = 0; good && i < ELEMENTS; i++) {
    tpu_dtype t = m->t[s].dtype;
    double got = t == TPU_F32 ? (double)r.f[i] : t == TPU_F64 ? r.d[i] : (double)r.n[i];
    if (got != m->data[s][i]) {
      fprintf(stderr, "storage %d, element %d: %g, not %g\n", s, i, got, m->data[s][i]);
      good = false;
    }
  }
  return good;
}

static tpu_status random_step(model *m, char *trace, size_t size) {
  int kind = pick(6), a = pick(2), b = pick(2), d = pick(STORES);
  int va = pick(3) ? 2 + pick(8) : pick(2), vd = va < 2 ? va : 2 + pick(8);
  tensor x = view_of(&m->t[a], va), y = view_of(&m->t[b], va < 2 ? va : 2 + pick(8)), z = view_of(&m->t[d], vd);
  double p[ELEMENTS], q[ELEMENTS], r[ELEMENTS];
  int64_t n = numel(&x);
  load(m, a, &x, p);
  load(m, b, &y, q);
  tpu_status status = NULL;
  double by = pick(2) ? -1 : 2;
  snprintf(trace, size, "kind %d: %d(+%d,%d,%d) %d(+%d) -> %d(+%d,%d,%d) by %g", kind, a, (int)x.offset, (int)x.strides[0],
           (int)x.strides[1], b, (int)y.offset, d, (int)z.offset, (int)z.strides[0], (int)z.strides[1], by);
  switch (kind) {
    case 0:
    case 1:
      if (z.dtype == TPU_I64) return NULL; /* not a cast that out= may make */
      status = add_into(lane, &x, &y, by, &z);
      for (int64_t i = 0; i < n; i++) r[i] = p[i] + by * q[i];
      break;
    case 2:
      status = copy_to(lane, &x, &z);
      memcpy(r, p, sizeof r);
      break;
    case 3: { /* by way of a tensor of its own */
      if (z.dtype == TPU_I64) return NULL;
      tensor own;
      status = add(lane, &x, &y, 1, &own);
      if (status) return status;
      status = scale_into(lane, &own, -1, &z);
      drop(&own);
      for (int64_t i = 0; i < n; i++) r[i] = -(p[i] + q[i]);
      break;
    }
    case 4: { /* swap the roles of two storages: they share a value from now on */
      status = copy_to(lane, &m->t[a], &m->t[1 - a]);
      memcpy(m->data[1 - a], m->data[a], sizeof m->data[a]);
      return status;
    }
    default: {
      float host[ELEMENTS];
      if (z.dtype != TPU_F32) return NULL;
      for (int64_t i = 0; i < n; i++) r[i] = (double)(host[i] = (float)(pick(40) - 20));
      status = write_to(lane, &z, host);
      break;
    }
  }
  for (int64_t i = 0; i < n; i++)
    if (fabs(r[i]) > 1e6) r[i] = 0, by = 0;
  store(m, d, &z, r);
  return status;
}

static void sequences(unsigned seed, int count, int length) {
  for (int k = 0; k < count; k++) {
    model m;
    static char trace[64][128];
    state = seed + (unsigned)k * 7919u;
    CHECK_OK(model_make(&m));
    bool good = true;
    int steps = 0;
    for (; good && steps < length; steps++) {
      CHECK_OK(random_step(&m, trace[steps], sizeof trace[steps]));
      if (pick(8) == 0) CHECK_OK(tpu_cut(lane, -1));
      if (pick(8) == 0) tpu_cut_later(lane);
      if (pick(10) == 0) good = agrees(&m, pick(STORES));
    }
    for (int s = 0; good && s < STORES; s++) good = agrees(&m, s);
    if (!good)
      for (int i = 0; i < steps; i++) fprintf(stderr, "  %s\n", trace[i]);
    for (int s = 0; s < STORES; s++) drop(&m.t[s]);
    if (!good) CHECK_FAIL("sequence %d of seed %u", k, seed);
  }
}
static int longer(void) { return getenv("TPU_TEST_LONG") ? 20 : 1; }
TEST(sequences_fused) {
  NEED_CPU();
  sequences(1, 30 * longer(), 10);
  CHECK_EMPTY();
}
TEST(sequences_one_by_one) {
  NEED_CPU();
  tpu_mode_set(TPU_DEFER_NEVER);
  sequences(2, 30 * longer(), 10);
  tpu_mode_set(TPU_DEFER_NEVER_AND_LAUNCH_BLOCKING);
  sequences(3, 10 * longer(), 10);
  tpu_mode_set(TPU_DEFER_AND_FUSE);
  CHECK_EMPTY();
}

TEST_MAIN(TEST_CASE(arithmetic), TEST_CASE(writes_through_views), TEST_CASE(resize), TEST_CASE(random_numbers),
          TEST_CASE(many_sizes), TEST_CASE(two_devices), TEST_CASE(descent), TEST_CASE(moving_writes), TEST_CASE(sequences_fused),
          TEST_CASE(sequences_one_by_one));
