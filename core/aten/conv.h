/* Convolutions as three maps, each the transpose of the others: y = conv(x, w), x's gradient, w's gradient.
 *
 * x [N, C, *], w [O, C / groups, *], y [N, O, *]; values keep PyTorch's logical order of dims. All values have the dtype from
 * conv_operand; results are of its opmath type. Thread-compatible.
 */
#ifndef TPU_ATEN_CONV_H
#define TPU_ATEN_CONV_H

#include "aten/lower.h"

#define CONV_MAX_SPATIAL (TPU_MAX_RANK - 2)
typedef struct conv {
  int spatial; /* number of spatial dims */
  int64_t stride[CONV_MAX_SPATIAL], padding[CONV_MAX_SPATIAL], dilation[CONV_MAX_SPATIAL];
  int64_t groups;
  bool channels_last; /* x lies in memory with its channels innermost */
} conv;

/* The value in the type the target's convolutions take. */
tpu_val conv_operand(tpu_build *b, tpu_val x);
/* Size of y's spatial dim d, given x's and the kernel's. */
int64_t conv_size(const conv *c, int d, int64_t x_size, int64_t kernel_size);

tpu_val conv_forward(tpu_build *b, const conv *c, tpu_val x, tpu_val w);
tpu_val conv_input_gradient(tpu_build *b, const conv *c, tpu_val gy, tpu_val w, const int64_t *x_dims);
tpu_val conv_weight_gradient(tpu_build *b, const conv *c, tpu_val x, tpu_val gy, const int64_t *w_dims);

/* Forms for XLA's CPU backend, measured 3 to 30 times faster there than its convolution (conv_forms.c). w [O, C / groups, 1..]
 * and no padding: products of matrices. */
bool conv_is_pointwise(tpu_build *b, const conv *c, const int64_t *w_dims);
tpu_val conv_pointwise(tpu_build *b, const conv *c, tpu_val x, tpu_val w);
tpu_val conv_pointwise_input_gradient(tpu_build *b, const conv *c, tpu_val gy, tpu_val w, const int64_t *x_dims);
tpu_val conv_pointwise_weight_gradient(tpu_build *b, const conv *c, tpu_val x, tpu_val gy, const int64_t *w_dims);
/* One input channel a group: sums of shifted products. */
bool conv_is_depthwise(tpu_build *b, const conv *c, const int64_t *w_dims);
tpu_val conv_depthwise(tpu_build *b, const conv *c, tpu_val x, tpu_val w);
tpu_val conv_depthwise_input_gradient(tpu_build *b, const conv *c, tpu_val gy, tpu_val w, const int64_t *x_dims);
tpu_val conv_depthwise_weight_gradient(tpu_build *b, const conv *c, tpu_val x, tpu_val gy, const int64_t *w_dims);

#endif
