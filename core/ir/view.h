/* Strided views of a value, as StableHLO. Pure functions of the builder; thread-compatible.
 *
 * A storage's value is kept in memory order: a dense row-major array `base` of dims P. A view is (dtype, sizes, strides,
 * offset) in elements of the view's dtype, relative to the storage's first byte, as PyTorch keeps it.
 */
#ifndef TPU_IR_VIEW_H
#define TPU_IR_VIEW_H

#include "ir/build.h"

typedef struct tpu_view_geometry {
  tpu_dtype dtype;
  int rank;
  const int64_t *sizes, *strides;
  int64_t offset;       /* elements; ignored when dynamic */
  tpu_val dyn_offset;   /* scalar i64 with the offset at run time; poison: static */
  int64_t dyn_multiple; /* the caller's promise: the run-time offset is a multiple of this (0: none), so that windows keep
                           the base's own dims: an offset of `pos` rows is a multiple of a row's elements */
} tpu_view_geometry;

/* The view's elements as a logical value [sizes]. In order of preference: reshape/transpose/slice/broadcast, strided slice,
 * dynamic_slice, gather. If the dtype differs from base's, bytes are reinterpreted. INVALID_ARGUMENT if the view reaches outside.
 */
tpu_val tpu_view_read(tpu_build *b, tpu_val base, const tpu_view_geometry *view);
/* base with the view's elements replaced by `value` [sizes] (of view dtype): a new value of base's type. In order of preference:
 * reshape/transpose (whole), dynamic_update_slice, pad+select, scatter. Views with stride-0 dims of size > 1 or other
 * self-overlap: the last element in row-major order of the view wins. */
tpu_val tpu_view_write(tpu_build *b, tpu_val base, const tpu_view_geometry *view, tpu_val value);

/* Memory order of dense non-overlapping (sizes, strides): out_perm lists the logical dims from outermost to innermost in memory,
 * so that physical dims[i] = sizes[out_perm[i]]. False if (sizes, strides) is not dense and non-overlapping (size-1 dims have
 * free strides; empty tensors are dense). */
bool tpu_memory_order(int rank, const int64_t *sizes, const int64_t *strides, int *out_perm);
/* Is the view exactly the whole base of dims `base_dims` (offset 0, dense, as many elements)? */
bool tpu_view_is_whole(int base_rank, const int64_t *base_dims, const tpu_view_geometry *view);

#endif
