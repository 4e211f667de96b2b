#include <string.h>

#include "ir/graph_private.h"
#include "ir/number.h"

static bool bad_rank(tpu_build *b, const char *op, int rank) {
  if (rank >= 0 && rank <= TPU_MAX_RANK) return false;
  (void)tpu_fail(b, TPU_INVALID_ARGUMENT, "%s: a tensor of %d dimensions: at most %d are supported", op, rank, TPU_MAX_RANK);
  return true;
}

static bool bad_dim(tpu_build *b, const char *op, int dim, int rank) {
  if (dim >= 0 && dim < rank) return false;
  (void)tpu_fail(b, TPU_INVALID_ARGUMENT, "%s: %d is not a dimension of rank %d", op, dim, rank);
  return true;
}

static int64_t product(int rank, const int64_t *dims) { return tpu_type_numel((tpu_type){TPU_F32, rank, dims}); }

tpu_val tpu_reshape(tpu_build *b, tpu_val x, int rank, const int64_t *dims) {
  if (b->status || !x.id || bad_rank(b, "reshape", rank)) return TPU_POISON;
  tpu_type t = tpu_type_of(b, x), out = {t.dtype, rank, dims};
  if (t.rank == rank && tpu_dims_equal(rank, dims, t.dims)) return x;
  if (product(rank, dims) == tpu_type_numel(t)) {
    const void *element = tpu_splat_of(b, x);
    if (element) return tpu_splat_element(b, t.dtype, rank, dims, element);
    const tpu_node *inner = tpu_producer_is(b->graph, x, TPU_HLO_RESHAPE);
    if (inner) return tpu_reshape(b, inner->operands[0], rank, dims);
  }
  return tpu_build_simple(b, TPU_HLO_RESHAPE, 1, &x, NULL, 0, &out);
}

static bool is_permutation(int rank, const int64_t *perm) {
  uint64_t seen = 0;
  for (int i = 0; i < rank; i++) {
    if (perm[i] < 0 || perm[i] >= rank || seen >> perm[i] & 1) return false;
    seen |= UINT64_C(1) << perm[i];
  }
  return true;
}

tpu_val tpu_transpose(tpu_build *b, tpu_val x, const int64_t *perm) {
  if (b->status || !x.id) return TPU_POISON;
  tpu_type t = tpu_type_of(b, x);
  if (is_permutation(t.rank, perm)) {
    bool identity = true, moves = false; /* moves: dims larger than 1 change their order */
    int64_t dims[TPU_MAX_RANK], last = -1;
    for (int i = 0; i < t.rank; i++) {
      identity = identity && perm[i] == i;
      dims[i] = t.dims[perm[i]];
      if (dims[i] == 1) continue;
      moves = moves || perm[i] < last;
      last = perm[i];
    }
    if (identity) return x;
    const void *element = tpu_splat_of(b, x);
    if (element) return tpu_splat_element(b, t.dtype, t.rank, dims, element);
    const tpu_node *inner = tpu_producer_is(b->graph, x, TPU_HLO_TRANSPOSE);
    if (inner) {
      for (int i = 0; i < t.rank; i++) dims[i] = tpu_node_attr(inner, (uint32_t)perm[i]);
      return tpu_transpose(b, inner->operands[0], dims);
    }
    if (!moves) return tpu_reshape(b, x, t.rank, dims);
  }
  return tpu_build_simple(b, TPU_HLO_TRANSPOSE, 1, &x, perm, (uint32_t)t.rank, NULL);
}

/* If dims of rank `rank` are those of `inner` with ones put in between: out_place[i] is inner's i-th dim among them. */
static bool only_inserts_ones(tpu_type inner, int rank, const int64_t *dims, int64_t *out_place) {
  int at = 0;
  for (int i = 0; i < rank; i++) {
    if (at < inner.rank && dims[i] == inner.dims[at])
      out_place[at++] = i;
    else if (dims[i] != 1)
      return false;
  }
  return at == inner.rank;
}

tpu_val tpu_broadcast_in_dim(tpu_build *b, tpu_val x, int rank, const int64_t *dims, const int64_t *map) {
  if (b->status || !x.id || bad_rank(b, "broadcast_in_dim", rank)) return TPU_POISON;
  tpu_type t = tpu_type_of(b, x), out = {t.dtype, rank, dims};
  bool ok = true, identity = t.rank == rank, ascending = true;
  for (int i = 0; i < t.rank && ok; i++) {
    ok = map[i] >= 0 && map[i] < rank && (t.dims[i] == 1 || t.dims[i] == dims[map[i]]);
    identity = identity && map[i] == i && ok && t.dims[i] == dims[i];
    ascending = ascending && (i == 0 || map[i] > map[i - 1]);
  }
  if (ok) {
    if (identity) return x;
    const void *element = tpu_splat_of(b, x);
    if (element) return tpu_splat_element(b, t.dtype, rank, dims, element);
    if (ascending && product(rank, dims) == tpu_type_numel(t)) return tpu_reshape(b, x, rank, dims);
    int64_t composed[TPU_MAX_RANK], place[TPU_MAX_RANK];
    const tpu_node *inner = tpu_producer_is(b->graph, x, TPU_HLO_BROADCAST_IN_DIM);
    if (inner) {
      int inner_rank = tpu_rank_of(b, inner->operands[0]);
      for (int i = 0; i < inner_rank; i++) composed[i] = map[tpu_node_attr(inner, (uint32_t)i)];
      return tpu_broadcast_in_dim(b, inner->operands[0], rank, dims, composed);
    }
    inner = tpu_producer_is(b->graph, x, TPU_HLO_RESHAPE);
    if (inner && only_inserts_ones(tpu_type_of(b, inner->operands[0]), t.rank, t.dims, place)) {
      int inner_rank = tpu_rank_of(b, inner->operands[0]);
      for (int i = 0; i < inner_rank; i++) composed[i] = map[place[i]];
      return tpu_broadcast_in_dim(b, inner->operands[0], rank, dims, composed);
    }
  }
  return tpu_build_simple(b, TPU_HLO_BROADCAST_IN_DIM, 1, &x, map, (uint32_t)t.rank, &out);
}

tpu_val tpu_broadcast_to(tpu_build *b, tpu_val x, int rank, const int64_t *dims) {
  if (b->status || !x.id || bad_rank(b, "broadcast_to", rank)) return TPU_POISON;
  int have = tpu_rank_of(b, x);
  if (have > rank) return tpu_fail(b, TPU_INVALID_ARGUMENT, "broadcast_to: %d dimensions do not fit %d", have, rank);
  int64_t map[TPU_MAX_RANK];
  for (int i = 0; i < have; i++) map[i] = rank - have + i;
  return tpu_broadcast_in_dim(b, x, rank, dims, map);
}

tpu_val tpu_broadcast_like(tpu_build *b, tpu_val x, tpu_val like) {
  if (!like.id) return TPU_POISON;
  tpu_type t = tpu_type_of(b, like);
  return tpu_broadcast_to(b, x, t.rank, t.dims);
}

tpu_val tpu_slice(tpu_build *b, tpu_val x, const int64_t *start, const int64_t *limit, const int64_t *stride) {
  if (b->status || !x.id) return TPU_POISON;
  tpu_type t = tpu_type_of(b, x);
  int64_t v[3 * TPU_MAX_RANK], dims[TPU_MAX_RANK];
  bool ok = true, identity = true;
  for (int i = 0; i < t.rank; i++) {
    int64_t step = stride ? stride[i] : 1, lo = start[i], hi = limit[i];
    ok = ok && lo >= 0 && hi >= lo && hi <= t.dims[i] && step >= 1;
    dims[i] = ok ? (hi - lo + step - 1) / step : 0;
    if (ok && dims[i] <= 1) { /* one spelling */
      step = 1;
      hi = lo + dims[i];
    }
    identity = identity && dims[i] == t.dims[i];
    v[i] = lo;
    v[i + t.rank] = hi;
    v[i + 2 * t.rank] = step;
  }
  if (ok) {
    if (identity) return x;
    const void *element = tpu_splat_of(b, x);
    if (element) return tpu_splat_element(b, t.dtype, t.rank, dims, element);
    const tpu_node *inner = tpu_producer_is(b->graph, x, TPU_HLO_SLICE);
    if (inner) {
      const int64_t *w = tpu_node_attrs(inner)->v;
      for (int i = 0; i < t.rank; i++) {
        int64_t first = w[i], step = w[i + 2 * t.rank], out_step = v[i + 2 * t.rank] * step;
        v[i] = first + v[i] * step;
        v[i + t.rank] = dims[i] ? v[i] + (dims[i] - 1) * out_step + 1 : v[i];
        v[i + 2 * t.rank] = dims[i] > 1 ? out_step : 1;
        /* An empty slice may start where the inner one's stride has left the operand. */
        if (!dims[i]) v[i] = v[i + t.rank] = first;
      }
      return tpu_slice(b, inner->operands[0], v, v + t.rank, v + 2 * t.rank);
    }
  }
  return tpu_build_simple(b, TPU_HLO_SLICE, 1, &x, v, 3 * (uint32_t)t.rank, NULL);
}

tpu_val tpu_slice_dim(tpu_build *b, tpu_val x, int dim, int64_t start, int64_t limit, int64_t stride) {
  if (b->status || !x.id) return TPU_POISON;
  tpu_type t = tpu_type_of(b, x);
  if (bad_dim(b, "slice", dim, t.rank)) return TPU_POISON;
  int64_t lo[TPU_MAX_RANK], hi[TPU_MAX_RANK], step[TPU_MAX_RANK];
  for (int i = 0; i < t.rank; i++) {
    lo[i] = 0;
    hi[i] = t.dims[i];
    step[i] = 1;
  }
  lo[dim] = start;
  hi[dim] = limit;
  step[dim] = stride;
  return tpu_slice(b, x, lo, hi, step);
}

tpu_val tpu_pad(tpu_build *b, tpu_val x, tpu_val value, const int64_t *lo, const int64_t *hi, const int64_t *interior) {
  if (b->status || !x.id || !value.id) return TPU_POISON;
  tpu_type t = tpu_type_of(b, x);
  int64_t v[3 * TPU_MAX_RANK], start[TPU_MAX_RANK], limit[TPU_MAX_RANK];
  bool identity = true, crops = true;
  for (int i = 0; i < t.rank; i++) {
    v[i] = lo[i];
    v[i + t.rank] = hi[i];
    /* Between fewer than two elements there is nothing to fill. */
    v[i + 2 * t.rank] = interior && t.dims[i] > 1 ? interior[i] : 0;
    identity = identity && !lo[i] && !hi[i] && !v[i + 2 * t.rank];
    crops = crops && lo[i] <= 0 && hi[i] <= 0 && !v[i + 2 * t.rank] && t.dims[i] + lo[i] + hi[i] >= 0;
    start[i] = -lo[i];
    limit[i] = t.dims[i] + hi[i];
  }
  if (tpu_rank_of(b, value) == 0 && tpu_dtype_of(b, value) == t.dtype) {
    if (identity) return x;
    if (crops) return tpu_slice(b, x, start, limit, NULL);
  }
  tpu_val operands[2] = {x, value};
  return tpu_build_simple(b, TPU_HLO_PAD, 2, operands, v, 3 * (uint32_t)t.rank, NULL);
}

tpu_val tpu_concat(tpu_build *b, int n, const tpu_val *xs, int dim) {
  if (b->status) return TPU_POISON;
  if (n < 1) return tpu_fail(b, TPU_INVALID_ARGUMENT, "concatenate: no operands");
  for (int i = 0; i < n; i++)
    if (!xs[i].id) return TPU_POISON;
  if (bad_dim(b, "concatenate", dim, tpu_rank_of(b, xs[0]))) return TPU_POISON;
  if (n == 1) return xs[0];
  int64_t v = dim;
  return tpu_build_simple(b, TPU_HLO_CONCATENATE, (uint32_t)n, xs, &v, 1, NULL);
}

tpu_val tpu_reverse(tpu_build *b, tpu_val x, int n, const int64_t *dims) {
  if (b->status || !x.id) return TPU_POISON;
  tpu_type t = tpu_type_of(b, x);
  if (n < 0 || n > t.rank) return tpu_fail(b, TPU_INVALID_ARGUMENT, "reverse: %d dims of rank %d", n, t.rank);
  int64_t kept[TPU_MAX_RANK];
  uint32_t n_kept = 0;
  for (int i = 0; i < n; i++)
    if (dims[i] < 0 || dims[i] >= t.rank || t.dims[dims[i]] > 1) kept[n_kept++] = dims[i];
  if (!n_kept || tpu_splat_of(b, x)) return x;
  return tpu_build_simple(b, TPU_HLO_REVERSE, 1, &x, kept, n_kept, NULL);
}

tpu_val tpu_unsqueeze(tpu_build *b, tpu_val x, int dim) {
  if (b->status || !x.id) return TPU_POISON;
  tpu_type t = tpu_type_of(b, x);
  if (bad_rank(b, "unsqueeze", t.rank + 1) || bad_dim(b, "unsqueeze", dim, t.rank + 1)) return TPU_POISON;
  int64_t dims[TPU_MAX_RANK];
  for (int i = 0; i <= t.rank; i++) dims[i] = i < dim ? t.dims[i] : i == dim ? 1 : t.dims[i - 1];
  return tpu_reshape(b, x, t.rank + 1, dims);
}

tpu_val tpu_squeeze(tpu_build *b, tpu_val x, int dim) {
  if (b->status || !x.id) return TPU_POISON;
  tpu_type t = tpu_type_of(b, x);
  if (bad_dim(b, "squeeze", dim, t.rank)) return TPU_POISON;
  int64_t dims[TPU_MAX_RANK];
  for (int i = 0, at = 0; i < t.rank; i++)
    if (i != dim) dims[at++] = t.dims[i];
  return tpu_reshape(b, x, t.rank - 1, dims); /* fails if the dim is not 1 */
}

tpu_val tpu_bitcast(tpu_build *b, tpu_val x, tpu_dtype dtype, int rank, const int64_t *dims) {
  if (b->status || !x.id || bad_rank(b, "bitcast_convert", rank)) return TPU_POISON;
  tpu_type t = tpu_type_of(b, x), out = {dtype, rank, dims};
  if ((unsigned)dtype >= TPU_DTYPE_COUNT) return tpu_fail(b, TPU_INTERNAL, "bitcast_convert: %d is not a dtype", (int)dtype);
  if (t.dtype == dtype && t.rank == rank && tpu_dims_equal(rank, t.dims, dims)) return x;
  return tpu_build_simple(b, TPU_HLO_BITCAST_CONVERT, 1, &x, NULL, 0, &out);
}

/* Starts that are constants, clamped as the op clamps them. */
static bool constant_starts(const tpu_build *b, tpu_type t, const tpu_val *starts, const int64_t *sizes, int64_t *out) {
  for (int i = 0; i < t.rank; i++) {
    const void *element = tpu_splat_of(b, starts[i]);
    int64_t most = t.dims[i] - sizes[i];
    if (most < 0) return false;
    if (most == 0) {
      out[i] = 0;
      continue;
    }
    if (!element || tpu_rank_of(b, starts[i]) || !tpu_is_integral(tpu_dtype_of(b, starts[i]))) return false;
    tpu_dtype dtype = tpu_dtype_of(b, starts[i]);
    int64_t at = tpu_number_to_int(dtype, element);
    if (dtype == TPU_U64 && at < 0) at = INT64_MAX;
    out[i] = at < 0 ? 0 : at > most ? most : at;
  }
  return true;
}

static tpu_val *with_starts(tpu_build *b, int n, tpu_val x, tpu_val y, int rank, const tpu_val *starts, tpu_val *buffer) {
  buffer[0] = x;
  buffer[1] = y;
  for (int i = 0; i < rank; i++) {
    if (!starts[i].id) return NULL;
    buffer[n + i] = starts[i];
  }
  return b->status ? NULL : buffer;
}

tpu_val tpu_dynamic_slice(tpu_build *b, tpu_val x, const tpu_val *starts, const int64_t *sizes) {
  if (b->status || !x.id) return TPU_POISON;
  tpu_type t = tpu_type_of(b, x);
  tpu_val operands[2 + TPU_MAX_RANK];
  if (!with_starts(b, 1, x, x, t.rank, starts, operands)) return TPU_POISON;
  int64_t at[TPU_MAX_RANK], limit[TPU_MAX_RANK];
  bool valid = true;
  for (int i = 0; i < t.rank; i++) valid = valid && sizes[i] >= 0;
  if (valid && constant_starts(b, t, starts, sizes, at)) {
    for (int i = 0; i < t.rank; i++) limit[i] = at[i] + sizes[i];
    return tpu_slice(b, x, at, limit, NULL);
  }
  return tpu_build_simple(b, TPU_HLO_DYNAMIC_SLICE, 1 + (uint32_t)t.rank, operands, sizes, (uint32_t)t.rank, NULL);
}

tpu_val tpu_dynamic_update_slice(tpu_build *b, tpu_val x, tpu_val update, const tpu_val *starts) {
  if (b->status || !x.id || !update.id) return TPU_POISON;
  tpu_type t = tpu_type_of(b, x);
  tpu_val operands[2 + TPU_MAX_RANK];
  if (!with_starts(b, 2, x, update, t.rank, starts, operands)) return TPU_POISON;
  tpu_type u = tpu_type_of(b, update);
  if (tpu_type_equal(t, u)) return update; /* the whole of it, wherever the starts are */
  if (t.dtype == u.dtype && t.rank == u.rank && tpu_type_numel(u) == 0) return x;
  return tpu_build_simple(b, TPU_HLO_DYNAMIC_UPDATE_SLICE, 2 + (uint32_t)t.rank, operands, NULL, 0, NULL);
}
