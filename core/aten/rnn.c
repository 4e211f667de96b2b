/* Rows: cells of recurrent layers and their gradients. Source: aten/src/ATen/native/cuda/RNN.cu, RNN.cpp. */
#include "aten/rnn.h"

#include <inttypes.h>

#define LSTM_GATES 4 /* in, forget, cell, out */
#define GRU_GATES 3  /* reset, update, new */
#define GRU_SAVED 5  /* reset, update, new, hx, the hidden part of new before the reset gate */

static tpu_val tanh_of(tpu_build *b, tpu_val x) { return tpu_unary(b, TPU_HLO_TANH, x); }

/* Argument i: [B, n * H] -> n parts of [B, H], in opmath. */
static bool read_gates(tpu_build *b, const tpu_args *a, int i, int n, tpu_val *out_parts) {
  const tpu_operand *x = arg_operand(b, a, i);
  if (!x) return false;
  if (x->rank != 2 || x->sizes[1] % n != 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "expected gates of %d parts, [batch, %d * hidden]", n, n);
    return false;
  }
  tpu_val all = arg_math(b, a, i, x->dtype);
  int64_t width = x->sizes[1] / n;
  for (int k = 0; k < n; k++) out_parts[k] = tpu_slice_dim(b, all, 1, k * width, (k + 1) * width, 1);
  return !tpu_build_failed(b);
}

/* A bias [n * H] added to n parts; none: nothing. */
static void add_bias(tpu_build *b, const tpu_args *a, int i, int n, tpu_val *parts) {
  if (!arg_present(a, i)) return;
  const tpu_operand *bias = arg_operand(b, a, i);
  if (!bias || bias->rank != 1 || bias->sizes[0] % n != 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "expected a bias of [%d * hidden]", n);
    return;
  }
  tpu_val all = arg_math(b, a, i, bias->dtype);
  int64_t width = bias->sizes[0] / n;
  for (int k = 0; k < n; k++)
    parts[k] = bcast_binary(b, TPU_HLO_ADD, parts[k], tpu_slice_dim(b, all, 0, k * width, (k + 1) * width, 1));
}

static tpu_val join(tpu_build *b, int n, const tpu_val *parts, tpu_dtype dtype) {
  return tpu_convert(b, tpu_concat(b, n, parts, 1), dtype);
}

/* [B, N] -> [N] */
static tpu_val sum_batch(tpu_build *b, int n, const tpu_val *parts, tpu_dtype dtype) {
  tpu_val all = tpu_concat(b, n, parts, 1);
  return tpu_convert(b, tpu_reduce(b, TPU_MONOID_ADD, all, tpu_scalar(b, tpu_dtype_of(b, all), 0), 1, (const int64_t[]){0}),
                     dtype);
}

/* (input_gates [B, 4H], hidden_gates [B, 4H], cx [B, H], input_bias?, hidden_bias?) -> hy, cy, workspace [B, 4H] */
void lower_lstm_cell(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val gate[LSTM_GATES], hidden[LSTM_GATES];
  if (!read_gates(b, a, 0, LSTM_GATES, gate) || !read_gates(b, a, 1, LSTM_GATES, hidden)) return;
  tpu_dtype dtype = arg_operand(b, a, 0)->dtype;
  add_bias(b, a, 3, LSTM_GATES, gate);
  add_bias(b, a, 4, LSTM_GATES, hidden);
  for (int k = 0; k < LSTM_GATES; k++) {
    tpu_val sum = tpu_add(b, gate[k], hidden[k]);
    gate[k] = k == 2 ? tanh_of(b, sum) : sigmoid(b, sum);
  }
  tpu_val cx = arg_math(b, a, 2, dtype);
  tpu_val cy = tpu_add(b, tpu_mul(b, gate[1], cx), tpu_mul(b, gate[0], gate[2]));
  o->out[0].val = tpu_convert(b, tpu_mul(b, gate[3], tanh_of(b, cy)), dtype);
  o->out[1].val = tpu_convert(b, cy, dtype);
  o->out[2].val = join(b, LSTM_GATES, gate, dtype);
}

/* (grad_hy?, grad_cy?, cx, cy, workspace [B, 4H], has_bias) -> grad_gates [B, 4H], grad_cx, grad_bias [4H]? */
void lower_lstm_cell_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  if (!arg_present(a, 0) && !arg_present(a, 1)) {
    for (int k = 0; k < 3; k++) o->out[k].undefined = true;
    return;
  }
  tpu_val gate[LSTM_GATES], grad[LSTM_GATES];
  if (!read_gates(b, a, 4, LSTM_GATES, gate)) return;
  tpu_dtype dtype = arg_operand(b, a, 4)->dtype;
  tpu_val cx = arg_math(b, a, 2, dtype), t = tanh_of(b, arg_math(b, a, 3, dtype));
  if (tpu_build_failed(b)) return;
  tpu_val zero = tpu_full_like(b, cx, 0);
  tpu_val hy = arg_present(a, 0) ? arg_math(b, a, 0, dtype) : zero, cy = arg_present(a, 1) ? arg_math(b, a, 1, dtype) : zero;
  tpu_val c = tpu_add(b, tpu_mul(b, tpu_mul(b, hy, gate[3]), tanh_slope(b, t)), cy);
  grad[0] = tpu_mul(b, tpu_mul(b, c, gate[2]), sigmoid_slope(b, gate[0]));
  grad[1] = tpu_mul(b, tpu_mul(b, c, cx), sigmoid_slope(b, gate[1]));
  grad[2] = tpu_mul(b, tpu_mul(b, c, gate[0]), tanh_slope(b, gate[2]));
  grad[3] = tpu_mul(b, tpu_mul(b, hy, t), sigmoid_slope(b, gate[3]));
  o->out[0].val = join(b, LSTM_GATES, grad, dtype);
  o->out[1].val = tpu_convert(b, tpu_mul(b, c, gate[1]), dtype);
  if (arg_bool(b, a, 5))
    o->out[2].val = sum_batch(b, LSTM_GATES, grad, dtype);
  else
    o->out[2].undefined = true;
}

/* (input_gates [B, 3H], hidden_gates [B, 3H], hx [B, H], input_bias?, hidden_bias?) -> hy, workspace [B, 5H] */
void lower_gru_cell(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val in[GRU_GATES], hidden[GRU_GATES];
  if (!read_gates(b, a, 0, GRU_GATES, in) || !read_gates(b, a, 1, GRU_GATES, hidden)) return;
  tpu_dtype dtype = arg_operand(b, a, 0)->dtype;
  add_bias(b, a, 3, GRU_GATES, in);
  add_bias(b, a, 4, GRU_GATES, hidden);
  tpu_val hx = arg_math(b, a, 2, dtype);
  tpu_val reset = sigmoid(b, tpu_add(b, in[0], hidden[0])), update = sigmoid(b, tpu_add(b, in[1], hidden[1]));
  tpu_val fresh = tanh_of(b, tpu_add(b, in[2], tpu_mul(b, reset, hidden[2])));
  tpu_val hy = tpu_add(b, fresh, tpu_mul(b, update, tpu_sub(b, hx, fresh)));
  o->out[0].val = tpu_convert(b, hy, dtype);
  o->out[1].val = join(b, GRU_SAVED, (const tpu_val[]){reset, update, fresh, hx, hidden[2]}, dtype);
}

/* (grad_hy [B, H], workspace [B, 5H], has_bias) -> grad_input_gates, grad_hidden_gates, grad_hx, grad_input_bias?,
 * grad_hidden_bias? */
void lower_gru_cell_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val saved[GRU_SAVED];
  if (!read_gates(b, a, 1, GRU_SAVED, saved)) return;
  tpu_dtype dtype = arg_operand(b, a, 1)->dtype;
  tpu_val grad = arg_math(b, a, 0, dtype), reset = saved[0], update = saved[1], fresh = saved[2];
  tpu_val into_new = tpu_mul(b, tpu_mul(b, grad, one_minus(b, update)), tanh_slope(b, fresh));
  tpu_val into_update = tpu_mul(b, tpu_mul(b, grad, tpu_sub(b, saved[3], fresh)), sigmoid_slope(b, update));
  tpu_val into_reset = tpu_mul(b, tpu_mul(b, into_new, saved[4]), sigmoid_slope(b, reset));
  const tpu_val in[] = {into_reset, into_update, into_new};
  const tpu_val hidden[] = {into_reset, into_update, tpu_mul(b, into_new, reset)};
  o->out[0].val = join(b, GRU_GATES, in, dtype);
  o->out[1].val = join(b, GRU_GATES, hidden, dtype);
  o->out[2].val = tpu_convert(b, tpu_mul(b, grad, update), dtype);
  bool has_bias = arg_bool(b, a, 2);
  for (int k = 3; k < 5; k++) {
    if (has_bias)
      o->out[k].val = sum_batch(b, GRU_GATES, k == 3 ? in : hidden, dtype);
    else
      o->out[k].undefined = true;
  }
}
