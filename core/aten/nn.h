/* What the rows of layers share: contractions, dims in messages, expansion. Thread-compatible. */
#ifndef TPU_ATEN_NN_H
#define TPU_ATEN_NN_H

#include "aten/lower.h"

/* "[2, 3]"; the text is the builder's. */
const char *dims_text(tpu_build *b, int rank, const int64_t *dims);

/* x expanded to dims; INVALID_ARGUMENT in the words of Tensor.expand. */
tpu_val expand_to(tpu_build *b, tpu_val x, int rank, const int64_t *dims);
/* A 1-d x [C] along dim `dim` of dims. */
tpu_val spread_dim(tpu_build *b, tpu_val x, int rank, const int64_t *dims, int dim);

/* Contracts dim cx of x with dim cy of y, the first n_batch dims being batch dims of both. Accumulates in the opmath type, which
 * is the result's: [batch, x's others, y's others]. */
tpu_val contract(tpu_build *b, tpu_val x, tpu_val y, int n_batch, int64_t cx, int64_t cy);
tpu_val contract_dims(tpu_build *b, tpu_val x, tpu_val y, const tpu_dot_dims *dims);

/* Sums and maxima of x over axes, which leave the result; x is of an opmath type. On the CPU a sum over the last dims is a
 * product with ones: XLA's CPU backend does not vectorise such reductions (5 times slower).
 */
tpu_val sum_over(tpu_build *b, tpu_val x, int n_axes, const int64_t *axes);
tpu_val max_over(tpu_build *b, tpu_val x, int n_axes, const int64_t *axes);
/* sum_over / count, in x's dims but for 1 along the axes. */
tpu_val mean_keep(tpu_build *b, tpu_val x, int n_axes, const int64_t *axes);
/* y of dims like x's but for ones, repeated along those, combined with x: x op y. */
tpu_val with_kept(tpu_build *b, tpu_hlo op, tpu_val x, tpu_val y);

/* x, computed apart from what uses it: not fused with it, and so not computed anew for each use. */
tpu_val separated(tpu_build *b, tpu_val x);

/* The result's strides: channels_last if `like` suggests it, else row-major. */
void out_channels_last(tpu_build *b, tpu_out *out, const tpu_operand *like);

/* Those of at::empty_like(like), dims permitting. */
void out_preserve(tpu_build *b, tpu_out *out, const tpu_operand *like);

/* Fills out[n] from an int list argument that may hold one value for all; false and a failure `message` otherwise. An empty list
 * gives otherwise[n], where that is not NULL. */
bool arg_ints_n(tpu_build *b, const tpu_args *a, int i, int n, const int64_t *otherwise, const char *message, int64_t *out);

/* An empty tensor [0], as PyTorch returns for results that are not wanted. */
tpu_val empty_result(tpu_build *b, tpu_dtype dtype);

#endif
