/* Linear maps along one dim whose rows have few entries: y[o] = sum over t of weight[o, t] * x[index[o, t]]. Resampling and
 * adaptive averages are such maps, and so are their gradients. Thread-compatible.
 */
#ifndef TPU_ATEN_BANDED_H
#define TPU_ATEN_BANDED_H

#include "aten/lower.h"

typedef struct banded {
  int64_t in, out, taps;
  int64_t *index; /* [out, taps], within [0, in) */
  double *weight; /* [out, taps]; 0: no tap. All memory is the builder's. */
} banded;

/* Without taps; false when out of memory (the builder fails). */
bool banded_init(tpu_build *b, int64_t in, int64_t out, int64_t taps, banded *out_m);
bool banded_transpose(tpu_build *b, const banded *m, banded *out_m); /* in and out swapped */
/* x of an opmath type; dim of size m->in -> m->out. */
tpu_val banded_apply(tpu_build *b, const banded *m, tpu_val x, int dim);
/* Each map along its dim, first_dim and up, in turn. */
tpu_val banded_apply_each(tpu_build *b, int n, const banded *maps, tpu_val x, int first_dim);

/* x[.., index[i], ..] along dim, for indices that are known: a slice or a repetition where they form one, else a gather. */
tpu_val take_dim(tpu_build *b, tpu_val x, int dim, int64_t n, const int64_t *index);

#endif
