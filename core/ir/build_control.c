/* Indexing, sorting, control flow, custom calls, composites. */
#include <string.h>

#include "ir/build_private.h"

tpu_val tpu_gather(tpu_build *b, tpu_val x, tpu_val indices, const tpu_gather_dims *d, const int64_t *slice_sizes) {
  if (b->status || !x.id || !indices.id) return TPU_POISON;
  tpu_numbers a = {.n = 0};
  tpu_numbers_put(&a, d->n_offset);
  tpu_numbers_put(&a, d->n_collapsed);
  tpu_numbers_put(&a, d->n_batch);
  tpu_numbers_put(&a, d->n_map);
  tpu_numbers_put(&a, d->index_vector_dim);
  tpu_numbers_put(&a, d->sorted);
  tpu_numbers_put_n(&a, d->n_offset, d->offset, 0);
  tpu_numbers_put_n(&a, d->n_collapsed, d->collapsed, 0);
  tpu_numbers_put_n(&a, d->n_batch, d->operand_batch, 0);
  tpu_numbers_put_n(&a, d->n_batch, d->indices_batch, 0);
  tpu_numbers_put_n(&a, d->n_map, d->start_index_map, 0);
  tpu_numbers_put_n(&a, tpu_rank_of(b, x), slice_sizes, 1);
  tpu_val operands[2] = {x, indices}, out;
  (void)tpu_build_with(b, TPU_HLO_GATHER, 2, operands, &a, 0, NULL, 1, NULL, &out);
  return out;
}

tpu_val tpu_scatter(tpu_build *b, tpu_monoid op, tpu_val x, tpu_val indices, tpu_val updates, const tpu_scatter_dims *d) {
  if (b->status || !x.id || !indices.id || !updates.id) return TPU_POISON;
  tpu_numbers a = {.n = 0};
  tpu_numbers_put(&a, d->n_window);
  tpu_numbers_put(&a, d->n_inserted);
  tpu_numbers_put(&a, d->n_batch);
  tpu_numbers_put(&a, d->n_map);
  tpu_numbers_put(&a, d->index_vector_dim);
  tpu_numbers_put(&a, d->sorted);
  tpu_numbers_put(&a, d->unique);
  tpu_numbers_put_n(&a, d->n_window, d->window, 0);
  tpu_numbers_put_n(&a, d->n_inserted, d->inserted, 0);
  tpu_numbers_put_n(&a, d->n_batch, d->operand_batch, 0);
  tpu_numbers_put_n(&a, d->n_batch, d->indices_batch, 0);
  tpu_numbers_put_n(&a, d->n_map, d->scatter_map, 0);
  tpu_region region;
  tpu_val operands[3] = {x, indices, updates}, out = TPU_POISON;
  if (tpu_monoid_region(b, op, tpu_dtype_of(b, x), &region))
    (void)tpu_build_with(b, TPU_HLO_SCATTER, 3, operands, &a, 1, &region, 1, NULL, &out);
  return out;
}

void tpu_sort(tpu_build *b, int n, const tpu_val *xs, int dim, bool stable,
              tpu_val (*less)(tpu_build *b, const tpu_val *params, void *arg), void *arg, tpu_val *out) {
  enum { MAX_OPERANDS = 8 };
  for (int i = 0; i < n; i++) out[i] = TPU_POISON;
  if (b->status) return;
  if (n < 1 || n > MAX_OPERANDS) {
    (void)tpu_fail(b, TPU_INVALID_ARGUMENT, "sort: %d operands; 1 to %d are supported", n, MAX_OPERANDS);
    return;
  }
  tpu_type types[2 * MAX_OPERANDS];
  for (int i = 0; i < n; i++) {
    if (!xs[i].id) return;
    types[2 * i] = types[2 * i + 1] = (tpu_type){.dtype = tpu_dtype_of(b, xs[i])};
  }
  tpu_block block;
  tpu_region region;
  if (!tpu_block_begin(b, &block, true, 2 * (uint32_t)n, types)) return;
  tpu_val pred = less(b, block.params, arg);
  if (!tpu_block_end(b, &block, 1, &pred, &region)) return;
  tpu_numbers a = {.n = 0};
  tpu_numbers_put(&a, dim);
  tpu_numbers_put(&a, stable);
  (void)tpu_build_with(b, TPU_HLO_SORT, (uint32_t)n, xs, &a, 1, &region, (uint32_t)n, NULL, out);
}

void tpu_while(tpu_build *b, int n, const tpu_val *init, tpu_val (*cond)(tpu_build *b, const tpu_val *params, void *arg),
               void (*body)(tpu_build *b, const tpu_val *params, tpu_val *out_returns, void *arg), void *arg, tpu_val *out) {
  for (int i = 0; i < n; i++) out[i] = TPU_POISON;
  if (b->status || n < 1) return;
  tpu_type *types = tpu_build_alloc(b, sizeof *types * (size_t)n);
  tpu_val *returns = types ? tpu_build_alloc(b, sizeof *returns * (size_t)n) : NULL;
  if (!returns) return;
  for (int i = 0; i < n; i++) {
    if (!init[i].id) return;
    types[i] = tpu_type_of(b, init[i]);
    returns[i] = TPU_POISON;
  }
  tpu_block block;
  tpu_region regions[2];
  if (!tpu_block_begin(b, &block, false, (uint32_t)n, types)) return;
  tpu_val pred = cond(b, block.params, arg);
  if (!tpu_block_end(b, &block, 1, &pred, &regions[0])) return;
  if (!tpu_block_begin(b, &block, false, (uint32_t)n, types)) return;
  body(b, block.params, returns, arg);
  if (!tpu_block_end(b, &block, (uint32_t)n, returns, &regions[1])) return;
  (void)tpu_build_with(b, TPU_HLO_WHILE, (uint32_t)n, init, &(tpu_numbers){.n = 0}, 2, regions, (uint32_t)n, NULL, out);
}

void tpu_if(tpu_build *b, tpu_val pred, int n, void (*on_true)(tpu_build *b, tpu_val *out_returns, void *arg),
            void (*on_false)(tpu_build *b, tpu_val *out_returns, void *arg), void *arg, tpu_val *out) {
  for (int i = 0; i < n; i++) out[i] = TPU_POISON;
  if (b->status || !pred.id || n < 1) return;
  tpu_val *returns = tpu_build_alloc(b, sizeof *returns * (size_t)n);
  if (!returns) return;
  tpu_region regions[2];
  for (int k = 0; k < 2; k++) {
    tpu_block block;
    if (!tpu_block_begin(b, &block, false, 0, NULL)) return;
    for (int i = 0; i < n; i++) returns[i] = TPU_POISON;
    (k == 0 ? on_true : on_false)(b, returns, arg);
    if (!tpu_block_end(b, &block, (uint32_t)n, returns, &regions[k])) return;
  }
  (void)tpu_build_with(b, TPU_HLO_IF, 1, &pred, &(tpu_numbers){.n = 0}, 2, regions, (uint32_t)n, NULL, out);
}

void tpu_barrier(tpu_build *b, int n, const tpu_val *xs, tpu_val *out) {
  if (n > 0)
    (void)tpu_build_with(b, TPU_HLO_OPTIMIZATION_BARRIER, (uint32_t)n, xs, &(tpu_numbers){.n = 0}, 0, NULL, (uint32_t)n, NULL,
                         out);
}

void tpu_custom_call(tpu_build *b, const char *target, const char *backend_config, int n, const tpu_val *xs, int n_results,
                     const tpu_type *types, tpu_val *out) {
  for (int i = 0; i < n_results; i++) out[i] = TPU_POISON;
  if (b->status) return;
  size_t name = strlen(target), config = backend_config ? strlen(backend_config) : 0;
  char *text = tpu_build_alloc(b, name + config);
  if (!text) return;
  memcpy(text, target, name);
  if (config) memcpy(text + name, backend_config, config);
  int64_t v[2] = {(int64_t)name, (int64_t)config};
  tpu_attrs attrs = {.n = 2, .bytes = (uint32_t)(name + config), .v = v, .data = text};
  tpu_node_spec spec = {.op = TPU_HLO_CUSTOM_CALL,
                        .n_operands = (uint32_t)n,
                        .n_results = (uint32_t)n_results,
                        .operands = xs,
                        .attrs = &attrs,
                        .types = types};
  (void)tpu_build_node(b, &spec, out);
}

void tpu_rng_bits(tpu_build *b, tpu_val state, tpu_dtype dtype, int rank, const int64_t *dims, tpu_val out[2]) {
  out[0] = out[1] = TPU_POISON;
  if (b->status || !state.id) return;
  tpu_numbers a = {.n = 0};
  tpu_numbers_put(&a, TPU_RNG_PHILOX);
  tpu_type types[2] = {tpu_type_of(b, state), {dtype, rank, dims}};
  (void)tpu_build_with(b, TPU_HLO_RNG_BIT_GENERATOR, 1, &state, &a, 0, NULL, 2, types, out);
}

/* --- composites */

tpu_val tpu_cumulative(tpu_build *b, tpu_monoid op, tpu_val x, int dim, bool reverse) {
  if (b->status || !x.id) return TPU_POISON;
  tpu_type t = tpu_type_of(b, x);
  if (dim >= 0 && dim < t.rank && t.dims[dim] <= 1) return x;
  int64_t v[3] = {op, dim, reverse};
  return tpu_build_simple(b, TPU_HLO_CUMULATIVE, 1, &x, v, 3, NULL);
}

void tpu_top_k(tpu_build *b, tpu_val x, int64_t k, bool largest, tpu_val out[2]) {
  tpu_numbers a = {.n = 0};
  tpu_numbers_put(&a, k);
  tpu_numbers_put(&a, largest);
  (void)tpu_build_with(b, TPU_HLO_TOP_K, 1, &x, &a, 0, NULL, 2, NULL, out);
}

tpu_val tpu_random_bits(tpu_build *b, tpu_val state, tpu_dtype dtype, int rank, const int64_t *dims) {
  tpu_type type = {dtype, rank, dims};
  return tpu_build_simple(b, TPU_HLO_RANDOM_BITS, 1, &state, NULL, 0, &type);
}
