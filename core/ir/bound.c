#include "ir/bound_private.h"
#include "ir/shape.h"

/* Which dims have one form, and what it is. */

static uint32_t root_of(tpu_bounding *b, uint32_t i) {
  while (b->parent[i] != i) i = b->parent[i] = b->parent[b->parent[i]];
  return i;
}

static bool same_form(const tpu_form *x, const tpu_form *y) {
  if (x->n != y->n) return false;
  for (int i = 0; i < x->n; i++)
    if (x->f[i].class != y->f[i].class || (x->f[i].class < 0 && x->f[i].size != y->f[i].size)) return false;
  return true;
}

static bool join(tpu_bounding *b, tpu_val x, int i, tpu_val y, int j) {
  if (!tpu_bounding_same(b, x, i, y, j)) return false;
  if (tpu_bounding_class(b, x, i) < 0) return true;
  uint32_t p = root_of(b, b->first[x.id] + (uint32_t)i), q = root_of(b, b->first[y.id] + (uint32_t)j);
  if (p == q) return true;
  if (b->form[p].n && b->form[q].n && !same_form(&b->form[p], &b->form[q])) return false;
  if (!b->form[q].n) b->form[q] = b->form[p];
  b->parent[p] = q;
  return true;
}

static bool is_static(const tpu_bounding *b, tpu_val v, int dim) { return tpu_bounding_class(b, v, dim) < 0; }

/* Positions along the dim count, not just sizes. */
static void want_plain(tpu_bounding *b, tpu_val v, int dim) { b->plain[b->first[v.id] + (uint32_t)dim] = 1; }

static bool all_static(const tpu_bounding *b, tpu_val v) {
  for (int i = 0; i < tpu_bounding_type(b, v)->rank; i++)
    if (!is_static(b, v, i)) return false;
  return true;
}

const tpu_form *tpu_bounding_form(tpu_bounding *b, tpu_val v, int dim) {
  uint32_t root = root_of(b, b->first[v.id] + (uint32_t)dim);
  tpu_form *form = &b->form[root];
  if (!form->n) *form = (tpu_form){.n = 1, .f = {{.class = b->class[root]}}};
  return form;
}

bool tpu_bounding_is_wild(const tpu_bounding *b, tpu_val v) {
  const tpu_node *node = tpu_producer_of(b->graph, v);
  if (!node) return false;
  const tpu_attrs *a = tpu_node_attrs(node);
  if (node->op == TPU_HLO_CONSTANT) return a->bytes == tpu_dtype_bytes(tpu_bounding_type(b, v)->dtype);
  return node->op == TPU_HLO_BROADCAST_IN_DIM && tpu_bounding_type(b, node->operands[0])->rank == 0;
}

static bool join_all(tpu_bounding *b, tpu_val x, tpu_val y) {
  int rank = tpu_bounding_type(b, x)->rank;
  if (rank != tpu_bounding_type(b, y)->rank) return all_static(b, x) && all_static(b, y);
  for (int i = 0; i < rank; i++)
    if (!join(b, x, i, y, i)) return false;
  return true;
}

static bool join_elementwise(tpu_bounding *b, const tpu_node *node, tpu_val out) {
  for (uint32_t k = 0; k < node->n_operands; k++) {
    tpu_val x = node->operands[k];
    if (tpu_bounding_type(b, x)->rank == 0 || tpu_bounding_is_wild(b, x)) continue;
    if (!join_all(b, x, out)) return false;
  }
  return true;
}

/* Every dim but `except`. */
static bool join_others(tpu_bounding *b, tpu_val x, tpu_val out, int except) {
  for (int i = 0; i < tpu_bounding_type(b, x)->rank; i++)
    if (i != except && !join(b, x, i, out, i)) return false;
  return true;
}

/* --- reshape: the same factors, grouped anew */
enum { MOST_PARTS = TPU_MAX_RANK * 2 };
typedef struct parts {
  int n, at;
  tpu_factor f[MOST_PARTS];
} parts;

static bool put_part(parts *p, tpu_factor f) {
  if (f.class < 0 && f.size == 1) return true;
  if (p->n == MOST_PARTS) return false;
  p->f[p->n++] = f;
  return true;
}

static bool parts_of(tpu_bounding *b, tpu_val x, parts *p) {
  p->n = p->at = 0;
  for (int i = 0; i < tpu_bounding_type(b, x)->rank; i++) {
    if (is_static(b, x, i)) {
      if (!put_part(p, (tpu_factor){-1, tpu_bounding_type(b, x)->dims[i]})) return false;
      continue;
    }
    const tpu_form *form = tpu_bounding_form(b, x, i);
    for (int k = 0; k < form->n; k++)
      if (!put_part(p, form->f[k])) return false;
  }
  return true;
}

/* Takes a static factor of `want` from the front, splitting one if need be. */
static bool take_static(parts *p, int64_t want) {
  while (want > 1) {
    if (p->at == p->n || p->f[p->at].class >= 0) return false;
    tpu_factor *f = &p->f[p->at];
    if (f->size && want % f->size == 0) {
      want /= f->size;
      p->at++;
    } else if (want && f->size % want == 0) {
      f->size /= want;
      want = 1;
    } else {
      return false;
    }
  }
  return want == 1;
}

/* Takes factors whose product is the number `number` in every sample. */
static bool take_varying(const tpu_bounding *b, parts *p, uint32_t number, tpu_form *out) {
  const tpu_plan *plan = b->plan;
  int64_t rest[16];
  if (plan->n_samples > 16) return false;
  for (uint32_t s = 0; s < plan->n_samples; s++) rest[s] = plan->samples[s][number];
  out->n = 0;
  for (;;) {
    bool done = true, alike = true;
    for (uint32_t s = 0; s < plan->n_samples; s++) {
      if (rest[s] == 0) return false;
      done = done && rest[s] == 1;
      alike = alike && rest[s] == rest[0];
    }
    if (done) return out->n > 0;
    if (p->at == p->n || out->n == BOUND_FACTORS) return false;
    tpu_factor *f = &p->f[p->at], taken = *f;
    if (f->class < 0 && alike && f->size > rest[0]) {
      if (f->size % rest[0]) return false;
      taken.size = rest[0];
      f->size /= rest[0];
    } else {
      p->at++;
    }
    for (uint32_t s = 0; s < plan->n_samples; s++) {
      int64_t size = taken.class < 0 ? taken.size : plan->samples[s][plan->classes[taken.class].number];
      if (!size || rest[s] % size) return false;
      rest[s] /= size;
    }
    out->f[out->n++] = taken;
  }
}

static bool decide_reshape(tpu_bounding *b, const tpu_node *node, uint32_t index, tpu_val out) {
  parts p;
  if (all_static(b, node->operands[0]) && all_static(b, out)) return true;
  if (!parts_of(b, node->operands[0], &p)) return false;
  const tpu_type *t = tpu_bounding_type(b, out);
  for (int i = 0; i < t->rank; i++) {
    if (is_static(b, out, i)) {
      if (!take_static(&p, t->dims[i])) return false;
      continue;
    }
    tpu_form form;
    if (!take_varying(b, &p, b->numbers->at[index] + (uint32_t)i, &form)) return false;
    tpu_form *known = &b->form[root_of(b, b->first[out.id] + (uint32_t)i)];
    if (known->n && !same_form(known, &form)) return false;
    *known = form;
  }
  return p.at == p.n;
}

/* --- the rule of each operation */
int tpu_kept_dims(int rank, int n_a, const int64_t *a, int n_b, const int64_t *b, int *out) {
  int n = 0;
  for (int i = 0; i < rank; i++) {
    bool gone = false;
    for (int k = 0; k < n_a; k++) gone = gone || a[k] == i;
    for (int k = 0; k < n_b; k++) gone = gone || b[k] == i;
    if (!gone) out[n++] = i;
  }
  return n;
}

static bool decide_broadcast(tpu_bounding *b, const tpu_node *node, tpu_val out) {
  tpu_val x = node->operands[0];
  for (int i = 0; i < tpu_bounding_type(b, x)->rank; i++) {
    int m = (int)tpu_node_attr(node, (uint32_t)i);
    if (is_static(b, x, i) && tpu_bounding_type(b, x)->dims[i] == 1) continue;
    if (!join(b, x, i, out, m)) return false;
  }
  return true;
}

static bool decide_concatenate(tpu_bounding *b, const tpu_node *node, tpu_val out) {
  int dim = (int)tpu_node_attr(node, 0);
  want_plain(b, out, dim);
  for (uint32_t k = 0; k < node->n_operands; k++) {
    want_plain(b, node->operands[k], dim);
    if (!join_others(b, node->operands[k], out, dim)) return false;
  }
  return true;
}

static bool attr_varies(const tpu_bounding *b, uint32_t index, uint32_t i) { return tpu_bounding_attr(b, index, i) >= 0; }

static bool decide_slice(tpu_bounding *b, const tpu_node *node, uint32_t index, tpu_val out) {
  tpu_val x = node->operands[0];
  uint32_t rank = (uint32_t)tpu_bounding_type(b, x)->rank;
  for (uint32_t i = 0; i < rank; i++) {
    if (attr_varies(b, index, 2 * rank + i)) return false;
    bool moves = attr_varies(b, index, i);
    int64_t start = tpu_node_attr(node, i), stride = tpu_node_attr(node, 2 * rank + i);
    if (moves && stride != 1) return false;
    if (!moves && start == 0 && stride == 1 && tpu_bounding_same(b, x, (int)i, out, (int)i)) {
      if (!join(b, x, (int)i, out, (int)i)) return false;
    } else {
      want_plain(b, x, (int)i);
      want_plain(b, out, (int)i);
    }
  }
  return true;
}

static bool decide_pad(tpu_bounding *b, const tpu_node *node, uint32_t index, tpu_val out) {
  tpu_val x = node->operands[0];
  uint32_t rank = (uint32_t)tpu_bounding_type(b, x)->rank;
  for (uint32_t i = 0; i < rank; i++) {
    if (attr_varies(b, index, i) || attr_varies(b, index, 2 * rank + i)) return false;
    bool moves = attr_varies(b, index, rank + i);
    int64_t lo = tpu_node_attr(node, i), hi = tpu_node_attr(node, rank + i), interior = tpu_node_attr(node, 2 * rank + i);
    bool plain = !moves && lo == 0 && hi == 0 && interior == 0;
    if (plain && !join(b, x, (int)i, out, (int)i)) return false;
    if (plain) continue;
    want_plain(b, x, (int)i);
    want_plain(b, out, (int)i);
    if (interior && !(is_static(b, x, (int)i) && is_static(b, out, (int)i))) return false;
  }
  return true;
}

static bool decide_dynamic_slice(tpu_bounding *b, const tpu_node *node, tpu_val out) {
  tpu_val x = node->operands[0];
  for (int i = 0; i < tpu_bounding_type(b, x)->rank; i++) {
    if (tpu_bounding_same(b, x, i, out, i)) {
      if (!join(b, x, i, out, i)) return false;
      continue;
    }
    want_plain(b, x, i);
    want_plain(b, out, i);
  }
  return true;
}

static bool decide_dynamic_update_slice(tpu_bounding *b, const tpu_node *node, tpu_val out) {
  tpu_val x = node->operands[0], update = node->operands[1];
  if (!join_all(b, x, out)) return false;
  for (int i = 0; i < tpu_bounding_type(b, x)->rank; i++) {
    if (tpu_bounding_same(b, update, i, x, i) ? !join(b, update, i, x, i) : !is_static(b, update, i)) return false;
    if (!tpu_bounding_same(b, update, i, x, i)) want_plain(b, x, i);
  }
  return true;
}

static bool decide_reduce(tpu_bounding *b, const tpu_node *node) {
  const tpu_attrs *a = tpu_node_attrs(node);
  uint32_t n = node->n_operands / 2;
  for (uint32_t k = 0; k < n; k++) {
    tpu_val x = node->operands[k], out = {node->first_result + k};
    if (k && !join_all(b, x, node->operands[0])) return false;
    int kept[TPU_MAX_RANK], rank = tpu_bounding_type(b, x)->rank;
    int m = tpu_kept_dims(rank, (int)a->n, a->v, 0, NULL, kept);
    for (int i = 0; i < m; i++)
      if (!join(b, x, kept[i], out, i)) return false;
    for (uint32_t i = 0; i < a->n; i++)
      if (!is_static(b, x, (int)a->v[i]) && (n > 1 || node->regions[0].n_nodes != 1)) return false;
  }
  return true;
}

static bool decide_dot(tpu_bounding *b, const tpu_node *node, tpu_val out) {
  tpu_val x = node->operands[0], y = node->operands[1];
  tpu_dot_dims d = tpu_attrs_dot(tpu_node_attrs(node));
  int at = 0, kept[TPU_MAX_RANK];
  for (int i = 0; i < d.n_batch; i++, at++)
    if (!join(b, x, (int)d.lhs_batch[i], out, at) || !join(b, y, (int)d.rhs_batch[i], out, at)) return false;
  int n = tpu_kept_dims(tpu_bounding_type(b, x)->rank, d.n_batch, d.lhs_batch, d.n_contract, d.lhs_contract, kept);
  for (int i = 0; i < n; i++, at++)
    if (!join(b, x, kept[i], out, at)) return false;
  n = tpu_kept_dims(tpu_bounding_type(b, y)->rank, d.n_batch, d.rhs_batch, d.n_contract, d.rhs_contract, kept);
  for (int i = 0; i < n; i++, at++)
    if (!join(b, y, kept[i], out, at)) return false;
  for (int i = 0; i < d.n_contract; i++)
    if (!join(b, x, (int)d.lhs_contract[i], y, (int)d.rhs_contract[i])) return false;
  return true;
}

/* Only the batch may vary. */
static bool decide_convolution(tpu_bounding *b, const tpu_node *node, tpu_val out) {
  const tpu_attrs *a = tpu_node_attrs(node);
  int lhs = (int)a->v[TPU_CONV_LHS_BATCH], result = (int)a->v[TPU_CONV_OUT_BATCH];
  if (a->v[TPU_CONV_BATCH_GROUPS] != 1 && !all_static(b, node->operands[0])) return false;
  if (!all_static(b, node->operands[1]) || !join(b, node->operands[0], lhs, out, result)) return false;
  for (int i = 0; i < tpu_bounding_type(b, out)->rank; i++)
    if ((i != lhs && !is_static(b, node->operands[0], i)) || (i != result && !is_static(b, out, i))) return false;
  return true;
}

/* What a position in `x` selects, and the dims of `part` (a gather's result, a scatter's updates) that lie along it. */
static bool join_windows(tpu_bounding *b, tpu_val x, const int *windows, int n, const int64_t *offset, tpu_val part) {
  for (int i = 0; i < n; i++) {
    int dim = (int)offset[i];
    bool whole = tpu_bounding_same(b, x, windows[i], part, dim);
    if (!whole) want_plain(b, x, windows[i]);
    if (whole ? !join(b, x, windows[i], part, dim) : !is_static(b, part, dim)) return false;
  }
  return true;
}

/* The batch dims of `part` are those of the indices, without the vector's. */
static bool join_indices(tpu_bounding *b, tpu_val indices, int vector_dim, int n_offset, const int64_t *offset, tpu_val part) {
  int batch[TPU_MAX_RANK], rank = tpu_bounding_type(b, part)->rank;
  int n = tpu_kept_dims(rank, n_offset, offset, 0, NULL, batch), at = 0;
  for (int i = 0; i < tpu_bounding_type(b, indices)->rank; i++) {
    if (i == vector_dim) {
      if (!is_static(b, indices, i)) return false;
      continue;
    }
    if (at == n || !join(b, indices, i, part, batch[at++])) return false;
  }
  return at == n;
}

static bool decide_gather(tpu_bounding *b, const tpu_node *node, uint32_t index, tpu_val out) {
  const int64_t *sizes;
  const tpu_attrs *a = tpu_node_attrs(node);
  tpu_gather_dims d = tpu_attrs_gather(a, &sizes);
  tpu_val x = node->operands[0], indices = node->operands[1];
  int windows[TPU_MAX_RANK], rank = tpu_bounding_type(b, x)->rank;
  uint32_t sizes_at = a->n - (uint32_t)rank;
  for (uint32_t i = 0; i < sizes_at; i++)
    if (attr_varies(b, index, i)) return false;
  int n = tpu_kept_dims(rank, d.n_collapsed, d.collapsed, d.n_batch, d.operand_batch, windows);
  for (int i = 0; i < d.n_map; i++) want_plain(b, x, (int)d.start_index_map[i]);
  for (int i = 0; i < d.n_batch; i++)
    if (!join(b, x, (int)d.operand_batch[i], indices, (int)d.indices_batch[i])) return false;
  return join_windows(b, x, windows, n, d.offset, out) &&
         join_indices(b, indices, (int)d.index_vector_dim, d.n_offset, d.offset, out);
}

static bool decide_scatter(tpu_bounding *b, const tpu_node *node) {
  tpu_scatter_dims d = tpu_attrs_scatter(tpu_node_attrs(node));
  uint32_t n = (node->n_operands - 1) / 2;
  tpu_val indices = node->operands[n];
  for (uint32_t k = 0; k < n; k++) {
    tpu_val x = node->operands[k], updates = node->operands[n + 1 + k], out = {node->first_result + k};
    int windows[TPU_MAX_RANK];
    for (int i = 0; i < d.n_map; i++) want_plain(b, x, (int)d.scatter_map[i]);
    int m = tpu_kept_dims(tpu_bounding_type(b, x)->rank, d.n_inserted, d.inserted, d.n_batch, d.operand_batch, windows);
    if (!join_all(b, x, out) || !join_windows(b, x, windows, m, d.window, updates)) return false;
    if (!join_indices(b, indices, (int)d.index_vector_dim, d.n_window, d.window, updates)) return false;
    for (int i = 0; i < d.n_batch; i++)
      if (!join(b, x, (int)d.operand_batch[i], indices, (int)d.indices_batch[i])) return false;
  }
  return d.n_map > 0 || all_static(b, indices);
}

bool tpu_window_is_trivial(const tpu_window *w, int i) {
  return w->dims[i] == 1 && (!w->strides || w->strides[i] == 1) && (!w->base_dilation || w->base_dilation[i] == 1) &&
         (!w->pad_lo || w->pad_lo[i] == 0) && (!w->pad_hi || w->pad_hi[i] == 0);
}

static bool decide_window(tpu_bounding *b, const tpu_node *node, tpu_val out) {
  tpu_val x = node->operands[0];
  int rank = tpu_bounding_type(b, x)->rank;
  tpu_window w = tpu_attrs_window(tpu_node_attrs(node), rank);
  for (uint32_t k = 0; k < node->n_operands; k++) {
    tpu_val y = node->operands[k];
    for (int i = 0; i < tpu_bounding_type(b, y)->rank; i++)
      if (tpu_window_is_trivial(&w, i) ? !join(b, y, i, x, i) : !is_static(b, y, i)) return false;
  }
  for (uint32_t k = 0; k < node->n_results; k++) {
    tpu_val y = {out.id + k};
    for (int i = 0; i < rank; i++)
      if (tpu_window_is_trivial(&w, i) ? !join(b, y, i, x, i) : !is_static(b, y, i)) return false;
  }
  return true;
}

/* All dims but the last n. */
static bool join_leading(tpu_bounding *b, tpu_val x, tpu_val y, int n) {
  int rank = tpu_bounding_type(b, x)->rank, other = tpu_bounding_type(b, y)->rank;
  if (rank != other) return all_static(b, x) && all_static(b, y);
  for (int i = 0; i < rank; i++)
    if (i < rank - n ? !join(b, x, i, y, i) : !is_static(b, x, i) || !is_static(b, y, i)) return false;
  return true;
}

static bool decide_top_k(tpu_bounding *b, const tpu_node *node, tpu_val out) {
  int last = tpu_bounding_type(b, out)->rank - 1;
  want_plain(b, node->operands[0], last);
  return is_static(b, out, last) && join_others(b, node->operands[0], out, last);
}

static bool decide_bitcast(tpu_bounding *b, const tpu_node *node, tpu_val out) {
  tpu_val x = node->operands[0];
  int rank = tpu_bounding_type(b, x)->rank, other = tpu_bounding_type(b, out)->rank;
  if (rank == other) return join_all(b, x, out);
  for (int i = 0; i < (rank > other ? rank : other); i++) {
    if (i < rank && i < other ? !join(b, x, i, out, i) : !is_static(b, i < rank ? x : out, i)) return false;
  }
  return true;
}

static bool nothing_varies(const tpu_bounding *b, const tpu_node *node) {
  for (uint32_t k = 0; k < node->n_operands; k++)
    if (!all_static(b, node->operands[k])) return false;
  for (uint32_t k = 0; k < node->n_results; k++)
    if (!all_static(b, (tpu_val){node->first_result + k})) return false;
  return true;
}

bool tpu_bounding_is_elementwise(tpu_hlo op) {
  switch (op) {
    case TPU_HLO_COMPLEX:
    case TPU_HLO_CLAMP:
    case TPU_HLO_CONVERT:
    case TPU_HLO_SELECT: return true;
    case TPU_HLO_REVERSE:
    case TPU_HLO_CHOLESKY:
    case TPU_HLO_CUMULATIVE: return false;
    default: return tpu_hlo_info_get(op)->rule != TPU_RULE_NODE;
  }
}

/* Operations whose attributes may vary look at them themselves. */
static bool attrs_fixed(const tpu_bounding *b, const tpu_node *node, uint32_t index) {
  const tpu_attrs *a = tpu_node_attrs(node);
  switch (node->op) {
    case TPU_HLO_PARAM: /* its number is no number of the graph's */
    case TPU_HLO_CONSTANT:
    case TPU_HLO_SLICE:
    case TPU_HLO_PAD:
    case TPU_HLO_DYNAMIC_SLICE: /* its sizes are the result's */
    case TPU_HLO_GATHER: return true;
    default: break;
  }
  for (uint32_t i = 0; a && i < a->n; i++)
    if (attr_varies(b, index, i)) return false;
  return true;
}

static bool decide_node(tpu_bounding *b, const tpu_node *node, uint32_t index) {
  tpu_val out = {node->first_result};
  if (node->op == TPU_HLO_SLOT) return true;
  if (!attrs_fixed(b, node, index)) return false;
  if (tpu_bounding_is_elementwise((tpu_hlo)node->op)) return join_elementwise(b, node, out);
  switch ((tpu_hlo)node->op) {
    case TPU_HLO_PARAM:
      for (int i = 0; i < tpu_bounding_type(b, out)->rank; i++)
        if (!is_static(b, out, i)) (void)tpu_bounding_form(b, out, i);
      return true;
    case TPU_HLO_CONSTANT: return tpu_bounding_is_wild(b, out) || all_static(b, out);
    case TPU_HLO_IOTA: return true;
    case TPU_HLO_BITCAST_CONVERT: return decide_bitcast(b, node, out);
    case TPU_HLO_BROADCAST_IN_DIM: return decide_broadcast(b, node, out);
    case TPU_HLO_CONCATENATE: return decide_concatenate(b, node, out);
    case TPU_HLO_DYNAMIC_SLICE: return decide_dynamic_slice(b, node, out);
    case TPU_HLO_DYNAMIC_UPDATE_SLICE: return decide_dynamic_update_slice(b, node, out);
    case TPU_HLO_PAD: return decide_pad(b, node, index, out);
    case TPU_HLO_RESHAPE: return decide_reshape(b, node, index, out);
    case TPU_HLO_SLICE: return decide_slice(b, node, index, out);
    case TPU_HLO_TRANSPOSE:
      for (int i = 0; i < tpu_bounding_type(b, out)->rank; i++)
        if (!join(b, node->operands[0], (int)tpu_node_attr(node, (uint32_t)i), out, i)) return false;
      return true;
    case TPU_HLO_REVERSE:
      for (uint32_t i = 0; i < tpu_node_attrs(node)->n; i++)
        if (!is_static(b, out, (int)tpu_node_attr(node, i))) return false;
      return join_all(b, node->operands[0], out);
    case TPU_HLO_CUMULATIVE: return join_all(b, node->operands[0], out);
    case TPU_HLO_REDUCE: return decide_reduce(b, node);
    case TPU_HLO_DOT_GENERAL: return decide_dot(b, node, out);
    case TPU_HLO_CONVOLUTION: return decide_convolution(b, node, out);
    case TPU_HLO_GATHER: return decide_gather(b, node, index, out);
    case TPU_HLO_SCATTER: return decide_scatter(b, node);
    case TPU_HLO_REDUCE_WINDOW:
    case TPU_HLO_SELECT_AND_SCATTER: return decide_window(b, node, out);
    case TPU_HLO_CHOLESKY:
    case TPU_HLO_TRIANGULAR_SOLVE:
      for (uint32_t k = 0; k < node->n_operands; k++)
        if (!join_leading(b, node->operands[k], out, 2)) return false;
      return true;
    case TPU_HLO_FFT: return join_leading(b, node->operands[0], out, (int)tpu_node_attrs(node)->n - 1);
    case TPU_HLO_TOP_K: return decide_top_k(b, node, out) && decide_top_k(b, node, (tpu_val){out.id + 1});
    case TPU_HLO_OPTIMIZATION_BARRIER:
      for (uint32_t k = 0; k < node->n_operands; k++)
        if (!join_all(b, node->operands[k], (tpu_val){out.id + k})) return false;
      return true;
    default: return nothing_varies(b, node);
  }
}

/* Is what is there at the front, as of one factor? */
static bool is_prefix(const tpu_form *form) {
  for (int i = 1; i < form->n; i++)
    if (form->f[i].class >= 0) return false;
  return form->f[0].class >= 0;
}

bool tpu_bounding_decide(tpu_bounding *b) {
  const tpu_graph *g = b->graph;
  for (uint32_t i = 0; i < g->n_nodes; i++) {
    const tpu_node *node = tpu_node_at(g, i);
    if (node->block || !tpu_node_is_live(g, node)) continue;
    if (!decide_node(b, node, i)) {
      b->refused = node;
      return false;
    }
  }
  for (uint32_t k = 0; k < g->n_outputs; k++) /* who reads it next knows sizes only */
    for (int i = 0; i < tpu_bounding_type(b, g->outputs[k])->rank; i++) want_plain(b, g->outputs[k], i);
  for (uint32_t v = 1; v < g->n_values; v++)
    for (int i = 0; i < tpu_value_at(g, v)->type.rank; i++) {
      if (!b->plain[b->first[v] + (uint32_t)i] || is_static(b, (tpu_val){v}, i)) continue;
      const tpu_form *form = tpu_bounding_form(b, (tpu_val){v}, i);
      if (is_prefix(form)) continue;
      b->refused = tpu_producer_of(g, (tpu_val){v});
      return false;
    }
  return true;
}
