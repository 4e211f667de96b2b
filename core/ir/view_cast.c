/* Reinterpreting a value's bytes under another dtype. */
#include "ir/view_frame.h"

static tpu_dtype part_dtype(tpu_dtype t) { return t == TPU_BOOL ? TPU_U8 : tpu_dtype_real(t); }

static tpu_val squeeze_all(tpu_build *b, tpu_val x) {
  int64_t dims[TPU_MAX_RANK];
  int rank = 0, x_rank = tpu_rank_of(b, x);
  for (int i = 0; i < x_rank; i++)
    if (tpu_dim_of(b, x, i) != 1) dims[rank++] = tpu_dim_of(b, x, i);
  return tpu_reshape(b, x, rank, dims);
}

/* x as [.., n / k, k]: along the last dim if it divides, else flat and without the rest. */
static tpu_val group(tpu_build *b, tpu_val x, int64_t k) {
  int rank = tpu_rank_of(b, x);
  int64_t dims[TPU_MAX_RANK];
  for (int i = 0; i < rank; i++) dims[i] = tpu_dim_of(b, x, i);
  if (rank == 0 || dims[rank - 1] % k != 0) {
    int64_t n = tpu_numel_of(b, x) / k * k;
    x = tpu_slice_dim(b, tpu_view_flatten(b, x), 0, 0, n, 1);
    rank = 1;
    dims[0] = n;
  }
  if (dims[rank - 1] == k) return tpu_reshape(b, x, rank, dims);
  dims[rank - 1] /= k;
  dims[rank] = k;
  return tpu_reshape(b, x, rank + 1, dims);
}

/* x [.., 2] without its last dim: one of the two. */
static tpu_val pick(tpu_build *b, tpu_val x, int64_t i) {
  int last = tpu_rank_of(b, x) - 1;
  return tpu_squeeze(b, tpu_slice_dim(b, x, last, i, i + 1, 1), last);
}

/* Real types of whole bytes only. */
static tpu_val bits(tpu_build *b, tpu_val x, tpu_dtype dtype) {
  int64_t from = tpu_dtype_bytes(tpu_dtype_of(b, x)), to = tpu_dtype_bytes(dtype);
  if (tpu_dtype_of(b, x) == dtype) return x;
  int64_t dims[TPU_MAX_RANK];
  if (from < to) x = group(b, x, to / from);
  int rank = tpu_rank_of(b, x);
  for (int i = 0; i < rank; i++) dims[i] = tpu_dim_of(b, x, i);
  if (from > to) dims[rank++] = from / to;
  if (from < to) rank--;
  return tpu_bitcast(b, x, dtype, rank, dims);
}

tpu_val tpu_view_cast(tpu_build *b, tpu_val x, tpu_dtype dtype) {
  tpu_dtype from = tpu_dtype_of(b, x);
  if (tpu_build_failed(b) || from == dtype) return x;
  x = squeeze_all(b, x);
  if (tpu_is_complex(from)) {
    int last = tpu_rank_of(b, x);
    tpu_val parts[2] = {tpu_unsqueeze(b, tpu_unary(b, TPU_HLO_REAL, x), last),
                        tpu_unsqueeze(b, tpu_unary(b, TPU_HLO_IMAG, x), last)};
    x = tpu_concat(b, 2, parts, last);
  } else if (from == TPU_BOOL) {
    x = tpu_convert(b, x, TPU_U8);
  }
  x = bits(b, x, part_dtype(dtype));
  if (tpu_is_complex(dtype)) {
    x = group(b, x, 2);
    x = tpu_complex(b, pick(b, x, 0), pick(b, x, 1));
  }
  return dtype == TPU_BOOL ? tpu_convert(b, x, TPU_BOOL) : x;
}

tpu_val tpu_view_uncast(tpu_build *b, tpu_val cast, tpu_val base) {
  tpu_type type = tpu_type_of(b, base);
  tpu_val x = tpu_view_cast(b, cast, type.dtype);
  if (tpu_build_failed(b)) return TPU_POISON;
  int64_t n = tpu_numel_of(b, x), all = tpu_type_numel(type);
  if (n < all) {
    tpu_val parts[2] = {tpu_view_flatten(b, x), tpu_slice_dim(b, tpu_view_flatten(b, base), 0, n, all, 1)};
    x = tpu_concat(b, 2, parts, 0);
  }
  return tpu_reshape(b, x, type.rank, type.dims);
}

static void space_group(tpu_view_space *s, int64_t k) {
  if (s->rank == 0 || s->dims[s->rank - 1] % k != 0) {
    s->rank = 1;
    s->dims[0] = s->numel / k;
  } else {
    s->dims[s->rank - 1] /= k;
  }
  s->numel = s->numel / k;
  if (s->dims[s->rank - 1] == 1) s->rank--;
}

static void space_spread(tpu_view_space *s, int64_t k) {
  s->dims[s->rank++] = k;
  s->numel *= k;
}

void tpu_view_cast_space(tpu_type base, tpu_dtype dtype, tpu_view_space *s) {
  s->rank = 0;
  s->numel = tpu_type_numel(base);
  if (s->numel == 0) return;
  for (int i = 0; i < base.rank; i++)
    if (base.dims[i] != 1) s->dims[s->rank++] = base.dims[i];
  if (base.dtype == dtype) return;
  if (tpu_is_complex(base.dtype)) space_spread(s, 2);
  int64_t from = tpu_dtype_bytes(part_dtype(base.dtype)), to = tpu_dtype_bytes(part_dtype(dtype));
  if (from < to) space_group(s, to / from);
  if (from > to) space_spread(s, from / to);
  if (tpu_is_complex(dtype)) space_group(s, 2);
}

int tpu_view_complex_part(tpu_type base, const tpu_view_geometry *v, int64_t *strides, tpu_view_geometry *out) {
  if (!tpu_is_complex(base.dtype) || v->dtype != tpu_dtype_real(base.dtype) || v->dyn_offset.id || v->offset < 0) return -1;
  for (int i = 0; i < v->rank; i++) {
    if (v->sizes[i] > 1 && v->strides[i] % 2 != 0) return -1;
    strides[i] = v->strides[i] / 2;
  }
  *out = *v;
  out->strides = strides;
  out->offset = v->offset / 2;
  return v->offset % 2 == 0 ? TPU_HLO_REAL : TPU_HLO_IMAG;
}
