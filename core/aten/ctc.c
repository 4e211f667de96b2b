/* Connectionist temporal classification (Graves et al. 2006), in log space, as loops over time.
 *
 * T steps, N sequences, C classes; S = 2 L + 1 states of a sequence of up to L labels: blanks stand at even states, labels at odd
 * ones. Lengths are run-time values in both overloads' code, so that only their maximum decides shapes. */
#include <inttypes.h>
#include <math.h>

#include "aten/reduce.h"
#include "aten/shape.h"

typedef struct ctc {
  int64_t t, n, c, s;
  tpu_val log_probs;                     /* [T, N, C] */
  tpu_val emissions;                     /* [T, N, S]: log_probs of each state's label */
  tpu_val labels;                        /* i32 [N, S, 1] */
  tpu_val input_lengths, target_lengths; /* i32 [N] */
  tpu_val state;                         /* iota, i32 [N, S] */
  tpu_val last;                          /* i1 [N, S]: a sequence may end here */
  tpu_val skips;                         /* i1 [N, S]: reachable from two states before */
  tpu_val log_zero;                      /* -inf [N, S] */
  tpu_val dims_ns;                       /* any [N, S] value, for its dims */
} ctc;

/* Lengths at argument i as i32 [N]; out_most: the largest if known, else -1. */
static tpu_val read_lengths(tpu_build *b, const tpu_args *a, int i, int64_t n, const char *name, int64_t *out_most) {
  *out_most = -1;
  if (a->arg[i].kind == TPU_ARG_TENSOR) {
    tpu_val x = arg_tensor(b, a, i);
    if (tpu_numel_of(b, x) == n) return tpu_reshape(b, tpu_convert(b, x, TPU_I32), 1, &n);
    return tpu_fail(b, TPU_INVALID_ARGUMENT, "%s must be of size batch_size", name);
  }
  int count;
  const int64_t *lengths = arg_ints(a, i, &count);
  if (count != n) return tpu_fail(b, TPU_INVALID_ARGUMENT, "%s must be of size batch_size", name);
  for (int k = 0; k < count; k++) {
    if (lengths[k] < 0)
      return tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected %s to have value at least 0, but got value %" PRId64, name, lengths[k]);
    if (lengths[k] > *out_most) *out_most = lengths[k];
  }
  return tpu_convert(b, tpu_dense_i64(b, n, lengths), TPU_I32);
}

static tpu_val spread(tpu_build *b, tpu_val x, tpu_val like) {
  int64_t map[1] = {0};
  return tpu_broadcast_in_dim(b, x, tpu_rank_of(b, like), tpu_dims_of(b, like), map);
}

/* targets [N, L] or concatenated [sum] -> i32 [N, L] (L = at least one, for shapes' sake). */
static tpu_val label_matrix(tpu_build *b, tpu_val targets, const ctc *k, int64_t most) {
  int64_t dims[2] = {k->n, most};
  targets = tpu_convert(b, targets, TPU_I32);
  if (tpu_rank_of(b, targets) == 2) return tpu_slice_dim(b, targets, 1, 0, most, 1);
  int64_t size = tpu_dim_of(b, targets, 0);
  if (size == 0 || most == 0) return tpu_full(b, TPU_I32, 2, dims, 0);
  tpu_val end = tpu_cumulative(b, TPU_MONOID_ADD, k->target_lengths, 0, false);
  tpu_val start = tpu_sub(b, end, k->target_lengths);
  tpu_val index = tpu_iota(b, TPU_I32, 2, dims, 1);
  index = tpu_add(b, index, spread(b, start, index));
  index = binary_c(b, TPU_HLO_MINIMUM, index, (double)(size - 1));
  int64_t zero[1] = {0}, one[1] = {1};
  tpu_gather_dims gather = {.n_collapsed = 1, .collapsed = zero, .n_map = 1, .start_index_map = zero, .index_vector_dim = 2};
  return tpu_gather(b, targets, tpu_unsqueeze(b, index, 2), &gather, one);
}

/* x moved by `by` states, with `fill` coming in. */
static tpu_val move(tpu_build *b, tpu_val x, int64_t by, tpu_val fill) {
  int64_t lo[2] = {0, by}, hi[2] = {0, -by};
  return tpu_pad(b, x, fill, lo, hi, NULL);
}

/* log_probs, targets, lengths at arguments i .. i + 3. */
static bool prepare(tpu_build *b, const tpu_args *a, int i, int64_t blank, ctc *k) {
  tpu_val x = arg_tensor(b, a, i), targets = arg_tensor(b, a, i + 1);
  if (tpu_build_failed(b)) return false;
  if (tpu_rank_of(b, x) != 3 || tpu_rank_of(b, targets) < 1 || tpu_rank_of(b, targets) > 2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "ctc_loss expects log_probs [T, N, C] and targets [N, S] or [sum of lengths], got %d and %d dims", tpu_rank_of(b, x),
             tpu_rank_of(b, targets));
    return false;
  }
  k->t = tpu_dim_of(b, x, 0);
  k->n = tpu_dim_of(b, x, 1);
  k->c = tpu_dim_of(b, x, 2);
  if (blank < 0 || blank >= k->c) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "blank must be in label range");
    return false;
  }
  int64_t longest, most;
  k->input_lengths = read_lengths(b, a, i + 2, k->n, "input_lengths", &longest);
  k->target_lengths = read_lengths(b, a, i + 3, k->n, "target_lengths", &most);
  if (tpu_build_failed(b)) return false;
  if (longest > k->t) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected input_lengths to have value at most %" PRId64 ", but got value %" PRId64, k->t,
             longest);
    return false;
  }
  int64_t room = tpu_dim_of(b, targets, tpu_rank_of(b, targets) - 1);
  if (most < 0) most = room;
  if (tpu_rank_of(b, targets) == 2 && room < most) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected tensor to have size at least %" PRId64 " at dimension 1, but got size %" PRId64,
             most, room);
    return false;
  }
  k->s = 2 * most + 1;
  tpu_dtype dtype = tpu_dtype_of(b, x);
  int64_t dims[2] = {k->n, k->s};
  k->log_probs = x;
  k->state = tpu_iota(b, TPU_I32, 2, dims, 1);
  k->log_zero = tpu_full(b, dtype, 2, dims, -INFINITY);
  k->dims_ns = k->state;
  /* Labels at odd states: pad between and around with blanks. */
  int64_t lo[2] = {0, 1}, hi[2] = {0, 1}, between[2] = {0, 1};
  tpu_val blanks = tpu_scalar_i(b, TPU_I32, blank);
  tpu_val labels = most ? tpu_pad(b, label_matrix(b, targets, k, most), blanks, lo, hi, between)
                        : tpu_full(b, TPU_I32, 2, dims, (double)blank);
  k->skips = tpu_compare(b, TPU_NE, labels, move(b, labels, 2, blanks));
  k->skips = tpu_and(b, k->skips, tpu_compare(b, TPU_GT, k->state, tpu_full_like(b, k->state, 1)));
  tpu_val end = spread(b, binary_c(b, TPU_HLO_MULTIPLY, k->target_lengths, 2), k->state);
  k->last =
      tpu_or(b, tpu_compare(b, TPU_EQ, k->state, end), tpu_compare(b, TPU_EQ, k->state, binary_c(b, TPU_HLO_SUBTRACT, end, 1)));
  k->labels = tpu_unsqueeze(b, labels, 2);
  int64_t time[1] = {0}, zero[1] = {0}, one[1] = {1}, two[1] = {2}, sizes[3] = {k->t, 1, 1};
  tpu_gather_dims gather = {.n_offset = 1,
                            .offset = time,
                            .n_collapsed = 1,
                            .collapsed = two,
                            .n_batch = 1,
                            .operand_batch = one,
                            .indices_batch = zero,
                            .n_map = 1,
                            .start_index_map = two,
                            .index_vector_dim = 2};
  k->emissions = tpu_gather(b, x, k->labels, &gather, sizes);
  return !tpu_build_failed(b);
}

/* log(exp x + exp y + exp z), -inf for nothing. */
static tpu_val log_sum(tpu_build *b, tpu_val x, tpu_val y, tpu_val z) {
  tpu_val top = tpu_max(b, tpu_max(b, x, y), z), floor = tpu_full_like(b, top, -INFINITY);
  tpu_val base = tpu_select(b, tpu_compare(b, TPU_EQ, top, floor), tpu_full_like(b, top, 0), top);
  tpu_val sum = tpu_add(b, tpu_exp(b, tpu_sub(b, x, base)), tpu_exp(b, tpu_sub(b, y, base)));
  sum = tpu_add(b, sum, tpu_exp(b, tpu_sub(b, z, base)));
  return tpu_add(b, tpu_log(b, sum), base);
}

static tpu_val at_time(tpu_build *b, tpu_val x, tpu_val t) {
  tpu_val zero = tpu_scalar_i(b, TPU_I32, 0), starts[3] = {t, zero, zero};
  int64_t sizes[3] = {1, tpu_dim_of(b, x, 1), tpu_dim_of(b, x, 2)};
  return tpu_reshape(b, tpu_dynamic_slice(b, x, starts, sizes), 2, sizes + 1);
}

static tpu_val store_time(tpu_build *b, tpu_val all, tpu_val t, tpu_val x) {
  tpu_val zero = tpu_scalar_i(b, TPU_I32, 0), starts[3] = {t, zero, zero};
  return tpu_dynamic_update_slice(b, all, tpu_unsqueeze(b, x, 0), starts);
}

/* Per sequence: t op length - back, spread over the states. */
static tpu_val compare_time(tpu_build *b, const ctc *k, tpu_compare_dir dir, tpu_val t, double back) {
  tpu_val end = binary_c(b, TPU_HLO_SUBTRACT, k->input_lengths, back);
  return spread(b, tpu_compare(b, dir, tpu_broadcast_like(b, t, end), end), k->dims_ns);
}

/* Carried: t, alpha [N, S] at min(t, length) - 1, all alphas [T, N, S]. */
static tpu_val alpha_more(tpu_build *b, const tpu_val *params, void *arg) {
  const ctc *k = arg;
  return tpu_compare(b, TPU_LT, params[0], tpu_scalar_i(b, TPU_I32, k->t));
}

static void alpha_step(tpu_build *b, const tpu_val *params, tpu_val *out_returns, void *arg) {
  const ctc *k = arg;
  tpu_val t = params[0], alpha = params[1], fill = tpu_scalar(b, tpu_dtype_of(b, alpha), -INFINITY);
  tpu_val jump = tpu_select(b, k->skips, move(b, alpha, 2, fill), k->log_zero);
  tpu_val next = tpu_add(b, log_sum(b, alpha, move(b, alpha, 1, fill), jump), at_time(b, k->emissions, t));
  out_returns[0] = binary_c(b, TPU_HLO_ADD, t, 1);
  out_returns[1] = tpu_select(b, compare_time(b, k, TPU_LT, t, 0), next, alpha);
  out_returns[2] = store_time(b, params[2], t, next);
}

/* _ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity) -> neg_log_likelihood [N], log_alpha [N, T,
 * S] */
void lower_ctc_loss(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  ctc k;
  if (!prepare(b, a, 0, arg_int(b, a, 4, 0), &k)) return;
  tpu_dtype dtype = tpu_dtype_of(b, k.log_probs);
  int64_t all_dims[3] = {k.t, k.n, k.s}, perm[3] = {1, 0, 2}, states[1] = {1};
  tpu_val zero = tpu_scalar_i(b, TPU_I32, 0);
  tpu_val begins = tpu_compare(b, TPU_LE, k.state, tpu_full_like(b, k.state, 1));
  tpu_val init[3], out[3];
  tpu_val all = tpu_full(b, dtype, 3, all_dims, -INFINITY);
  if (k.t > 0) {
    init[0] = tpu_scalar_i(b, TPU_I32, 1);
    init[1] = tpu_select(b, begins, at_time(b, k.emissions, zero), k.log_zero);
    init[2] = store_time(b, all, zero, init[1]);
    tpu_while(b, 3, init, alpha_more, alpha_step, &k, out);
  } else {
    out[1] = k.log_zero;
    out[2] = all;
  }
  tpu_val ends = tpu_select(b, k.last, out[1], k.log_zero), top = reduce_over(b, TPU_MONOID_MAX, ends, 1, states);
  tpu_val base = tpu_select(b, tpu_compare(b, TPU_EQ, top, tpu_full_like(b, top, -INFINITY)), tpu_full_like(b, top, 0), top);
  tpu_val sum = reduce_over(b, TPU_MONOID_ADD, tpu_exp(b, tpu_sub(b, ends, spread(b, base, ends))), 1, states);
  tpu_val loss = tpu_neg(b, tpu_add(b, tpu_log(b, sum), base));
  tpu_val none = tpu_full_like(b, k.target_lengths, 0), nothing = tpu_full_like(b, loss, 0);
  tpu_val empty = tpu_select(b, tpu_compare(b, TPU_EQ, k.target_lengths, none), nothing, tpu_full_like(b, loss, INFINITY));
  o->out[0].val = tpu_select(b, tpu_compare(b, TPU_EQ, k.input_lengths, none), empty, loss);
  o->out[1].val = tpu_transpose(b, out[2], perm);
}

/* Carried: t (downwards), beta [N, S] at t + 1, all betas. */
static tpu_val beta_more(tpu_build *b, const tpu_val *params, void *arg) {
  (void)arg;
  return tpu_compare(b, TPU_GE, params[0], tpu_scalar_i(b, TPU_I32, 0));
}

static void beta_step(tpu_build *b, const tpu_val *params, tpu_val *out_returns, void *arg) {
  const ctc *k = arg;
  tpu_val t = params[0], beta = params[1], emission = at_time(b, k->emissions, t);
  tpu_val fill = tpu_scalar(b, tpu_dtype_of(b, beta), -INFINITY);
  tpu_val jump = move(b, tpu_select(b, k->skips, beta, k->log_zero), -2, fill);
  tpu_val next = tpu_add(b, log_sum(b, beta, move(b, beta, -1, fill), jump), emission);
  tpu_val first = tpu_select(b, k->last, emission, k->log_zero);
  next = tpu_select(b, compare_time(b, k, TPU_EQ, t, 1), first, next);
  next = tpu_select(b, compare_time(b, k, TPU_LT, t, 0), next, k->log_zero);
  out_returns[0] = binary_c(b, TPU_HLO_SUBTRACT, t, 1);
  out_returns[1] = next;
  out_returns[2] = store_time(b, params[2], t, next);
}

/* _ctc_loss_backward(grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank,
 * zero_infinity). d loss / d log_probs[t, n, c] = exp(log_probs) - the probability of being in a state of label c at time t. */
void lower_ctc_loss_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  ctc k;
  if (!prepare(b, a, 1, arg_int(b, a, 7, 0), &k)) return;
  tpu_dtype dtype = tpu_dtype_of(b, k.log_probs);
  tpu_val grad = arg_tensor(b, a, 0), loss = arg_tensor(b, a, 5), alpha = arg_tensor(b, a, 6);
  if (k.t == 0 || k.n == 0) {
    o->out[0].val = tpu_full_like(b, k.log_probs, 0);
    return;
  }
  int64_t all_dims[3] = {k.t, k.n, k.s}, swap[3] = {1, 0, 2};
  tpu_val init[3] = {tpu_scalar_i(b, TPU_I32, k.t - 1), k.log_zero, tpu_full(b, dtype, 3, all_dims, -INFINITY)}, out[3];
  tpu_while(b, 3, init, beta_more, beta_step, &k, out);
  /* Occupancy of each state: alpha and beta both count the emission at t. */
  tpu_val both = tpu_add(b, tpu_transpose(b, alpha, swap), out[2]);
  int64_t batch[1] = {1};
  tpu_val cost = tpu_broadcast_in_dim(b, loss, 3, all_dims, batch);
  tpu_val never = tpu_compare(b, TPU_EQ, both, tpu_full_like(b, both, -INFINITY));
  tpu_val occupancy = tpu_exp(b, tpu_add(b, tpu_sub(b, both, k.emissions), cost));
  occupancy = tpu_select(b, never, tpu_full_like(b, occupancy, 0), occupancy);
  /* [T, N, S] -> [N, S, T], rows added to [N, C, T] by label. */
  int64_t to_rows[3] = {1, 2, 0}, back[3] = {2, 0, 1}, class_dims[3] = {k.n, k.c, k.t};
  int64_t zero[1] = {0}, one[1] = {1}, two[1] = {2};
  tpu_scatter_dims scatter = {.n_window = 1,
                              .window = two,
                              .n_inserted = 1,
                              .inserted = one,
                              .n_batch = 1,
                              .operand_batch = zero,
                              .indices_batch = zero,
                              .n_map = 1,
                              .scatter_map = one,
                              .index_vector_dim = 2};
  tpu_val classes = tpu_scatter(b, TPU_MONOID_ADD, tpu_full(b, dtype, 3, class_dims, 0), k.labels,
                                tpu_transpose(b, occupancy, to_rows), &scatter);
  tpu_val y = tpu_sub(b, tpu_exp(b, k.log_probs), tpu_transpose(b, classes, back));
  tpu_val factor = tpu_broadcast_in_dim(b, grad, 3, tpu_dims_of(b, y), batch);
  y = tpu_mul(b, y, factor);
  cost = tpu_broadcast_in_dim(b, loss, 3, tpu_dims_of(b, y), batch);
  tpu_val impossible = tpu_compare(b, TPU_EQ, cost, tpu_full_like(b, cost, INFINITY));
  y = tpu_select(b, impossible, tpu_full_like(b, y, arg_bool(b, a, 8) ? 0 : (double)NAN), y);
  tpu_val time = tpu_iota(b, TPU_I32, 3, tpu_dims_of(b, y), 0);
  tpu_val within = tpu_compare(b, TPU_LT, time, tpu_broadcast_in_dim(b, k.input_lengths, 3, tpu_dims_of(b, y), batch));
  o->out[0].val = tpu_select(b, within, y, tpu_full_like(b, y, 0));
}
