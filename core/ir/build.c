#include "ir/build.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "ir/graph_private.h"
#include "ir/number.h"
#include "ir/shape.h"

static const int64_t no_dims[1] = {0}; /* what a scalar's dims point to, so that memcpy may take them */

void tpu_build_init(tpu_build *b, tpu_graph *graph, const tpu_target *target) {
  *b = (tpu_build){.graph = graph, .target = target};
}

tpu_status tpu_build_status(tpu_build *b) {
  tpu_status status = b->status;
  b->status = NULL;
  return status;
}

void tpu_build_fail(tpu_build *b, tpu_status status) { b->status = tpu_status_join(b->status, status); }

tpu_val tpu_fail(tpu_build *b, tpu_code code, const char *format, ...) {
  if (b->status) return TPU_POISON;
  va_list args;
  va_start(args, format);
  b->status = tpu_status_create_v(__FILE__, __LINE__, code, format, args);
  va_end(args);
  return TPU_POISON;
}

static void fail_memory(tpu_build *b) { (void)tpu_fail(b, TPU_RESOURCE_EXHAUSTED, "out of host memory"); }

void *tpu_build_alloc(tpu_build *b, size_t bytes) {
  void *p = tpu_arena_alloc(&b->graph->arena, bytes);
  if (!p) fail_memory(b);
  return p;
}

tpu_type tpu_type_of(const tpu_build *b, tpu_val v) {
  if (!v.id || v.id >= b->graph->n_values) return (tpu_type){TPU_F32, 0, no_dims};
  return tpu_value_at(b->graph, v.id)->type;
}
tpu_dtype tpu_dtype_of(const tpu_build *b, tpu_val v) { return tpu_type_of(b, v).dtype; }
int tpu_rank_of(const tpu_build *b, tpu_val v) { return tpu_type_of(b, v).rank; }
const int64_t *tpu_dims_of(const tpu_build *b, tpu_val v) { return tpu_type_of(b, v).dims; }
int64_t tpu_dim_of(const tpu_build *b, tpu_val v, int dim) {
  tpu_type t = tpu_type_of(b, v);
  return dim >= 0 && dim < t.rank ? t.dims[dim] : 1;
}
int64_t tpu_numel_of(const tpu_build *b, tpu_val v) { return tpu_type_numel(tpu_type_of(b, v)); }

/* --- nodes */

/* May the block being built use a node that stands in `block`? */
static bool visible(const tpu_build *b, uint32_t block) {
  for (const tpu_block *at = b->block; at; at = at->parent) {
    if (at->id == block) return true;
    if (at->isolated) return false;
  }
  return block == 0;
}

static bool is_shareable(tpu_hlo op, uint32_t n_regions) {
  return !n_regions && op != TPU_HLO_PARAM && op != TPU_HLO_CUSTOM_CALL && op != TPU_HLO_OPTIMIZATION_BARRIER;
}

static uint64_t mix(uint64_t h, uint64_t word) {
  h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
  return h ^ (h >> 29);
}

static uint32_t spec_tag(const tpu_node_spec *spec, tpu_type type) {
  uint64_t h = mix(spec->n_operands, (uint64_t)spec->op);
  for (uint32_t i = 0; i < spec->n_operands; i++) h = mix(h, spec->operands[i].id);
  const tpu_attrs *a = spec->attrs;
  if (a) {
    for (uint32_t i = 0; i < a->n; i++) h = mix(h, (uint64_t)a->v[i]);
    if (a->bytes && a->bytes <= 8)
      h = mix(h, tpu_number_bits(a->data, (int)a->bytes));
    else if (a->bytes)
      h = mix(h, tpu_hash_bytes((tpu_hash){0, 0}, a->data, a->bytes).lo);
  }
  if (tpu_hlo_info_get(spec->op)->rule == TPU_RULE_NODE) {
    h = mix(h, (uint64_t)type.dtype);
    for (int i = 0; i < type.rank; i++) h = mix(h, (uint64_t)type.dims[i]);
  }
  return (uint32_t)(h >> 32) | 1;
}

static bool is_same(const tpu_graph *g, const tpu_node *node, const tpu_node_spec *spec, const tpu_type *types) {
  if (node->op != spec->op || node->n_operands != spec->n_operands || node->n_results != spec->n_results) return false;
  for (uint32_t i = 0; i < spec->n_operands; i++)
    if (node->operands[i].id != spec->operands[i].id) return false;
  if (!tpu_attrs_equal(node->attrs, spec->attrs)) return false;
  for (uint32_t i = 0; i < spec->n_results; i++)
    if (!tpu_type_equal(tpu_value_at(g, node->first_result + i)->type, types[i])) return false;
  return true;
}

static const tpu_node *cse_find(const tpu_build *b, uint32_t tag, const tpu_node_spec *spec, const tpu_type *types) {
  const tpu_graph *g = b->graph;
  if (!g->cse_size) return NULL;
  uint32_t mask = g->cse_capacity - 1;
  for (uint32_t i = tag >> 1 & mask;; i = (i + 1) & mask) {
    tpu_cse_slot slot = g->cse[i];
    if (!slot.node) return NULL;
    if (slot.tag != tag) continue;
    const tpu_node *node = tpu_node_at(g, slot.node - 1);
    if (is_same(g, node, spec, types) && (visible(b, node->block) || spec->op == TPU_HLO_SLOT)) return node;
  }
}

/* Sharing is a convenience: a table that cannot grow is left as it is. */
static void cse_insert(tpu_graph *g, uint32_t tag, uint32_t node) {
  if (2 * (g->cse_size + 1) > g->cse_capacity) {
    uint32_t capacity = g->cse_capacity ? g->cse_capacity * 4 : 64;
    tpu_cse_slot *slots = tpu_calloc(capacity, sizeof *slots);
    if (!slots) return;
    for (uint32_t i = 0; i < g->cse_capacity; i++) {
      if (!g->cse[i].node) continue;
      uint32_t at = g->cse[i].tag >> 1 & (capacity - 1);
      while (slots[at].node) at = (at + 1) & (capacity - 1);
      slots[at] = g->cse[i];
    }
    tpu_free(g->cse);
    g->cse = slots;
    g->cse_capacity = capacity;
  }
  uint32_t at = tag >> 1 & (g->cse_capacity - 1);
  while (g->cse[at].node) at = (at + 1) & (g->cse_capacity - 1);
  g->cse[at] = (tpu_cse_slot){tag, node + 1};
  g->cse_size++;
}

static bool block_push(tpu_build *b, tpu_block *block, uint32_t node) {
  if (block->n_nodes == block->capacity) {
    uint32_t capacity = block->capacity ? block->capacity * 2 : 8;
    uint32_t *nodes = TPU_ARENA_ARRAY(&b->graph->arena, uint32_t, capacity);
    if (!nodes) return false;
    if (block->n_nodes) memcpy(nodes, block->nodes, sizeof *nodes * block->n_nodes);
    block->nodes = nodes;
    block->capacity = capacity;
  }
  block->nodes[block->n_nodes++] = node;
  return true;
}

static tpu_status check_size(tpu_type t) {
  int64_t bytes = tpu_dtype_bytes(t.dtype);
  bool overflow = false;
  for (int i = 0; i < t.rank; i++) {
    if (t.dims[i] < 0) return tpu_error(TPU_INVALID_ARGUMENT, "dimension %d is negative: %lld", i, (long long)t.dims[i]);
    if (t.dims[i] == 0) return NULL;
    overflow = overflow || !tpu_size_mul(bytes, t.dims[i], &bytes);
  }
  return overflow ? tpu_error(TPU_INVALID_ARGUMENT, "Storage size calculation overflowed") : NULL;
}

/* Dims of an operand stay where they are; others are copied into the graph. */
static bool keep_dims(tpu_build *b, const tpu_node_spec *spec, uint32_t n, tpu_type *types) {
  for (uint32_t i = 0; i < n; i++) {
    if (types[i].rank == 0) {
      types[i].dims = no_dims;
      continue;
    }
    const int64_t *dims = types[i].dims;
    bool kept = false;
    for (uint32_t k = 0; k < spec->n_operands && !kept && k < 8; k++)
      kept = tpu_value_at(b->graph, spec->operands[k].id)->type.dims == dims;
    if (kept) continue;
    tpu_status status = check_size(types[i]);
    if (status) {
      tpu_build_fail(b, tpu_status_prefix(status, "%s: ", tpu_hlo_info_get(spec->op)->name));
      return false;
    }
    const int64_t *copy = tpu_arena_copy(&b->graph->arena, dims, sizeof *dims * (size_t)types[i].rank);
    if (!copy) {
      fail_memory(b);
      return false;
    }
    for (uint32_t k = n; k-- > i;) /* results often share their dims */
      if (types[k].dims == dims) types[k].dims = copy;
  }
  return true;
}

static bool append(tpu_build *b, const tpu_node_spec *spec, const tpu_type *types, uint32_t *out_first) {
  tpu_graph *g = b->graph;
  tpu_node node = {.op = (uint16_t)spec->op,
                   .n_regions = (uint16_t)spec->n_regions,
                   .n_operands = spec->n_operands,
                   .n_results = spec->n_results,
                   .first_result = g->n_values,
                   .regions = spec->regions,
                   .scope = b->scope};
  bool top = spec->op == TPU_HLO_PARAM || spec->op == TPU_HLO_SLOT;
  if (b->block && !top) node.block = b->block->id;
  node.operands = tpu_arena_copy(&g->arena, spec->operands, sizeof *spec->operands * spec->n_operands);
  if (spec->attrs) node.attrs = tpu_attrs_copy(&g->arena, spec->attrs);
  if (g->arena.failed || !tpu_graph_grow_nodes(g) || !tpu_graph_grow_values(g, spec->n_results) ||
      (node.block && !block_push(b, b->block, g->n_nodes))) {
    fail_memory(b);
    return false;
  }
  for (uint32_t i = 0; i < spec->n_results; i++)
    *tpu_value_at(g, g->n_values + i) = (tpu_value){.type = types[i], .node = g->n_nodes, .result = i};
  *tpu_node_at(g, g->n_nodes++) = node;
  g->n_values += spec->n_results;
  *out_first = node.first_result;
  return true;
}

bool tpu_build_node(tpu_build *b, const tpu_node_spec *spec, tpu_val *out) {
  tpu_graph *g = b->graph;
  for (uint32_t i = 0; i < spec->n_results; i++) out[i] = TPU_POISON;
  if (b->status) return false;
  for (uint32_t i = 0; i < spec->n_operands; i++) {
    if (!spec->operands[i].id) return false;
    if (spec->operands[i].id >= g->n_values) {
      (void)tpu_fail(b, TPU_INTERNAL, "%s: operand %u is not a value of this graph", tpu_hlo_info_get(spec->op)->name, i);
      return false;
    }
  }
  tpu_type few[4], *types = few;
  if (spec->n_results > 4) {
    types = tpu_build_alloc(b, sizeof *types * spec->n_results);
    if (!types) return false;
  }
  if (spec->types) memcpy(types, spec->types, sizeof *types * spec->n_results);
  tpu_infer infer; /* not initialised as a whole: its scratch is large */
  infer.graph = g;
  infer.op = spec->op;
  infer.n_operands = spec->n_operands;
  infer.n_regions = spec->n_regions;
  infer.n_results = spec->n_results;
  infer.operands = spec->operands;
  infer.attrs = spec->attrs;
  infer.regions = spec->regions;
  infer.types = types;
  tpu_status status = tpu_infer_types(&infer);
  if (status) {
    tpu_build_fail(b, tpu_status_prefix(status, "%s: ", tpu_hlo_info_get(spec->op)->name));
    return false;
  }
  uint32_t first, tag = 0;
  bool share = is_shareable(spec->op, spec->n_regions) && spec->n_results;
  if (share) {
    tag = spec_tag(spec, types[0]);
    const tpu_node *known = cse_find(b, tag, spec, types);
    if (known) {
      for (uint32_t i = 0; i < spec->n_results; i++) out[i].id = known->first_result + i;
      return true;
    }
  }
  if (!keep_dims(b, spec, spec->n_results, types) || !append(b, spec, types, &first)) return false;
  if (share) cse_insert(g, tag, g->n_nodes - 1);
  for (uint32_t i = 0; i < spec->n_results; i++) out[i].id = first + i;
  return true;
}

tpu_val tpu_build_simple(tpu_build *b, tpu_hlo op, uint32_t n_operands, const tpu_val *operands, const int64_t *v, uint32_t n,
                         const tpu_type *type) {
  tpu_attrs attrs = {.n = n, .v = v};
  tpu_node_spec spec = {
      .op = op, .n_operands = n_operands, .n_results = 1, .operands = operands, .attrs = n ? &attrs : NULL, .types = type};
  tpu_val out;
  (void)tpu_build_node(b, &spec, &out);
  return out;
}

/* --- regions */

bool tpu_block_begin(tpu_build *b, tpu_block *block, bool isolated, uint32_t n_params, const tpu_type *types) {
  tpu_graph *g = b->graph;
  if (b->status) return false;
  *block = (tpu_block){.parent = b->block, .id = g->n_blocks + 1, .isolated = isolated, .n_params = n_params};
  block->params = TPU_ARENA_ARRAY(&g->arena, tpu_val, n_params);
  if (!block->params || !tpu_graph_grow_values(g, n_params)) {
    fail_memory(b);
    return false;
  }
  g->n_blocks++;
  for (uint32_t i = 0; i < n_params; i++) {
    block->params[i].id = g->n_values;
    *tpu_value_at(g, g->n_values++) = (tpu_value){.type = types[i], .node = TPU_NO_NODE, .result = block->id};
    if (!types[i].rank) tpu_value_at(g, g->n_values - 1)->type.dims = no_dims;
  }
  b->block = block;
  return true;
}

bool tpu_block_end(tpu_build *b, tpu_block *block, uint32_t n_returns, const tpu_val *returns, tpu_region *out) {
  b->block = block->parent;
  if (b->status) return false;
  for (uint32_t i = 0; i < n_returns; i++) {
    if (!returns[i].id || returns[i].id >= b->graph->n_values) {
      (void)tpu_fail(b, TPU_INTERNAL, "a region returned no value");
      return false;
    }
  }
  const tpu_val *copy = tpu_arena_copy(&b->graph->arena, returns, sizeof *returns * n_returns);
  if (!copy) {
    fail_memory(b);
    return false;
  }
  *out = (tpu_region){block->n_params, block->n_nodes, n_returns, block->params, block->nodes, copy};
  return true;
}

/* --- inputs and constants */

static bool dtype_ok(tpu_build *b, tpu_dtype dtype, int rank) {
  if ((unsigned)dtype >= TPU_DTYPE_COUNT) {
    (void)tpu_fail(b, TPU_INTERNAL, "%d is not a dtype", (int)dtype);
    return false;
  }
  if (rank < 0 || rank > TPU_MAX_RANK) {
    (void)tpu_fail(b, TPU_INVALID_ARGUMENT, "a tensor of %d dimensions: at most %d are supported", rank, TPU_MAX_RANK);
    return false;
  }
  return true;
}

tpu_val tpu_param(tpu_build *b, tpu_dtype dtype, int rank, const int64_t *dims) {
  if (b->status || !dtype_ok(b, dtype, rank)) return TPU_POISON;
  tpu_type type = {dtype, rank, dims};
  int64_t number = b->graph->n_params;
  tpu_val v = tpu_build_simple(b, TPU_HLO_PARAM, 0, NULL, &number, 1, &type);
  if (v.id) b->graph->n_params++;
  return v;
}

tpu_val tpu_slot(tpu_build *b, uint32_t index, tpu_dtype dtype) {
  if (b->status || !dtype_ok(b, dtype, 0)) return TPU_POISON;
  tpu_type type = {dtype, 0, no_dims};
  int64_t number = (int64_t)index + b->slot_base;
  tpu_val v = tpu_build_simple(b, TPU_HLO_SLOT, 0, NULL, &number, 1, &type);
  if (v.id && (uint32_t)number >= b->graph->n_slots) b->graph->n_slots = (uint32_t)number + 1;
  return v;
}

static tpu_val constant(tpu_build *b, tpu_dtype dtype, int rank, const int64_t *dims, const void *data, size_t bytes) {
  if (bytes > UINT32_MAX) return tpu_fail(b, TPU_INVALID_ARGUMENT, "a constant of %zu bytes is too large", bytes);
  tpu_type type = {dtype, rank, dims};
  tpu_attrs attrs = {.bytes = (uint32_t)bytes, .data = data};
  tpu_node_spec spec = {.op = TPU_HLO_CONSTANT, .n_results = 1, .attrs = &attrs, .types = &type};
  tpu_val out;
  (void)tpu_build_node(b, &spec, &out);
  return out;
}

static tpu_val splat(tpu_build *b, tpu_dtype dtype, int rank, const int64_t *dims, char *element) {
  size_t bytes = (size_t)tpu_dtype_bytes(dtype);
  for (int i = 0; i < rank; i++)
    if (dims[i] == 0) memset(element, 0, bytes); /* no elements: one spelling */
  return constant(b, dtype, rank, dims, element, bytes);
}

tpu_val tpu_full(tpu_build *b, tpu_dtype dtype, int rank, const int64_t *dims, double value) {
  char element[TPU_ELEMENT_BYTES];
  if (b->status || !dtype_ok(b, dtype, rank)) return TPU_POISON;
  tpu_number_from_double(dtype, value, element);
  return splat(b, dtype, rank, dims, element);
}

tpu_val tpu_full_i(tpu_build *b, tpu_dtype dtype, int rank, const int64_t *dims, int64_t value) {
  char element[TPU_ELEMENT_BYTES];
  if (b->status || !dtype_ok(b, dtype, rank)) return TPU_POISON;
  tpu_number_from_int(dtype, value, element);
  return splat(b, dtype, rank, dims, element);
}

tpu_val tpu_splat_element(tpu_build *b, tpu_dtype dtype, int rank, const int64_t *dims, const void *element) {
  char copy[TPU_ELEMENT_BYTES];
  if (b->status || !dtype_ok(b, dtype, rank)) return TPU_POISON;
  memcpy(copy, element, (size_t)tpu_dtype_bytes(dtype));
  return splat(b, dtype, rank, dims, copy);
}

tpu_val tpu_full_like(tpu_build *b, tpu_val like, double value) {
  if (!like.id) return TPU_POISON;
  tpu_type t = tpu_type_of(b, like);
  return tpu_full(b, t.dtype, t.rank, t.dims, value);
}

tpu_val tpu_dense(tpu_build *b, tpu_dtype dtype, int rank, const int64_t *dims, const void *data) {
  if (b->status || !dtype_ok(b, dtype, rank)) return TPU_POISON;
  tpu_status status = check_size((tpu_type){dtype, rank, dims});
  if (status) {
    tpu_build_fail(b, status);
    return TPU_POISON;
  }
  size_t numel = (size_t)tpu_type_numel((tpu_type){dtype, rank, dims}), bytes = (size_t)tpu_dtype_bytes(dtype);
  if (!numel) return tpu_full(b, dtype, rank, dims, 0);
  /* All elements alike: a splat. */
  if (numel == 1 || memcmp(data, (const char *)data + bytes, bytes * (numel - 1)) == 0)
    return constant(b, dtype, rank, dims, data, bytes);
  return constant(b, dtype, rank, dims, data, bytes * numel);
}

tpu_val tpu_dense_i64(tpu_build *b, int64_t n, const int64_t *data) { return tpu_dense(b, TPU_I64, 1, &n, data); }

tpu_val tpu_iota(tpu_build *b, tpu_dtype dtype, int rank, const int64_t *dims, int dim) {
  if (b->status || !dtype_ok(b, dtype, rank)) return TPU_POISON;
  tpu_type type = {dtype, rank, dims};
  int64_t v = dim;
  return tpu_build_simple(b, TPU_HLO_IOTA, 0, NULL, &v, 1, &type);
}

const void *tpu_splat_of(const tpu_build *b, tpu_val v) {
  const tpu_node *node = tpu_producer_is(b->graph, v, TPU_HLO_CONSTANT);
  if (!node) return NULL;
  const tpu_attrs *attrs = tpu_node_attrs(node);
  return attrs->bytes == (uint32_t)tpu_dtype_bytes(tpu_dtype_of(b, v)) ? attrs->data : NULL;
}

bool tpu_is_splat(const tpu_build *b, tpu_val v, double *out_value) {
  const void *element = tpu_splat_of(b, v);
  if (!element) return false;
  *out_value = tpu_number_to_double(tpu_dtype_of(b, v), element);
  return true;
}

static tpu_val extreme(tpu_build *b, tpu_dtype dtype, bool highest) {
  if (b->status || !dtype_ok(b, dtype, 0)) return TPU_POISON;
  const double infinity = (double)INFINITY;
  switch (tpu_dtype_kind(dtype)) {
    case TPU_KIND_BOOL: return tpu_scalar_i(b, dtype, highest);
    case TPU_KIND_UINT: return tpu_scalar_i(b, dtype, highest ? -1 : 0);
    case TPU_KIND_INT: {
      int64_t low = -(INT64_C(1) << (8 * tpu_dtype_bytes(dtype) - 2)) * 2;
      return tpu_scalar_i(b, dtype, highest ? -1 - low : low);
    }
    case TPU_KIND_FLOAT: {
      char element[TPU_ELEMENT_BYTES];
      tpu_number_from_double(dtype, highest ? infinity : -infinity, element);
      double back = tpu_number_to_double(dtype, element);
      if (back == infinity || back == -infinity) return tpu_splat_element(b, dtype, 0, no_dims, element);
      /* Formats without infinities: their largest finite numbers. */
      double most = dtype == TPU_F8E4M3FN ? 448 : dtype == TPU_F8E4M3FNUZ ? 240 : dtype == TPU_F8E5M2FNUZ ? 57344 : 0x1p127;
      if (dtype == TPU_F8E8M0FNU && !highest) return tpu_scalar(b, dtype, 0x1p-127);
      return tpu_scalar(b, dtype, highest ? most : -most);
    }
    case TPU_KIND_COMPLEX: break;
  }
  return tpu_fail(b, TPU_INVALID_ARGUMENT, "complex numbers have no order");
}

tpu_val tpu_lowest(tpu_build *b, tpu_dtype dtype) { return extreme(b, dtype, false); }
tpu_val tpu_highest(tpu_build *b, tpu_dtype dtype) { return extreme(b, dtype, true); }
