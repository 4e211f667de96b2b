/* Contractions, convolutions, reductions, windows, dense linear algebra. */
#include <string.h>

#include "ir/build_private.h"
#include "ir/number.h"

void tpu_numbers_put(tpu_numbers *a, int64_t v) {
  if (a->n < TPU_NUMBERS)
    a->v[a->n++] = v;
  else
    a->overflow = true;
}

void tpu_numbers_put_n(tpu_numbers *a, int n, const int64_t *v, int64_t otherwise) {
  for (int i = 0; i < n; i++) tpu_numbers_put(a, v ? v[i] : otherwise);
}

bool tpu_build_with(tpu_build *b, tpu_hlo op, uint32_t n_operands, const tpu_val *operands, const tpu_numbers *numbers,
                    uint32_t n_regions, const tpu_region *regions, uint32_t n_results, const tpu_type *types, tpu_val *out) {
  for (uint32_t i = 0; i < n_results; i++) out[i] = TPU_POISON;
  if (b->status) return false;
  if (numbers->overflow) {
    (void)tpu_fail(b, TPU_INVALID_ARGUMENT, "%s: too many dimension numbers", tpu_hlo_info_get(op)->name);
    return false;
  }
  const tpu_region *kept = NULL;
  if (n_regions && !(kept = tpu_arena_copy(&b->graph->arena, regions, sizeof *regions * n_regions))) {
    (void)tpu_fail(b, TPU_RESOURCE_EXHAUSTED, "out of host memory");
    return false;
  }
  tpu_attrs attrs = {.n = numbers->n, .v = numbers->v};
  tpu_node_spec spec = {.op = op,
                        .n_operands = n_operands,
                        .n_regions = n_regions,
                        .n_results = n_results,
                        .operands = operands,
                        .attrs = numbers->n ? &attrs : NULL,
                        .regions = kept,
                        .types = types};
  return tpu_build_node(b, &spec, out);
}

/* --- regions of one binary op */

tpu_hlo tpu_monoid_hlo(tpu_monoid op) {
  static const uint8_t ops[] = {TPU_HLO_ADD, TPU_HLO_MULTIPLY, TPU_HLO_MAXIMUM, TPU_HLO_MINIMUM,
                                TPU_HLO_AND, TPU_HLO_OR,       TPU_HLO_XOR};
  return (tpu_hlo)ops[op];
}

bool tpu_monoid_region(tpu_build *b, tpu_monoid op, tpu_dtype dtype, tpu_region *out) {
  tpu_block block;
  tpu_type types[2] = {{.dtype = dtype}, {.dtype = dtype}};
  if (!tpu_block_begin(b, &block, true, 2, types)) return false;
  tpu_val result =
      op == TPU_MONOID_ASSIGN ? block.params[1] : tpu_binary(b, tpu_monoid_hlo(op), block.params[0], block.params[1]);
  return tpu_block_end(b, &block, 1, &result, out);
}

/* --- contractions */

static tpu_precision precision_of(const tpu_build *b, tpu_dtype t) {
  tpu_dtype real = tpu_dtype_real(t);
  if (real == TPU_F64) return TPU_PRECISION_HIGHEST;
  if (real != TPU_F32) return TPU_PRECISION_DEFAULT;
  return b->target ? b->target->precision : TPU_PRECISION_HIGHEST;
}

/* One side of a contraction. */
typedef struct side {
  tpu_val x;
  int n_batch, n_contract;
  int64_t batch[TPU_MAX_RANK], contract[TPU_MAX_RANK];
} side;

static bool side_init(side *s, tpu_val x, int n_batch, const int64_t *batch, int n_contract, const int64_t *contract) {
  if (n_batch < 0 || n_contract < 0 || n_batch > TPU_MAX_RANK || n_contract > TPU_MAX_RANK) return false;
  s->x = x;
  s->n_batch = n_batch;
  s->n_contract = n_contract;
  if (n_batch) memcpy(s->batch, batch, sizeof *batch * (size_t)n_batch);
  if (n_contract) memcpy(s->contract, contract, sizeof *contract * (size_t)n_contract);
  return true;
}

static bool side_valid(const tpu_build *b, const side *s) {
  int rank = tpu_rank_of(b, s->x);
  for (int i = 0; i < s->n_batch; i++)
    if (s->batch[i] < 0 || s->batch[i] >= rank) return false;
  for (int i = 0; i < s->n_contract; i++)
    if (s->contract[i] < 0 || s->contract[i] >= rank) return false;
  return true;
}

/* The transpose that makes x, if there is one below at most a conversion. */
static const tpu_node *transpose_below(const tpu_build *b, tpu_val x, bool *out_converted) {
  const tpu_node *node = tpu_producer_is(b->graph, x, TPU_HLO_TRANSPOSE);
  *out_converted = false;
  if (node) return node;
  const tpu_node *convert = tpu_producer_is(b->graph, x, TPU_HLO_CONVERT);
  *out_converted = convert != NULL;
  return convert ? tpu_producer_is(b->graph, convert->operands[0], TPU_HLO_TRANSPOSE) : NULL;
}

static tpu_val strip_transpose(tpu_build *b, tpu_val x, const tpu_node *transpose, bool converted) {
  tpu_val inner = transpose->operands[0];
  if (!converted) return inner;
  tpu_type type = tpu_type_of(b, inner);
  type.dtype = tpu_dtype_of(b, x);
  return tpu_build_simple(b, TPU_HLO_CONVERT, 1, &inner, NULL, 0, &type);
}

/* A transpose disappears into the dimension numbers if the free dims keep their order: the result has them in the operand's. */
static void fold_transpose(tpu_build *b, side *s) {
  bool converted;
  const tpu_node *transpose = transpose_below(b, s->x, &converted);
  if (!transpose) return;
  int rank = tpu_rank_of(b, s->x);
  const int64_t *perm = tpu_node_attrs(transpose)->v;
  uint64_t taken = 0;
  for (int i = 0; i < s->n_batch; i++) taken |= UINT64_C(1) << s->batch[i];
  for (int i = 0; i < s->n_contract; i++) taken |= UINT64_C(1) << s->contract[i];
  int64_t last = -1;
  for (int i = 0; i < rank; i++) {
    if (taken >> i & 1) continue;
    if (perm[i] < last) return;
    last = perm[i];
  }
  for (int i = 0; i < s->n_batch; i++) s->batch[i] = perm[s->batch[i]];
  for (int i = 0; i < s->n_contract; i++) s->contract[i] = perm[s->contract[i]];
  s->x = strip_transpose(b, s->x, transpose, converted);
}

/* x = reshape(y) that merges y's first dims (n of them, at least two) into x's first and keeps the others: y, else poison. */
static tpu_val unmerged(const tpu_build *b, tpu_val x, int *out_n) {
  const tpu_node *reshape = tpu_producer_is(b->graph, x, TPU_HLO_RESHAPE);
  if (!reshape) return TPU_POISON;
  tpu_type t = tpu_type_of(b, x), inner = tpu_type_of(b, reshape->operands[0]);
  int n = inner.rank - t.rank + 1;
  if (t.rank < 1 || n < 2 || !tpu_dims_equal(t.rank - 1, inner.dims + n, t.dims + 1)) return TPU_POISON;
  *out_n = n;
  return reshape->operands[0];
}

/* bmm of merged batch dims over transposed operands, as attention has it: contracts the unmerged operands, whose transposes
 * then fold, and merges the result. */
static bool unmerge_batch(tpu_build *b, side *l, side *r, int *out_merged) {
  if (l->n_batch != 1 || l->batch[0] != 0 || r->batch[0] != 0) return false;
  int n = 0, m = 0;
  bool converted;
  tpu_val x = unmerged(b, l->x, &n), y = unmerged(b, r->x, &m);
  if (!x.id || !y.id || n != m || !tpu_dims_equal(n, tpu_dims_of(b, x), tpu_dims_of(b, y))) return false;
  if (!transpose_below(b, x, &converted) && !transpose_below(b, y, &converted)) return false;
  if (tpu_rank_of(b, x) + tpu_rank_of(b, y) > TPU_MAX_RANK) return false;
  for (side *s = l; s; s = s == l ? r : NULL) {
    s->x = s == l ? x : y;
    s->n_batch = n;
    for (int i = 0; i < n; i++) s->batch[i] = i;
    for (int i = 0; i < s->n_contract; i++) s->contract[i] += n - 1;
  }
  *out_merged = n;
  return true;
}

tpu_val tpu_dot_general(tpu_build *b, tpu_val x, tpu_val y, const tpu_dot_dims *dims, tpu_dtype out_dtype) {
  if (b->status || !x.id || !y.id) return TPU_POISON;
  side l, r;
  if (!side_init(&l, x, dims->n_batch, dims->lhs_batch, dims->n_contract, dims->lhs_contract) ||
      !side_init(&r, y, dims->n_batch, dims->rhs_batch, dims->n_contract, dims->rhs_contract))
    return tpu_fail(b, TPU_INVALID_ARGUMENT, "dot_general: %d batch and %d contracting dims", dims->n_batch, dims->n_contract);
  int merged = 0;
  if (side_valid(b, &l) && side_valid(b, &r)) {
    (void)unmerge_batch(b, &l, &r, &merged);
    fold_transpose(b, &l);
    fold_transpose(b, &r);
  }
  tpu_numbers a = {.n = 0};
  tpu_type type = {.dtype = out_dtype == TPU_DTYPE_NONE ? tpu_dtype_of(b, x) : out_dtype};
  tpu_numbers_put(&a, l.n_batch);
  tpu_numbers_put(&a, l.n_contract);
  tpu_numbers_put(&a, precision_of(b, tpu_dtype_of(b, x)));
  tpu_numbers_put_n(&a, l.n_batch, l.batch, 0);
  tpu_numbers_put_n(&a, r.n_batch, r.batch, 0);
  tpu_numbers_put_n(&a, l.n_contract, l.contract, 0);
  tpu_numbers_put_n(&a, r.n_contract, r.contract, 0);
  tpu_val operands[2] = {l.x, r.x}, out;
  if (!tpu_build_with(b, TPU_HLO_DOT_GENERAL, 2, operands, &a, 0, NULL, 1, &type, &out) || !merged) return out;
  tpu_type t = tpu_type_of(b, out);
  int64_t result[TPU_MAX_RANK];
  result[0] = 1;
  for (int i = 0; i < merged; i++) result[0] *= t.dims[i];
  for (int i = merged; i < t.rank; i++) result[i - merged + 1] = t.dims[i];
  return tpu_reshape(b, out, t.rank - merged + 1, result);
}

tpu_val tpu_matmul(tpu_build *b, tpu_val x, tpu_val y) {
  if (b->status || !x.id || !y.id) return TPU_POISON;
  int rank = tpu_rank_of(b, x);
  if (rank < 2 || tpu_rank_of(b, y) != rank)
    return tpu_fail(b, TPU_INVALID_ARGUMENT, "matmul: operands of rank %d and %d", rank, tpu_rank_of(b, y));
  int64_t batch[TPU_MAX_RANK], lhs = rank - 1, rhs = rank - 2;
  for (int i = 0; i < rank - 2; i++) batch[i] = i;
  tpu_dot_dims d = {rank - 2, 1, batch, batch, &lhs, &rhs};
  return tpu_dot_general(b, x, y, &d, TPU_DTYPE_NONE);
}

/* Moves a convolution operand's transpose into its dimension numbers. */
static tpu_val fold_conv_transpose(tpu_build *b, tpu_val x, int s, int64_t *first, int64_t *second, int64_t *spatial) {
  bool converted;
  const tpu_node *transpose = transpose_below(b, x, &converted);
  if (!transpose || tpu_rank_of(b, x) != s + 2) return x;
  int64_t *all[TPU_MAX_RANK] = {first, second};
  for (int i = 0; i < s; i++) all[2 + i] = &spatial[i];
  for (int i = 0; i < s + 2; i++)
    if (*all[i] < 0 || *all[i] >= s + 2) return x;
  for (int i = 0; i < s + 2; i++) *all[i] = tpu_node_attr(transpose, (uint32_t)*all[i]);
  return strip_transpose(b, x, transpose, converted);
}

tpu_val tpu_convolution(tpu_build *b, tpu_val x, tpu_val kernel, const tpu_conv_dims *dims, tpu_dtype out_dtype) {
  if (b->status || !x.id || !kernel.id) return TPU_POISON;
  int s = dims->spatial;
  if (s < 0 || s > TPU_MAX_RANK - 2) return tpu_fail(b, TPU_INVALID_ARGUMENT, "convolution: %d spatial dims", s);
  tpu_numbers a = {.n = TPU_CONV_ARRAYS};
  int64_t *v = a.v;
  v[TPU_CONV_SPATIAL] = s;
  v[TPU_CONV_LHS_BATCH] = dims->lhs_batch;
  v[TPU_CONV_LHS_FEATURE] = dims->lhs_feature;
  v[TPU_CONV_RHS_IN] = dims->rhs_in;
  v[TPU_CONV_RHS_OUT] = dims->rhs_out;
  v[TPU_CONV_OUT_BATCH] = dims->out_batch;
  v[TPU_CONV_OUT_FEATURE] = dims->out_feature;
  v[TPU_CONV_FEATURE_GROUPS] = dims->feature_groups;
  v[TPU_CONV_BATCH_GROUPS] = dims->batch_groups;
  v[TPU_CONV_PRECISION] = precision_of(b, tpu_dtype_of(b, x));
  tpu_numbers_put_n(&a, s, dims->strides, 1);
  tpu_numbers_put_n(&a, s, dims->pad_lo, 0);
  tpu_numbers_put_n(&a, s, dims->pad_hi, 0);
  tpu_numbers_put_n(&a, s, dims->lhs_dilation, 1);
  tpu_numbers_put_n(&a, s, dims->rhs_dilation, 1);
  for (int i = 0; i < s; i++) tpu_numbers_put(&a, dims->reversal && dims->reversal[i]);
  int64_t *lhs_spatial = v + a.n, *rhs_spatial = lhs_spatial + s;
  tpu_numbers_put_n(&a, s, dims->lhs_spatial, 0);
  tpu_numbers_put_n(&a, s, dims->rhs_spatial, 0);
  tpu_numbers_put_n(&a, s, dims->out_spatial, 0);
  tpu_type type = {.dtype = out_dtype == TPU_DTYPE_NONE ? tpu_dtype_of(b, x) : out_dtype};
  tpu_val operands[2], out;
  operands[0] = fold_conv_transpose(b, x, s, &v[TPU_CONV_LHS_BATCH], &v[TPU_CONV_LHS_FEATURE], lhs_spatial);
  operands[1] = fold_conv_transpose(b, kernel, s, &v[TPU_CONV_RHS_IN], &v[TPU_CONV_RHS_OUT], rhs_spatial);
  (void)tpu_build_with(b, TPU_HLO_CONVOLUTION, 2, operands, &a, 0, NULL, 1, &type, &out);
  return out;
}

/* --- reductions */

tpu_val tpu_reduce(tpu_build *b, tpu_monoid op, tpu_val x, tpu_val init, int n_axes, const int64_t *axes) {
  if (b->status || !x.id || !init.id) return TPU_POISON;
  if (op == TPU_MONOID_ASSIGN) return tpu_fail(b, TPU_INTERNAL, "reduce: no such operation");
  if (n_axes == 0) {
    /* XLA combines each element with init; sums and products from their neutral elements are the operand itself. */
    double v;
    if (tpu_is_splat(b, init, &v) && ((op == TPU_MONOID_ADD && v == 0) || (op == TPU_MONOID_MUL && v == 1))) return x;
    return tpu_binary(b, tpu_monoid_hlo(op), x, tpu_broadcast_like(b, init, x));
  }
  tpu_numbers a = {.n = 0};
  tpu_numbers_put_n(&a, n_axes, axes, 0);
  tpu_region region;
  tpu_val operands[2] = {x, init}, out = TPU_POISON;
  if (tpu_monoid_region(b, op, tpu_dtype_of(b, x), &region))
    (void)tpu_build_with(b, TPU_HLO_REDUCE, 2, operands, &a, 1, &region, 1, NULL, &out);
  return out;
}

enum { MAX_OPERANDS = 8 };

typedef void (*body_fn)(tpu_build *b, const tpu_val *params, tpu_val *out_returns, void *arg);

static void reduction_n(tpu_build *b, tpu_hlo op, int n, const tpu_val *xs, const tpu_val *inits, const tpu_numbers *a,
                        body_fn body, void *arg, tpu_val *out) {
  for (int i = 0; i < n; i++) out[i] = TPU_POISON;
  if (b->status) return;
  if (n < 1 || n > MAX_OPERANDS) {
    (void)tpu_fail(b, TPU_INVALID_ARGUMENT, "%s: %d operands; 1 to %d are supported", tpu_hlo_info_get(op)->name, n,
                   MAX_OPERANDS);
    return;
  }
  tpu_val operands[2 * MAX_OPERANDS], returns[MAX_OPERANDS] = {{0}};
  tpu_type types[2 * MAX_OPERANDS];
  for (int i = 0; i < n; i++) {
    if (!xs[i].id || !inits[i].id) return;
    operands[i] = xs[i];
    operands[n + i] = inits[i];
    types[i] = types[n + i] = (tpu_type){.dtype = tpu_dtype_of(b, xs[i])};
  }
  tpu_block block;
  tpu_region region;
  if (!tpu_block_begin(b, &block, true, 2 * (uint32_t)n, types)) return;
  body(b, block.params, returns, arg);
  if (tpu_block_end(b, &block, (uint32_t)n, returns, &region))
    (void)tpu_build_with(b, op, 2 * (uint32_t)n, operands, a, 1, &region, (uint32_t)n, NULL, out);
}

void tpu_reduce_n(tpu_build *b, int n, const tpu_val *xs, const tpu_val *inits, int n_axes, const int64_t *axes, body_fn body,
                  void *arg, tpu_val *out) {
  tpu_numbers a = {.n = 0};
  tpu_numbers_put_n(&a, n_axes, axes, 0);
  reduction_n(b, TPU_HLO_REDUCE, n, xs, inits, &a, body, arg, out);
}

static void put_window(tpu_numbers *a, int rank, const tpu_window *w) {
  tpu_numbers_put_n(a, rank, w->dims, 1);
  tpu_numbers_put_n(a, rank, w->strides, 1);
  tpu_numbers_put_n(a, rank, w->base_dilation, 1);
  tpu_numbers_put_n(a, rank, w->dilation, 1);
  tpu_numbers_put_n(a, rank, w->pad_lo, 0);
  tpu_numbers_put_n(a, rank, w->pad_hi, 0);
}

tpu_val tpu_reduce_window(tpu_build *b, tpu_monoid op, tpu_val x, tpu_val init, const tpu_window *window) {
  if (b->status || !x.id || !init.id) return TPU_POISON;
  if (op == TPU_MONOID_ASSIGN) return tpu_fail(b, TPU_INTERNAL, "reduce_window: no such operation");
  tpu_numbers a = {.n = 0};
  put_window(&a, tpu_rank_of(b, x), window);
  tpu_region region;
  tpu_val operands[2] = {x, init}, out = TPU_POISON;
  if (tpu_monoid_region(b, op, tpu_dtype_of(b, x), &region))
    (void)tpu_build_with(b, TPU_HLO_REDUCE_WINDOW, 2, operands, &a, 1, &region, 1, NULL, &out);
  return out;
}

void tpu_reduce_window_n(tpu_build *b, int n, const tpu_val *xs, const tpu_val *inits, const tpu_window *window, body_fn body,
                         void *arg, tpu_val *out) {
  tpu_numbers a = {.n = 0};
  if (n > 0) put_window(&a, tpu_rank_of(b, xs[0]), window);
  reduction_n(b, TPU_HLO_REDUCE_WINDOW, n, xs, inits, &a, body, arg, out);
}

tpu_val tpu_select_and_scatter(tpu_build *b, tpu_val x, tpu_val source, tpu_val init, tpu_compare_dir select,
                               const tpu_window *window) {
  if (b->status || !x.id || !source.id || !init.id) return TPU_POISON;
  tpu_dtype dtype = tpu_dtype_of(b, x);
  tpu_numbers a = {.n = 0};
  put_window(&a, tpu_rank_of(b, x), window);
  tpu_region regions[2];
  tpu_block block;
  tpu_type types[2] = {{.dtype = dtype}, {.dtype = dtype}};
  if (!tpu_block_begin(b, &block, true, 2, types)) return TPU_POISON;
  tpu_val chosen = tpu_compare(b, select, block.params[0], block.params[1]);
  if (!tpu_block_end(b, &block, 1, &chosen, &regions[0]) || !tpu_monoid_region(b, TPU_MONOID_ADD, dtype, &regions[1]))
    return TPU_POISON;
  tpu_val operands[3] = {x, source, init}, out;
  (void)tpu_build_with(b, TPU_HLO_SELECT_AND_SCATTER, 3, operands, &a, 2, regions, 1, NULL, &out);
  return out;
}

/* --- linear algebra, Fourier */

tpu_val tpu_cholesky(tpu_build *b, tpu_val x, bool lower) {
  int64_t v = lower;
  return tpu_build_simple(b, TPU_HLO_CHOLESKY, 1, &x, &v, 1, NULL);
}

tpu_val tpu_triangular_solve(tpu_build *b, tpu_val a, tpu_val y, bool left, bool lower, bool unit, int transpose) {
  int64_t v[4] = {left, lower, unit, transpose};
  tpu_val operands[2] = {a, y};
  return tpu_build_simple(b, TPU_HLO_TRIANGULAR_SOLVE, 2, operands, v, 4, NULL);
}

tpu_val tpu_fft(tpu_build *b, tpu_val x, tpu_fft_kind kind, int n, const int64_t *lengths) {
  if (b->status || !x.id) return TPU_POISON;
  tpu_numbers a = {.n = 0};
  tpu_numbers_put(&a, kind);
  tpu_numbers_put_n(&a, n, lengths, 1);
  tpu_val out;
  (void)tpu_build_with(b, TPU_HLO_FFT, 1, &x, &a, 0, NULL, 1, NULL, &out);
  return out;
}
