/* Losses that compare two tensors element by element, and their gradients. */
#include "aten/reduce.h"

/* Arguments i .. i + n - 1 in the opmath type of their common float type, broadcast. The dtype; TPU_DTYPE_NONE after a failure.
 */
static tpu_dtype operands(tpu_build *b, const tpu_args *a, int i, int n, tpu_val *out) {
  tpu_dtype dtype = promote_args(b, a, i, n);
  if (tpu_build_failed(b)) return TPU_DTYPE_NONE;
  if (!tpu_is_float(dtype) && !tpu_is_complex(dtype)) {
    fail_not_implemented(b, a, dtype);
    return TPU_DTYPE_NONE;
  }
  for (int k = 0; k < n; k++) out[k] = arg_math(b, a, i + k, dtype);
  broadcast_all(b, n, out);
  return dtype;
}

/* 1 / elements of argument `self` for the mean, else 1; grad times it. */
static tpu_val scale_gradient(tpu_build *b, const tpu_args *a, int self, int64_t reduction, tpu_val grad) {
  if (reduction != REDUCTION_MEAN) return grad;
  return binary_c(b, TPU_HLO_DIVIDE, grad, (double)tpu_numel_of(b, arg_tensor(b, a, self)));
}

/* mse_loss(self, target, reduction) */
void lower_mse_loss(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x[2];
  tpu_dtype dtype = operands(b, a, 0, 2, x);
  if (dtype == TPU_DTYPE_NONE) return;
  tpu_val off = tpu_sub(b, x[0], x[1]);
  o->out[0].val = reduce_loss(b, tpu_mul(b, off, off), dtype, arg_int(b, a, 2, REDUCTION_MEAN));
}

/* mse_loss_backward(grad_output, self, target, reduction) */
void lower_mse_loss_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x[3];
  tpu_dtype dtype = operands(b, a, 0, 3, x);
  if (dtype == TPU_DTYPE_NONE) return;
  tpu_val y = binary_c(b, TPU_HLO_MULTIPLY, tpu_mul(b, tpu_sub(b, x[1], x[2]), x[0]), 2);
  o->out[0].val = tpu_convert(b, scale_gradient(b, a, 1, arg_int(b, a, 3, REDUCTION_MEAN), y), dtype);
}

/* smooth_l1_loss(self, target, reduction, beta), huber_loss(self, target, reduction, delta). rule: 1 is huber. Huber's is delta
 * times the smooth one. */
void lower_smooth_l1_loss(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x[2];
  tpu_dtype dtype = operands(b, a, 0, 2, x);
  double beta = arg_static(b, a, 3);
  if (dtype == TPU_DTYPE_NONE || tpu_build_failed(b)) return;
  bool huber = a->row->rule == 1;
  if (huber ? beta <= 0 : beta < 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             huber ? "huber_loss does not support non-positive values for delta."
                   : "smooth_l1_loss does not support negative values for beta.");
    return;
  }
  tpu_val size = tpu_unary(b, TPU_HLO_ABS, tpu_sub(b, x[0], x[1]));
  tpu_val near = tpu_compare(b, huber ? TPU_LE : TPU_LT, size, tpu_full_like(b, size, beta));
  tpu_val square = binary_c(b, TPU_HLO_MULTIPLY, tpu_mul(b, size, size), 0.5);
  tpu_val line = binary_c(b, TPU_HLO_SUBTRACT, size, 0.5 * beta);
  if (huber)
    line = binary_c(b, TPU_HLO_MULTIPLY, line, beta);
  else
    square = binary_c(b, TPU_HLO_DIVIDE, square, beta);
  o->out[0].val = reduce_loss(b, tpu_select(b, near, square, line), dtype, arg_int(b, a, 2, REDUCTION_MEAN));
}

/* smooth_l1_loss_backward, huber_loss_backward (grad_output, self, target, reduction, beta) */
void lower_smooth_l1_loss_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x[3];
  tpu_dtype dtype = operands(b, a, 0, 3, x);
  double beta = arg_static(b, a, 4);
  if (dtype == TPU_DTYPE_NONE) return;
  bool huber = a->row->rule == 1;
  tpu_val off = tpu_sub(b, x[1], x[2]);
  tpu_val slope = huber ? off : binary_c(b, TPU_HLO_DIVIDE, off, beta);
  tpu_val most = tpu_full_like(b, off, huber ? beta : 1), least = tpu_full_like(b, off, huber ? -beta : -1);
  slope = tpu_select(b, tpu_compare(b, TPU_GE, off, tpu_full_like(b, off, beta)), most, slope);
  slope = tpu_select(b, tpu_compare(b, TPU_LE, off, tpu_full_like(b, off, -beta)), least, slope);
  tpu_val y = scale_gradient(b, a, 1, arg_int(b, a, 3, REDUCTION_MEAN), tpu_mul(b, slope, x[0]));
  o->out[0].val = tpu_convert(b, y, dtype);
}

/* log, not below -100, as binary_cross_entropy has it. */
static tpu_val bounded(tpu_build *b, tpu_val log) { return binary_c(b, TPU_HLO_MAXIMUM, log, -100); }

static tpu_val weighted(tpu_build *b, const tpu_args *a, int i, tpu_dtype dtype, tpu_val loss) {
  if (!arg_present(a, i)) return loss;
  return bcast_binary(b, TPU_HLO_MULTIPLY, loss, arg_math(b, a, i, dtype));
}

/* Argument i, if there is one, has the dtype of argument `self`: this loss does not promote. */
static bool same_dtype(tpu_build *b, const tpu_args *a, int self, int i) {
  if (!arg_present(a, i) || tpu_build_failed(b)) return true;
  tpu_dtype expected = tpu_dtype_of(b, arg_tensor(b, a, self)), found = tpu_dtype_of(b, arg_tensor(b, a, i));
  if (found == expected) return true;
  tpu_fail(b, TPU_INVALID_ARGUMENT, "Found dtype %s but expected %s", tpu_dtype_scalar_name(found),
           tpu_dtype_scalar_name(expected));
  return false;
}

/* binary_cross_entropy(self, target, weight, reduction) */
void lower_binary_cross_entropy(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x[2];
  if (!same_dtype(b, a, 0, 1) || !same_dtype(b, a, 0, 2)) return;
  tpu_dtype dtype = operands(b, a, 0, 2, x);
  if (dtype == TPU_DTYPE_NONE) return;
  tpu_val no = bounded(b, tpu_unary(b, TPU_HLO_LOG1P, tpu_neg(b, x[0]))), yes = bounded(b, tpu_log(b, x[0]));
  tpu_val loss = tpu_sub(b, tpu_mul(b, binary_c(b, TPU_HLO_SUBTRACT, x[1], 1), no), tpu_mul(b, x[1], yes));
  o->out[0].val = reduce_loss(b, weighted(b, a, 2, dtype, loss), dtype, arg_int(b, a, 3, REDUCTION_MEAN));
}

/* binary_cross_entropy_backward(grad_output, self, target, weight, reduction) */
void lower_binary_cross_entropy_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x[3];
  if (!same_dtype(b, a, 1, 2) || !same_dtype(b, a, 1, 3)) return;
  tpu_dtype dtype = operands(b, a, 0, 3, x);
  if (dtype == TPU_DTYPE_NONE) return;
  tpu_val spread = tpu_sub(b, x[1], tpu_mul(b, x[1], x[1]));
  tpu_val y = tpu_div(b, tpu_mul(b, x[0], tpu_sub(b, x[1], x[2])), binary_c(b, TPU_HLO_MAXIMUM, spread, 1e-12));
  y = scale_gradient(b, a, 1, arg_int(b, a, 4, REDUCTION_MEAN), weighted(b, a, 3, dtype, y));
  o->out[0].val = tpu_convert(b, y, dtype);
}

/* binary_cross_entropy_with_logits(self, target, weight, pos_weight, reduction) */
void lower_bce_with_logits(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x[2];
  tpu_dtype dtype = operands(b, a, 0, 2, x);
  if (dtype == TPU_DTYPE_NONE) return;
  tpu_val tail = tpu_unary(b, TPU_HLO_LOG1P, tpu_exp(b, tpu_neg(b, tpu_unary(b, TPU_HLO_ABS, x[0]))));
  tpu_val log_sigmoid = tpu_sub(b, binary_c(b, TPU_HLO_MINIMUM, x[0], 0), tail);
  if (arg_present(a, 3)) {
    tpu_val extra = binary_c(b, TPU_HLO_SUBTRACT, arg_math(b, a, 3, dtype), 1);
    tpu_val factor = binary_c(b, TPU_HLO_ADD, bcast_binary(b, TPU_HLO_MULTIPLY, extra, x[1]), 1);
    log_sigmoid = bcast_binary(b, TPU_HLO_MULTIPLY, log_sigmoid, factor);
  }
  tpu_val rest = tpu_mul(b, tpu_sub(b, tpu_full_like(b, x[1], 1), x[1]), x[0]);
  tpu_val loss = bcast_binary(b, TPU_HLO_SUBTRACT, rest, log_sigmoid);
  o->out[0].val = reduce_loss(b, weighted(b, a, 2, dtype, loss), dtype, arg_int(b, a, 4, REDUCTION_MEAN));
}

/* soft_margin_loss(self, target, reduction): log(1 + exp(-target x)) */
void lower_soft_margin_loss(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x[2];
  tpu_dtype dtype = operands(b, a, 0, 2, x);
  if (dtype == TPU_DTYPE_NONE) return;
  tpu_val loss = tpu_unary(b, TPU_HLO_LOG1P, tpu_exp(b, tpu_neg(b, tpu_mul(b, x[1], x[0]))));
  o->out[0].val = reduce_loss(b, loss, dtype, arg_int(b, a, 2, REDUCTION_MEAN));
}

/* soft_margin_loss_backward(grad_output, self, target, reduction) */
void lower_soft_margin_loss_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x[3];
  tpu_dtype dtype = operands(b, a, 0, 3, x);
  if (dtype == TPU_DTYPE_NONE) return;
  tpu_val z = tpu_exp(b, tpu_neg(b, tpu_mul(b, x[2], x[1])));
  tpu_val y = tpu_div(b, tpu_mul(b, tpu_neg(b, x[2]), z), binary_c(b, TPU_HLO_ADD, z, 1));
  y = scale_gradient(b, a, 1, arg_int(b, a, 3, REDUCTION_MEAN), tpu_mul(b, y, x[0]));
  o->out[0].val = tpu_convert(b, y, dtype);
}
