/* What reductions share. Axes are ascending, unique and in range, as arg_axes gives them. Thread-compatible. */
#ifndef TPU_ATEN_REDUCE_H
#define TPU_ATEN_REDUCE_H

#include "aten/lower.h"

/* x reduced over axes, starting from op's identity. Without axes: x. */
tpu_val reduce_over(tpu_build *b, tpu_monoid op, tpu_val x, int n_axes, const int64_t *axes);
tpu_val reduce_all(tpu_build *b, tpu_monoid op, tpu_val x);
/* As reduce_over, accumulating in x's opmath type, with x's dtype again at the end. */
tpu_val reduce_wide(tpu_build *b, tpu_monoid op, tpu_val x, int n_axes, const int64_t *axes);
/* y = a reduction of `like` over axes; with keepdim its axes come back as dims of size 1. */
tpu_val reduce_keep(tpu_build *b, tpu_val y, tpu_val like, int n_axes, const int64_t *axes, bool keepdim);
/* y = a reduction of `like` over axes, repeated along them: [dims of like]. */
tpu_val reduce_spread(tpu_build *b, tpu_val y, tpu_val like, int n_axes, const int64_t *axes);
/* Elements that are reduced into one. */
int64_t reduce_count(tpu_build *b, tpu_val x, int n_axes, const int64_t *axes);
int reduce_all_axes(tpu_build *b, tpu_val x, int64_t *out_axes); /* their number */

/* Index (i32, or i64 for long dims) along `axis` of the first element that equals the extreme, or of the first NaN. op: MAX or
 * MIN. Rank 0 gives 0. out_value NULL: not wanted. */
tpu_val reduce_index(tpu_build *b, tpu_monoid op, tpu_val x, int axis, tpu_val *out_value);
tpu_dtype reduce_index_dtype(int64_t size);
/* x[.., index[..], ..] along axis by comparing with an iota: [dims of x without axis]; index has those dims. */
tpu_val reduce_pick(tpu_build *b, tpu_val x, int axis, tpu_val index);

/* The p-norm of x over axes, of x's real type: p = 0 counts, inf and -inf are the extremes of |x|. */
tpu_val reduce_norm(tpu_build *b, tpu_val x, double p, int n_axes, const int64_t *axes);

/* False and a failure if dim `dim` (wrapped) of x is empty: `fn` is the name in the message, "max()". */
bool reduce_check_dim(tpu_build *b, tpu_val x, int dim, const char *fn);
/* Reduction argument of losses, at::Reduction. */
enum { REDUCTION_NONE, REDUCTION_MEAN, REDUCTION_SUM };
/* x, its mean or its sum over all elements, as dtype; x is of dtype's opmath type. */
tpu_val reduce_loss(tpu_build *b, tpu_val x, tpu_dtype dtype, int64_t reduction);

#endif
