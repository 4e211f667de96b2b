/* Types of gather, scatter and sort, of control flow, and of the composites. */
#include <inttypes.h>
#include <string.h>

#include "ir/shape.h"

#define BAD(...) tpu_error(TPU_INVALID_ARGUMENT, __VA_ARGS__)
#define TEXT(t) tpu_type_print(&(tpu_type_text){{0}}, (t))

static tpu_status ascending(const char *what, int n, const int64_t *dims) {
  for (int i = 1; i < n; i++)
    if (dims[i] <= dims[i - 1]) return BAD("%s are not ascending", what);
  return NULL;
}

static bool among(int n, const int64_t *dims, int64_t dim) {
  for (int i = 0; i < n; i++)
    if (dims[i] == dim) return true;
  return false;
}

/* What gather and scatter share: operand dims `hidden` (collapsed or inserted) and `batch` are not in the window; `window` are
 * the places of the others in a result of rank batch dims + n_window. Fills out_batch with the index array's dims without its
 * vector dim. */
typedef struct index_dims {
  tpu_type operand, indices;
  int n_window, n_hidden, n_batch, n_map;
  const int64_t *window, *hidden, *operand_batch, *indices_batch, *map;
  int64_t index_vector_dim;
} index_dims;

static tpu_status check_index(const index_dims *d, int64_t *out_batch, int *out_n_batch) {
  int rank = d->operand.rank;
  if (!tpu_is_integral(d->indices.dtype)) return BAD("indices are %s", TEXT(d->indices));
  if (d->index_vector_dim < 0 || d->index_vector_dim > d->indices.rank)
    return BAD("index vector dim %" PRId64 " of %s", d->index_vector_dim, TEXT(d->indices));
  int64_t length = d->index_vector_dim < d->indices.rank ? d->indices.dims[d->index_vector_dim] : 1;
  if (length != d->n_map) return BAD("%" PRId64 " indices for %d dims", length, d->n_map);
  TPU_TRY(ascending("collapsed dims", d->n_hidden, d->hidden));
  TPU_TRY(ascending("window dims", d->n_window, d->window));
  int64_t both[2 * TPU_MAX_RANK];
  if (d->n_hidden + d->n_batch > rank || d->n_map + d->n_batch > rank) return BAD("too many dims for %s", TEXT(d->operand));
  if (d->n_window != rank - d->n_hidden - d->n_batch) return BAD("%d window dims of %s", d->n_window, TEXT(d->operand));
  if (d->n_hidden) memcpy(both, d->hidden, sizeof *both * (size_t)d->n_hidden);
  if (d->n_batch) memcpy(both + d->n_hidden, d->operand_batch, sizeof *both * (size_t)d->n_batch);
  TPU_TRY(tpu_infer_dims_distinct("operand dim", d->n_hidden + d->n_batch, both, rank));
  if (d->n_map) memcpy(both, d->map, sizeof *both * (size_t)d->n_map);
  if (d->n_batch) memcpy(both + d->n_map, d->operand_batch, sizeof *both * (size_t)d->n_batch);
  TPU_TRY(tpu_infer_dims_distinct("index map", d->n_map + d->n_batch, both, rank));
  TPU_TRY(tpu_infer_dims_distinct("indices batch dim", d->n_batch, d->indices_batch, d->indices.rank));
  for (int i = 0; i < d->n_batch; i++)
    if (d->indices_batch[i] == d->index_vector_dim ||
        d->operand.dims[d->operand_batch[i]] != d->indices.dims[d->indices_batch[i]])
      return BAD("batch dim %" PRId64 " of %s does not fit dim %" PRId64 " of the indices %s", d->operand_batch[i],
                 TEXT(d->operand), d->indices_batch[i], TEXT(d->indices));
  int n = 0;
  for (int i = 0; i < d->indices.rank; i++)
    if (i != d->index_vector_dim) out_batch[n++] = d->indices.dims[i];
  if (n + d->n_window > TPU_MAX_RANK) return BAD("too many dims");
  TPU_TRY(tpu_infer_dims_distinct("window dim", d->n_window, d->window, n + d->n_window));
  *out_n_batch = n;
  return NULL;
}

tpu_status tpu_rule_gather(tpu_infer *in) {
  tpu_type x = tpu_infer_operand(in, 0);
  const int64_t *sizes;
  if (!in->attrs || in->attrs->n < 6) return tpu_error(TPU_INTERNAL, "no dimension numbers");
  tpu_gather_dims d = tpu_attrs_gather(in->attrs, &sizes);
  TPU_TRY(tpu_infer_attr_count(in, 6 + (uint32_t)(d.n_offset + d.n_collapsed + 2 * d.n_batch + d.n_map + x.rank)));
  index_dims check = {
      x,           tpu_infer_operand(in, 1), d.n_offset,      d.n_collapsed,     d.n_batch,         d.n_map, d.offset,
      d.collapsed, d.operand_batch,          d.indices_batch, d.start_index_map, d.index_vector_dim};
  int64_t batch[TPU_MAX_RANK];
  int n_batch;
  TPU_TRY(check_index(&check, batch, &n_batch));
  int rank = n_batch + d.n_offset, window = 0, at = 0;
  int64_t inside[TPU_MAX_RANK];
  for (int i = 0; i < x.rank; i++) {
    bool hidden = among(d.n_collapsed, d.collapsed, i) || among(d.n_batch, d.operand_batch, i);
    if (sizes[i] < 0 || sizes[i] > x.dims[i] || (hidden && sizes[i] > 1))
      return BAD("slice size %" PRId64 " of dim %d of %s", sizes[i], i, TEXT(x));
    if (!hidden) inside[window++] = sizes[i];
  }
  window = 0;
  for (int i = 0; i < rank; i++) in->dims[i] = among(d.n_offset, d.offset, i) ? inside[window++] : batch[at++];
  in->types[0] = (tpu_type){x.dtype, rank, in->dims};
  return NULL;
}

tpu_status tpu_rule_scatter(tpu_infer *in) {
  uint32_t n = in->n_operands / 2;
  if (in->n_operands % 2 == 0 || !n || in->n_results != n || in->n_regions != 1)
    return tpu_error(TPU_INTERNAL, "%u operands, %u results, %u regions", in->n_operands, in->n_results, in->n_regions);
  if (!in->attrs || in->attrs->n < 7) return tpu_error(TPU_INTERNAL, "no dimension numbers");
  tpu_type x = tpu_infer_operand(in, 0), indices = tpu_infer_operand(in, n);
  tpu_scatter_dims d = tpu_attrs_scatter(in->attrs);
  TPU_TRY(tpu_infer_attr_count(in, 7 + (uint32_t)(d.n_window + d.n_inserted + 2 * d.n_batch + d.n_map)));
  index_dims check = {x,        indices,    d.n_window,      d.n_inserted,    d.n_batch,     d.n_map,
                      d.window, d.inserted, d.operand_batch, d.indices_batch, d.scatter_map, d.index_vector_dim};
  int64_t batch[TPU_MAX_RANK];
  int n_batch;
  TPU_TRY(check_index(&check, batch, &n_batch));
  tpu_dtype dtypes[16];
  if (2 * n > 16) return BAD("at most 8 operands are supported");
  for (uint32_t k = 0; k < n; k++) {
    tpu_type y = tpu_infer_operand(in, k), updates = tpu_infer_operand(in, n + 1 + k);
    if (y.rank != x.rank || !tpu_dims_equal(x.rank, x.dims, y.dims)) return BAD("operands %s and %s differ", TEXT(x), TEXT(y));
    bool fits = updates.dtype == y.dtype && updates.rank == n_batch + d.n_window;
    int at = 0, dim = 0;
    for (int i = 0; i < updates.rank && fits; i++) {
      if (!among(d.n_window, d.window, i)) {
        fits = updates.dims[i] == batch[at++];
        continue;
      }
      while (among(d.n_inserted, d.inserted, dim) || among(d.n_batch, d.operand_batch, dim)) dim++;
      fits = updates.dims[i] <= x.dims[dim++];
    }
    if (!fits) return BAD("updates %s do not fit %s at indices %s", TEXT(updates), TEXT(y), TEXT(indices));
    dtypes[k] = dtypes[n + k] = y.dtype;
    in->types[k] = y;
  }
  return tpu_infer_scalar_region(in, 0, 2 * n, dtypes, n, dtypes);
}

tpu_status tpu_rule_sort(tpu_infer *in) {
  uint32_t n = in->n_operands;
  TPU_TRY(tpu_infer_attr_count(in, 2));
  if (!n || in->n_results != n || in->n_regions != 1)
    return tpu_error(TPU_INTERNAL, "%u operands, %u results, %u regions", n, in->n_results, in->n_regions);
  tpu_type x = tpu_infer_operand(in, 0);
  if (in->attrs->v[0] < 0 || in->attrs->v[0] >= x.rank) return BAD("dim %" PRId64 " of %s", in->attrs->v[0], TEXT(x));
  tpu_dtype dtypes[16], pred = TPU_BOOL;
  if (2 * n > 16) return BAD("at most 8 operands are supported");
  for (uint32_t i = 0; i < n; i++) {
    tpu_type y = tpu_infer_operand(in, i);
    if (y.rank != x.rank || !tpu_dims_equal(x.rank, x.dims, y.dims)) return BAD("operands %s and %s differ", TEXT(x), TEXT(y));
    dtypes[2 * i] = dtypes[2 * i + 1] = y.dtype;
    in->types[i] = y;
  }
  return tpu_infer_scalar_region(in, 0, 2 * n, dtypes, 1, &pred);
}

tpu_status tpu_rule_custom_call(tpu_infer *in) {
  TPU_TRY(tpu_infer_attr_count(in, 2));
  if (in->attrs->v[0] <= 0 || in->attrs->v[0] + in->attrs->v[1] != in->attrs->bytes)
    return tpu_error(TPU_INTERNAL, "%u bytes of names", in->attrs->bytes);
  return NULL;
}

tpu_status tpu_rule_optimization_barrier(tpu_infer *in) {
  if (in->n_operands != in->n_results) return tpu_error(TPU_INTERNAL, "%u operands, %u results", in->n_operands, in->n_results);
  for (uint32_t i = 0; i < in->n_operands; i++) in->types[i] = tpu_infer_operand(in, i);
  return NULL;
}

tpu_status tpu_rule_rng_bit_generator(tpu_infer *in) {
  TPU_TRY(tpu_infer_attr_count(in, 1));
  tpu_type state = tpu_infer_operand(in, 0);
  if (state.dtype != TPU_U64 || state.rank != 1 || state.dims[0] < 2 || state.dims[0] > 3)
    return BAD("state is %s, wanted ui64[2]", TEXT(state));
  if (tpu_dtype_kind(in->types[1].dtype) != TPU_KIND_UINT)
    return BAD("result is %s, wanted unsigned integers", TEXT(in->types[1]));
  in->types[0] = state;
  return NULL;
}

/* Region `index` takes values of the types of operands from `first` on, n of them. */
static tpu_status check_params(const tpu_infer *in, uint32_t index, uint32_t first, uint32_t n) {
  const tpu_region *region = &in->regions[index];
  if (region->n_params != n) return BAD("region %u takes %u values, wanted %u", index, region->n_params, n);
  for (uint32_t i = 0; i < n; i++) {
    tpu_type have = tpu_value_at(in->graph, region->params[i].id)->type, want = tpu_infer_operand(in, first + i);
    if (!tpu_type_equal(have, want)) return BAD("parameter %u of region %u is %s, wanted %s", i, index, TEXT(have), TEXT(want));
  }
  return NULL;
}

tpu_status tpu_rule_while(tpu_infer *in) {
  if (in->n_operands != in->n_results || in->n_regions != 2)
    return tpu_error(TPU_INTERNAL, "%u operands, %u results, %u regions", in->n_operands, in->n_results, in->n_regions);
  TPU_TRY(check_params(in, 0, 0, in->n_operands));
  TPU_TRY(check_params(in, 1, 0, in->n_operands));
  const tpu_region *cond = &in->regions[0], *body = &in->regions[1];
  if (cond->n_returns != 1 || body->n_returns != in->n_operands)
    return BAD("the condition returns %u values, the body %u", cond->n_returns, body->n_returns);
  tpu_type pred = tpu_value_at(in->graph, cond->returns[0].id)->type;
  if (pred.rank || pred.dtype != TPU_BOOL) return BAD("the condition is %s, wanted i1[]", TEXT(pred));
  for (uint32_t i = 0; i < in->n_operands; i++) {
    tpu_type have = tpu_value_at(in->graph, body->returns[i].id)->type, want = tpu_infer_operand(in, i);
    if (!tpu_type_equal(have, want)) return BAD("value %u is %s before and %s after the body", i, TEXT(want), TEXT(have));
    in->types[i] = want;
  }
  return NULL;
}

tpu_status tpu_rule_if(tpu_infer *in) {
  tpu_type pred = tpu_infer_operand(in, 0);
  if (pred.rank || pred.dtype != TPU_BOOL) return BAD("the condition is %s, wanted i1[]", TEXT(pred));
  if (in->n_regions != 2) return tpu_error(TPU_INTERNAL, "%u regions", in->n_regions);
  for (uint32_t k = 0; k < 2; k++)
    if (in->regions[k].n_params || in->regions[k].n_returns != in->n_results)
      return BAD("branch %u takes %u and returns %u values", k, in->regions[k].n_params, in->regions[k].n_returns);
  for (uint32_t i = 0; i < in->n_results; i++) {
    tpu_type x = tpu_value_at(in->graph, in->regions[0].returns[i].id)->type;
    tpu_type y = tpu_value_at(in->graph, in->regions[1].returns[i].id)->type;
    if (!tpu_type_equal(x, y)) return BAD("the branches return %s and %s", TEXT(x), TEXT(y));
    in->types[i] = x;
  }
  return NULL;
}

tpu_status tpu_rule_cumulative(tpu_infer *in) {
  TPU_TRY(tpu_infer_attr_count(in, 3));
  tpu_type x = tpu_infer_operand(in, 0);
  int64_t monoid = in->attrs->v[0], dim = in->attrs->v[1];
  if (monoid < TPU_MONOID_ADD || monoid > TPU_MONOID_OR) return tpu_error(TPU_INTERNAL, "monoid %" PRId64, monoid);
  if (dim < 0 || dim >= x.rank) return BAD("dim %" PRId64 " of %s", dim, TEXT(x));
  return NULL;
}

tpu_status tpu_rule_top_k(tpu_infer *in) {
  TPU_TRY(tpu_infer_attr_count(in, 2));
  tpu_type x = tpu_infer_operand(in, 0);
  int64_t k = in->attrs->v[0];
  if (!x.rank || k < 0 || k > x.dims[x.rank - 1]) return BAD("%" PRId64 " of the last dim of %s", k, TEXT(x));
  memcpy(in->dims, x.dims, sizeof *in->dims * (size_t)x.rank);
  in->dims[x.rank - 1] = k;
  in->types[0] = (tpu_type){x.dtype, x.rank, in->dims};
  in->types[1] = (tpu_type){TPU_I32, x.rank, in->dims};
  return NULL;
}

tpu_status tpu_rule_random_bits(tpu_infer *in) {
  tpu_type state = tpu_infer_operand(in, 0);
  if (state.dtype != TPU_U64 || state.rank != 1 || state.dims[0] != 2) return BAD("state is %s, wanted ui64[2]", TEXT(state));
  tpu_dtype t = in->types[0].dtype;
  if (t != TPU_U32 && t != TPU_U64) return BAD("result is %s, wanted ui32 or ui64", TEXT(in->types[0]));
  return NULL;
}
