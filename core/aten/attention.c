/* Scaled dot product attention in basic operations, forward and backward. Scores and softmax are in the opmath type; as in the
 * flash kernels, the weights are rounded to the input's type before they meet the values, and a row that is masked whole gives 0.
 * Source: aten/src/ATen/native/transformers/attention.cpp and cpu/FlashAttentionKernel.cpp. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "aten/elementwise.h"
#include "aten/nn.h"
#include "aten/reduce.h"
#include "base/alloc.h"
#include "ir/view.h"

/* query [B, H, L, E], key [B, K, S, E], value [B, K, S, V]: H is a multiple of K, and H / K query heads share a key head. Without
 * a batch dim B is 1. */
typedef struct attention {
  tpu_val q, k, v;
  tpu_val bias;  /* added to the scores, or bool: True takes part. Poison: none */
  tpu_val scale; /* scalar */
  tpu_dtype dtype, math;
  bool causal, batched;
  double dropout;
  tpu_val seed, offset; /* of the dropout mask: scalars u64; poison without dropout */
  tpu_val bits;         /* of the dropout mask, u32 [B, H, L, S]; poison without */
  int64_t batch, heads, key_heads, l, s, e, v_size;
  int64_t first_row; /* of a block of rows: where it begins among all */
} attention;

/* Where an overload has its arguments; -1: it has none. */
typedef struct places {
  int q, bias, dropout, causal, scale;
} places;

static tpu_val with_batch(tpu_build *b, tpu_val x) { return tpu_rank_of(b, x) == 3 ? tpu_unsqueeze(b, x, 0) : x; }

static bool read_attention(tpu_build *b, const tpu_args *a, places at, attention *out) {
  *out = (attention){.q = arg_tensor(b, a, at.q), .k = arg_tensor(b, a, at.q + 1), .v = arg_tensor(b, a, at.q + 2)};
  if (tpu_build_failed(b)) return false;
  int rank = tpu_rank_of(b, out->q);
  if ((rank != 3 && rank != 4) || tpu_rank_of(b, out->k) != rank || tpu_rank_of(b, out->v) != rank) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "query, key and value must all be 3D or all be 4D, but got %dD, %dD and %dD", rank,
             tpu_rank_of(b, out->k), tpu_rank_of(b, out->v));
    return false;
  }
  out->batched = rank == 4;
  out->q = with_batch(b, out->q);
  out->k = with_batch(b, out->k);
  out->v = with_batch(b, out->v);
  const int64_t *q = tpu_dims_of(b, out->q), *k = tpu_dims_of(b, out->k), *v = tpu_dims_of(b, out->v);
  out->batch = q[0], out->heads = q[1], out->l = q[2], out->e = q[3];
  out->key_heads = k[1], out->s = k[2], out->v_size = v[3];
  out->dtype = tpu_dtype_of(b, out->q);
  out->math = tpu_dtype_opmath(out->dtype);
  if (k[0] != q[0] || v[0] != q[0] || v[1] != k[1] || v[2] != k[2] || k[3] != q[3] || k[1] == 0 || q[1] % k[1])
    tpu_fail(b, TPU_INVALID_ARGUMENT, "query %s, key %s and value %s do not fit together", dims_text(b, 4, q), dims_text(b, 4, k),
             dims_text(b, 4, v));
  else if (tpu_dtype_of(b, out->k) != out->dtype || tpu_dtype_of(b, out->v) != out->dtype)
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Expected query, key, and value to have the same dtype, but got query.dtype: %s key.dtype: %s and "
             "value.dtype: %s instead.",
             tpu_dtype_c_name(out->dtype), tpu_dtype_c_name(tpu_dtype_of(b, out->k)), tpu_dtype_c_name(tpu_dtype_of(b, out->v)));
  else if (!tpu_is_float(out->dtype))
    fail_not_implemented(b, a, out->dtype);
  if (at.bias >= 0 && arg_present(a, at.bias)) {
    const int64_t scores[4] = {out->batch, out->heads, out->l, out->s};
    out->bias = expand_to(b, arg_tensor(b, a, at.bias), 4, scores);
  }
  out->causal = arg_bool(b, a, at.causal);
  out->dropout = arg_static(b, a, at.dropout);
  out->scale =
      arg_present(a, at.scale) ? arg_number(b, a, at.scale, out->math) : tpu_scalar(b, out->math, 1.0 / sqrt((double)out->e));
  return !tpu_build_failed(b);
}

/* The heads that share a key head become more rows of it: [B, H, L, *] -> [B, K, H / K * L, *], and back. */
static tpu_val by_key_head(tpu_build *b, const attention *t, tpu_val x) {
  const int64_t dims[4] = {t->batch, t->key_heads, t->heads / t->key_heads * t->l, tpu_dim_of(b, x, 3)};
  return tpu_reshape(b, x, 4, dims);
}
static tpu_val by_head(tpu_build *b, const attention *t, tpu_val x) {
  return tpu_reshape(b, x, 4, (const int64_t[]){t->batch, t->heads, t->l, tpu_dim_of(b, x, 3)});
}

/* [B, H, L, S]: scaled, biased, -inf where masked. */
static tpu_val masked_scores(tpu_build *b, const attention *t) {
  tpu_val s = by_head(b, t, contract(b, by_key_head(b, t, t->q), t->k, 2, 3, 3));
  s = tpu_mul(b, s, tpu_broadcast_like(b, t->scale, s));
  tpu_val lowest = tpu_broadcast_like(b, tpu_lowest(b, t->math), s);
  if (t->bias.id && tpu_dtype_of(b, t->bias) == TPU_BOOL)
    s = tpu_select(b, t->bias, s, lowest);
  else if (t->bias.id)
    s = tpu_add(b, s, tpu_convert(b, t->bias, t->math));
  if (t->causal) {
    const int64_t *dims = tpu_dims_of(b, s);
    tpu_val row = tpu_iota(b, TPU_I32, 4, dims, 2), column = tpu_iota(b, TPU_I32, 4, dims, 3);
    if (t->first_row) row = tpu_add(b, row, tpu_full_i(b, TPU_I32, 4, dims, t->first_row));
    s = tpu_select(b, tpu_compare(b, TPU_GE, row, column), s, lowest);
  }
  return s;
}

static const int64_t last_axis = 3;

/* exp(s - max) with the row sums and maxima [B, H, L, 1]. */
typedef struct weights {
  tpu_val e, sum, max;
} weights;

static weights exponentials(tpu_build *b, const attention *t, tpu_val s) {
  weights w;
  w.max = reduce_keep(b, max_over(b, s, 1, &last_axis), s, 1, &last_axis, true);
  tpu_val lowest = tpu_broadcast_like(b, tpu_lowest(b, t->math), w.max);
  w.max = tpu_select(b, tpu_compare(b, TPU_EQ, w.max, lowest), tpu_full_like(b, w.max, 0), w.max);
  w.e = tpu_exp(b, with_kept(b, TPU_HLO_SUBTRACT, s, w.max));
  w.sum = reduce_keep(b, sum_over(b, w.e, 1, &last_axis), s, 1, &last_axis, true);
  return w;
}

/* log of the sum of exponentials; -inf for a row that is masked whole. */
static tpu_val logsumexp(tpu_build *b, const weights *w) { return tpu_add(b, w->max, tpu_log(b, w->sum)); }

/* The bits that decide what is dropped. The same state gives the same bits. */
static void make_bits(tpu_build *b, attention *t) {
  if (t->dropout == 0 || t->dropout >= 1) return;
  const int64_t one = 1, dims[4] = {t->batch, t->heads, t->l, t->s};
  const tpu_val state[2] = {tpu_reshape(b, t->seed, 1, &one), tpu_reshape(b, t->offset, 1, &one)};
  t->bits = tpu_random_bits(b, tpu_concat(b, 2, state, 0), TPU_U32, 4, dims);
}

/* x where the dropout mask keeps, scaled up by 1 / (1 - p); 0 elsewhere. */
static tpu_val drop(tpu_build *b, const attention *t, tpu_val x) {
  if (t->dropout == 0) return x;
  tpu_val zero = tpu_full_like(b, x, 0);
  if (t->dropout >= 1) return zero;
  tpu_val bits = tpu_binary(b, TPU_HLO_SHIFT_RIGHT_LOGIC, t->bits, tpu_full_like(b, t->bits, 8));
  tpu_val below = tpu_full_i(b, TPU_U32, 4, tpu_dims_of(b, x), (int64_t)(t->dropout * 0x1p24));
  return tpu_select(b, tpu_compare(b, TPU_GE, bits, below), binary_c(b, TPU_HLO_MULTIPLY, x, 1 / (1 - t->dropout)), zero);
}

/* Draws this call's dropout state: the generator's, kept by the results so that the backward draws the same mask again. */
static void draw_state(tpu_build *b, const tpu_args *a, tpu_outs *o, attention *t) {
  if (t->dropout == 0) return;
  int64_t elements = t->batch, words;
  const int64_t sizes[3] = {t->heads, t->l, t->s};
  for (int i = 0; i < 3; i++)
    if (!tpu_size_mul(elements, sizes[i], &elements)) elements = -1;
  words = elements;
  if (elements < 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "a dropout mask is too large");
    return;
  }
  t->seed = tpu_slot(b, (uint32_t)a->n_slots, TPU_U64);
  t->offset = tpu_slot(b, (uint32_t)a->n_slots + 1, TPU_U64);
  o->random_blocks = words / 4 + (words % 4 != 0);
}

static tpu_val saved_state(tpu_build *b, tpu_val v) {
  return v.id ? tpu_bitcast(b, v, TPU_I64, 0, NULL) : tpu_scalar_i(b, TPU_I64, 0);
}
static tpu_val restored_state(tpu_build *b, const tpu_args *a, int i) {
  return tpu_bitcast(b, tpu_reshape(b, tpu_convert(b, arg_tensor(b, a, i), TPU_I64), 0, NULL), TPU_U64, 0, NULL);
}

/* The result in the memory order of the query, which is often a transposed view of [B, L, H, E]. */
static void query_order(tpu_build *b, tpu_out *out, const tpu_operand *q) {
  tpu_type type = tpu_type_of(b, out->val);
  int perm[TPU_MAX_RANK];
  if (tpu_build_failed(b) || !q || !tpu_memory_order(q->rank, q->sizes, q->strides, perm)) return;
  int64_t *strides = tpu_build_alloc(b, sizeof *strides * (size_t)type.rank), stride = 1;
  if (!strides) return;
  for (int i = type.rank - 1; i >= 0; i--) {
    strides[perm[i]] = stride;
    stride *= type.dims[perm[i]] > 1 ? type.dims[perm[i]] : 1;
  }
  out->strides = strides;
}

static tpu_val without_batch(tpu_build *b, const attention *t, tpu_val x) { return t->batched ? x : tpu_squeeze(b, x, 0); }

static bool is_empty(const attention *t) { return t->batch == 0 || t->heads == 0 || t->l == 0 || t->s == 0 || t->v_size == 0; }

/* --- blocks of rows: a causal block needs only the keys up to its last row, and its scores may stay in the cache */
enum { BLOCKS = 4, MIN_BLOCK_ROWS = 128 };

static int64_t rows_of_block(const attention *t) {
  if (!t->causal || t->l < BLOCKS * MIN_BLOCK_ROWS) return t->l;
  return (t->l + BLOCKS - 1) / BLOCKS;
}

static tpu_val rows_of(tpu_build *b, tpu_val x, int64_t from, int64_t to) {
  return x.id ? tpu_slice_dim(b, x, 2, from, to, 1) : x;
}
static tpu_val columns_of(tpu_build *b, tpu_val x, int64_t to) { return x.id ? tpu_slice_dim(b, x, 3, 0, to, 1) : x; }

static attention block_of(tpu_build *b, const attention *t, int64_t from, int64_t to) {
  attention r = *t;
  r.first_row = from;
  r.l = to - from;
  r.q = rows_of(b, t->q, from, to);
  r.bias = rows_of(b, t->bias, from, to);
  r.bits = rows_of(b, t->bits, from, to);
  if (!t->causal || to >= t->s) return r;
  r.s = to;
  r.k = tpu_slice_dim(b, t->k, 2, 0, to, 1);
  r.v = tpu_slice_dim(b, t->v, 2, 0, to, 1);
  r.bias = columns_of(b, r.bias, to);
  r.bits = columns_of(b, r.bits, to);
  return r;
}

/* One block's output [B, H, L, V] and logsumexp [B, H, L], both in the opmath type. */
static tpu_val attend(tpu_build *b, const attention *t, tpu_val *out_lse) {
  weights w = exponentials(b, t, masked_scores(b, t));
  *out_lse = tpu_squeeze(b, logsumexp(b, &w), 3);
  tpu_val e = tpu_convert(b, drop(b, t, w.e), t->dtype);
  tpu_val y = by_head(b, t, contract(b, by_key_head(b, t, e), t->v, 2, 3, 2));
  tpu_val zero = tpu_full_like(b, w.sum, 0), one = tpu_full_like(b, w.sum, 1);
  return with_kept(b, TPU_HLO_DIVIDE, y, tpu_select(b, tpu_compare(b, TPU_EQ, w.sum, zero), one, w.sum));
}

/* Sets result 0, and 1 to the logsumexp [B, H, L] in float32. */
static void forward(tpu_build *b, const tpu_args *a, tpu_outs *o, places at, attention *t) {
  if (!read_attention(b, a, at, t)) return;
  draw_state(b, a, o, t);
  const int64_t out_dims[4] = {t->batch, t->heads, t->l, t->v_size}, rows[3] = {t->batch, t->heads, t->l};
  tpu_val y = tpu_full(b, t->math, 4, out_dims, 0), lse = tpu_full(b, t->math, 3, rows, -INFINITY);
  if (!is_empty(t)) {
    make_bits(b, t);
    tpu_val ys[BLOCKS], lses[BLOCKS];
    int n = 0;
    int64_t step = rows_of_block(t);
    for (int64_t from = 0; from < t->l && !tpu_build_failed(b); from += step, n++) {
      attention block = block_of(b, t, from, from + step < t->l ? from + step : t->l);
      ys[n] = attend(b, &block, &lses[n]);
    }
    if (tpu_build_failed(b)) return;
    y = tpu_concat(b, n, ys, 2);
    lse = tpu_concat(b, n, lses, 2);
  }
  o->out[0].val = without_batch(b, t, tpu_convert(b, y, t->dtype));
  query_order(b, &o->out[0], arg_operand(b, a, at.q));
  o->out[1].val = tpu_convert(b, lse, TPU_F32);
}

/* --- backward */
typedef struct gradients {
  tpu_val q, k, v, scores; /* scores: of the biased scores; poison if there is nothing to differentiate */
} gradients;

/* y is the forward's result, lse [B, H, L] its logsumexp. */
static gradients differentiate_block(tpu_build *b, const attention *t, tpu_val gy, tpu_val y, tpu_val lse) {
  gradients r = {TPU_POISON, TPU_POISON, TPU_POISON, TPU_POISON};
  tpu_val s = masked_scores(b, t), p;
  if (t->math == TPU_F64) { /* float32's logsumexp is not enough here */
    weights w = exponentials(b, t, s);
    p = logsumexp(b, &w);
  } else {
    p = tpu_reshape(b, tpu_convert(b, lse, t->math), 4, (const int64_t[]){t->batch, t->heads, t->l, 1});
  }
  tpu_val lowest = tpu_broadcast_like(b, tpu_lowest(b, t->math), p), masked = tpu_compare(b, TPU_EQ, p, lowest);
  p = tpu_exp(b, with_kept(b, TPU_HLO_SUBTRACT, s, tpu_select(b, masked, tpu_full_like(b, p, 0), p)));
  tpu_val product = tpu_mul(b, tpu_convert(b, gy, t->math), tpu_convert(b, y, t->math));
  tpu_val delta = reduce_keep(b, sum_over(b, product, 1, &last_axis), product, 1, &last_axis, true);
  tpu_val gy_rows = by_key_head(b, t, gy);
  tpu_val gp = by_head(b, t, contract(b, gy_rows, t->v, 2, 3, 3));
  r.v = contract(b, by_key_head(b, t, tpu_convert(b, drop(b, t, p), t->dtype)), gy_rows, 2, 2, 2);
  r.scores = tpu_mul(b, p, with_kept(b, TPU_HLO_SUBTRACT, drop(b, t, gp), delta));
  tpu_val gs = tpu_mul(b, r.scores, tpu_broadcast_like(b, t->scale, r.scores));
  gs = by_key_head(b, t, tpu_convert(b, gs, t->dtype));
  r.q = by_head(b, t, contract(b, gs, t->k, 2, 3, 2));
  r.k = contract(b, gs, by_key_head(b, t, t->q), 2, 2, 2);
  return r;
}

static tpu_val add_or_take(tpu_build *b, tpu_val sum, tpu_val x) { return sum.id ? tpu_add(b, sum, x) : x; }

/* x with zeros after it along dim, up to size. */
static tpu_val extended(tpu_build *b, tpu_val x, int dim, int64_t size) {
  int64_t lo[4] = {0}, hi[4] = {0};
  hi[dim] = size - tpu_dim_of(b, x, dim);
  return tpu_pad(b, x, tpu_scalar(b, tpu_dtype_of(b, x), 0), lo, hi, NULL);
}

static gradients differentiate(tpu_build *b, const attention *t, tpu_val gy, tpu_val y, tpu_val lse) {
  gradients sum = {TPU_POISON, TPU_POISON, TPU_POISON, TPU_POISON};
  tpu_val qs[BLOCKS], scores[BLOCKS];
  int n = 0;
  int64_t step = rows_of_block(t);
  lse = tpu_reshape(b, lse, 3, (const int64_t[]){t->batch, t->heads, t->l});
  for (int64_t from = 0; from < t->l && !tpu_build_failed(b); from += step, n++) {
    int64_t to = from + step < t->l ? from + step : t->l;
    attention block = block_of(b, t, from, to);
    gradients g = differentiate_block(b, &block, rows_of(b, gy, from, to), rows_of(b, y, from, to), rows_of(b, lse, from, to));
    qs[n] = g.q;
    scores[n] = extended(b, g.scores, 3, t->s);
    sum.k = add_or_take(b, sum.k, extended(b, g.k, 2, t->s));
    sum.v = add_or_take(b, sum.v, extended(b, g.v, 2, t->s));
  }
  if (tpu_build_failed(b)) return sum;
  sum.q = tpu_concat(b, n, qs, 2);
  sum.scores = tpu_concat(b, n, scores, 2);
  return sum;
}

/* g [B, H, L, S] summed to the dims of `like`. */
static tpu_val sum_to(tpu_build *b, tpu_val g, tpu_val like) {
  int rank = tpu_rank_of(b, like), n = 0;
  int64_t axes[4];
  for (int d = 0; d < 4; d++) {
    int at = d - (4 - rank);
    if (at < 0 || (tpu_dim_of(b, like, at) == 1 && tpu_dim_of(b, g, d) != 1)) axes[n++] = d;
  }
  return tpu_reshape(b, sum_over(b, g, n, axes), rank, tpu_dims_of(b, like));
}

static void set_gradient(tpu_build *b, const tpu_args *a, int i, tpu_val g, tpu_out *out, bool wanted) {
  out->undefined = !wanted;
  const tpu_operand *like = wanted ? arg_operand(b, a, i) : NULL;
  if (!like) return;
  g = g.id ? tpu_reshape(b, tpu_convert(b, g, like->dtype), like->rank, like->sizes)
           : tpu_full(b, like->dtype, like->rank, like->sizes, 0);
  out->val = g;
  out_preserve(b, out, like);
}

/* Arguments of a backward overload: grad_out is 0, query 1. */
typedef struct backward_places {
  places forward;
  int mask, out, lse, seed, offset; /* mask -1: all are wanted */
} backward_places;

static void backward(tpu_build *b, const tpu_args *a, tpu_outs *o, backward_places at) {
  attention t;
  if (!read_attention(b, a, at.forward, &t)) return;
  if (t.dropout != 0) {
    t.seed = restored_state(b, a, at.seed);
    t.offset = restored_state(b, a, at.offset);
  }
  int n_mask = 0;
  const int64_t *mask = at.mask >= 0 ? arg_ints(a, at.mask, &n_mask) : NULL;
  tpu_val gy = with_batch(b, tpu_convert(b, arg_tensor(b, a, 0), t.dtype)), y = with_batch(b, arg_tensor(b, a, at.out));
  gradients g = {TPU_POISON, TPU_POISON, TPU_POISON, TPU_POISON};
  if (!is_empty(&t)) {
    make_bits(b, &t);
    g = differentiate(b, &t, gy, y, arg_tensor(b, a, at.lse));
  }
  const tpu_val each[3] = {g.q, g.k, g.v};
  for (int i = 0; i < 3; i++) set_gradient(b, a, 1 + i, each[i], &o->out[i], n_mask < 3 || mask[i]);
  if (o->n < 4) return;
  bool wanted = n_mask == 4 && mask[3] && t.bias.id && tpu_dtype_of(b, t.bias) != TPU_BOOL;
  if (wanted && g.scores.id) g.scores = sum_to(b, g.scores, arg_tensor(b, a, at.forward.bias));
  set_gradient(b, a, at.forward.bias, g.scores, &o->out[3], wanted);
}

/* out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, philox_seed, philox_offset, debug_attn_mask */
static void set_rest(tpu_build *b, tpu_outs *o, const attention *t) {
  for (int i = 2; i < 9; i++) o->out[i].undefined = i != 6 && i != 7;
  o->out[4].number = t->l;
  o->out[5].number = t->s;
  o->out[6].val = saved_state(b, t->seed);
  o->out[7].val = saved_state(b, t->offset);
}

/* (query, key, value, attn_bias, dropout_p, is_causal, return_debug_mask, scale) */
void lower_attention(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  attention t;
  forward(b, a, o, (places){0, 3, 4, 5, 7}, &t);
  if (!tpu_build_failed(b)) set_rest(b, o, &t);
}
/* (grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p,
 * is_causal, philox_seed, philox_offset, scale) */
void lower_attention_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  backward(b, a, o, (backward_places){{1, 4, 12, 13, 16}, 5, 6, 7, 14, 15});
}

/* (query, key, value, dropout_p, is_causal, return_debug_mask, scale) */
void lower_flash_attention(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  attention t;
  forward(b, a, o, (places){0, -1, 3, 4, 6}, &t);
  if (!tpu_build_failed(b)) set_rest(b, o, &t);
}
/* (grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed,
 * philox_offset, scale) */
void lower_flash_attention_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  backward(b, a, o, (backward_places){{1, -1, 10, 11, 14}, -1, 4, 5, 12, 13});
}

/* (query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, scale) -> out, log_sumexp, philox_seed, philox_offset
 */
void lower_efficient_attention(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  attention t;
  forward(b, a, o, (places){0, 3, 5, 6, 7}, &t);
  if (tpu_build_failed(b)) return;
  o->out[2].val = saved_state(b, t.seed);
  o->out[3].val = saved_state(b, t.offset);
}
/* (grad_out, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p, grad_input_mask, is_causal,
 * scale) */
void lower_efficient_attention_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  backward(b, a, o, (backward_places){{1, 4, 9, 11, 12}, 10, 5, 6, 7, 8});
}

/* _transform_bias_rescale_qkv(qkv, qkv_bias, num_heads): [B, T, 3 D] + [3 D] -> query / sqrt(D / H), key, value [B, H, T, D / H]
 */
void lower_bias_rescale_qkv(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *qkv = arg_operand(b, a, 0), *bias = arg_operand(b, a, 1);
  int64_t heads = arg_int(b, a, 2, 1);
  if (!qkv || !bias) return;
  if (qkv->rank != 3 || bias->rank != 1 || bias->sizes[0] != qkv->sizes[2]) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "expected qkv [B, T, 3 D] and qkv_bias [3 D], got %s and %s",
             dims_text(b, qkv->rank, qkv->sizes), dims_text(b, bias->rank, bias->sizes));
    return;
  }
  int64_t size = qkv->sizes[2] / 3;
  if (qkv->sizes[2] % 3 || heads < 1 || size % heads) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "qkv of %s does not divide into 3 parts of %" PRId64 " heads", dims_text(b, 3, qkv->sizes),
             heads);
    return;
  }
  tpu_dtype math = tpu_dtype_opmath(qkv->dtype);
  tpu_val x = tpu_convert(b, qkv->val, math);
  x = tpu_add(b, x, spread_dim(b, tpu_convert(b, bias->val, math), 3, qkv->sizes, 2));
  const int64_t dims[4] = {qkv->sizes[0], qkv->sizes[1], heads, size / heads}, perm[4] = {0, 2, 1, 3};
  for (int i = 0; i < 3; i++) {
    tpu_val part = tpu_transpose(b, tpu_reshape(b, tpu_slice_dim(b, x, 2, i * size, (i + 1) * size, 1), 4, dims), perm);
    if (i == 0) part = binary_c(b, TPU_HLO_DIVIDE, part, sqrt((double)dims[3]));
    o->out[i].val = tpu_convert(b, part, qkv->dtype);
  }
}
