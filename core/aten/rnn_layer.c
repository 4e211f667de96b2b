/* Rows: one recurrent layer over all its steps, as a loop, and its gradients. The argument lists are those of PyTorch's cuDNN
 * operators, whose formulas connect them to autograd. */
#include <string.h>

#include "aten/nn.h"
#include "aten/rnn.h"

enum { MODE_RELU, MODE_TANH, MODE_LSTM, MODE_GRU };

typedef struct layer {
  tpu_build *b;
  int mode, directions;
  bool has_bias;
  int64_t t, n, width, hidden, gates; /* steps, batch, input, hidden, gates * hidden */
  int64_t saved;                      /* what a step keeps for the gradient: numbers per element of hidden */
  tpu_dtype dtype, math;
  tpu_val input, hx, cx; /* [T, N, F], [D, N, H]; in math */
  const tpu_args *args;
  int weights; /* the argument */
} layer;

/* One direction, and what its loop refers to. */
typedef struct pass {
  const layer *l;
  bool backwards;
  tpu_val gates;                    /* [T, N, G]: the input's part, biases included where they may be */
  tpu_val w, bias;                  /* [G, H], [G] of the hidden part; bias poison: none */
  tpu_val out, kept;                /* gradients: the results [T, N, H] before and what was saved [T, N, S H] */
  tpu_val h_before, c_before, grad; /* [T, N, H] */
} pass;

static int gate_count(int mode) { return mode == MODE_LSTM ? 4 : mode == MODE_GRU ? 3 : 1; }

static tpu_val weight(const layer *l, int direction, int k) {
  int per = l->has_bias ? 4 : 2;
  return tpu_convert(l->b, arg_list_tensor(l->b, l->args, l->weights, direction * per + k), l->math);
}

static tpu_val squeezed(tpu_build *b, tpu_val x, int64_t i) { return tpu_squeeze(b, tpu_slice_dim(b, x, 0, i, i + 1, 1), 0); }

static bool read_layer(tpu_build *b, const tpu_args *a, int weights, int hx, int cx, int mode, layer *l) {
  const tpu_operand *x = arg_operand(b, a, 0), *h = arg_operand(b, a, hx);
  *l = (layer){.b = b, .args = a, .weights = weights, .mode = (int)arg_int(b, a, mode, 0)};
  if (!x || !h) return false;
  l->has_bias = arg_int(b, a, 2, 0) == 4;
  l->directions = arg_bool(b, a, mode + 7) ? 2 : 1;
  if (x->rank != 3 || h->rank != 3 || arg_int(b, a, mode + 3, 1) != 1 || arg_bool(b, a, mode + 4) || arg_int(b, a, mode + 2, 0)) {
    tpu_fail(b, TPU_UNIMPLEMENTED, "one layer without projection, [steps, batch, features], is supported");
    return false;
  }
  l->t = x->sizes[0], l->n = x->sizes[1], l->width = x->sizes[2], l->hidden = h->sizes[2];
  l->gates = gate_count(l->mode) * l->hidden;
  l->saved = l->mode == MODE_LSTM ? 5 : l->mode == MODE_GRU ? 4 : 0;
  l->dtype = x->dtype;
  l->math = tpu_dtype_opmath(x->dtype);
  l->input = tpu_convert(b, x->val, l->math);
  l->hx = tpu_convert(b, h->val, l->math);
  if (l->mode == MODE_LSTM) l->cx = arg_math(b, a, cx, l->dtype);
  return !tpu_build_failed(b);
}

/* --- steps */
static tpu_val step_of(const pass *p, tpu_val i) {
  tpu_build *b = p->l->b;
  return p->backwards ? tpu_sub(b, tpu_scalar_i(b, TPU_I32, p->l->t - 1), i) : i;
}

static tpu_val at_step(tpu_build *b, tpu_val all, tpu_val t) {
  tpu_val zero = tpu_scalar_i(b, TPU_I32, 0), starts[3] = {t, zero, zero};
  int64_t sizes[3] = {1, tpu_dim_of(b, all, 1), tpu_dim_of(b, all, 2)};
  return tpu_squeeze(b, tpu_dynamic_slice(b, all, starts, sizes), 0);
}

static tpu_val put_step(tpu_build *b, tpu_val all, tpu_val t, tpu_val x) {
  tpu_val zero = tpu_scalar_i(b, TPU_I32, 0), starts[3] = {t, zero, zero};
  return tpu_dynamic_update_slice(b, all, tpu_unsqueeze(b, x, 0), starts);
}

static tpu_val part(const layer *l, tpu_val x, int k) { return tpu_slice_dim(l->b, x, 1, k * l->hidden, (k + 1) * l->hidden, 1); }

static tpu_val more(tpu_build *b, const tpu_val *params, void *arg) {
  const pass *p = arg;
  return tpu_compare(b, TPU_LT, params[0], tpu_scalar_i(b, TPU_I32, p->l->t));
}

static tpu_val zeros(const layer *l, int64_t columns) {
  const int64_t dims[3] = {l->t, l->n, columns};
  return tpu_full(l->b, l->math, 3, dims, 0);
}

/* Carried: step, h [N, H], c [N, H], results [T, N, H], what is saved [T, N, S H]. */
static void step(tpu_build *b, const tpu_val *params, tpu_val *next, void *arg) {
  const pass *p = arg;
  const layer *l = p->l;
  tpu_val t = step_of(p, params[0]), h = params[1], c = params[2];
  tpu_val in = at_step(b, p->gates, t), hidden = contract(b, h, p->w, 0, 1, 1);
  if (p->bias.id) hidden = tpu_add(b, hidden, tpu_broadcast_like(b, p->bias, hidden));
  tpu_val kept = params[4];
  if (l->mode == MODE_LSTM) {
    tpu_val all = tpu_add(b, in, hidden), parts[5];
    for (int k = 0; k < 4; k++) parts[k] = k == 2 ? tpu_unary(b, TPU_HLO_TANH, part(l, all, k)) : sigmoid(b, part(l, all, k));
    c = tpu_add(b, tpu_mul(b, parts[1], c), tpu_mul(b, parts[0], parts[2]));
    h = tpu_mul(b, parts[3], tpu_unary(b, TPU_HLO_TANH, c));
    parts[4] = c;
    kept = put_step(b, kept, t, tpu_concat(b, 5, parts, 1));
  } else if (l->mode == MODE_GRU) {
    tpu_val reset = sigmoid(b, tpu_add(b, part(l, in, 0), part(l, hidden, 0)));
    tpu_val update = sigmoid(b, tpu_add(b, part(l, in, 1), part(l, hidden, 1))), inner = part(l, hidden, 2);
    tpu_val fresh = tpu_unary(b, TPU_HLO_TANH, tpu_add(b, part(l, in, 2), tpu_mul(b, reset, inner)));
    h = tpu_add(b, fresh, tpu_mul(b, update, tpu_sub(b, h, fresh)));
    kept = put_step(b, kept, t, tpu_concat(b, 4, (const tpu_val[]){reset, update, fresh, inner}, 1));
  } else {
    tpu_val all = tpu_add(b, in, hidden);
    h = l->mode == MODE_TANH ? tpu_unary(b, TPU_HLO_TANH, all) : max_c(b, all, 0);
  }
  next[0] = add_c(b, params[0], 1);
  next[1] = h;
  next[2] = c;
  next[3] = put_step(b, params[3], t, h);
  next[4] = kept;
}

/* [T, N, F] x [G, F] -> [T, N, G], with biases [G]. */
static tpu_val input_part(const layer *l, int d) {
  tpu_build *b = l->b;
  tpu_val gates = contract(b, l->input, weight(l, d, 0), 0, 2, 1);
  if (!l->has_bias) return gates;
  tpu_val bias = weight(l, d, 2);
  if (l->mode != MODE_GRU) bias = tpu_add(b, bias, weight(l, d, 3)); /* GRU scales a part of the hidden one */
  return tpu_add(b, gates, tpu_broadcast_like(b, bias, gates));
}

/* _cudnn_rnn(input [T, N, F], weight[], weight_stride0, weight_buf?, hx [D, N, H], cx?, mode, hidden_size, proj_size, num_layers
 * = 1, batch_first = false, dropout, train, bidirectional, ...) -> output [T, N, D H], hy, cy, reserve, weight_buf */
void lower_rnn_layer(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  layer l;
  if (!read_layer(b, a, 1, 4, 5, 6, &l)) return;
  tpu_val results[2], hy[2], cy[2], kept[2];
  for (int d = 0; d < l.directions; d++) {
    pass p = {.l = &l, .backwards = d == 1, .gates = input_part(&l, d), .w = weight(&l, d, 1)};
    if (l.has_bias && l.mode == MODE_GRU) p.bias = weight(&l, d, 3);
    tpu_val h = squeezed(b, l.hx, d), init[5], out[5];
    init[0] = tpu_scalar_i(b, TPU_I32, 0);
    init[1] = h;
    init[2] = l.mode == MODE_LSTM ? squeezed(b, l.cx, d) : tpu_scalar(b, l.math, 0);
    init[3] = zeros(&l, l.hidden);
    init[4] = zeros(&l, l.saved * l.hidden);
    tpu_while(b, 5, init, more, step, &p, out);
    results[d] = out[3];
    hy[d] = tpu_unsqueeze(b, out[1], 0);
    cy[d] = l.mode == MODE_LSTM ? tpu_unsqueeze(b, out[2], 0) : out[2];
    kept[d] = tpu_unsqueeze(b, out[4], 0);
  }
  o->out[0].val = tpu_convert(b, tpu_concat(b, l.directions, results, 2), l.dtype);
  o->out[1].val = tpu_convert(b, tpu_concat(b, l.directions, hy, 0), l.dtype);
  o->out[2].val = l.mode == MODE_LSTM ? tpu_convert(b, tpu_concat(b, l.directions, cy, 0), l.dtype) : empty_result(b, l.dtype);
  o->out[3].val = tpu_concat(b, l.directions, kept, 0);
  o->out[4].val = empty_result(b, l.dtype);
}

/* --- gradients */
/* Carried: how many steps are done, dh [N, H], dc [N, H], gradients of the input's gates and of the hidden ones [T, N, G]. */
static void step_back(tpu_build *b, const tpu_val *params, tpu_val *next, void *arg) {
  const pass *p = arg;
  const layer *l = p->l;
  tpu_val t = tpu_sub(b, tpu_scalar_i(b, TPU_I32, l->t - 1), params[0]);
  t = step_of(p, t);
  tpu_val dh = tpu_add(b, params[1], at_step(b, p->grad, t)), dc = params[2], in, hidden, through = TPU_POISON;
  if (l->mode == MODE_LSTM) {
    tpu_val kept = at_step(b, p->kept, t), g[4], d[4];
    for (int k = 0; k < 4; k++) g[k] = part(l, kept, k);
    tpu_val y = tpu_unary(b, TPU_HLO_TANH, part(l, kept, 4));
    dc = tpu_add(b, dc, tpu_mul(b, tpu_mul(b, dh, g[3]), tanh_slope(b, y)));
    d[0] = tpu_mul(b, tpu_mul(b, dc, g[2]), sigmoid_slope(b, g[0]));
    d[1] = tpu_mul(b, tpu_mul(b, dc, at_step(b, p->c_before, t)), sigmoid_slope(b, g[1]));
    d[2] = tpu_mul(b, tpu_mul(b, dc, g[0]), tanh_slope(b, g[2]));
    d[3] = tpu_mul(b, tpu_mul(b, dh, y), sigmoid_slope(b, g[3]));
    dc = tpu_mul(b, dc, g[1]);
    in = hidden = tpu_concat(b, 4, d, 1);
  } else if (l->mode == MODE_GRU) {
    tpu_val kept = at_step(b, p->kept, t), reset = part(l, kept, 0), update = part(l, kept, 1), fresh = part(l, kept, 2);
    tpu_val into_new = tpu_mul(b, tpu_mul(b, dh, one_minus(b, update)), tanh_slope(b, fresh));
    tpu_val before = at_step(b, p->h_before, t);
    tpu_val into_update = tpu_mul(b, tpu_mul(b, dh, tpu_sub(b, before, fresh)), sigmoid_slope(b, update));
    tpu_val into_reset = tpu_mul(b, tpu_mul(b, into_new, part(l, kept, 3)), sigmoid_slope(b, reset));
    in = tpu_concat(b, 3, (const tpu_val[]){into_reset, into_update, into_new}, 1);
    hidden = tpu_concat(b, 3, (const tpu_val[]){into_reset, into_update, tpu_mul(b, into_new, reset)}, 1);
    through = tpu_mul(b, dh, update);
  } else {
    tpu_val y = at_step(b, p->out, t), zero = tpu_full_like(b, y, 0);
    in = l->mode == MODE_TANH ? tpu_mul(b, dh, tanh_slope(b, y)) : tpu_select(b, tpu_compare(b, TPU_GT, y, zero), dh, zero);
    hidden = in;
  }
  dh = contract(b, hidden, p->w, 0, 1, 0);
  next[0] = add_c(b, params[0], 1);
  next[1] = through.id ? tpu_add(b, dh, through) : dh;
  next[2] = dc;
  next[3] = put_step(b, params[3], t, in);
  next[4] = put_step(b, params[4], t, hidden);
}

/* Before each step, in time: the first value, then all but the last. */
static tpu_val before(const pass *p, tpu_val first, tpu_val all) {
  tpu_build *b = p->l->b;
  int64_t t = p->l->t;
  first = tpu_unsqueeze(b, first, 0);
  if (p->backwards) return tpu_concat(b, 2, (const tpu_val[]){tpu_slice_dim(b, all, 0, 1, t, 1), first}, 0);
  return tpu_concat(b, 2, (const tpu_val[]){first, tpu_slice_dim(b, all, 0, 0, t - 1, 1)}, 0);
}

/* [T, N, G], [T, N, X] -> [G, X] */
static tpu_val over_steps(tpu_build *b, tpu_val gates, tpu_val x) {
  const int64_t both[2] = {0, 1};
  return contract_dims(b, gates, x, &(tpu_dot_dims){.n_contract = 2, .lhs_contract = both, .rhs_contract = both});
}

static tpu_val grad_or_zero(const layer *l, int i, int d, int64_t from, int64_t columns, bool steps) {
  tpu_build *b = l->b;
  if (!arg_present(l->args, i)) {
    const int64_t dims[3] = {l->t, l->n, columns};
    return steps ? tpu_full(b, l->math, 3, dims, 0) : tpu_full(b, l->math, 2, dims + 1, 0);
  }
  tpu_val g = arg_math(b, l->args, i, l->dtype);
  return steps ? tpu_slice_dim(b, g, 2, from, from + columns, 1) : squeezed(b, g, d);
}

/* _cudnn_rnn_backward(input, weight[], weight_stride0, weight_buf, hx, cx?, output, grad_output?, grad_hy?, grad_cy?, mode,
 * hidden_size, proj_size, num_layers, batch_first, dropout, train, bidirectional, batch_sizes, dropout_state?, reserve,
 * output_mask) -> grad_input, grad_hx, grad_cx, grad_weight[] */
void lower_rnn_layer_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  layer l;
  if (!read_layer(b, a, 1, 4, 5, 10, &l)) return;
  int per = l.has_bias ? 4 : 2;
  outs_resize(b, o, 3 + l.directions * per);
  tpu_val output = arg_math(b, a, 6, l.dtype), reserve = arg_tensor(b, a, 20), dx = TPU_POISON, dh[2], dc[2];
  if (tpu_build_failed(b)) return;
  for (int d = 0; d < l.directions; d++) {
    pass p = {.l = &l, .backwards = d == 1, .w = weight(&l, d, 1)};
    p.out = tpu_slice_dim(b, output, 2, d * l.hidden, (d + 1) * l.hidden, 1);
    p.kept = squeezed(b, reserve, d);
    p.h_before = before(&p, squeezed(b, l.hx, d), p.out);
    if (l.mode == MODE_LSTM)
      p.c_before = before(&p, squeezed(b, l.cx, d), tpu_slice_dim(b, p.kept, 2, 4 * l.hidden, 5 * l.hidden, 1));
    p.grad = grad_or_zero(&l, 7, d, d * l.hidden, l.hidden, true);
    tpu_val init[5] = {tpu_scalar_i(b, TPU_I32, 0), grad_or_zero(&l, 8, d, 0, l.hidden, false),
                       l.mode == MODE_LSTM ? grad_or_zero(&l, 9, d, 0, l.hidden, false) : tpu_scalar(b, l.math, 0),
                       zeros(&l, l.gates), zeros(&l, l.gates)};
    tpu_val out[5];
    tpu_while(b, 5, init, more, step_back, &p, out);
    tpu_val into = contract(b, out[3], weight(&l, d, 0), 0, 2, 0);
    dx = d ? tpu_add(b, dx, into) : into;
    dh[d] = tpu_unsqueeze(b, out[1], 0);
    dc[d] = l.mode == MODE_LSTM ? tpu_unsqueeze(b, out[2], 0) : out[2];
    const int64_t all[2] = {0, 1};
    tpu_val parts[4] = {over_steps(b, out[3], l.input), over_steps(b, out[4], p.h_before)};
    for (int k = 2; k < per; k++) parts[k] = sum_over(b, out[k + 1], 2, all);
    for (int k = 0; k < per; k++) o->out[3 + d * per + k].val = tpu_convert(b, parts[k], l.dtype);
  }
  o->out[0].val = tpu_convert(b, dx, l.dtype);
  o->out[1].val = tpu_convert(b, tpu_concat(b, l.directions, dh, 0), l.dtype);
  if (l.mode == MODE_LSTM)
    o->out[2].val = tpu_convert(b, tpu_concat(b, l.directions, dc, 0), l.dtype);
  else
    o->out[2].undefined = true;
}
