/* Composites and views as the CPU plugin at TPU_TEST_CPU_PLUGIN computes them, against plain loops. The forms for other platforms
 * run there too. */
#include <math.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/test.h"
#include "ir/attrs.h"
#include "ir/emit.h"
#include "ir/view.h"
#include "pjrt/client.h"

static const tpu_target targets[] = {
    {.platform = TPU_TARGET_CPU, .precision = TPU_PRECISION_HIGHEST, .host_custom_calls = true},
    {.platform = TPU_TARGET_TPU, .precision = TPU_PRECISION_HIGHEST},
};
enum { TARGETS = 2, MAX_OUTPUTS = 64 };

static tpu_client *client;
static tpu_arena arena;

static uint64_t seed = 1;
static int64_t pick(int64_t lo, int64_t hi) { /* both included */
  seed = tpu_hash_u64(seed + 0x9e3779b97f4a7c15u);
  return lo + (int64_t)(seed >> 8) % (hi - lo + 1);
}

static bool start(void) {
  const char *path = getenv("TPU_TEST_CPU_PLUGIN");
  tpu_plugin *plugin;
  if (!path) return false;
  tpu_arena_init(&arena, 1 << 20);
  tpu_status status = tpu_plugin_load(path, false, &plugin);
  if (!status) status = tpu_client_create(plugin, 1, &client);
  if (status) fprintf(stderr, "%s\n", tpu_status_message(status));
  return !status;
}
#define START()                                                               \
  if (!getenv("TPU_TEST_CPU_PLUGIN")) SKIP("TPU_TEST_CPU_PLUGIN is not set"); \
  CHECK(start())
static void end(void) {
  tpu_client_destroy(client);
  tpu_arena_destroy(&arena);
}

/* Expands, emits, compiles and runs the program of b; results in the arena. */
static tpu_status run(tpu_build *b, const tpu_val *outs, uint32_t n_outs, const void *const *params, void **results) {
  const tpu_target *target = b->target;
  TPU_TRY(tpu_build_status(b));
  TPU_TRY(tpu_graph_set_outputs(b->graph, outs, n_outs));
  tpu_graph *flat = tpu_graph_create();
  tpu_strbuf text = {0};
  tpu_module module = {0};
  tpu_executable *executable = NULL;
  tpu_buffer *in[MAX_OUTPUTS] = {NULL}, *out[MAX_OUTPUTS] = {NULL};
  const tpu_option exact = {"xla_cpu_enable_fast_min_max", "false"};
  const tpu_compile_options options = {.overrides = &exact, .override_count = 1};
  tpu_status status = tpu_graph_expand(b->graph, target, flat);
  if (!status) status = tpu_graph_verify(flat);
  if (!status) status = tpu_graph_emit(flat, target, "test", NULL, 0, &text, &module);
  if (!status) status = tpu_compile(client, text.data, text.size, &options, &executable);
  if (status && getenv("TPU_TEST_VERBOSE")) fprintf(stderr, "%s\n", text.data ? text.data : "");
  for (uint32_t i = 0; i < module.n_params && !status; i++) {
    for (uint32_t k = 0; k < tpu_graph_node_count(flat); k++) {
      const tpu_node *node = tpu_graph_node(flat, k);
      if (node->op != TPU_HLO_PARAM || tpu_node_attr(node, 0) != module.params[i]) continue;
      tpu_type t = tpu_graph_type(flat, (tpu_val){node->first_result});
      status = tpu_buffer_from_host(client, 0, t.dtype, t.rank, t.dims, params[module.params[i]], TPU_HOST_COPY, &in[i], NULL);
    }
  }
  if (!status) status = tpu_execute(client, executable, 0, in, module.n_params, NULL, 0, out, n_outs, NULL);
  for (uint32_t i = 0; i < n_outs && !status; i++) {
    tpu_type t = tpu_graph_type(b->graph, outs[i]);
    size_t bytes = (size_t)(tpu_type_numel(t) * tpu_dtype_bytes(t.dtype));
    tpu_event *done = NULL;
    results[i] = tpu_arena_alloc(&arena, bytes + 1);
    status = tpu_buffer_to_host(client, out[i], results[i], bytes, &done);
    if (!status) status = tpu_event_await(client, done);
    tpu_event_destroy(client, done);
  }
  for (uint32_t i = 0; i < MAX_OUTPUTS; i++) {
    tpu_buffer_destroy(client, in[i]);
    tpu_buffer_destroy(client, out[i]);
  }
  tpu_executable_destroy(client, executable);
  tpu_strbuf_destroy(&text);
  tpu_graph_destroy(flat);
  return status;
}

/* --- scans */
static double scan_op(tpu_monoid op, double x, double y) {
  switch (op) {
    case TPU_MONOID_ADD: return x + y;
    case TPU_MONOID_MUL: return x * y;
    case TPU_MONOID_MAX: return isnan(x) || isnan(y) ? (double)NAN : x > y ? x : y;
    case TPU_MONOID_MIN: return isnan(x) || isnan(y) ? (double)NAN : x < y ? x : y;
    case TPU_MONOID_AND: return (double)((int64_t)x & (int64_t)y);
    default: return (double)((int64_t)x | (int64_t)y);
  }
}

static double get(tpu_dtype t, const void *p, int64_t i) {
  switch (t) {
    case TPU_F32: return (double)((const float *)p)[i];
    case TPU_F64: return ((const double *)p)[i];
    case TPU_I32: return ((const int32_t *)p)[i];
    case TPU_U32: return ((const uint32_t *)p)[i];
    case TPU_I64: return (double)((const int64_t *)p)[i];
    default: return ((const uint8_t *)p)[i];
  }
}
static void put(tpu_dtype t, void *p, int64_t i, double v) {
  switch (t) {
    case TPU_F32: ((float *)p)[i] = (float)v; break;
    case TPU_F64: ((double *)p)[i] = v; break;
    case TPU_I32: ((int32_t *)p)[i] = (int32_t)v; break;
    case TPU_U32: ((uint32_t *)p)[i] = (uint32_t)v; break;
    case TPU_I64: ((int64_t *)p)[i] = (int64_t)v; break;
    default: ((uint8_t *)p)[i] = (uint8_t)v;
  }
}

/* All monoids along dim of one array; `both` directions, or each monoid in one. */
static bool check_scans(const tpu_target *target, tpu_dtype dtype, int rank, const int64_t *dims, int dim, bool both) {
  tpu_arena_reset(&arena);
  tpu_graph *g = tpu_graph_create();
  tpu_build b;
  tpu_build_init(&b, g, target);
  int64_t n = tpu_type_numel((tpu_type){dtype, rank, dims}), inner = 1;
  for (int i = dim + 1; i < rank; i++) inner *= dims[i];
  unsigned char *data = tpu_arena_alloc(&arena, (size_t)n * 8 + 8);
  for (int64_t i = 0; i < n; i++) {
    double v = dtype == TPU_BOOL ? (double)pick(0, 1) : (double)pick(-3, 3);
    if (tpu_is_float(dtype) && pick(0, 999) == 0) v = pick(0, 1) ? (double)NAN : (double)INFINITY;
    put(dtype, data, i, v);
  }
  tpu_val x = tpu_param(&b, dtype, rank, dims), outs[12];
  int ops[12], reverse[12], count = 0;
  for (int op = TPU_MONOID_ADD; op <= TPU_MONOID_OR; op++) {
    bool logic = op == TPU_MONOID_AND || op == TPU_MONOID_OR;
    if ((logic && tpu_is_float(dtype)) || (dtype == TPU_BOOL && !logic)) continue;
    for (int r = both ? 0 : op & 1; r < (both ? 2 : (op & 1) + 1); r++) {
      ops[count] = op, reverse[count] = r;
      outs[count++] = tpu_cumulative(&b, (tpu_monoid)op, x, dim, r != 0);
    }
  }
  const void *params[1] = {data};
  void *results[12];
  tpu_status status = run(&b, outs, (uint32_t)count, params, results);
  if (status) fprintf(stderr, "%s\n", tpu_status_message(status));
  bool ok = !status;
  tpu_status_release(status);
  for (int c = 0; c < count && ok; c++) {
    for (int64_t i = 0; i < n && ok; i++) {
      int64_t at = i / inner % dims[dim];
      if (reverse[c] ? at != dims[dim] - 1 : at != 0) continue;
      double sum = get(dtype, data, i);
      int64_t step = reverse[c] ? -inner : inner;
      for (int64_t k = 0, e = i; k < dims[dim] && ok; k++, e += step) {
        if (k) sum = scan_op((tpu_monoid)ops[c], sum, get(dtype, data, e));
        if (!tpu_is_float(dtype)) { /* wrap as the type does */
          if (fabs(sum) > 1e15) sum = 0;
        }
        double got = get(dtype, results[c], e);
        ok = isnan(sum) ? isnan(got) : got == sum || fabs(got - sum) <= 1e-3 * fabs(sum);
        if (dtype != TPU_BOOL && ops[c] == TPU_MONOID_MUL && (!tpu_is_float(dtype) || fabs(sum) > 1e30)) ok = true;
        if (!ok)
          fprintf(stderr, "%s monoid %d reverse %d dim %d of [%lld, ..] at %lld: %g, not %g\n", tpu_dtype_name(dtype), ops[c],
                  reverse[c], dim, (long long)dims[0], (long long)e, got, sum);
      }
    }
  }
  tpu_graph_destroy(g);
  return ok;
}

TEST(scans) {
  START();
  static const struct {
    tpu_dtype dtype;
    int rank;
    int64_t dims[3];
    int dim;
  } cases[] = {
      {TPU_F32, 1, {1000}, 0},     {TPU_I32, 3, {3, 17, 20}, 1}, {TPU_BOOL, 2, {5, 9}, 0},
      {TPU_F64, 2, {20, 2500}, 1}, {TPU_F32, 2, {2, 33001}, 1},  {TPU_I64, 2, {20011, 3}, 0},
  };
  bool ok = true;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int t = 0; t < (i < 3 ? TARGETS : 1); t++)
      ok = ok && check_scans(&targets[t], cases[i].dtype, cases[i].rank, cases[i].dims, cases[i].dim, i < 3);
  end();
  CHECK(ok);
}

/* --- top-k */
static bool before(tpu_dtype t, const void *p, int64_t i, int64_t k, bool largest) {
  if (t == TPU_I64) {
    int64_t x = ((const int64_t *)p)[i], y = ((const int64_t *)p)[k];
    return x != y ? (largest ? x > y : x < y) : i < k;
  }
  double x = get(t, p, i), y = get(t, p, k);
  if (isnan(x) || isnan(y)) {
    if (isnan(x) && isnan(y)) return i < k;
    return isnan(x) == largest;
  }
  return x != y ? (largest ? x > y : x < y) : i < k;
}

static bool check_top_k(const tpu_target *target, tpu_dtype dtype, int64_t rows, int64_t n, int64_t k) {
  tpu_arena_reset(&arena);
  tpu_graph *g = tpu_graph_create();
  tpu_build b;
  tpu_build_init(&b, g, target);
  unsigned char *data = tpu_arena_alloc(&arena, (size_t)(rows * n) * 8 + 8);
  size_t item = (size_t)tpu_dtype_bytes(dtype);
  for (int64_t i = 0; i < rows * n; i++) {
    double v = (double)pick(-4, 4);
    if (dtype == TPU_BOOL) v = (double)pick(0, 1);
    if (dtype == TPU_U8) v = (double)pick(0, 255);
    if (dtype == TPU_U32) v = (double)pick(4294967200, 4294967295) * (double)pick(0, 1);
    if (dtype == TPU_I32) v = (double)pick(0, 1) * (double)pick(INT32_MIN, INT32_MAX);
    if (tpu_is_float(dtype)) {
      static const double odd[6] = {NAN, -INFINITY, INFINITY, -0.0, 0.0, 1e-30};
      if (pick(0, 1)) v = odd[pick(0, 5)];
      if (isnan(v) && pick(0, 1)) v = -v;
    }
    put(dtype, data, i, v);
    if (dtype == TPU_I64) ((int64_t *)(void *)data)[i] = INT64_C(9007199254740993) * pick(-1, 1) + pick(-2, 2);
  }
  const int64_t dims[3] = {rows, 1, n};
  tpu_val x = tpu_param(&b, dtype, 3, dims), outs[4];
  tpu_top_k(&b, x, k, true, outs);
  tpu_top_k(&b, x, k, false, outs + 2);
  const void *params[1] = {data};
  void *results[4];
  tpu_status status = run(&b, outs, 4, params, results);
  if (status) fprintf(stderr, "%s\n", tpu_status_message(status));
  bool ok = !status;
  tpu_status_release(status);
  int64_t *order = tpu_arena_alloc(&arena, sizeof *order * (size_t)n);
  for (int largest = 0; largest < 2 && ok; largest++)
    for (int64_t r = 0; r < rows && ok; r++) {
      const unsigned char *row = data + (size_t)(r * n) * item;
      for (int64_t i = 0; i < n; i++) {
        int64_t at = i;
        for (; at > 0 && before(dtype, row, i, order[at - 1], largest != 0); at--) order[at] = order[at - 1];
        order[at] = i;
      }
      for (int64_t i = 0; i < k && ok; i++) {
        const unsigned char *values = results[largest ? 0 : 2];
        const int32_t *indices = results[largest ? 1 : 3];
        ok = indices[r * k + i] == order[i] &&
             memcmp(values + (size_t)(r * k + i) * item, row + (size_t)order[i] * item, item) == 0;
        if (!ok)
          fprintf(stderr, "%s largest %d row %lld place %lld: index %d, not %lld\n", tpu_dtype_name(dtype), largest, (long long)r,
                  (long long)i, indices[r * k + i], (long long)order[i]);
      }
    }
  tpu_graph_destroy(g);
  return ok;
}

TEST(top_k) {
  START();
  static const tpu_dtype dtypes[] = {TPU_F32, TPU_F64, TPU_I32, TPU_U32, TPU_I64, TPU_U8, TPU_BOOL};
  bool ok = true;
  for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes && ok; i++)
    for (int t = 0; t < TARGETS; t++)
      ok = ok && check_top_k(&targets[t], dtypes[i], 3, 50, 50) && check_top_k(&targets[t], dtypes[i], 2, 700, 5);
  ok = ok && check_top_k(&targets[0], TPU_F32, 1, 1, 1) && check_top_k(&targets[0], TPU_F32, 2, 9, 0);
  end();
  CHECK(ok);
}

/* --- random bits: the forms for all targets give one stream here */
TEST(random_bits) {
  START();
  const int64_t two = 2, dims[2] = {37, 11};
  const uint64_t state[2] = {UINT64_C(0x0123456789abcdef), UINT64_C(0xfffffff0)};
  const void *params[1] = {state};
  void *results[TARGETS][2];
  for (int t = 0; t < TARGETS; t++) {
    tpu_graph *g = tpu_graph_create();
    tpu_build b;
    tpu_build_init(&b, g, &targets[t]);
    tpu_val s = tpu_param(&b, TPU_U64, 1, &two);
    tpu_val outs[2] = {tpu_random_bits(&b, s, TPU_U32, 2, dims), tpu_random_bits(&b, s, TPU_U64, 2, dims)};
    CHECK_OK(run(&b, outs, 2, params, results[t]));
    tpu_graph_destroy(g);
  }
  CHECK(memcmp(results[0][0], results[1][0], 37 * 11 * 4) == 0);
  CHECK(memcmp(results[0][1], results[1][1], 37 * 11 * 8) == 0);
  /* The paper's loop for the first block; ir/expand_test.c compares all. */
  const uint32_t *words = results[0][0];
  uint32_t c[4] = {0xfffffff0, 0, 0, 0}, k[2] = {0x89abcdef, 0x01234567};
  for (int r = 0; r < 10; r++) {
    uint64_t p0 = UINT64_C(0xD2511F53) * c[0], p1 = UINT64_C(0xCD9E8D57) * c[2];
    uint32_t n[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k[0], (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c[3] ^ k[1], (uint32_t)p0};
    memcpy(c, n, sizeof c);
    k[0] += 0x9E3779B9, k[1] += 0xBB67AE85;
  }
  for (int w = 0; w < 4; w++) CHECK_INT(words[w * 102], c[w]); /* 407 elements: 102 blocks */
  end();
}

/* --- views: reads and writes of many kinds in one program a dtype pair */
typedef struct view_case {
  int rank;
  int64_t sizes[TPU_MAX_RANK], strides[TPU_MAX_RANK], offset;
} view_case;

static bool check_views(tpu_dtype from, tpu_dtype to, int rank, const int64_t *dims, bool dynamic, int n_cases,
                        const view_case *cases) {
  tpu_arena_reset(&arena);
  tpu_graph *g = tpu_graph_create();
  tpu_build b;
  tpu_build_init(&b, g, &targets[0]);
  size_t bytes = (size_t)(tpu_type_numel((tpu_type){from, rank, dims}) * tpu_dtype_bytes(from)),
         item = (size_t)tpu_dtype_bytes(to);
  unsigned char *data = tpu_arena_alloc(&arena, bytes);
  for (size_t i = 0; i < bytes; i++) data[i] = (unsigned char)pick(0, from == TPU_BOOL || to == TPU_BOOL ? 1 : 255);
  /* XLA's CPU compiler moves 16-bit floats through F32, which quiets NaN and flushes denormals: none of those. */
  bool tame = from == TPU_BF16 || to == TPU_BF16;
  for (size_t i = 0; i < bytes && tame; i++) data[i] = (unsigned char)((data[i] & 0xbf) | 0x10);
  const void *params[1 + MAX_OUTPUTS] = {data};
  uint32_t n_params = 1;
  tpu_val x = tpu_param(&b, from, rank, dims), outs[MAX_OUTPUTS];
  for (int c = 0; c < n_cases; c++) {
    const view_case *v = &cases[c];
    int64_t n = tpu_type_numel((tpu_type){to, v->rank, v->sizes});
    tpu_view_geometry view = {.dtype = to, .rank = v->rank, .sizes = v->sizes, .strides = v->strides, .offset = v->offset};
    if (dynamic) {
      params[n_params++] = &v->offset;
      view.dyn_offset = tpu_param(&b, TPU_I64, 0, NULL);
    }
    unsigned char *value = tpu_arena_alloc(&arena, (size_t)n * item);
    for (size_t i = 0; i < (size_t)n * item; i++) value[i] = (unsigned char)pick(0, from == TPU_BOOL || to == TPU_BOOL ? 1 : 255);
    for (size_t i = 0; i < (size_t)n * item && tame; i++) value[i] = (unsigned char)((value[i] & 0xbf) | 0x10);
    params[n_params++] = value;
    outs[2 * c] = tpu_view_read(&b, x, &view);
    outs[2 * c + 1] = tpu_view_write(&b, x, &view, tpu_param(&b, to, v->rank, v->sizes));
  }
  void *results[MAX_OUTPUTS];
  tpu_status status = run(&b, outs, 2 * (uint32_t)n_cases, params, results);
  if (status) fprintf(stderr, "%s\n", tpu_status_message(status));
  bool ok = !status;
  tpu_status_release(status);
  for (int c = 0; c < n_cases && ok; c++) {
    const view_case *v = &cases[c];
    const unsigned char *value = params[dynamic ? 2 * c + 2 : c + 1];
    unsigned char *want = tpu_arena_copy(&arena, data, bytes);
    for (int64_t i = 0, n = tpu_type_numel((tpu_type){to, v->rank, v->sizes}); i < n && ok; i++) {
      int64_t at = v->offset, rest = i;
      for (int d = v->rank - 1; d >= 0; d--) at += rest % v->sizes[d] * v->strides[d], rest /= v->sizes[d];
      ok = memcmp((char *)results[2 * c] + (size_t)i * item, data + (size_t)at * item, item) == 0;
      memcpy(want + (size_t)at * item, value + (size_t)i * item, item);
    }
    if (!ok) fprintf(stderr, "read ");
    if (ok && memcmp(want, results[2 * c + 1], bytes) != 0) ok = false;
    if (!ok) fprintf(stderr, "case %d of %s as %s\n", c, tpu_dtype_name(from), tpu_dtype_name(to));
  }
  tpu_graph_destroy(g);
  return ok;
}

TEST(views) {
  START();
  static const view_case matrix[] = {
      {2, {12, 20}, {20, 1}, 0},
      {2, {20, 12}, {1, 20}, 0},
      {2, {5, 7}, {40, 2}, 3},
      {1, {12}, {21}, 0},
      {1, {11}, {21}, 1},
      {2, {3, 20}, {40, 1}, 20},
      {3, {12, 3, 20}, {20, 0, 1}, 0},
      {3, {12, 9, 4}, {20, 2, 1}, 0},
      {3, {4, 9, 5}, {17, 3, 1}, 2},
      {2, {30, 7}, {7, 1}, 30},
      {2, {1, 20}, {77, 1}, 220},
      {0, {0}, {0}, 239},
      {2, {0, 3}, {3, 1}, 0},
      {4, {2, 5, 3, 4}, {120, 4, 40, 1}, 0},
      {2, {50, 40}, {2, 3}, 1},
  };
  const int64_t dims[2] = {12, 20};
  bool ok = check_views(TPU_F32, TPU_F32, 2, dims, false, sizeof matrix / sizeof *matrix, matrix);
  ok = ok && check_views(TPU_I64, TPU_I64, 2, dims, true, sizeof matrix / sizeof *matrix, matrix);
  ok = ok && check_views(TPU_BF16, TPU_BF16, 2, dims, false, sizeof matrix / sizeof *matrix, matrix);
  ok = ok && check_views(TPU_BOOL, TPU_BOOL, 2, dims, false, sizeof matrix / sizeof *matrix, matrix);

  static const view_case cast[] = {
      {3, {2, 3, 2}, {6, 2, 1}, 0}, {2, {2, 3}, {6, 2}, 0}, {2, {2, 3}, {6, 2}, 1}, {1, {5}, {1}, 1}};
  static const tpu_dtype pairs[][2] = {{TPU_C64, TPU_F32},  {TPU_C128, TPU_F64}, {TPU_C64, TPU_I32},  {TPU_I64, TPU_F32},
                                       {TPU_F64, TPU_C64},  {TPU_F32, TPU_C64},  {TPU_U8, TPU_F32},   {TPU_F32, TPU_U8},
                                       {TPU_BF16, TPU_I16}, {TPU_BOOL, TPU_U8},  {TPU_F64, TPU_BF16}, {TPU_I16, TPU_F64}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs && ok; i++) {
    int64_t ratio_dims[2] = {12, 13}; /* odd: the rest of the storage belongs to no element */
    ok = check_views(pairs[i][0], pairs[i][1], 2, ratio_dims, false, sizeof cast / sizeof *cast, cast);
  }

  view_case deep = {.rank = TPU_MAX_RANK};
  int64_t many[TPU_MAX_RANK];
  for (int i = 0; i < TPU_MAX_RANK; i++) many[i] = deep.sizes[i] = i % 8 == 0 ? 2 : 1, deep.strides[i] = 1;
  for (int i = 0, s = 1; i < TPU_MAX_RANK; i += 8, s *= 2) deep.strides[i] = s; /* reversed */
  ok = ok && check_views(TPU_F32, TPU_F32, TPU_MAX_RANK, many, false, 1, &deep);
  end();
  CHECK(ok);
}

TEST_MAIN(TEST_CASE(scans), TEST_CASE(top_k), TEST_CASE(random_bits), TEST_CASE(views));
