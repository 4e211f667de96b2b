/* What the rows about shapes share. Thread-compatible. */
#ifndef TPU_ATEN_SHAPE_H
#define TPU_ATEN_SHAPE_H

#include "aten/lower.h"

/* "[2, 3]" in buffer, which is returned; cut off if it does not fit. */
const char *shape_text(int rank, const int64_t *dims, char *buffer, size_t size);
/* strides in the builder's memory, for tpu_out. */
const int64_t *shape_strides_copy(tpu_build *b, int rank, const int64_t *strides);

/* i1 [dims]: index along dim2 - index along dim1 == offset. */
tpu_val shape_on_diagonal(tpu_build *b, int rank, const int64_t *dims, int dim1, int dim2, int64_t offset);
/* x holds a diagonal in its last dim, the other dims before it in order (as diagonal() gives it). [dims] with each element of x
 * in its whole row (along dim2), so that the elements on the diagonal are x's. */
tpu_val shape_along_diagonal(tpu_build *b, tpu_val x, int rank, const int64_t *dims, int dim1, int dim2, int64_t offset);

#endif
