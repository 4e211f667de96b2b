/* A plain evaluator of graphs for tests that need no device: shape operations on raw bytes, integer arithmetic. What it does
 * not know it refuses. Values live in an arena.
 */
#ifndef TPU_IR_INTERP_TEST_H
#define TPU_IR_INTERP_TEST_H

#include <string.h>

#include "ir/attrs.h"
#include "ir/graph.h"

typedef struct interp_value {
  tpu_type type;
  unsigned char *data; /* row-major */
} interp_value;

typedef struct interp {
  const tpu_graph *graph;
  tpu_arena *arena;
  const void *const *params;
  const int64_t *slots;
  interp_value *values; /* by id */
  const char *refused;  /* the first operation it does not know */
} interp;

static size_t interp_bytes(tpu_type t) { return (size_t)(tpu_type_numel(t) * tpu_dtype_bytes(t.dtype)); }

static int64_t interp_get(const interp_value *v, int64_t i) {
  const unsigned char *p = v->data + i * tpu_dtype_bytes(v->type.dtype);
  switch (v->type.dtype) {
    case TPU_BOOL:
    case TPU_U8: return *p;
    case TPU_I8: return (int8_t)*p;
    case TPU_I16: {
      int16_t x;
      memcpy(&x, p, 2);
      return x;
    }
    case TPU_U16: {
      uint16_t x;
      memcpy(&x, p, 2);
      return x;
    }
    case TPU_I32: {
      int32_t x;
      memcpy(&x, p, 4);
      return x;
    }
    case TPU_U32: {
      uint32_t x;
      memcpy(&x, p, 4);
      return x;
    }
    default: {
      int64_t x = 0;
      memcpy(&x, p, 8);
      return x;
    }
  }
}

static void interp_put(interp_value *v, int64_t i, int64_t x) {
  int64_t size = tpu_dtype_bytes(v->type.dtype);
  if (v->type.dtype == TPU_BOOL) x = x != 0;
  memcpy(v->data + i * size, &x, (size_t)size); /* little-endian hosts */
}

static bool interp_integral(tpu_dtype t) { return t == TPU_BOOL || tpu_is_integral(t); }

/* Row-major index -> coordinates. */
static void interp_unravel(tpu_type t, int64_t i, int64_t *out) {
  for (int d = t.rank - 1; d >= 0; d--) out[d] = i % t.dims[d], i /= t.dims[d];
}
static int64_t interp_ravel(tpu_type t, const int64_t *at) {
  int64_t i = 0;
  for (int d = 0; d < t.rank; d++) i = i * t.dims[d] + at[d];
  return i;
}
static void interp_move(interp_value *dst, int64_t to, const interp_value *src, int64_t from) {
  size_t size = (size_t)tpu_dtype_bytes(dst->type.dtype);
  memcpy(dst->data + (size_t)to * size, src->data + (size_t)from * size, size);
}

static int64_t interp_binary(tpu_hlo op, tpu_dtype t, int64_t x, int64_t y) {
  bool u = tpu_dtype_kind(t) == TPU_KIND_UINT;
  uint64_t a = (uint64_t)x, c = (uint64_t)y;
  switch (op) {
    case TPU_HLO_ADD: return (int64_t)(a + c);
    case TPU_HLO_SUBTRACT: return (int64_t)(a - c);
    case TPU_HLO_MULTIPLY: return (int64_t)(a * c);
    case TPU_HLO_DIVIDE: return y == 0 ? -1 : u ? (int64_t)(a / c) : x / y;
    case TPU_HLO_REMAINDER: return y == 0 ? x : u ? (int64_t)(a % c) : x % y;
    case TPU_HLO_MAXIMUM: return u ? (a > c ? x : y) : (x > y ? x : y);
    case TPU_HLO_MINIMUM: return u ? (a < c ? x : y) : (x < y ? x : y);
    case TPU_HLO_AND: return x & y;
    case TPU_HLO_OR: return x | y;
    case TPU_HLO_XOR: return x ^ y;
    case TPU_HLO_SHIFT_LEFT: return c >= 64 ? 0 : (int64_t)(a << c);
    case TPU_HLO_SHIFT_RIGHT_LOGIC: return c >= 64 ? 0 : (int64_t)(a >> c);
    default: return 0;
  }
}

static bool interp_compare(tpu_compare_dir dir, tpu_dtype t, int64_t x, int64_t y) {
  bool u = tpu_dtype_kind(t) == TPU_KIND_UINT, less = u ? (uint64_t)x < (uint64_t)y : x < y;
  switch (dir) {
    case TPU_EQ: return x == y;
    case TPU_NE: return x != y;
    case TPU_LT: return less;
    case TPU_LE: return less || x == y;
    case TPU_GE: return !less;
    case TPU_GT: return !less && x != y;
  }
  return false;
}

/* How a region of one binary operation combines; ASSIGN: it returns its second parameter. */
static tpu_hlo interp_region(const interp *in, const tpu_region *r) {
  if (r->n_nodes == 0) return TPU_HLO_PARAM;
  return (tpu_hlo)tpu_graph_node(in->graph, r->nodes[r->n_nodes - 1])->op;
}

static void interp_gather(const tpu_node *node, interp_value *out, const interp_value *x, const interp_value *index) {
  const int64_t *sizes;
  tpu_gather_dims g = tpu_attrs_gather(tpu_node_attrs(node), &sizes);
  int64_t at[TPU_MAX_RANK], batch[TPU_MAX_RANK], from[TPU_MAX_RANK], pos[TPU_MAX_RANK];
  for (int64_t i = 0, n = tpu_type_numel(out->type); i < n; i++) {
    interp_unravel(out->type, i, at);
    int nb = 0, no = 0;
    int64_t offset[TPU_MAX_RANK];
    for (int d = 0; d < out->type.rank; d++) {
      bool is_offset = false;
      for (int k = 0; k < g.n_offset; k++) is_offset = is_offset || g.offset[k] == d;
      if (is_offset)
        offset[no++] = at[d];
      else
        batch[nb++] = at[d];
    }
    memset(from, 0, sizeof from);
    for (int k = 0; k < g.n_map; k++) {
      int b = 0;
      for (int d = 0; d < index->type.rank; d++) pos[d] = d == g.index_vector_dim ? k : batch[b++];
      int dim = (int)g.start_index_map[k];
      int64_t s = interp_get(index, interp_ravel(index->type, pos)), most = x->type.dims[dim] - sizes[dim];
      from[dim] = s < 0 ? 0 : s > most ? most : s;
    }
    no = 0;
    for (int d = 0; d < x->type.rank; d++) {
      bool collapsed = false;
      for (int k = 0; k < g.n_collapsed; k++) collapsed = collapsed || g.collapsed[k] == d;
      if (!collapsed) from[d] += offset[no++];
    }
    interp_move(out, i, x, interp_ravel(x->type, from));
  }
}

static void interp_scatter(const interp *in, const tpu_node *node, interp_value *out, const interp_value *x,
                           const interp_value *index, const interp_value *update) {
  tpu_scatter_dims s = tpu_attrs_scatter(tpu_node_attrs(node));
  tpu_hlo op = interp_region(in, &node->regions[0]);
  memcpy(out->data, x->data, interp_bytes(x->type));
  int64_t at[TPU_MAX_RANK], to[TPU_MAX_RANK], pos[TPU_MAX_RANK], batch[TPU_MAX_RANK], window[TPU_MAX_RANK];
  for (int64_t i = 0, n = tpu_type_numel(update->type); i < n; i++) {
    interp_unravel(update->type, i, at);
    int nb = 0, nw = 0;
    for (int d = 0; d < update->type.rank; d++) {
      bool is_window = false;
      for (int k = 0; k < s.n_window; k++) is_window = is_window || s.window[k] == d;
      if (is_window)
        window[nw++] = at[d];
      else
        batch[nb++] = at[d];
    }
    memset(to, 0, sizeof to);
    for (int k = 0; k < s.n_map; k++) {
      int b = 0;
      for (int d = 0; d < index->type.rank; d++) pos[d] = d == s.index_vector_dim ? k : batch[b++];
      to[s.scatter_map[k]] = interp_get(index, interp_ravel(index->type, pos));
    }
    nw = 0;
    bool inside = true;
    for (int d = 0; d < x->type.rank; d++) {
      bool inserted = false;
      for (int k = 0; k < s.n_inserted; k++) inserted = inserted || s.inserted[k] == d;
      if (!inserted) to[d] += window[nw++];
      inside = inside && to[d] >= 0 && to[d] < x->type.dims[d];
    }
    if (!inside) continue;
    int64_t t = interp_ravel(x->type, to);
    if (op == TPU_HLO_PARAM)
      interp_move(out, t, update, i);
    else
      interp_put(out, t, interp_binary(op, x->type.dtype, interp_get(out, t), interp_get(update, i)));
  }
}

static void interp_iota(const tpu_node *node, interp_value *out) {
  int64_t at[TPU_MAX_RANK];
  for (int64_t i = 0, n = tpu_type_numel(out->type); i < n; i++) {
    interp_unravel(out->type, i, at);
    interp_put(out, i, at[tpu_node_attr(node, 0)]);
  }
}

/* Operations that move elements: for each element of the result, where it comes from. */
static void interp_move_all(const tpu_node *node, interp_value *out, interp_value *const *x) {
  const int64_t *a = node->attrs ? tpu_node_attrs(node)->v : NULL;
  int64_t at[TPU_MAX_RANK], from[TPU_MAX_RANK];
  int r = x[0]->type.rank;
  for (int64_t i = 0, n = tpu_type_numel(out->type); i < n; i++) {
    interp_unravel(out->type, i, at);
    const interp_value *src = x[0];
    switch (node->op) {
      case TPU_HLO_BROADCAST_IN_DIM:
        for (int d = 0; d < r; d++) from[d] = src->type.dims[d] == 1 ? 0 : at[a[d]];
        break;
      case TPU_HLO_SLICE:
        for (int d = 0; d < r; d++) from[d] = a[d] + at[d] * a[2 * r + d];
        break;
      case TPU_HLO_TRANSPOSE:
        for (int d = 0; d < r; d++) from[a[d]] = at[d];
        break;
      case TPU_HLO_CONCATENATE: {
        uint32_t k = 0;
        memcpy(from, at, sizeof(int64_t) * (size_t)r);
        while (from[a[0]] >= x[k]->type.dims[a[0]]) from[a[0]] -= x[k++]->type.dims[a[0]];
        src = x[k];
        break;
      }
      case TPU_HLO_PAD: {
        bool inside = true;
        for (int d = 0; d < r; d++) {
          int64_t p = at[d] - a[d], step = a[2 * r + d] + 1;
          inside = inside && p >= 0 && p % step == 0 && p / step < src->type.dims[d];
          from[d] = p / step;
        }
        if (!inside) src = x[1];
        break;
      }
      case TPU_HLO_DYNAMIC_SLICE:
        for (int d = 0; d < r; d++) {
          int64_t s = interp_get(x[1 + d], 0), most = src->type.dims[d] - a[d];
          from[d] = at[d] + (s < 0 ? 0 : s > most ? most : s);
        }
        break;
      case TPU_HLO_DYNAMIC_UPDATE_SLICE: {
        bool inside = true;
        for (int d = 0; d < r; d++) {
          int64_t size = x[1]->type.dims[d], s = interp_get(x[2 + d], 0), most = src->type.dims[d] - size;
          from[d] = at[d] - (s < 0 ? 0 : s > most ? most : s);
          inside = inside && from[d] >= 0 && from[d] < size;
        }
        if (inside)
          src = x[1];
        else
          memcpy(from, at, sizeof(int64_t) * (size_t)r);
        break;
      }
      default: /* REVERSE */
        memcpy(from, at, sizeof(int64_t) * (size_t)r);
        for (uint32_t k = 0; k < tpu_node_attrs(node)->n; k++) from[a[k]] = out->type.dims[a[k]] - 1 - at[a[k]];
    }
    interp_move(out, i, src, interp_ravel(src->type, from));
  }
}

static void interp_elementwise(interp *in, const tpu_node *node, interp_value *out, interp_value *const *x) {
  int64_t n = tpu_type_numel(out->type);
  size_t size = (size_t)tpu_dtype_bytes(out->type.dtype);
  tpu_dtype t = x[0]->type.dtype;
  for (int64_t i = 0; i < n; i++) {
    switch (node->op) {
      case TPU_HLO_REAL: memcpy(out->data + (size_t)i * size, x[0]->data + (size_t)i * 2 * size, size); break;
      case TPU_HLO_IMAG: memcpy(out->data + (size_t)i * size, x[0]->data + (size_t)i * 2 * size + size, size); break;
      case TPU_HLO_COMPLEX:
        memcpy(out->data + (size_t)i * size, x[0]->data + (size_t)i * size / 2, size / 2);
        memcpy(out->data + (size_t)i * size + size / 2, x[1]->data + (size_t)i * size / 2, size / 2);
        break;
      case TPU_HLO_SELECT: {
        int64_t p = interp_get(x[0], x[0]->type.rank ? i : 0);
        interp_move(out, i, p ? x[1] : x[2], i);
        break;
      }
      case TPU_HLO_NOT: interp_put(out, i, t == TPU_BOOL ? !interp_get(x[0], i) : ~interp_get(x[0], i)); break;
      case TPU_HLO_NEGATE: interp_put(out, i, (int64_t)(0 - (uint64_t)interp_get(x[0], i))); break;
      case TPU_HLO_CONVERT:
        if (!interp_integral(t) || !interp_integral(out->type.dtype)) in->refused = "convert";
        interp_put(out, i, interp_get(x[0], i));
        break;
      case TPU_HLO_COMPARE:
        if (!interp_integral(t)) in->refused = "compare";
        interp_put(out, i, interp_compare((tpu_compare_dir)tpu_node_attr(node, 0), t, interp_get(x[0], i), interp_get(x[1], i)));
        break;
      default:
        if (!interp_integral(t)) in->refused = tpu_hlo_info_get((tpu_hlo)node->op)->name;
        interp_put(out, i, interp_binary((tpu_hlo)node->op, t, interp_get(x[0], i), interp_get(x[1], i)));
    }
  }
}

static void interp_node(interp *in, const tpu_node *node) {
  interp_value *out = &in->values[node->first_result];
  interp_value *x[2 * TPU_MAX_RANK];
  for (uint32_t i = 0; i < node->n_operands && i < 2 * TPU_MAX_RANK; i++) x[i] = &in->values[node->operands[i].id];
  out->type = tpu_graph_type(in->graph, (tpu_val){node->first_result});
  out->data = (unsigned char *)tpu_arena_calloc(in->arena, 1, interp_bytes(out->type) + 16);
  size_t bytes = interp_bytes(out->type);
  switch (node->op) {
    case TPU_HLO_PARAM: memcpy(out->data, in->params[tpu_node_attr(node, 0)], bytes); break;
    case TPU_HLO_SLOT: interp_put(out, 0, in->slots[tpu_node_attr(node, 0)]); break;
    case TPU_HLO_CONSTANT: {
      const tpu_attrs *a = tpu_node_attrs(node);
      for (size_t at = 0; at < bytes; at += a->bytes)
        memcpy(out->data + at, a->data, a->bytes < bytes - at ? a->bytes : bytes - at);
      break;
    }
    case TPU_HLO_IOTA: interp_iota(node, out); break;
    case TPU_HLO_RESHAPE:
    case TPU_HLO_BITCAST_CONVERT: memcpy(out->data, x[0]->data, bytes); break;
    case TPU_HLO_GATHER: interp_gather(node, out, x[0], x[1]); break;
    case TPU_HLO_SCATTER: interp_scatter(in, node, out, x[0], x[1], x[2]); break;
    case TPU_HLO_BROADCAST_IN_DIM:
    case TPU_HLO_SLICE:
    case TPU_HLO_TRANSPOSE:
    case TPU_HLO_CONCATENATE:
    case TPU_HLO_PAD:
    case TPU_HLO_DYNAMIC_SLICE:
    case TPU_HLO_DYNAMIC_UPDATE_SLICE:
    case TPU_HLO_REVERSE: interp_move_all(node, out, x); break;
    case TPU_HLO_REAL:
    case TPU_HLO_IMAG:
    case TPU_HLO_COMPLEX:
    case TPU_HLO_SELECT:
    case TPU_HLO_NOT:
    case TPU_HLO_NEGATE:
    case TPU_HLO_CONVERT:
    case TPU_HLO_COMPARE:
    case TPU_HLO_ADD:
    case TPU_HLO_SUBTRACT:
    case TPU_HLO_MULTIPLY:
    case TPU_HLO_DIVIDE:
    case TPU_HLO_REMAINDER:
    case TPU_HLO_MAXIMUM:
    case TPU_HLO_MINIMUM:
    case TPU_HLO_AND:
    case TPU_HLO_OR:
    case TPU_HLO_XOR:
    case TPU_HLO_SHIFT_LEFT:
    case TPU_HLO_SHIFT_RIGHT_LOGIC: interp_elementwise(in, node, out, x); break;
    default: in->refused = tpu_hlo_info_get((tpu_hlo)node->op)->name;
  }
}

/* Evaluates all nodes outside regions; false if some operation is not known (in->refused). values by id afterwards. */
static bool interp_run(interp *in) {
  uint32_t n = tpu_graph_node_count(in->graph), top = 1;
  bool *nested = (bool *)tpu_arena_calloc(in->arena, n ? n : 1, sizeof(bool));
  for (uint32_t i = 0; i < n; i++) {
    const tpu_node *node = tpu_graph_node(in->graph, i);
    if (node->first_result + node->n_results > top) top = node->first_result + node->n_results;
    for (int r = 0; r < node->n_regions; r++)
      for (uint32_t k = 0; k < node->regions[r].n_nodes; k++) nested[node->regions[r].nodes[k]] = true;
  }
  in->values = (interp_value *)tpu_arena_calloc(in->arena, top, sizeof(interp_value));
  in->refused = NULL;
  for (uint32_t i = 0; i < n && !in->refused; i++)
    if (!nested[i]) interp_node(in, tpu_graph_node(in->graph, i));
  return !in->refused;
}

#endif
