#include <string.h>

#include "base/alloc.h"
#include "ir/graph_private.h"
#include "ir/shape.h"

const tpu_hlo_info *tpu_hlo_info_get(tpu_hlo op) {
  static const tpu_hlo_info infos[TPU_HLO_COUNT] = {
#define HLO(name, text, operands, results, rule) [TPU_HLO_##name] = {text[0] ? text : #name, operands, results, TPU_RULE_##rule},
#include "ir/hlo.inc"
  };
  return &infos[op];
}

int64_t tpu_type_numel(tpu_type type) {
  int64_t n = 1;
  for (int i = 0; i < type.rank; i++) n *= type.dims[i];
  return n;
}

bool tpu_dims_equal(int rank, const int64_t *a, const int64_t *b) {
  return rank == 0 || a == b || memcmp(a, b, sizeof *a * (size_t)rank) == 0;
}

bool tpu_type_equal(tpu_type a, tpu_type b) {
  return a.dtype == b.dtype && a.rank == b.rank && tpu_dims_equal(a.rank, a.dims, b.dims);
}

bool tpu_attrs_equal(const tpu_attrs *a, const tpu_attrs *b) {
  if (a == b) return true;
  if (!a || !b || a->n != b->n || a->bytes != b->bytes) return false;
  return (!a->n || memcmp(a->v, b->v, sizeof *a->v * a->n) == 0) && (!a->bytes || memcmp(a->data, b->data, a->bytes) == 0);
}

const tpu_attrs *tpu_attrs_copy(tpu_arena *arena, const tpu_attrs *a) {
  size_t numbers = sizeof *a->v * a->n;
  char *p = tpu_arena_alloc(arena, sizeof *a + numbers + a->bytes);
  if (!p) return NULL;
  char *v = p + sizeof *a, *data = v + numbers;
  if (numbers) memcpy(v, a->v, numbers);
  if (a->bytes) memcpy(data, a->data, a->bytes);
  tpu_attrs *copy = (tpu_attrs *)(void *)p;
  *copy = (tpu_attrs){a->n, a->bytes, (const int64_t *)(void *)v, data};
  return copy;
}

tpu_dot_dims tpu_attrs_dot(const tpu_attrs *attrs) {
  tpu_dot_dims d = {.n_batch = (int)attrs->v[0], .n_contract = (int)attrs->v[1], .lhs_batch = attrs->v + 3};
  d.rhs_batch = d.lhs_batch + d.n_batch;
  d.lhs_contract = d.rhs_batch + d.n_batch;
  d.rhs_contract = d.lhs_contract + d.n_contract;
  return d;
}

tpu_conv_view tpu_attrs_conv(const tpu_attrs *attrs) {
  int s = (int)attrs->v[TPU_CONV_SPATIAL];
  const int64_t *v = attrs->v + TPU_CONV_ARRAYS;
  return (tpu_conv_view){s, v, v + s, v + 2 * s, v + 3 * s, v + 4 * s, v + 5 * s, v + 6 * s, v + 7 * s, v + 8 * s};
}

tpu_window tpu_attrs_window(const tpu_attrs *attrs, int r) {
  const int64_t *v = attrs->v;
  return (tpu_window){v, v + r, v + 2 * r, v + 3 * r, v + 4 * r, v + 5 * r};
}

tpu_gather_dims tpu_attrs_gather(const tpu_attrs *attrs, const int64_t **out_slice_sizes) {
  const int64_t *v = attrs->v;
  tpu_gather_dims d = {.n_offset = (int)v[0],
                       .n_collapsed = (int)v[1],
                       .n_batch = (int)v[2],
                       .n_map = (int)v[3],
                       .index_vector_dim = v[4],
                       .sorted = v[5] != 0,
                       .offset = v + 6};
  d.collapsed = d.offset + d.n_offset;
  d.operand_batch = d.collapsed + d.n_collapsed;
  d.indices_batch = d.operand_batch + d.n_batch;
  d.start_index_map = d.indices_batch + d.n_batch;
  *out_slice_sizes = d.start_index_map + d.n_map;
  return d;
}

tpu_scatter_dims tpu_attrs_scatter(const tpu_attrs *attrs) {
  const int64_t *v = attrs->v;
  tpu_scatter_dims d = {.n_window = (int)v[0],
                        .n_inserted = (int)v[1],
                        .n_batch = (int)v[2],
                        .n_map = (int)v[3],
                        .index_vector_dim = v[4],
                        .sorted = v[5] != 0,
                        .unique = v[6] != 0,
                        .window = v + 7};
  d.inserted = d.window + d.n_window;
  d.operand_batch = d.inserted + d.n_inserted;
  d.indices_batch = d.operand_batch + d.n_batch;
  d.scatter_map = d.indices_batch + d.n_batch;
  return d;
}

tpu_graph *tpu_graph_create(void) {
  tpu_graph *g = tpu_calloc(1, sizeof *g);
  if (!g) return NULL;
  tpu_arena_init(&g->arena, 0);
  if (!tpu_graph_grow_values(g, 1)) {
    tpu_graph_destroy(g);
    return NULL;
  }
  tpu_graph_reset(g);
  return g;
}

void tpu_graph_reset(tpu_graph *g) {
  enum { KEEP = 1024 };
  tpu_arena_reset(&g->arena);
  g->n_nodes = 0;
  g->n_params = g->n_slots = g->n_blocks = g->n_outputs = 0;
  g->outputs = NULL;
  g->n_values = 1;
  *tpu_value_at(g, 0) = (tpu_value){.type = {.dtype = TPU_F32}, .node = TPU_NO_NODE};
  if (g->cse_capacity > KEEP) {
    tpu_free(g->cse);
    g->cse = NULL;
    g->cse_capacity = 0;
  }
  if (g->cse && g->cse_size) memset(g->cse, 0, sizeof *g->cse * g->cse_capacity);
  g->cse_size = 0;
}

void tpu_graph_destroy(tpu_graph *g) {
  if (!g) return;
  for (uint32_t i = 0; i < g->node_chunks; i++) tpu_free(g->nodes[i]);
  for (uint32_t i = 0; i < g->value_chunks; i++) tpu_free(g->values[i]);
  tpu_free(g->nodes);
  tpu_free(g->values);
  tpu_free(g->cse);
  tpu_arena_destroy(&g->arena);
  tpu_free(g);
}

bool tpu_graph_grow_nodes(tpu_graph *g) {
  if (g->n_nodes < g->node_chunks * (uint32_t)TPU_CHUNK) return true;
  if (g->node_chunks == g->node_capacity) {
    uint32_t capacity = g->node_capacity ? g->node_capacity * 2 : 8;
    tpu_node **nodes = tpu_realloc(g->nodes, sizeof *nodes * capacity);
    if (!nodes) return false;
    g->nodes = nodes;
    g->node_capacity = capacity;
  }
  tpu_node *chunk = tpu_malloc(sizeof *chunk * TPU_CHUNK);
  if (!chunk) return false;
  g->nodes[g->node_chunks++] = chunk;
  return true;
}

bool tpu_graph_grow_values(tpu_graph *g, uint32_t n) {
  while (g->n_values + n > g->value_chunks * (uint32_t)TPU_CHUNK) {
    if (g->value_chunks == g->value_capacity) {
      uint32_t capacity = g->value_capacity ? g->value_capacity * 2 : 8;
      tpu_value **values = tpu_realloc(g->values, sizeof *values * capacity);
      if (!values) return false;
      g->values = values;
      g->value_capacity = capacity;
    }
    tpu_value *chunk = tpu_malloc(sizeof *chunk * TPU_CHUNK);
    if (!chunk) return false;
    g->values[g->value_chunks++] = chunk;
  }
  return true;
}

tpu_arena *tpu_graph_arena(tpu_graph *g) { return &g->arena; }
uint32_t tpu_graph_node_count(const tpu_graph *g) { return g->n_nodes; }
const tpu_node *tpu_graph_node(const tpu_graph *g, uint32_t index) { return tpu_node_at(g, index); }
tpu_type tpu_graph_type(const tpu_graph *g, tpu_val v) { return tpu_value_at(g, v.id)->type; }
uint32_t tpu_graph_param_count(const tpu_graph *g) { return g->n_params; }
uint32_t tpu_graph_slot_count(const tpu_graph *g) { return g->n_slots; }

const tpu_node *tpu_graph_producer(const tpu_graph *g, tpu_val v, uint32_t *out_result) {
  const tpu_value *value = tpu_value_at(g, v.id);
  if (value->node == TPU_NO_NODE) return NULL;
  if (out_result) *out_result = value->result;
  return tpu_node_at(g, value->node);
}

const tpu_val *tpu_graph_outputs(const tpu_graph *g, uint32_t *out_n) {
  *out_n = g->n_outputs;
  return g->outputs;
}

tpu_status tpu_graph_set_outputs(tpu_graph *g, const tpu_val *outputs, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    if (!outputs[i].id || outputs[i].id >= g->n_values)
      return tpu_error(TPU_INTERNAL, "output %u is not a value of the graph", i);
    const tpu_value *value = tpu_value_at(g, outputs[i].id);
    if (value->node == TPU_NO_NODE || tpu_node_at(g, value->node)->block)
      return tpu_error(TPU_INTERNAL, "output %u is a value of a nested block", i);
  }
  const tpu_val *copy = tpu_arena_copy(&g->arena, outputs, sizeof *outputs * n);
  if (!copy) return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  g->outputs = copy;
  g->n_outputs = n;
  return NULL;
}

static void mark(const tpu_graph *g, tpu_val v) {
  const tpu_node *node = tpu_producer_of(g, v);
  if (node) tpu_value_at(g, node->first_result)->mark = 1;
}

/* Operands precede their users, and a region's nodes the node it belongs to, so one walk backwards is enough. */
void tpu_graph_mark_live(const tpu_graph *g) {
  for (uint32_t i = 0; i < g->n_values; i++) tpu_value_at(g, i)->mark = 0;
  for (uint32_t i = 0; i < g->n_outputs; i++) mark(g, g->outputs[i]);
  for (uint32_t i = g->n_nodes; i-- > 0;) {
    const tpu_node *node = tpu_node_at(g, i);
    if (!tpu_node_is_live(g, node)) continue;
    for (uint32_t k = 0; k < node->n_operands; k++) mark(g, node->operands[k]);
    for (uint32_t k = 0; k < node->n_regions; k++)
      for (uint32_t j = 0; j < node->regions[k].n_returns; j++) mark(g, node->regions[k].returns[j]);
  }
}

typedef struct hasher {
  const tpu_graph *graph;
  tpu_hash hash;
  uint32_t next;         /* number of the next value; params and slots have numbers of their own */
  tpu_numbers_of *loose; /* NULL: everything is hashed; else the top level's numbers go here instead */
  uint32_t depth;        /* of regions */
} hasher;

static void put_number(hasher *h, tpu_number_kind kind, int64_t v) {
  tpu_numbers_of *out = h->loose;
  if (!out || h->depth) {
    tpu_hash_mix(&h->hash, (uint64_t)v);
    return;
  }
  if (out->n == out->capacity) {
    uint32_t capacity = out->capacity ? out->capacity * 2 : 256;
    int64_t *values = tpu_realloc(out->v, capacity * sizeof *values);
    if (values) out->v = values;
    uint8_t *kinds = tpu_realloc(out->kind, capacity);
    if (kinds) out->kind = kinds;
    if (!values || !kinds) {
      out->failed = true;
      return;
    }
    out->capacity = capacity;
  }
  out->kind[out->n] = (uint8_t)kind;
  out->v[out->n++] = v;
}

static void hash_type(hasher *h, tpu_type t) {
  tpu_hash_mix(&h->hash, (uint64_t)t.dtype << 32 | (uint64_t)t.rank);
  for (int i = 0; i < t.rank; i++) put_number(h, TPU_NUMBER_DIM, t.dims[i]);
}

/* A constant's element is a number like others; many elements are the program. */
static void put_elements(hasher *h, const tpu_attrs *a, tpu_type type) {
  uint64_t words[2] = {0, 0};
  bool splat = a->bytes == tpu_dtype_bytes(type.dtype);
  tpu_hash_mix(&h->hash, splat);
  if (splat) {
    memcpy(words, a->data, a->bytes);
  } else {
    tpu_hash all = tpu_hash_bytes((tpu_hash){0, 0}, a->data, a->bytes);
    words[0] = all.lo;
    words[1] = all.hi;
  }
  for (int i = 0; i < 2; i++) put_number(h, splat ? TPU_NUMBER_ELEMENT : TPU_NUMBER_ELEMENTS, (int64_t)words[i]);
}

static void hash_attrs(hasher *h, const tpu_node *node) {
  const tpu_attrs *a = node->attrs;
  if (!a) return;
  bool elements = h->loose && !h->depth && node->op == TPU_HLO_CONSTANT;
  tpu_hash_mix(&h->hash, (uint64_t)a->n << 32 | (elements ? 0 : a->bytes));
  for (uint32_t i = 0; i < a->n; i++) put_number(h, TPU_NUMBER_ATTR, a->v[i]);
  if (elements)
    put_elements(h, a, tpu_value_at(h->graph, node->first_result)->type);
  else if (a->bytes)
    h->hash = tpu_hash_bytes(h->hash, a->data, a->bytes);
}

static void hash_value(hasher *h, tpu_val v) {
  const tpu_node *node = tpu_producer_of(h->graph, v);
  uint64_t word = tpu_value_at(h->graph, v.id)->mark;
  if (node && node->op == TPU_HLO_PARAM) word = UINT64_C(1) << 40 | (uint64_t)tpu_node_attr(node, 0);
  if (node && node->op == TPU_HLO_SLOT)
    word = UINT64_C(1) << 48 | (uint64_t)tpu_node_attr(node, 0) << 8 | (uint64_t)tpu_value_at(h->graph, v.id)->type.dtype;
  tpu_hash_mix(&h->hash, word);
}

static void hash_node(hasher *h, uint32_t index) {
  const tpu_graph *g = h->graph;
  const tpu_node *node = tpu_node_at(g, index);
  if (node->op == TPU_HLO_PARAM || node->op == TPU_HLO_SLOT || !tpu_node_is_live(g, node)) return;
  tpu_hash_mix(&h->hash, (uint64_t)node->op << 48 | (uint64_t)node->n_operands << 16 | node->n_regions);
  if (h->loose && !h->depth) h->loose->at[index] = h->loose->n;
  for (uint32_t i = 0; i < node->n_operands; i++) hash_value(h, node->operands[i]);
  hash_attrs(h, node);
  h->depth++;
  for (uint32_t i = 0; i < node->n_regions; i++) {
    const tpu_region *region = &node->regions[i];
    tpu_hash_mix(&h->hash, (uint64_t)region->n_params << 32 | region->n_returns);
    for (uint32_t k = 0; k < region->n_params; k++) {
      tpu_value *value = tpu_value_at(g, region->params[k].id);
      value->mark = ++h->next;
      hash_type(h, value->type);
    }
    for (uint32_t k = 0; k < region->n_nodes; k++) hash_node(h, region->nodes[k]);
    for (uint32_t k = 0; k < region->n_returns; k++) hash_value(h, region->returns[k]);
  }
  h->depth--;
  for (uint32_t i = 0; i < node->n_results; i++) {
    tpu_value *value = tpu_value_at(g, node->first_result + i);
    value->mark = ++h->next;
    hash_type(h, value->type);
  }
}

static tpu_hash hash_graph(const tpu_graph *g, tpu_numbers_of *loose) {
  hasher h = {.graph = g, .hash = {UINT64_C(0x746f726368), UINT64_C(0x747075)}, .loose = loose};
  tpu_graph_mark_live(g);
  for (uint32_t i = 0; i < g->n_nodes; i++) {
    const tpu_node *node = tpu_node_at(g, i);
    if (node->op != TPU_HLO_PARAM || !tpu_node_is_live(g, node)) continue;
    tpu_hash_mix(&h.hash, (uint64_t)tpu_node_attr(node, 0));
    if (loose) loose->at[i] = loose->n;
    hash_type(&h, tpu_value_at(g, node->first_result)->type);
  }
  for (uint32_t i = 0; i < g->n_nodes; i++)
    if (!tpu_node_at(g, i)->block) hash_node(&h, i);
  tpu_hash_mix(&h.hash, g->n_outputs);
  for (uint32_t i = 0; i < g->n_outputs; i++) hash_value(&h, g->outputs[i]);
  return h.hash;
}

tpu_hash tpu_graph_hash(const tpu_graph *g) { return hash_graph(g, NULL); }

bool tpu_graph_numbers(const tpu_graph *g, tpu_numbers_of *out) {
  *out = (tpu_numbers_of){.at = tpu_calloc(g->n_nodes + 1, sizeof *out->at)};
  out->failed = !out->at;
  if (out->at) out->skeleton = hash_graph(g, out);
  if (out->failed) tpu_numbers_of_destroy(out);
  return !out->failed;
}

void tpu_numbers_of_destroy(tpu_numbers_of *n) {
  tpu_free(n->at);
  tpu_free(n->v);
  tpu_free(n->kind);
  n->at = NULL;
  n->v = NULL;
  n->kind = NULL;
}
