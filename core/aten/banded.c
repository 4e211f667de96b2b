#include "aten/banded.h"

#include <string.h>

#include "aten/nn.h"
#include "base/alloc.h"

bool banded_init(tpu_build *b, int64_t in, int64_t out, int64_t taps, banded *out_m) {
  int64_t entries;
  *out_m = (banded){.in = in, .out = out, .taps = taps};
  if (!tpu_size_mul(out, taps, &entries)) return false;
  size_t n = (size_t)(entries ? entries : 1);
  out_m->index = tpu_build_alloc(b, n * sizeof *out_m->index);
  out_m->weight = tpu_build_alloc(b, n * sizeof *out_m->weight);
  if (!out_m->index || !out_m->weight) return false;
  memset(out_m->index, 0, n * sizeof *out_m->index);
  for (size_t i = 0; i < n; i++) out_m->weight[i] = 0;
  return true;
}

bool banded_transpose(tpu_build *b, const banded *m, banded *out_m) {
  int64_t *used = tpu_build_alloc(b, sizeof *used * (size_t)(m->in ? m->in : 1)), most = 0;
  if (!used) return false;
  memset(used, 0, sizeof *used * (size_t)m->in);
  int64_t entries = m->out * m->taps;
  for (int64_t i = 0; i < entries; i++) {
    if (m->weight[i] == 0) continue;
    int64_t count = ++used[m->index[i]];
    if (count > most) most = count;
  }
  if (!banded_init(b, m->out, m->in, most, out_m)) return false;
  memset(used, 0, sizeof *used * (size_t)m->in);
  for (int64_t i = 0; i < entries; i++) {
    if (m->weight[i] == 0) continue;
    int64_t to = m->index[i], at = to * most + used[to]++;
    out_m->index[at] = i / m->taps;
    out_m->weight[at] = m->weight[i];
  }
  return true;
}

static bool is_progression(int64_t n, const int64_t *index, int64_t *out_step) {
  *out_step = n > 1 ? index[1] - index[0] : 1;
  for (int64_t i = 1; i < n; i++)
    if (index[i] - index[i - 1] != *out_step) return false;
  return *out_step > 0;
}

/* Does each element of the dim come `times` times, in order? */
static bool is_repetition(int64_t size, int64_t n, const int64_t *index, int64_t *out_times) {
  if (size == 0 || n % size) return false;
  *out_times = n / size;
  for (int64_t i = 0; i < n; i++)
    if (index[i] != i / *out_times) return false;
  return true;
}

static tpu_val repeat_each(tpu_build *b, tpu_val x, int dim, int64_t times) {
  int rank = tpu_rank_of(b, x);
  int64_t dims[TPU_MAX_RANK + 1], map[TPU_MAX_RANK];
  for (int d = 0; d < rank; d++) {
    map[d] = d <= dim ? d : d + 1;
    dims[map[d]] = tpu_dim_of(b, x, d);
  }
  dims[dim + 1] = times;
  x = tpu_broadcast_in_dim(b, x, rank + 1, dims, map);
  dims[dim] *= times;
  for (int d = dim + 1; d < rank; d++) dims[d] = dims[d + 1];
  return tpu_reshape(b, x, rank, dims);
}

tpu_val take_dim(tpu_build *b, tpu_val x, int dim, int64_t n, const int64_t *index) {
  if (tpu_build_failed(b)) return TPU_POISON;
  int rank = tpu_rank_of(b, x);
  int64_t step, times, size = tpu_dim_of(b, x, dim);
  if (n > 0 && is_progression(n, index, &step)) return tpu_slice_dim(b, x, dim, index[0], index[n - 1] + 1, step);
  if (is_repetition(size, n, index, &times)) return repeat_each(b, x, dim, times);
  int32_t *short_index = tpu_build_alloc(b, sizeof *short_index * (size_t)(n ? n : 1));
  if (!short_index) return TPU_POISON;
  bool fits = size <= INT32_MAX, sorted = true;
  for (int64_t i = 0; i < n; i++) {
    short_index[i] = (int32_t)index[i];
    sorted = sorted && (i == 0 || index[i] >= index[i - 1]);
  }
  tpu_val at = fits ? tpu_dense(b, TPU_I32, 1, &n, short_index) : tpu_dense(b, TPU_I64, 1, &n, index);
  int64_t offset[TPU_MAX_RANK], sizes[TPU_MAX_RANK], along = dim;
  for (int d = 0, k = 0; d < rank; d++) {
    sizes[d] = d == dim ? 1 : tpu_dim_of(b, x, d);
    if (d != dim) offset[k++] = d;
  }
  tpu_gather_dims dims = {.n_offset = rank - 1,
                          .n_collapsed = 1,
                          .n_map = 1,
                          .offset = offset,
                          .collapsed = &along,
                          .start_index_map = &along,
                          .index_vector_dim = 1,
                          .sorted = sorted};
  return tpu_gather(b, x, at, &dims, sizes);
}

/* Column t of the weights, in x's dtype. */
static tpu_val weights_of_tap(tpu_build *b, const banded *m, int64_t t, tpu_dtype dtype) {
  double *column = tpu_build_alloc(b, sizeof *column * (size_t)m->out);
  float *narrow = tpu_build_alloc(b, sizeof *narrow * (size_t)m->out);
  if (!column || !narrow) return TPU_POISON;
  bool same = true;
  for (int64_t o = 0; o < m->out; o++) {
    column[o] = m->weight[o * m->taps + t];
    narrow[o] = (float)column[o];
    same = same && column[o] == column[0];
  }
  if (same) return tpu_full(b, dtype, 1, &m->out, column[0]);
  if (dtype == TPU_F32) return tpu_dense(b, dtype, 1, &m->out, narrow);
  return tpu_convert(b, tpu_dense(b, TPU_F64, 1, &m->out, column), dtype);
}

static tpu_val apply_by_taps(tpu_build *b, const banded *m, tpu_val x, int dim) {
  tpu_dtype dtype = tpu_dtype_of(b, x);
  int rank = tpu_rank_of(b, x);
  int64_t *index = tpu_build_alloc(b, sizeof *index * (size_t)(m->out ? m->out : 1));
  tpu_val y = TPU_POISON;
  if (!index) return y;
  for (int64_t t = 0; t < m->taps && !tpu_build_failed(b); t++) {
    bool absent = false, plain = true;
    for (int64_t o = 0; o < m->out; o++) {
      index[o] = m->index[o * m->taps + t];
      absent = absent || m->weight[o * m->taps + t] == 0;
      plain = plain && (m->weight[o * m->taps + t] == 1 || m->weight[o * m->taps + t] == 0);
    }
    tpu_val seen = take_dim(b, x, dim, m->out, index);
    tpu_val weight = weights_of_tap(b, m, t, dtype);
    tpu_val spread = spread_dim(b, weight, rank, tpu_dims_of(b, seen), dim), term = seen;
    if (!plain) term = tpu_mul(b, seen, spread);
    if (absent) { /* not a product with 0, which would carry NaN over */
      tpu_val there = tpu_compare(b, TPU_NE, weight, tpu_full_like(b, weight, 0));
      there = spread_dim(b, there, rank, tpu_dims_of(b, seen), dim);
      term = tpu_select(b, there, term, tpu_full_like(b, term, 0));
    }
    y = t ? tpu_add(b, y, term) : term;
  }
  return y;
}

static tpu_val apply_by_matrix(tpu_build *b, const banded *m, tpu_val x, int dim) {
  int64_t entries;
  if (!tpu_size_mul(m->in, m->out, &entries)) return tpu_fail(b, TPU_INVALID_ARGUMENT, "a resampling is too large");
  double *matrix = tpu_build_alloc(b, sizeof *matrix * (size_t)entries);
  float *narrow = tpu_build_alloc(b, sizeof *narrow * (size_t)entries);
  if (!matrix || !narrow) return TPU_POISON;
  for (int64_t i = 0; i < entries; i++) matrix[i] = 0;
  for (int64_t i = 0; i < m->out * m->taps; i++) matrix[i / m->taps * m->in + m->index[i]] += m->weight[i];
  for (int64_t i = 0; i < entries; i++) narrow[i] = (float)matrix[i];
  const int64_t dims[2] = {m->out, m->in};
  tpu_dtype dtype = tpu_dtype_of(b, x);
  tpu_val w =
      dtype == TPU_F32 ? tpu_dense(b, dtype, 2, dims, narrow) : tpu_convert(b, tpu_dense(b, TPU_F64, 2, dims, matrix), dtype);
  tpu_val y = contract(b, x, w, 0, dim, 1);
  int rank = tpu_rank_of(b, x);
  int64_t perm[TPU_MAX_RANK] = {0};
  for (int d = 0; d < rank; d++) perm[d] = d < dim ? d : d == dim ? rank - 1 : d - 1;
  return tpu_transpose(b, y, perm);
}

enum { MAX_TAPS = 48 };

/* By taps on the CPU (for 56 -> 112 bilinear 9 ms against 27 ms for the matrix, the gradient 4 against 28); elsewhere a matrix,
 * as gathers are slow on a TPU. */
tpu_val banded_apply(tpu_build *b, const banded *m, tpu_val x, int dim) {
  if (tpu_build_failed(b)) return TPU_POISON;
  int rank = tpu_rank_of(b, x);
  if (m->taps == 0 || m->out == 0 || tpu_numel_of(b, x) == 0) {
    int64_t dims[TPU_MAX_RANK];
    memcpy(dims, tpu_dims_of(b, x), sizeof *dims * (size_t)rank);
    dims[dim] = m->out;
    return tpu_full(b, tpu_dtype_of(b, x), rank, dims, 0);
  }
  if (m->taps == 1 || (m->taps <= MAX_TAPS && b->target->platform == TPU_TARGET_CPU)) return apply_by_taps(b, m, x, dim);
  if (!tpu_is_float(tpu_dtype_of(b, x))) return apply_by_taps(b, m, x, dim);
  return apply_by_matrix(b, m, x, dim);
}

tpu_val banded_apply_each(tpu_build *b, int n, const banded *maps, tpu_val x, int first_dim) {
  bool fused = false;
  for (int d = 0; d < n; d++) {
    /* fused into the next, each element would be computed anew for each tap */
    if (fused && maps[d].taps > 1) x = separated(b, x);
    x = banded_apply(b, &maps[d], x, first_dim + d);
    fused = fused || maps[d].taps > 1;
  }
  return x;
}
