#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "ir/bound_private.h"

/* What is being made: the bounded graph beside the one it is made from. */
typedef struct widening {
  tpu_bounding d;
  tpu_build b;
  const int64_t *bounds;
  uint32_t first_slot;
  tpu_val *map; /* by value of the source */
} widening;

/* --- sizes */
static tpu_val extent(widening *w, int32_t class, tpu_dtype dtype) {
  return tpu_slot(&w->b, w->first_slot + (uint32_t)class, dtype);
}

static int64_t factor_size(const widening *w, const tpu_factor *f) { return f->class < 0 ? f->size : w->bounds[f->class]; }

static int64_t wide_dim(widening *w, tpu_val v, int dim) {
  if (tpu_bounding_class(&w->d, v, dim) < 0) return tpu_bounding_type(&w->d, v)->dims[dim];
  const tpu_form *form = tpu_bounding_form(&w->d, v, dim);
  int64_t size = 1;
  for (int i = 0; i < form->n; i++) size *= factor_size(w, &form->f[i]);
  return size;
}

static tpu_type wide_type(widening *w, tpu_val v) {
  tpu_type t = *tpu_bounding_type(&w->d, v);
  int64_t *dims = tpu_build_alloc(&w->b, sizeof *dims * (size_t)(t.rank + 1));
  if (!dims) return (tpu_type){t.dtype, 0, NULL};
  for (int i = 0; i < t.rank; i++) dims[i] = wide_dim(w, v, i);
  t.dims = dims;
  return t;
}

static bool is_static(const widening *w, tpu_val v, int dim) { return tpu_bounding_class(&w->d, v, dim) < 0; }

/* --- masks */
/* [P] of i1: which places of a dim of this form are there. */
static tpu_val places(widening *w, const tpu_form *form, int64_t size) {
  tpu_build *b = &w->b;
  tpu_val at = tpu_iota(b, TPU_I32, 1, &size, 0), all = TPU_POISON;
  int64_t stride = 1;
  for (int i = form->n; i-- > 0;) {
    const tpu_factor *f = &form->f[i];
    int64_t n = factor_size(w, f);
    if (f->class >= 0) {
      tpu_val k = at;
      if (stride > 1) k = tpu_binary(b, TPU_HLO_DIVIDE, k, tpu_full_like(b, k, (double)stride));
      if (i > 0) k = tpu_binary(b, TPU_HLO_REMAINDER, k, tpu_full_like(b, k, (double)n));
      tpu_val ok = tpu_compare(b, TPU_LT, k, tpu_broadcast_to(b, extent(w, f->class, TPU_I32), 1, &size));
      all = all.id ? tpu_and(b, all, ok) : ok;
    }
    stride *= n;
  }
  return all;
}

/* The value of `v` (a source value whose wide form is x) with `fill` (a scalar) where a listed dim is not there. */
static tpu_val masked(widening *w, tpu_val v, tpu_val x, int n, const int64_t *dims, tpu_val fill) {
  tpu_build *b = &w->b;
  tpu_type t = tpu_type_of(b, x);
  tpu_val all = TPU_POISON;
  for (int i = 0; i < n; i++) {
    if (is_static(w, v, (int)dims[i])) continue;
    tpu_val ok = places(w, tpu_bounding_form(&w->d, v, (int)dims[i]), t.dims[dims[i]]);
    ok = tpu_broadcast_in_dim(b, ok, t.rank, t.dims, &dims[i]);
    all = all.id ? tpu_and(b, all, ok) : ok;
  }
  return all.id ? tpu_select(b, all, x, tpu_broadcast_to(b, fill, t.rank, t.dims)) : x;
}

static tpu_val zero_of(widening *w, tpu_val x) { return tpu_scalar(&w->b, tpu_dtype_of(&w->b, x), 0); }

static tpu_val identity_of(widening *w, tpu_hlo op, tpu_dtype dtype) {
  tpu_build *b = &w->b;
  switch (op) {
    case TPU_HLO_ADD:
    case TPU_HLO_OR:
    case TPU_HLO_XOR: return tpu_scalar_i(b, dtype, 0);
    case TPU_HLO_MULTIPLY: return tpu_scalar_i(b, dtype, 1);
    case TPU_HLO_MAXIMUM: return tpu_lowest(b, dtype);
    case TPU_HLO_MINIMUM: return tpu_highest(b, dtype);
    case TPU_HLO_AND: return dtype == TPU_BOOL ? tpu_scalar_i(b, dtype, 1) : tpu_scalar_i(b, dtype, -1);
    default: return tpu_fail(b, TPU_UNIMPLEMENTED, "a reduction without an identity");
  }
}

/* x with dim cut or filled up to `size`. */
static tpu_val fit(widening *w, tpu_val x, int dim, int64_t size, tpu_val fill) {
  tpu_build *b = &w->b;
  int64_t now = tpu_dim_of(b, x, dim), lo[TPU_MAX_RANK] = {0}, hi[TPU_MAX_RANK] = {0};
  if (now == size) return x;
  if (now > size) return tpu_slice_dim(b, x, dim, 0, size, 1);
  hi[dim] = size - now;
  return tpu_pad(b, x, fill, lo, hi, NULL);
}

/* --- copying a node in its wide form */
static tpu_val operand(widening *w, const tpu_node *node, uint32_t k) { return w->map[node->operands[k].id]; }

/* attrs NULL: the node's own. Operands are the mapped ones, or `operands`. */
static void put(widening *w, const tpu_node *node, const tpu_val *operands, const tpu_attrs *attrs) {
  tpu_build *b = &w->b;
  tpu_type *types = tpu_build_alloc(b, sizeof *types * node->n_results);
  if (!types) return;
  for (uint32_t i = 0; i < node->n_results; i++) types[i] = wide_type(w, (tpu_val){node->first_result + i});
  tpu_node_spec spec = {.op = (tpu_hlo)node->op,
                        .n_operands = node->n_operands,
                        .n_results = node->n_results,
                        .operands = operands,
                        .attrs = attrs ? attrs : node->attrs,
                        .types = types};
  if (b->status) return;
  (void)tpu_build_node(b, &spec, &w->map[node->first_result]);
}

/* Nodes with regions are copied by copy_node, which looks operands up in the map. */
static void put_with_regions(widening *w, const tpu_node *node, uint32_t index, const tpu_val *operands) {
  tpu_val kept[32];
  uint32_t n = node->n_operands;
  if (n > 32) {
    (void)tpu_fail(&w->b, TPU_UNIMPLEMENTED, "too many operands");
    return;
  }
  for (uint32_t k = 0; k < n; k++) kept[k] = operand(w, node, k);
  for (uint32_t k = 0; k < n; k++) w->map[node->operands[k].id] = operands[k];
  tpu_graph_copy_node(&w->b, w->d.graph, index, w->map, NULL, NULL);
  for (uint32_t k = 0; k < n; k++) w->map[node->operands[k].id] = kept[k];
}

/* A scalar made wide, in another width. */
static tpu_val rewiden(widening *w, tpu_val v, tpu_type t) {
  tpu_build *b = &w->b;
  const tpu_node *node = tpu_producer_of(w->d.graph, v);
  if (node->op == TPU_HLO_BROADCAST_IN_DIM) return tpu_broadcast_in_dim(b, operand(w, node, 0), t.rank, t.dims, NULL);
  const void *element = tpu_splat_of(b, w->map[v.id]);
  if (element) return tpu_splat_element(b, tpu_dtype_of(b, w->map[v.id]), t.rank, t.dims, element);
  const tpu_node *wide = tpu_producer_of(b->graph, w->map[v.id]); /* of a slot */
  tpu_val scalar = wide->op == TPU_HLO_BROADCAST_IN_DIM ? wide->operands[0] : w->map[v.id];
  return tpu_broadcast_to(b, scalar, t.rank, t.dims);
}

static void widen_elementwise(widening *w, const tpu_node *node) {
  tpu_build *b = &w->b;
  tpu_val operands[4];
  tpu_type t = wide_type(w, (tpu_val){node->first_result});
  if (node->n_operands > 4 || b->status) return;
  for (uint32_t k = 0; k < node->n_operands; k++) {
    operands[k] = operand(w, node, k);
    tpu_type now = tpu_type_of(b, operands[k]);
    if (now.rank == t.rank && !tpu_dims_equal(t.rank, now.dims, t.dims) && tpu_bounding_is_wild(&w->d, node->operands[k]))
      operands[k] = rewiden(w, node->operands[k], t);
  }
  put(w, node, operands, NULL);
}

static void widen_same(widening *w, const tpu_node *node) {
  tpu_val *operands = tpu_build_alloc(&w->b, sizeof *operands * (node->n_operands + 1));
  if (!operands) return;
  for (uint32_t k = 0; k < node->n_operands; k++) operands[k] = operand(w, node, k);
  put(w, node, operands, NULL);
}

static void widen_constant(widening *w, const tpu_node *node, uint32_t index) {
  tpu_build *b = &w->b;
  tpu_val out = {node->first_result};
  tpu_type t = wide_type(w, out);
  int32_t c = w->d.plan->class_of[w->d.numbers->at[index]];
  if (c >= 0)
    w->map[out.id] = tpu_broadcast_to(b, extent(w, c, t.dtype), t.rank, t.dims);
  else if (tpu_bounding_is_wild(&w->d, out))
    w->map[out.id] = tpu_splat_element(b, t.dtype, t.rank, t.dims, tpu_node_attrs(node)->data);
  else
    put(w, node, NULL, NULL);
}

/* --- shapes */
static void widen_concatenate(widening *w, const tpu_node *node) {
  tpu_build *b = &w->b;
  int dim = (int)tpu_node_attr(node, 0);
  tpu_val out = {node->first_result};
  bool fixed = is_static(w, out, dim);
  for (uint32_t k = 0; k < node->n_operands; k++) fixed = fixed && is_static(w, node->operands[k], dim);
  if (fixed) {
    widen_same(w, node);
    return;
  }
  tpu_type t = wide_type(w, out);
  int64_t room = t.dims[dim], most = 0;
  for (uint32_t k = 1; k < node->n_operands; k++) {
    int64_t size = is_static(w, node->operands[k], dim) ? 0 : tpu_dim_of(b, operand(w, node, k), dim);
    if (size > most) most = size;
  }
  tpu_val x = operand(w, node, 0), zero = tpu_scalar_i(b, TPU_I32, 0), at = zero, starts[TPU_MAX_RANK];
  x = fit(w, x, dim, room + most, zero_of(w, x));
  for (uint32_t k = 0; k + 1 < node->n_operands; k++) {
    tpu_val v = node->operands[k];
    int32_t c = tpu_bounding_class(&w->d, v, dim);
    tpu_val size = c < 0 ? tpu_scalar_i(b, TPU_I32, tpu_bounding_type(&w->d, v)->dims[dim]) : TPU_POISON;
    if (c >= 0) size = extent(w, c, TPU_I32);
    at = tpu_add(b, at, size);
    for (int i = 0; i < t.rank; i++) starts[i] = i == dim ? at : zero;
    x = tpu_dynamic_update_slice(b, x, operand(w, node, k + 1), starts);
  }
  w->map[out.id] = fit(w, x, dim, room, TPU_POISON);
}

static void widen_slice(widening *w, const tpu_node *node, uint32_t index) {
  tpu_build *b = &w->b;
  tpu_val v = node->operands[0], out = {node->first_result}, x = operand(w, node, 0), starts[TPU_MAX_RANK];
  tpu_type t = wide_type(w, out);
  uint32_t rank = (uint32_t)t.rank;
  int64_t from[TPU_MAX_RANK], to[TPU_MAX_RANK], by[TPU_MAX_RANK], sizes[TPU_MAX_RANK];
  bool moves = false;
  if (b->status) return;
  tpu_val zero = tpu_scalar_i(b, TPU_I32, 0);
  for (uint32_t i = 0; i < rank; i++) {
    int32_t c = tpu_bounding_attr(&w->d, index, i);
    bool whole = c < 0 && tpu_node_attr(node, i) == 0 && tpu_node_attr(node, 2 * rank + i) == 1 &&
                 tpu_bounding_same(&w->d, v, (int)i, out, (int)i);
    starts[i] = c < 0 ? zero : extent(w, c, TPU_I32);
    by[i] = tpu_node_attr(node, 2 * rank + i);
    from[i] = c < 0 ? tpu_node_attr(node, i) : 0;
    sizes[i] = t.dims[i];
    int64_t need = whole ? 0 : t.dims[i] ? from[i] + (t.dims[i] - 1) * by[i] + 1 : from[i];
    if (c >= 0) need = is_static(w, out, (int)i) ? 0 : tpu_dim_of(b, x, (int)i) + t.dims[i];
    if (need > tpu_dim_of(b, x, (int)i)) x = fit(w, x, (int)i, need, zero_of(w, x));
    to[i] = c < 0 ? (t.dims[i] ? from[i] + (t.dims[i] - 1) * by[i] + 1 : from[i]) : tpu_dim_of(b, x, (int)i);
    moves = moves || c >= 0;
  }
  x = tpu_slice(b, x, from, to, by);
  w->map[out.id] = moves ? tpu_dynamic_slice(b, x, starts, sizes) : x;
}

static void widen_pad(widening *w, const tpu_node *node, uint32_t index) {
  tpu_build *b = &w->b;
  tpu_val v = node->operands[0], out = {node->first_result}, x = operand(w, node, 0), fill = operand(w, node, 1);
  tpu_type t = wide_type(w, out);
  uint32_t rank = (uint32_t)t.rank;
  int64_t lo[TPU_MAX_RANK], hi[TPU_MAX_RANK], interior[TPU_MAX_RANK], dims[TPU_MAX_RANK];
  int n = 0;
  if (b->status) return;
  for (uint32_t i = 0; i < rank; i++) {
    lo[i] = tpu_node_attr(node, i);
    hi[i] = tpu_node_attr(node, rank + i);
    interior[i] = tpu_node_attr(node, 2 * rank + i);
    bool moves = tpu_bounding_attr(&w->d, index, rank + i) >= 0;
    if (is_static(w, v, (int)i) && is_static(w, out, (int)i) && !moves) continue;
    if (!moves && !lo[i] && !hi[i]) continue;
    dims[n++] = i;
    hi[i] = t.dims[i] - lo[i] - tpu_dim_of(b, x, (int)i);
  }
  x = masked(w, v, x, n, dims, fill);
  w->map[out.id] = tpu_pad(b, x, fill, lo, hi, interior);
}

static void widen_dynamic_slice(widening *w, const tpu_node *node) {
  tpu_build *b = &w->b;
  tpu_val v = node->operands[0], out = {node->first_result}, x = operand(w, node, 0), starts[TPU_MAX_RANK];
  tpu_type t = wide_type(w, out);
  if (b->status) return;
  for (int i = 0; i < t.rank; i++) {
    starts[i] = operand(w, node, (uint32_t)i + 1);
    if (is_static(w, out, i) || tpu_bounding_same(&w->d, v, i, out, i)) continue;
    x = fit(w, x, i, tpu_dim_of(b, x, i) + t.dims[i], zero_of(w, x));
  }
  w->map[out.id] = tpu_dynamic_slice(b, x, starts, t.dims);
}

/* --- contractions, reductions, indexing */
static void widen_reduce(widening *w, const tpu_node *node, uint32_t index) {
  const tpu_attrs *a = tpu_node_attrs(node);
  tpu_val operands[32];
  if (node->n_operands > 32) {
    (void)tpu_fail(&w->b, TPU_UNIMPLEMENTED, "too many operands");
    return;
  }
  for (uint32_t k = 0; k < node->n_operands; k++) operands[k] = operand(w, node, k);
  bool cut = false;
  for (uint32_t i = 0; i < a->n; i++) cut = cut || !is_static(w, node->operands[0], (int)a->v[i]);
  if (cut) { /* of one operand, by one binary operation */
    const tpu_node *step = tpu_node_at(w->d.graph, node->regions[0].nodes[0]);
    tpu_val fill = identity_of(w, (tpu_hlo)step->op, tpu_dtype_of(&w->b, operands[0]));
    operands[0] = masked(w, node->operands[0], operands[0], (int)a->n, a->v, fill);
  }
  put_with_regions(w, node, index, operands);
}

static void widen_dot(widening *w, const tpu_node *node) {
  tpu_dot_dims d = tpu_attrs_dot(tpu_node_attrs(node));
  tpu_val operands[2] = {operand(w, node, 0), operand(w, node, 1)};
  operands[0] = masked(w, node->operands[0], operands[0], d.n_contract, d.lhs_contract, zero_of(w, operands[0]));
  operands[1] = masked(w, node->operands[1], operands[1], d.n_contract, d.rhs_contract, zero_of(w, operands[1]));
  put(w, node, operands, NULL);
}

static void widen_gather(widening *w, const tpu_node *node) {
  const tpu_attrs *a = tpu_node_attrs(node);
  const int64_t *sizes;
  tpu_gather_dims d = tpu_attrs_gather(a, &sizes);
  tpu_val x = node->operands[0], out = {node->first_result}, operands[2] = {operand(w, node, 0), operand(w, node, 1)};
  int rank = tpu_bounding_type(&w->d, x)->rank, kept[TPU_MAX_RANK];
  int n = tpu_kept_dims(rank, d.n_collapsed, d.collapsed, d.n_batch, d.operand_batch, kept);
  int64_t *v = tpu_build_alloc(&w->b, sizeof *v * (a->n + 1));
  tpu_type t = wide_type(w, out);
  if (!v || w->b.status) return;
  memcpy(v, a->v, sizeof *v * a->n);
  for (int i = 0; i < n; i++) v[a->n - (uint32_t)rank + (uint32_t)kept[i]] = t.dims[d.offset[i]];
  tpu_attrs wide = {.n = a->n, .v = v};
  put(w, node, operands, &wide);
}

/* Updates that are not there get a place outside, which drops them. */
static void widen_scatter(widening *w, const tpu_node *node, uint32_t index) {
  tpu_build *b = &w->b;
  tpu_scatter_dims d = tpu_attrs_scatter(tpu_node_attrs(node));
  tpu_val operands[32];
  uint32_t n = (node->n_operands - 1) / 2;
  int64_t dims[TPU_MAX_RANK];
  int m = 0;
  if (node->n_operands > 32) {
    (void)tpu_fail(b, TPU_UNIMPLEMENTED, "too many operands");
    return;
  }
  for (uint32_t k = 0; k < node->n_operands; k++) operands[k] = operand(w, node, k);
  tpu_val indices = node->operands[n];
  for (int i = 0; i < tpu_bounding_type(&w->d, indices)->rank; i++)
    if (i != d.index_vector_dim) dims[m++] = i;
  operands[n] = masked(w, indices, operands[n], m, dims, tpu_scalar_i(b, tpu_dtype_of(b, operands[n]), -1));
  put_with_regions(w, node, index, operands);
}

static void widen_cumulative(widening *w, const tpu_node *node) {
  static const tpu_hlo ops[] = {TPU_HLO_ADD, TPU_HLO_MULTIPLY, TPU_HLO_MAXIMUM, TPU_HLO_MINIMUM,
                                TPU_HLO_AND, TPU_HLO_OR,       TPU_HLO_XOR};
  tpu_val x = operand(w, node, 0);
  int64_t dim = tpu_node_attr(node, 1);
  bool between = !is_static(w, node->operands[0], (int)dim) && tpu_bounding_form(&w->d, node->operands[0], (int)dim)->n > 1;
  if (tpu_node_attr(node, 2) || between) /* what is not there comes before what is */
    x = masked(w, node->operands[0], x, 1, &dim, identity_of(w, ops[tpu_node_attr(node, 0)], tpu_dtype_of(&w->b, x)));
  put(w, node, &x, NULL);
}

/* Places count in the true sizes. */
static void widen_iota(widening *w, const tpu_node *node) {
  tpu_build *b = &w->b;
  tpu_val out = {node->first_result};
  int64_t dim = tpu_node_attr(node, 0);
  const tpu_form *form = is_static(w, out, (int)dim) ? NULL : tpu_bounding_form(&w->d, out, (int)dim);
  tpu_type t = wide_type(w, out);
  if (!form || form->n == 1 || b->status) {
    put(w, node, NULL, NULL);
    return;
  }
  const int64_t *size = &t.dims[dim];
  tpu_val at = tpu_iota(b, TPU_I32, 1, size, 0), sum = tpu_full_like(b, at, 0), step = tpu_scalar_i(b, TPU_I32, 1);
  int64_t stride = 1;
  for (int i = form->n; i-- > 0;) {
    const tpu_factor *f = &form->f[i];
    int64_t n = factor_size(w, f);
    tpu_val k = tpu_binary(b, TPU_HLO_DIVIDE, at, tpu_full_like(b, at, (double)stride));
    k = tpu_binary(b, TPU_HLO_REMAINDER, k, tpu_full_like(b, at, (double)n));
    sum = tpu_add(b, sum, tpu_mul(b, k, tpu_broadcast_to(b, step, 1, size)));
    step = tpu_mul(b, step, f->class < 0 ? tpu_scalar_i(b, TPU_I32, n) : extent(w, f->class, TPU_I32));
    stride *= n;
  }
  w->map[out.id] = tpu_broadcast_in_dim(b, tpu_convert(b, sum, t.dtype), t.rank, t.dims, &dim);
}

/* What is not there counts as least (or greatest), after what is. */
static void widen_top_k(widening *w, const tpu_node *node) {
  tpu_build *b = &w->b;
  tpu_val x = operand(w, node, 0);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  const int64_t last = tpu_rank_of(b, x) - 1;
  tpu_val fill = tpu_node_attr(node, 1)                    ? tpu_lowest(b, dtype)
                 : tpu_dtype_kind(dtype) == TPU_KIND_FLOAT ? tpu_scalar(b, dtype, (double)NAN)
                                                           : tpu_highest(b, dtype);
  x = masked(w, node->operands[0], x, 1, &last, fill);
  put(w, node, &x, NULL);
}

static void widen_node(widening *w, const tpu_node *node, uint32_t index) {
  w->b.scope = node->scope;
  switch ((tpu_hlo)node->op) {
    case TPU_HLO_PARAM: {
      tpu_type t = wide_type(w, (tpu_val){node->first_result});
      w->map[node->first_result] = tpu_param(&w->b, t.dtype, t.rank, t.dims);
      return;
    }
    case TPU_HLO_SLOT:
      w->map[node->first_result] =
          tpu_slot(&w->b, (uint32_t)tpu_node_attr(node, 0), tpu_bounding_type(&w->d, (tpu_val){node->first_result})->dtype);
      return;
    case TPU_HLO_CONSTANT: widen_constant(w, node, index); return;
    case TPU_HLO_CONCATENATE: widen_concatenate(w, node); return;
    case TPU_HLO_SLICE: widen_slice(w, node, index); return;
    case TPU_HLO_PAD: widen_pad(w, node, index); return;
    case TPU_HLO_DYNAMIC_SLICE: widen_dynamic_slice(w, node); return;
    case TPU_HLO_REDUCE: widen_reduce(w, node, index); return;
    case TPU_HLO_DOT_GENERAL: widen_dot(w, node); return;
    case TPU_HLO_GATHER: widen_gather(w, node); return;
    case TPU_HLO_SCATTER: widen_scatter(w, node, index); return;
    case TPU_HLO_CUMULATIVE: widen_cumulative(w, node); return;
    case TPU_HLO_IOTA: widen_iota(w, node); return;
    case TPU_HLO_TOP_K: widen_top_k(w, node); return;
    default: break;
  }
  if (node->n_regions) {
    tpu_val operands[32];
    for (uint32_t k = 0; k < node->n_operands && k < 32; k++) operands[k] = operand(w, node, k);
    put_with_regions(w, node, index, operands);
  } else if (node->n_results == 1 && node->n_operands <= 4 && tpu_bounding_is_elementwise((tpu_hlo)node->op)) {
    widen_elementwise(w, node);
  } else {
    widen_same(w, node);
  }
}

/* --- the whole graph */
/* The first dim's number among the numbers of a node. */
static uint32_t dims_at(const widening *w, const tpu_node *node, uint32_t index) {
  const tpu_attrs *a = tpu_node_attrs(node);
  uint32_t at = w->d.numbers->at[index];
  if (node->op == TPU_HLO_PARAM || !a) return at;
  return at + a->n + (node->op == TPU_HLO_CONSTANT ? 2 : 0);
}

static bool prepare(widening *w, tpu_graph *out) {
  const tpu_graph *g = w->d.graph;
  tpu_arena *arena = &out->arena;
  uint32_t n = 0;
  for (uint32_t i = 0; i < g->n_values; i++) n += (uint32_t)tpu_value_at(g, i)->type.rank;
  w->map = tpu_arena_calloc(arena, g->n_values + 1, sizeof *w->map);
  w->d.first = tpu_arena_calloc(arena, g->n_values + 1, sizeof *w->d.first);
  w->d.parent = tpu_arena_alloc(arena, (n + 1) * sizeof *w->d.parent);
  w->d.class = tpu_arena_alloc(arena, (n + 1) * sizeof *w->d.class);
  w->d.form = tpu_arena_calloc(arena, n + 1, sizeof *w->d.form);
  w->d.plain = tpu_arena_calloc(arena, n + 1, 1);
  if (!w->map || !w->d.first || !w->d.parent || !w->d.class || !w->d.form || !w->d.plain) return false;
  n = 0;
  for (uint32_t i = 0; i < g->n_values; i++) {
    w->d.first[i] = n;
    for (int k = 0; k < (i ? tpu_value_at(g, i)->type.rank : 0); k++, n++) {
      w->d.parent[n] = n;
      w->d.class[n] = -1;
    }
  }
  for (uint32_t i = 0; i < g->n_nodes; i++) {
    const tpu_node *node = tpu_node_at(g, i);
    if (node->block || node->op == TPU_HLO_SLOT || !tpu_node_is_live(g, node)) continue;
    uint32_t at = dims_at(w, node, i);
    for (uint32_t k = 0; k < node->n_results; k++)
      for (int d = 0; d < tpu_value_at(g, node->first_result + k)->type.rank; d++)
        w->d.class[w->d.first[node->first_result + k] + (uint32_t)d] = w->d.plan->class_of[at++];
  }
  return true;
}

tpu_status tpu_graph_bound(const tpu_graph *graph, const tpu_numbers_of *numbers, const tpu_plan *plan, const int64_t *bounds,
                           uint32_t first_slot, const tpu_target *target, tpu_graph *out) {
  widening w = {.d = {.graph = graph, .numbers = numbers, .plan = plan}, .bounds = bounds, .first_slot = first_slot};
  tpu_graph_reset(out);
  tpu_build_init(&w.b, out, target);
  tpu_graph_mark_live(graph);
  if (!prepare(&w, out)) return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  if (!tpu_bounding_decide(&w.d))
    return tpu_error(TPU_UNIMPLEMENTED, "no bounded form of %s",
                     w.d.refused ? tpu_hlo_info_get((tpu_hlo)w.d.refused->op)->name : "the program");
  for (uint32_t i = 0; i < graph->n_nodes && !w.b.status; i++) {
    const tpu_node *node = tpu_node_at(graph, i);
    if (node->block || (node->op != TPU_HLO_PARAM && !tpu_node_is_live(graph, node))) continue;
    widen_node(&w, node, i);
  }
  tpu_val *outputs = tpu_build_alloc(&w.b, sizeof *outputs * (graph->n_outputs + 1));
  TPU_TRY(tpu_build_status(&w.b));
  for (uint32_t i = 0; i < graph->n_outputs; i++) outputs[i] = w.map[graph->outputs[i].id];
  return tpu_graph_set_outputs(out, outputs, graph->n_outputs);
}
