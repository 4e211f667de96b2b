#include "ir/view.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "base/test.h"
#include "ir/graph_private.h"
#include "ir/interp_test.h"

typedef struct geometry {
  int rank;
  int64_t sizes[TPU_MAX_RANK], strides[TPU_MAX_RANK], offset;
} geometry;

static uint64_t seed = 1;
static int64_t pick(int64_t lo, int64_t hi) { /* both included */
  seed = tpu_hash_u64(seed + 0x9e3779b97f4a7c15u);
  return lo + (int64_t)(seed >> 8) % (hi - lo + 1);
}

static int64_t numel(int rank, const int64_t *dims) {
  int64_t n = 1;
  for (int i = 0; i < rank; i++) n *= dims[i];
  return n;
}
static int64_t extent(const geometry *g) {
  int64_t e = 0;
  for (int i = 0; i < g->rank; i++) e += (g->sizes[i] - 1) * g->strides[i];
  return e;
}
static geometry contiguous(int rank, const int64_t *dims) {
  geometry g = {.rank = rank};
  int64_t stride = 1;
  for (int i = rank - 1; i >= 0; i--) {
    g.sizes[i] = dims[i], g.strides[i] = stride;
    stride *= dims[i];
  }
  return g;
}

/* --- PyTorch's views */
static void remove_dim(geometry *g, int d) {
  g->rank--;
  for (int i = d; i < g->rank; i++) g->sizes[i] = g->sizes[i + 1], g->strides[i] = g->strides[i + 1];
}
static void insert_dim(geometry *g, int d, int64_t size, int64_t stride) {
  for (int i = g->rank; i > d; i--) g->sizes[i] = g->sizes[i - 1], g->strides[i] = g->strides[i - 1];
  g->rank++;
  g->sizes[d] = size, g->strides[d] = stride;
}
static void slice(geometry *g, int d, int64_t start, int64_t end, int64_t step) {
  g->offset += start * g->strides[d];
  g->sizes[d] = (end - start + step - 1) / step;
  g->strides[d] *= step;
}
static void select_at(geometry *g, int d, int64_t i) {
  g->offset += i * g->strides[d];
  remove_dim(g, d);
}
static void transpose(geometry *g, int a, int b) {
  int64_t size = g->sizes[a], stride = g->strides[a];
  g->sizes[a] = g->sizes[b], g->strides[a] = g->strides[b];
  g->sizes[b] = size, g->strides[b] = stride;
}
static void unfold(geometry *g, int d, int64_t size, int64_t step) {
  int64_t stride = g->strides[d];
  g->sizes[d] = (g->sizes[d] - size) / step + 1;
  g->strides[d] *= step;
  insert_dim(g, g->rank, size, stride);
}
static void split_dim(geometry *g, int d, int64_t inner) {
  int64_t stride = g->strides[d];
  g->sizes[d] /= inner;
  g->strides[d] *= inner;
  insert_dim(g, d + 1, inner, stride);
}
static void merge_dims(geometry *g, int d) { /* d and d + 1 */
  if (g->strides[d] != g->strides[d + 1] * g->sizes[d + 1]) return;
  g->sizes[d + 1] *= g->sizes[d];
  remove_dim(g, d);
}
static void diagonal(geometry *g, int a, int b, int64_t off) {
  int64_t n = off >= 0 ? g->sizes[b] - off : g->sizes[a] + off, m = off >= 0 ? g->sizes[a] : g->sizes[b];
  if (n > m) n = m;
  if (n <= 0) return;
  g->offset += off >= 0 ? off * g->strides[b] : -off * g->strides[a];
  int64_t stride = g->strides[a] + g->strides[b];
  remove_dim(g, a > b ? a : b);
  remove_dim(g, a > b ? b : a);
  insert_dim(g, g->rank, n, stride);
}

static void random_view(geometry *g, int64_t n) {
  int d = g->rank ? (int)pick(0, g->rank - 1) : 0, e = g->rank ? (int)pick(0, g->rank - 1) : 0;
  int64_t size = g->rank ? g->sizes[d] : 0;
  switch (g->rank ? pick(0, 10) : 6) {
    case 0: {
      int64_t s = pick(0, size - 1);
      slice(g, d, s, pick(s + 1, size), pick(1, 3));
      break;
    }
    case 1: {
      int64_t s = pick(0, size - 1);
      slice(g, d, s, pick(s + 1, size), 1);
      break;
    }
    case 2: select_at(g, d, pick(0, size - 1)); break;
    case 3: transpose(g, d, e); break;
    case 4:
      if (g->rank < 8) {
        int64_t w = pick(1, size < 5 ? size : 5);
        unfold(g, d, w, pick(1, 3));
      }
      break;
    case 5:
      if (size == 1) g->sizes[d] = pick(1, 4), g->strides[d] = 0;
      break;
    case 6:
      if (g->rank < 8) insert_dim(g, (int)pick(0, g->rank), 1, pick(0, 5));
      break;
    case 7:
      if (size % 2 == 0 && g->rank < 8)
        split_dim(g, d, 2);
      else if (size % 3 == 0 && g->rank < 8)
        split_dim(g, d, 3);
      break;
    case 8:
      if (d + 1 < g->rank) merge_dims(g, d);
      break;
    case 9:
      if (d != e) diagonal(g, d, e, pick(-1, 1));
      break;
    default:
      if (pick(0, 3) == 0) { /* as_strided */
        g->rank = (int)pick(0, 3);
        int64_t room = n - 1;
        g->offset = pick(0, room);
        room -= g->offset;
        for (int i = 0; i < g->rank; i++) {
          g->strides[i] = pick(0, 12), g->sizes[i] = pick(1, 5);
          if (g->strides[i] && (g->sizes[i] - 1) * g->strides[i] > room) g->sizes[i] = room / g->strides[i] + 1;
          room -= (g->sizes[i] - 1) * g->strides[i];
        }
      }
  }
}

/* --- one case: read and write against plain loops */
typedef struct counts {
  int reads, read_gathers, writes, write_scatters;
} counts;

static int count_ops(const tpu_graph *g, tpu_hlo op) {
  int n = 0;
  for (uint32_t i = 0; i < tpu_graph_node_count(g); i++) n += tpu_graph_node(g, i)->op == op;
  return n;
}
/* Nodes that an output needs, without the inputs. */
static int count_live(const tpu_graph *g) {
  int n = 0;
  tpu_graph_mark_live(g);
  for (uint32_t i = 0; i < tpu_graph_node_count(g); i++) {
    const tpu_node *node = tpu_graph_node(g, i);
    n += tpu_node_is_live(g, node) && node->op != TPU_HLO_PARAM;
  }
  return n;
}

static const tpu_target cpu = {.platform = TPU_TARGET_CPU}, chip = {.platform = TPU_TARGET_TPU};
static const tpu_target *target = &cpu;
static tpu_graph *graph;
static tpu_arena arena;

static tpu_view_geometry view_of(tpu_dtype dtype, const geometry *g) {
  return (tpu_view_geometry){.dtype = dtype, .rank = g->rank, .sizes = g->sizes, .strides = g->strides, .offset = g->offset};
}

static int64_t address(const geometry *g, int64_t offset, int64_t i) {
  int64_t a = offset;
  for (int d = g->rank - 1; d >= 0; d--) a += i % g->sizes[d] * g->strides[d], i /= g->sizes[d];
  return a;
}

static void describe(const char *what, tpu_type base, const geometry *g) {
  fprintf(stderr, "%s: base %s [", what, tpu_dtype_name(base.dtype));
  for (int i = 0; i < base.rank; i++) fprintf(stderr, "%lld ", (long long)base.dims[i]);
  fprintf(stderr, "] sizes [");
  for (int i = 0; i < g->rank; i++) fprintf(stderr, "%lld ", (long long)g->sizes[i]);
  fprintf(stderr, "] strides [");
  for (int i = 0; i < g->rank; i++) fprintf(stderr, "%lld ", (long long)g->strides[i]);
  fprintf(stderr, "] offset %lld\n", (long long)g->offset);
}

/* multiple: 0 static; else the offset is a slot that takes multiples of it. */
static bool check_case(tpu_type base, tpu_dtype dtype, const geometry *g, int64_t multiple, counts *c) {
  tpu_arena_reset(&arena);
  size_t item = (size_t)tpu_dtype_bytes(dtype), base_bytes = (size_t)(tpu_type_numel(base) * tpu_dtype_bytes(base.dtype));
  int64_t n = numel(g->rank, g->sizes), all = (int64_t)(base_bytes / item);
  unsigned char *data = tpu_arena_alloc(&arena, base_bytes + 8), *value = tpu_arena_alloc(&arena, (size_t)n * item + 8);
  unsigned char *want = tpu_arena_alloc(&arena, base_bytes + (size_t)n * item + 8);
  bool bits = dtype == TPU_BOOL || base.dtype == TPU_BOOL;
  for (size_t i = 0; i < base_bytes; i++) data[i] = (unsigned char)pick(0, bits ? 1 : 255);
  for (size_t i = 0; i < (size_t)n * item; i++) value[i] = (unsigned char)pick(0, bits ? 1 : 255);

  tpu_graph_reset(graph);
  tpu_build b;
  tpu_build_init(&b, graph, target);
  tpu_view_geometry v = view_of(dtype, g);
  tpu_val x = tpu_param(&b, base.dtype, base.rank, base.dims), y = tpu_param(&b, dtype, g->rank, g->sizes);
  if (multiple) v.dyn_offset = tpu_slot(&b, 0, TPU_I64), v.dyn_multiple = multiple, v.offset = -99;
  tpu_val read = tpu_view_read(&b, x, &v);
  int gathers = count_ops(graph, TPU_HLO_GATHER);
  tpu_val written = tpu_view_write(&b, x, &v, y);
  tpu_status status = tpu_build_status(&b);
  if (status) {
    fprintf(stderr, "%s\n", tpu_status_message(status));
    tpu_status_release(status);
    describe("build", base, g);
    return false;
  }
  if (c) {
    c->reads++, c->writes++;
    c->read_gathers += gathers > 0;
    c->write_scatters += count_ops(graph, TPU_HLO_SCATTER) > 0;
  }
  if (!tpu_type_equal(tpu_type_of(&b, read), (tpu_type){dtype, g->rank, g->sizes}) ||
      !tpu_type_equal(tpu_type_of(&b, written), base)) {
    describe("type", base, g);
    return false;
  }
  int64_t most = all - 1 - extent(g);
  if (n == 0) most = 0;
  for (int k = 0; k < (multiple ? 4 : 1); k++) {
    int64_t offset = multiple ? (k == 0 ? 0 : k == 1 ? most / multiple : pick(0, most / multiple)) * multiple : g->offset;
    const void *params[2] = {data, value};
    interp in = {.graph = graph, .arena = &arena, .params = params, .slots = &offset};
    if (!interp_run(&in)) {
      fprintf(stderr, "not evaluated: %s\n", in.refused);
      return false;
    }
    for (int64_t i = 0; i < n; i++) memcpy(want + (size_t)i * item, data + (size_t)address(g, offset, i) * item, item);
    if (memcmp(want, in.values[read.id].data, (size_t)n * item) != 0) {
      describe("read", base, g);
      fprintf(stderr, "multiple %lld, offset %lld\n", (long long)multiple, (long long)offset);
      return false;
    }
    memcpy(want, data, base_bytes);
    for (int64_t i = 0; i < n; i++) memcpy(want + (size_t)address(g, offset, i) * item, value + (size_t)i * item, item);
    if (memcmp(want, in.values[written.id].data, base_bytes) != 0) {
      describe("write", base, g);
      fprintf(stderr, "multiple %lld, offset %lld\n", (long long)multiple, (long long)offset);
      return false;
    }
  }
  return true;
}

static void start(void) {
  graph = tpu_graph_create();
  tpu_arena_init(&arena, 0);
}
static void end(void) {
  tpu_graph_destroy(graph);
  tpu_arena_destroy(&arena);
}

static geometry random_case(int64_t *dims, int *out_rank) {
  int rank = (int)pick(0, 4);
  for (int i = 0; i < rank; i++) dims[i] = pick(1, 6);
  *out_rank = rank;
  geometry g = contiguous(rank, dims);
  for (int64_t k = pick(0, 6); k > 0; k--) random_view(&g, numel(rank, dims));
  return g;
}

TEST(fuzz_static) {
  start();
  counts c = {0};
  bool ok = true;
  for (int i = 0; i < 8000 && ok; i++) {
    int64_t dims[4];
    int rank;
    geometry g = random_case(dims, &rank);
    target = i & 1 ? &cpu : &chip;
    if (numel(g.rank, g.sizes) > 5000) continue;
    ok = check_case((tpu_type){TPU_I64, rank, dims}, TPU_I64, &g, 0, target == &chip ? &c : NULL);
  }
  end();
  CHECK(ok);
  CHECK(c.read_gathers * 100 < c.reads && c.write_scatters * 20 < c.writes);
}

TEST(fuzz_dynamic) {
  start();
  counts c = {0};
  bool ok = true;
  for (int i = 0; i < 4000 && ok; i++) {
    int64_t dims[4];
    int rank;
    geometry g = random_case(dims, &rank);
    target = i & 1 ? &cpu : &chip;
    if (numel(g.rank, g.sizes) > 5000) continue;
    int64_t multiple = pick(0, 1) ? 1 : rank > 1 && pick(0, 1) ? dims[rank - 1] : pick(1, 12);
    ok = check_case((tpu_type){TPU_I64, rank, dims}, TPU_I64, &g, multiple, target == &chip ? &c : NULL);
  }
  end();
  CHECK(ok);
  CHECK(c.read_gathers * 100 < c.reads);
}

/* Reading and writing under another dtype. */
TEST(fuzz_dtypes) {
  static const tpu_dtype dtypes[] = {TPU_U8, TPU_I16, TPU_I32, TPU_F32, TPU_I64, TPU_F64, TPU_C64, TPU_C128, TPU_BOOL, TPU_BF16};
  enum { N = sizeof dtypes / sizeof *dtypes };
  start();
  bool ok = true;
  for (int i = 0; i < 6000 && ok; i++) {
    int64_t dims[4];
    int rank = (int)pick(0, 3);
    for (int d = 0; d < rank; d++) dims[d] = pick(1, 6);
    tpu_dtype from = dtypes[pick(0, N - 1)], to = dtypes[pick(0, N - 1)];
    if ((from == TPU_BOOL) != (to == TPU_BOOL) && tpu_dtype_bytes(from) + tpu_dtype_bytes(to) > 2) continue;
    int64_t n = numel(rank, dims) * tpu_dtype_bytes(from) / tpu_dtype_bytes(to);
    if (n == 0) continue;
    geometry g;
    if (pick(0, 2) == 0) { /* view_as_real, view.dtype: the dims with another last one */
      g = contiguous(rank, dims);
      int64_t a = tpu_dtype_bytes(from), c = tpu_dtype_bytes(to);
      if (a > c) {
        insert_dim(&g, rank, a / c, 1);
        for (int d = 0; d < rank; d++) g.strides[d] *= a / c;
      } else if (rank && dims[rank - 1] % (c / a) == 0) {
        for (int d = 0; d < rank; d++) g.strides[d] /= d == rank - 1 ? 1 : c / a;
        g.sizes[rank - 1] /= c / a;
      } else {
        g = contiguous(1, &n);
      }
    } else {
      g = contiguous(1, &n);
    }
    for (int64_t k = pick(0, 4); k > 0; k--) random_view(&g, n);
    if (numel(g.rank, g.sizes) > 5000) continue;
    ok = check_case((tpu_type){from, rank, dims}, to, &g, pick(0, 2) ? 0 : pick(1, 3), NULL);
  }
  end();
  CHECK(ok);
}

/* --- what common views become */
typedef struct shape {
  int nodes, gathers, scatters, selects, slices;
} shape;
static shape shape_of(int rank, const int64_t *dims, const geometry *g, bool write) {
  tpu_graph_reset(graph);
  tpu_build b;
  tpu_build_init(&b, graph, target);
  tpu_view_geometry v = view_of(TPU_F32, g);
  tpu_val x = tpu_param(&b, TPU_F32, rank, dims), y = tpu_param(&b, TPU_F32, g->rank, g->sizes);
  tpu_val out = write ? tpu_view_write(&b, x, &v, y) : tpu_view_read(&b, x, &v);
  tpu_status status = tpu_build_status(&b);
  if (!status) status = tpu_graph_set_outputs(graph, &out, 1);
  if (!status) status = tpu_graph_verify(graph);
  if (status) {
    fprintf(stderr, "%s\n", tpu_status_message(status));
    tpu_status_release(status);
    return (shape){.gathers = 1000, .scatters = 1000};
  }
  return (shape){count_live(graph), count_ops(graph, TPU_HLO_GATHER), count_ops(graph, TPU_HLO_SCATTER),
                 count_ops(graph, TPU_HLO_SELECT), count_ops(graph, TPU_HLO_SLICE)};
}
static bool plain(int rank, const int64_t *dims, const geometry *g, int read_nodes) {
  shape r = shape_of(rank, dims, g, false), w = shape_of(rank, dims, g, true);
  if (r.gathers == 0 && (read_nodes < 0 || r.nodes == read_nodes) && w.gathers + w.scatters == 0) return true;
  describe("common view", (tpu_type){TPU_F32, rank, dims}, g);
  fprintf(stderr, "read: %d nodes, %d gathers; write: %d nodes, %d gathers, %d scatters\n", r.nodes, r.gathers, w.nodes,
          w.gathers, w.scatters);
  return false;
}

TEST(common_views) {
  start();
  target = &cpu;
  bool ok = true;
  const int64_t qkv[3] = {8, 128, 3 * 384}, image[4] = {4, 3, 32, 32}, square[3] = {2, 16, 16}, wave[2] = {4, 16000};
  geometry g = contiguous(3, qkv);
  ok = ok && plain(3, qkv, &g, 0);
  transpose(&g, 0, 2);
  ok = ok && plain(3, qkv, &g, 1);

  g = contiguous(3, qkv); /* the middle third as heads: split, view, transpose */
  slice(&g, 2, 384, 768, 1);
  split_dim(&g, 2, 64);
  transpose(&g, 1, 2);
  ok = ok && plain(3, qkv, &g, 3);

  g = contiguous(3, qkv);
  select_at(&g, 1, 5);
  ok = ok && plain(3, qkv, &g, 2);
  g = contiguous(3, qkv);
  select_at(&g, 2, 5);
  ok = ok && plain(3, qkv, &g, 2);
  g = contiguous(3, qkv);
  slice(&g, 1, 1, 127, 3);
  ok = ok && plain(3, qkv, &g, 1);
  g = contiguous(3, qkv);
  slice(&g, 2, 0, 1152, 2);
  slice(&g, 0, 1, 8, 2);
  ok = ok && plain(3, qkv, &g, 1);

  const int64_t seven[1] = {7};
  g = contiguous(1, seven);
  slice(&g, 0, 1, 6, 2);
  ok = ok && plain(1, seven, &g, 1);

  g = contiguous(4, image); /* channels_last over memory [4, 32, 32, 3] */
  const int64_t memory[4] = {4, 32, 32, 3};
  geometry last = contiguous(4, memory);
  transpose(&last, 3, 1);
  transpose(&last, 3, 2);
  ok = ok && plain(4, memory, &last, 1);
  ok = ok && shape_of(4, memory, &last, true).nodes == 1;

  target = &chip; /* on the CPU a diagonal is written by scatter */
  g = contiguous(3, square);
  diagonal(&g, 1, 2, 0);
  ok = ok && plain(3, square, &g, -1);
  g = contiguous(3, square);
  diagonal(&g, 1, 2, 1);
  ok = ok && plain(3, square, &g, -1);
  g = contiguous(3, square);
  diagonal(&g, 1, 2, -3);
  ok = ok && plain(3, square, &g, -1);

  target = &cpu;
  g = contiguous(3, square); /* expand */
  insert_dim(&g, 1, 5, 0);
  ok = ok && plain(3, square, &g, 1);
  const int64_t one[1] = {1};
  g = contiguous(1, one);
  g.sizes[0] = 9, g.strides[0] = 0;
  ok = ok && shape_of(1, one, &g, false).gathers == 0;

  g = contiguous(4, image); /* patches: unfold without overlap */
  unfold(&g, 2, 8, 8);
  unfold(&g, 3, 8, 8);
  ok = ok && plain(4, image, &g, 2);

  target = &chip;           /* a CPU gathers windows that overlap */
  g = contiguous(4, image); /* im2col of a 3x3 kernel: nine slices */
  unfold(&g, 2, 3, 1);
  unfold(&g, 3, 3, 1);
  shape s = shape_of(4, image, &g, false);
  ok = ok && s.gathers == 0 && s.slices == 9;
  g = contiguous(2, wave); /* frames of 400 at 160, as stft makes them: three slices */
  unfold(&g, 1, 400, 160);
  s = shape_of(2, wave, &g, false);
  ok = ok && s.gathers == 0 && s.slices <= 6;
  end();
  CHECK(ok);
}

/* A cache written and read at a run-time row keeps the cache's dims. */
TEST(dynamic_rows) {
  start();
  const int64_t cache[4] = {2, 8, 64, 16};
  for (int promise = 0; promise < 2; promise++) {
    geometry g = contiguous(4, cache);
    slice(&g, 2, 3, 4, 1);
    tpu_build b;
    tpu_graph_reset(graph);
    tpu_build_init(&b, graph, &cpu);
    tpu_view_geometry v = view_of(TPU_F32, &g);
    v.dyn_offset = tpu_slot(&b, 0, TPU_I64);
    v.dyn_multiple = promise ? 16 : 0;
    tpu_val x = tpu_param(&b, TPU_F32, 4, cache), y = tpu_param(&b, TPU_F32, 4, g.sizes);
    tpu_val out[2] = {tpu_view_read(&b, x, &v), tpu_view_write(&b, x, &v, y)};
    CHECK_OK(tpu_build_status(&b));
    CHECK_OK(tpu_graph_set_outputs(graph, out, 2));
    CHECK_OK(tpu_graph_verify(graph));
    CHECK_INT(count_ops(graph, TPU_HLO_DYNAMIC_SLICE), 1);
    CHECK_INT(count_ops(graph, TPU_HLO_DYNAMIC_UPDATE_SLICE), 1);
    CHECK_INT(count_ops(graph, TPU_HLO_GATHER) + count_ops(graph, TPU_HLO_SCATTER), 0);
    for (uint32_t i = 0; i < tpu_graph_node_count(graph); i++) {
      const tpu_node *node = tpu_graph_node(graph, i);
      if (node->op != TPU_HLO_DYNAMIC_SLICE) continue;
      tpu_type t = tpu_graph_type(graph, node->operands[0]);
      CHECK_INT(t.dims[t.rank - 1], promise ? 16 : 1024);
    }
  }
  end();
}

TEST(bounds) {
  start();
  const int64_t dims[2] = {4, 5};
  tpu_build b;
  tpu_graph_reset(graph);
  tpu_build_init(&b, graph, &cpu);
  tpu_val x = tpu_param(&b, TPU_F32, 2, dims);
  geometry g = {.rank = 2, .sizes = {4, 5}, .strides = {5, 1}, .offset = 1};
  tpu_view_geometry v = view_of(TPU_F32, &g);
  tpu_view_read(&b, x, &v);
  CHECK_ERROR(tpu_build_status(&b), TPU_INVALID_ARGUMENT,
              "setStorage: sizes [4, 5], strides [5, 1], storage offset 1, and itemsize 4 requiring a storage size of 84 "
              "are out of bounds for storage of size 80");
  g = (geometry){.rank = 2, .sizes = {1, 1}, .strides = {1000, 1000}, .offset = 19};
  v = view_of(TPU_F32, &g);
  CHECK(tpu_view_read(&b, x, &v).id);
  g = (geometry){.rank = 2, .sizes = {0, 100}, .strides = {5, 1}, .offset = 1000};
  v = view_of(TPU_F32, &g);
  CHECK(tpu_view_read(&b, x, &v).id);
  CHECK(tpu_view_write(&b, x, &v, tpu_view_read(&b, x, &v)).id == x.id);
  CHECK_OK(tpu_build_status(&b));
  g = (geometry){.rank = 2, .sizes = {INT64_MAX / 2, 4}, .strides = {1, 1}};
  v = view_of(TPU_F32, &g);
  tpu_view_read(&b, x, &v);
  CHECK_ERROR(tpu_build_status(&b), TPU_INVALID_ARGUMENT, "overflowed");
  end();
}

TEST(memory_order) {
  int perm[TPU_MAX_RANK];
  const int64_t sizes[4] = {2, 3, 4, 5}, last[4] = {60, 1, 15, 3};
  CHECK(tpu_memory_order(4, sizes, last, perm));
  CHECK(perm[0] == 0 && perm[1] == 2 && perm[2] == 3 && perm[3] == 1);
  geometry g = contiguous(4, sizes);
  CHECK(tpu_memory_order(4, g.sizes, g.strides, perm));
  for (int i = 0; i < 4; i++) CHECK_INT(perm[i], i);
  tpu_view_geometry v = view_of(TPU_F32, &g);
  const int64_t flat[1] = {120};
  CHECK(tpu_view_is_whole(1, flat, &v));
  slice(&g, 0, 1, 2, 1);
  v = view_of(TPU_F32, &g);
  CHECK(!tpu_view_is_whole(1, flat, &v));
  const int64_t ones[4] = {1, 2, 1, 3}, odd[4] = {7, 3, 99, 1}, expanded[4] = {1, 0, 1, 1}, none[4] = {0, 2, 1, 3};
  CHECK(tpu_memory_order(4, ones, odd, perm));
  for (int i = 0; i < 4; i++) CHECK_INT(perm[i], i);
  CHECK(!tpu_memory_order(4, ones, expanded, perm));
  CHECK(tpu_memory_order(4, none, expanded, perm));
}

/* Every allocation fails once: the failure is reported and nothing is lost. */
TEST(out_of_memory) {
  static const geometry cases[] = {
      {2, {4, 3}, {12, 2}, 1}, {2, {9, 4}, {2, 1}, 0}, {1, {5}, {7}, 0}, {3, {2, 5, 6}, {30, 1, 5}, 0}, {2, {50, 40}, {1, 1}, 0},
  };
  const int64_t dims[2] = {12, 10};
  int64_t live = tpu_alloc_live();
  for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
    const geometry *c = &cases[i / 2];
    bool done = false;
    for (int64_t n = 0; !done; n++) {
      CHECK(n < 100000);
      tpu_build b;
      tpu_alloc_fail_after(n);
      tpu_graph *g = tpu_graph_create();
      tpu_status status = NULL;
      if (g) {
        tpu_build_init(&b, g, i & 1 ? &cpu : &chip);
        tpu_arena *a = tpu_graph_arena(g);
        a->block_bytes = 256; /* many allocations */
        tpu_view_geometry v = view_of(TPU_F32, c);
        if (i & 1) v.dyn_offset = tpu_slot(&b, 0, TPU_I64);
        tpu_val x = tpu_param(&b, TPU_F32, 2, dims), y = tpu_param(&b, TPU_F32, c->rank, c->sizes);
        tpu_val out[2] = {tpu_view_read(&b, x, &v), tpu_view_write(&b, x, &v, y)};
        status = tpu_build_status(&b);
        CHECK(status || (out[0].id && out[1].id));
      }
      done = g && !status;
      tpu_status_release(status);
      tpu_graph_destroy(g);
    }
  }
  tpu_alloc_fail_after(-1);
  CHECK_INT(tpu_alloc_live(), live);
}

TEST(many_dims) {
  start();
  int64_t dims[TPU_MAX_RANK];
  for (int i = 0; i < TPU_MAX_RANK; i++) dims[i] = i % 8 == 0 ? 2 : 1;
  geometry g = contiguous(TPU_MAX_RANK, dims);
  for (int i = 0; i < TPU_MAX_RANK / 2; i++) transpose(&g, i, TPU_MAX_RANK - 1 - i);
  bool ok = check_case((tpu_type){TPU_I64, TPU_MAX_RANK, dims}, TPU_I64, &g, 0, NULL);
  end();
  CHECK(ok);
}

TEST_MAIN(TEST_CASE(fuzz_static), TEST_CASE(fuzz_dynamic), TEST_CASE(fuzz_dtypes), TEST_CASE(common_views),
          TEST_CASE(dynamic_rows), TEST_CASE(bounds), TEST_CASE(memory_order), TEST_CASE(out_of_memory), TEST_CASE(many_dims));
