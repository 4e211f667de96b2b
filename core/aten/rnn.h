/* What the rows of recurrent cells and layers share. */
#ifndef TPU_ATEN_RNN_H
#define TPU_ATEN_RNN_H

#include "aten/elementwise.h"

static inline tpu_val one_minus(tpu_build *b, tpu_val x) { return add_c(b, tpu_neg(b, x), 1); }
/* The derivatives of sigmoid and tanh by their values. */
static inline tpu_val sigmoid_slope(tpu_build *b, tpu_val y) { return tpu_mul(b, y, one_minus(b, y)); }
static inline tpu_val tanh_slope(tpu_build *b, tpu_val y) { return one_minus(b, square(b, y)); }

#endif
