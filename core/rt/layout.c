#include <string.h>

#include "base/alloc.h"
#include "rt/private.h"

/* Interning tables. They have a lock of their own since signatures intern while lowering. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static tpu_map layouts, places;

typedef struct layout_entry {
  tpu_layout layout;
  struct layout_entry *next;
} layout_entry;
typedef struct place_entry {
  tpu_place place;
  struct place_entry *next;
} place_entry;

static uint64_t dims_hash(uint64_t seed, int rank, const int64_t *dims) {
  tpu_hash h = {seed, (uint64_t)rank};
  for (int i = 0; i < rank; i++) tpu_hash_mix(&h, (uint64_t)dims[i]);
  return tpu_hash_u64(h.lo ^ h.hi);
}

static const int64_t *dims_copy(int rank, const int64_t *dims) {
  int64_t *out = tpu_malloc(sizeof *out * (size_t)(rank ? rank : 1));
  if (out && rank) memcpy(out, dims, sizeof *out * (size_t)rank);
  return out;
}

static const tpu_layout *layout_find(tpu_dtype dtype, int rank, const int64_t *dims) {
  uint64_t hash = dims_hash((uint64_t)dtype + 1, rank, dims);
  layout_entry *head = tpu_map_get(&layouts, hash), *e = head;
  for (; e; e = e->next)
    if (e->layout.dtype == dtype && e->layout.rank == rank && memcmp(e->layout.dims, dims, sizeof *dims * (size_t)rank) == 0)
      return &e->layout;
  e = tpu_calloc(1, sizeof *e);
  if (!e) return NULL;
  e->layout.dims = dims_copy(rank, dims);
  if (!e->layout.dims) {
    tpu_free(e);
    return NULL;
  }
  e->layout.dtype = dtype;
  e->layout.rank = rank;
  e->layout.numel = 1;
  for (int i = 0; i < rank; i++) e->layout.numel *= dims[i];
  e->layout.nbytes = e->layout.numel * tpu_dtype_bytes(dtype);
  e->layout.hash = hash;
  e->next = head;
  if (!tpu_map_put(&layouts, hash, e)) {
    tpu_free((void *)(uintptr_t)e->layout.dims);
    tpu_free(e);
    return NULL;
  }
  return &e->layout;
}

const tpu_layout *tpu_layout_intern(tpu_dtype dtype, int rank, const int64_t *dims) {
  pthread_mutex_lock(&table_lock);
  const tpu_layout *l = layout_find(dtype, rank, dims);
  pthread_mutex_unlock(&table_lock);
  return l;
}

static const tpu_place *place_create(uint64_t hash, place_entry *head, tpu_dtype dtype, int rank, const int64_t *sizes,
                                     const int64_t *strides, const int *perm) {
  int64_t dims[TPU_MAX_RANK];
  bool identity = true;
  for (int i = 0; i < rank; i++) {
    dims[i] = sizes[perm[i]];
    if (perm[i] != i) identity = false;
  }
  place_entry *e = tpu_calloc(1, sizeof *e);
  if (!e) return NULL;
  tpu_place *p = &e->place;
  int64_t *wide = tpu_malloc(sizeof *wide * (size_t)(rank ? rank : 1));
  p->layout = layout_find(dtype, rank, dims);
  p->sizes = dims_copy(rank, sizes);
  p->strides = dims_copy(rank, strides);
  p->hash = hash;
  e->next = head;
  if (!wide || !p->layout || !p->sizes || !p->strides || !tpu_map_put(&places, hash, e)) {
    tpu_free(wide);
    tpu_free((void *)(uintptr_t)p->sizes);
    tpu_free((void *)(uintptr_t)p->strides);
    tpu_free(e);
    return NULL;
  }
  for (int i = 0; i < rank; i++) wide[i] = perm[i];
  if (identity)
    tpu_free(wide);
  else
    p->perm = wide;
  return p;
}

const int64_t *tpu_strides_plain(int rank, const int64_t *sizes, const int64_t *strides, int64_t plain[TPU_MAX_RANK]) {
  int lead = 0;
  while (lead < rank && sizes[lead] == 1) lead++;
  if (!lead) return strides;
  int64_t numel = 1;
  for (int d = rank - 1; d >= lead; d--) {
    if (sizes[d] != 1 && strides[d] != numel) return strides;
    plain[d] = strides[d];
    numel *= sizes[d];
  }
  bool same = true;
  for (int d = 0; d < lead; d++) {
    if (strides[d] < numel) return strides;
    same = same && strides[d] == numel;
    plain[d] = numel;
  }
  return same || !numel ? strides : plain;
}

const tpu_place *tpu_place_intern(tpu_dtype dtype, int rank, const int64_t *sizes, const int64_t *strides, bool *out_dense) {
  int64_t plain[TPU_MAX_RANK];
  strides = tpu_strides_plain(rank, sizes, strides, plain);
  uint64_t hash = dims_hash(dims_hash((uint64_t)dtype + 77, rank, sizes), rank, strides);
  const tpu_place *found = NULL;
  *out_dense = true;
  pthread_mutex_lock(&table_lock);
  place_entry *head = tpu_map_get(&places, hash);
  for (place_entry *e = head; e && !found; e = e->next)
    if (e->place.layout->dtype == dtype && e->place.layout->rank == rank &&
        memcmp(e->place.sizes, sizes, sizeof *sizes * (size_t)rank) == 0 &&
        memcmp(e->place.strides, strides, sizeof *strides * (size_t)rank) == 0)
      found = &e->place;
  if (!found) {
    int perm[TPU_MAX_RANK];
    if (tpu_memory_order(rank, sizes, strides, perm))
      found = place_create(hash, head, dtype, rank, sizes, strides, perm);
    else
      *out_dense = false;
  }
  pthread_mutex_unlock(&table_lock);
  return found;
}
