/* What embedding and embedding_bag share. Thread-compatible. */
#ifndef TPU_ATEN_EMBEDDING_H
#define TPU_ATEN_EMBEDDING_H

#include "aten/indexing.h"

/* [n, D] of rows' opmath type: out[i] = the sum of rows[j] with index[j] == i. index [N] prepared, rows [N, D]; indices outside
 * [0, n) are left out. */
tpu_val embedding_sum_rows(tpu_build *b, int64_t n, tpu_val index, tpu_val rows);
/* [N] of dtype: how often index[j] occurs in index. */
tpu_val embedding_frequency(tpu_build *b, int64_t n, tpu_val index, tpu_dtype dtype);
/* index with `outside` (n) where it equals padding or `drop` is true. padding < 0: none; drop: poison: none. */
tpu_val embedding_drop(tpu_build *b, tpu_val index, int64_t n, int64_t padding, tpu_val drop);
/* x [N] beside every element of a row: [N, D]. */
tpu_val embedding_beside(tpu_build *b, tpu_val x, int64_t row_size);
/* RuntimeError in at::checkScalarTypes's words if index is no I64 or I32. */
bool embedding_check_index(tpu_build *b, const tpu_operand *index, int position, const char *function);

#endif
