#include "ir/view_frame.h"

#include "base/alloc.h"
#include "base/strbuf.h"

/* Dims with size > 1 and stride > 0 by falling stride; of equal strides the longer one first. */
static int sort_dims(int rank, const int64_t *sizes, const int64_t *strides, int *out_order) {
  int n = 0;
  for (int i = 0; i < rank; i++) {
    if (sizes[i] <= 1 || strides[i] == 0) continue;
    int at = n++;
    for (; at > 0; at--) {
      int k = out_order[at - 1];
      if (strides[k] > strides[i] || (strides[k] == strides[i] && sizes[k] >= sizes[i])) break;
      out_order[at] = k;
    }
    out_order[at] = i;
  }
  return n;
}

bool tpu_memory_order(int rank, const int64_t *sizes, const int64_t *strides, int *out_perm) {
  bool empty = false;
  for (int i = 0; i < rank; i++) empty = empty || sizes[i] == 0;
  if (empty) {
    for (int i = 0; i < rank; i++) out_perm[i] = i;
    return true;
  }
  int order[TPU_MAX_RANK], n = sort_dims(rank, sizes, strides, order);
  int long_dims = 0;
  for (int i = 0; i < rank; i++) long_dims += sizes[i] > 1;
  if (n != long_dims) return false;
  int64_t unit = 1;
  for (int i = n - 1; i >= 0; i--) {
    if (strides[order[i]] != unit) return false;
    unit *= sizes[order[i]];
  }
  /* Dims of size 1 stay behind their logical neighbour, so that row-major strides give the identity. */
  int at = 0;
  for (int i = 0; i < rank && sizes[i] == 1; i++) out_perm[at++] = i;
  for (int k = 0; k < n; k++) {
    out_perm[at++] = order[k];
    for (int i = order[k] + 1; i < rank && sizes[i] == 1; i++) out_perm[at++] = i;
  }
  return true;
}

static int64_t product(int rank, const int64_t *dims) {
  int64_t n = 1;
  for (int i = 0; i < rank; i++) n *= dims[i];
  return n;
}

bool tpu_view_is_whole(int base_rank, const int64_t *base_dims, const tpu_view_geometry *view) {
  int perm[TPU_MAX_RANK];
  return !view->dyn_offset.id && view->offset == 0 && product(base_rank, base_dims) == product(view->rank, view->sizes) &&
         tpu_memory_order(view->rank, view->sizes, view->strides, perm);
}

static void put_list(tpu_strbuf *s, int n, const int64_t *v) {
  tpu_strbuf_put(s, "[");
  for (int i = 0; i < n; i++) tpu_strbuf_printf(s, "%s%lld", i ? ", " : "", (long long)v[i]);
  tpu_strbuf_put(s, "]");
}

/* In the words of at::native::checkInBoundsForStorage; overflow: of at::detail::computeStorageNbytes. */
static void fail_bounds(tpu_build *b, const tpu_view_geometry *v, bool fits, int64_t extent, int64_t storage_bytes) {
  int64_t item = tpu_dtype_bytes(v->dtype);
  long long offset = v->dyn_offset.id ? 0 : (long long)v->offset;
  tpu_strbuf text = {0};
  tpu_strbuf_put(&text, fits ? "setStorage: sizes " : "Storage size calculation overflowed with sizes=");
  put_list(&text, v->rank, v->sizes);
  tpu_strbuf_put(&text, fits ? ", strides " : " and strides=");
  put_list(&text, v->rank, v->strides);
  if (!fits)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s", text.data ? text.data : "");
  else
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "%s, storage offset %lld, and itemsize %lld requiring a storage size of %lld are out of bounds for storage of "
             "size %lld",
             text.data ? text.data : "", offset, (long long)item, ((long long)extent + 1 + offset) * (long long)item,
             (long long)storage_bytes);
  tpu_strbuf_destroy(&text);
}

bool tpu_view_frame_make(tpu_build *b, tpu_type base, const tpu_view_geometry *v, tpu_view_frame *f, bool *out_empty) {
  *out_empty = false;
  if (v->rank < 0 || v->rank > TPU_MAX_RANK) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "view of rank %d", v->rank);
    return false;
  }
  int64_t extent = 0, numel = 1;
  bool fits = true;
  f->repeats = false;
  for (int i = 0; i < v->rank; i++) {
    if (v->sizes[i] < 0 || v->strides[i] < 0) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "view with negative size or stride");
      return false;
    }
    if (v->sizes[i] == 0) *out_empty = true;
    if (v->sizes[i] > 1 && v->strides[i] == 0) f->repeats = true;
    int64_t reach = 0;
    if (!*out_empty) fits = fits && tpu_size_mul(numel, v->sizes[i], &numel);
    if (v->sizes[i] > 1)
      fits = fits && tpu_size_mul(v->sizes[i] - 1, v->strides[i], &reach) && tpu_size_add(extent, reach, &extent);
  }
  if (*out_empty) return false;
  tpu_view_cast_space(base, v->dtype, &f->space);
  f->start = (tpu_view_start){.dynamic = v->dyn_offset.id != 0, .value = v->offset, .multiple = 1};
  f->start.max = f->space.numel - 1 - extent;
  if (v->dyn_multiple > 1) f->start.multiple = v->dyn_multiple;
  if (f->start.max > 0) f->start.max -= f->start.dynamic ? f->start.max % f->start.multiple : 0;
  if (!fits || f->start.max < 0 || (!f->start.dynamic && (v->offset < 0 || v->offset > f->start.max))) {
    fail_bounds(b, v, fits, extent, tpu_type_numel(base) * tpu_dtype_bytes(base.dtype));
    return false;
  }
  if (f->start.dynamic && f->start.max == 0) f->start = (tpu_view_start){.multiple = 1};
  f->index = f->space.numel <= INT32_MAX ? TPU_I32 : TPU_I64;
  f->dyn_offset = f->start.dynamic ? tpu_convert(b, v->dyn_offset, f->index) : TPU_POISON;
  f->n_order = sort_dims(v->rank, v->sizes, v->strides, f->order);
  f->dims.n = f->n_order;
  for (int i = 0; i < f->n_order; i++) {
    f->dims.size[i] = v->sizes[f->order[i]];
    f->dims.stride[i] = v->strides[f->order[i]];
  }
  return !tpu_build_failed(b);
}

tpu_val tpu_view_flatten(tpu_build *b, tpu_val x) {
  int64_t n = tpu_numel_of(b, x);
  return tpu_reshape(b, x, 1, &n);
}

tpu_val tpu_view_indices(tpu_build *b, tpu_dtype index, const tpu_view_dims *dims, int64_t offset) {
  tpu_val sum = tpu_full_i(b, index, dims->n, dims->size, offset);
  for (int i = 0; i < dims->n; i++) {
    /* Along one dim first: the compiler then need not fold the whole array. */
    tpu_val at = tpu_iota(b, index, 1, &dims->size[i], 0);
    at = tpu_mul(b, at, tpu_full_i(b, index, 1, &dims->size[i], dims->stride[i]));
    int64_t map = i;
    sum = tpu_add(b, sum, tpu_broadcast_in_dim(b, at, dims->n, dims->size, &map));
  }
  return sum;
}

void tpu_view_starts(tpu_build *b, const tpu_view_frame *f, const tpu_view_plan *p, tpu_val *out) {
  for (int j = 0; j < p->rank; j++) {
    if (!f->start.dynamic || p->count[j] == p->size[j] || f->start.max < p->unit[j]) {
      out[j] = tpu_scalar_i(b, f->index, p->start[j]);
      continue;
    }
    out[j] = f->dyn_offset;
    if (p->unit[j] > 1) out[j] = tpu_div(b, out[j], tpu_scalar_i(b, f->index, p->unit[j]));
    if (f->start.max / p->unit[j] >= p->size[j])
      out[j] = tpu_binary(b, TPU_HLO_REMAINDER, out[j], tpu_scalar_i(b, f->index, p->size[j]));
  }
}
