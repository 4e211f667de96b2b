/* What indexing rows share: reading and writing a tensor where integer tensors point. Thread-compatible.
 *
 * Sizes of 0 are allowed everywhere. A position outside the tensor reads some element of it and writes nothing (or, for a single
 * position, some element): never memory that is not the tensor's.
 */
#ifndef TPU_ATEN_INDEXING_H
#define TPU_ATEN_INDEXING_H

#include "aten/lower.h"

/* An index tensor as gathers and scatters take it: i32 where `size` allows, with negative positions counted from the end if
 * `wrap`. Every index that a user gives passes here, so this is the place for a range check. */
tpu_val index_prepare(tpu_build *b, tpu_val index, int64_t size, bool wrap);
/* The same for an index that a forward pass made: not checked. */
tpu_val index_trusted(tpu_build *b, tpu_val index, int64_t size);
bool index_is_integer(tpu_dtype dtype); /* I64 or I32 */

/* Index tensors for `n` dims of x, that together point at blocks of it. The result has x's other dims, in order, with the
 * indices' common dims (`block`) before the at-th of them. */
typedef struct index_plan {
  int n;
  int dims[TPU_MAX_RANK];        /* ascending */
  tpu_val indices[TPU_MAX_RANK]; /* prepared; each [block] */
  int block_rank;
  int64_t block[TPU_MAX_RANK];
  int at;
} index_plan;
int index_result_dims(tpu_build *b, tpu_val x, const index_plan *plan, int64_t *out_dims); /* their number */
tpu_val index_read(tpu_build *b, tpu_val x, const index_plan *plan);
/* x with op(old, update) where the plan points; updates have the dims index_read would give. bool: ADD is or, MUL is and. Sums
 * and products of 16-bit floats are accumulated in float32. */
tpu_val index_write(tpu_build *b, tpu_monoid op, tpu_val x, const index_plan *plan, tpu_val updates);

/* The same for one index of any rank along `dim`: x[.., index, ..]. */
tpu_val index_read_rows(tpu_build *b, tpu_val x, int dim, tpu_val index);
tpu_val index_write_rows(tpu_build *b, tpu_monoid op, tpu_val x, int dim, tpu_val index, tpu_val updates);

/* out[i, j, k] = x[i, index[i, j, k], k] (for dim 1): torch.gather. index has x's rank and no larger dims but `dim`; prepared.
 * strides: the index tensor's own; where they are 0, whole rows move. NULL: unknown. */
tpu_val index_gather(tpu_build *b, tpu_val x, int dim, tpu_val index, const int64_t *strides);
/* x[i, index[i, j, k], k] = op(x[..], src[i, j, k]); src has the index's dims. */
tpu_val index_scatter(tpu_build *b, tpu_monoid op, tpu_val x, int dim, tpu_val index, const int64_t *strides, tpu_val src);

/* scatter_reduce: as index_scatter, with the reductions by name. Without include_self the old values of the positions written do
 * not take part. */
typedef enum index_reduction { INDEX_SUM, INDEX_PROD, INDEX_MEAN, INDEX_AMAX, INDEX_AMIN } index_reduction;
bool index_reduction_parse(const char *name, index_reduction *out);
tpu_val index_scatter_reduce(tpu_build *b, index_reduction op, tpu_val x, int dim, tpu_val index, const int64_t *strides,
                             tpu_val src, bool include_self);

/* [n] i32 (i64 for long ones): how many true elements of mask [n] precede each. */
tpu_val index_rank_true(tpu_build *b, tpu_val mask);
/* [n] of dtype I32: out[j] = how many of ascending `ends` [m] are <= j. */
tpu_val index_count_ends(tpu_build *b, tpu_val ends, int64_t n);

/* x as one dim; dims [1] for a scalar. */
tpu_val index_flatten(tpu_build *b, tpu_val x);
/* "[2, 3]", in the builder's memory. */
const char *index_dims_text(tpu_build *b, int rank, const int64_t *dims);

#endif
