/* The inside of a graph, for the files of core/ir that append, copy and walk nodes. */
#ifndef TPU_IR_GRAPH_PRIVATE_H
#define TPU_IR_GRAPH_PRIVATE_H

#include "ir/attrs.h"
#include "ir/build.h"

enum { TPU_CHUNK_SHIFT = 8, TPU_CHUNK = 1 << TPU_CHUNK_SHIFT };
#define TPU_NO_NODE UINT32_MAX

typedef struct tpu_value {
  tpu_type type;
  uint32_t node;   /* index of its producer; TPU_NO_NODE: a parameter of a region */
  uint32_t result; /* which result; of a region parameter: the region's block */
  uint32_t mark;   /* scratch of the walks below; 0: not needed by any output */
} tpu_value;

typedef struct tpu_cse_slot {
  uint32_t tag, node; /* node + 1; 0: free */
} tpu_cse_slot;

/* Tables grow by chunks, so entries never move; chunks outlive a reset. */
struct tpu_graph {
  tpu_arena arena;
  tpu_node **nodes;
  tpu_value **values;
  uint32_t node_chunks, value_chunks, node_capacity, value_capacity; /* chunks made; entries of the directories */
  uint32_t n_nodes, n_values;                                        /* values count id 0 */
  uint32_t n_params, n_slots, n_blocks;
  const tpu_val *outputs;
  uint32_t n_outputs;
  tpu_cse_slot *cse;
  uint32_t cse_capacity, cse_size;
};

static inline tpu_node *tpu_node_at(const tpu_graph *g, uint32_t i) {
  return &g->nodes[i >> TPU_CHUNK_SHIFT][i & (TPU_CHUNK - 1)];
}
static inline tpu_value *tpu_value_at(const tpu_graph *g, uint32_t id) {
  return &g->values[id >> TPU_CHUNK_SHIFT][id & (TPU_CHUNK - 1)];
}
/* Its producer, or NULL: a region parameter, or poison. */
static inline const tpu_node *tpu_producer_of(const tpu_graph *g, tpu_val v) {
  if (!v.id || v.id >= g->n_values) return NULL;
  uint32_t node = tpu_value_at(g, v.id)->node;
  return node == TPU_NO_NODE ? NULL : tpu_node_at(g, node);
}
/* Its producer if that is an `op`, else NULL. */
static inline const tpu_node *tpu_producer_is(const tpu_graph *g, tpu_val v, tpu_hlo op) {
  const tpu_node *node = tpu_producer_of(g, v);
  return node && node->op == op ? node : NULL;
}

bool tpu_dims_equal(int rank, const int64_t *a, const int64_t *b);
bool tpu_attrs_equal(const tpu_attrs *a, const tpu_attrs *b); /* NULLs allowed */
const tpu_attrs *tpu_attrs_copy(tpu_arena *arena, const tpu_attrs *a);

/* Room for one more node, or n more values; false: out of memory. */
bool tpu_graph_grow_nodes(tpu_graph *g);
bool tpu_graph_grow_values(tpu_graph *g, uint32_t n);

/* Sets every value's mark: 1 on the first result of each node that an output needs, else 0. Writes scratch in the graph: one
 * caller at a time. */
void tpu_graph_mark_live(const tpu_graph *g);
static inline bool tpu_node_is_live(const tpu_graph *g, const tpu_node *node) {
  return node->n_results && tpu_value_at(g, node->first_result)->mark != 0;
}
/* Regions that may use only their parameters and constants (XLA has no captures there): all but those of WHILE and IF. */
static inline bool tpu_region_is_isolated(tpu_hlo op) { return op != TPU_HLO_WHILE && op != TPU_HLO_IF; }

/* --- appending */

/* A region being built. */
typedef struct tpu_block {
  struct tpu_block *parent;
  uint32_t id;
  bool isolated;
  uint32_t n_params, n_nodes, capacity;
  tpu_val *params; /* in the graph's arena, as `nodes` */
  uint32_t *nodes;
} tpu_block;
/* Opens a region with parameters of `types`; false: failed, and nothing is open. */
bool tpu_block_begin(tpu_build *b, tpu_block *block, bool isolated, uint32_t n_params, const tpu_type *types);
/* Closes it; false if building it failed. */
bool tpu_block_end(tpu_build *b, tpu_block *block, uint32_t n_returns, const tpu_val *returns, tpu_region *out);

/* Appends a node as it is (checked, but not folded), or finds an equal one. types: for ops whose type is not
 * implied by operands and attributes, the results' types; else NULL. attrs and types are copied, regions must live in the
 * graph's arena (tpu_block_end). False: failed, and out is poison. Any poison operand fails silently. */
typedef struct tpu_node_spec {
  tpu_hlo op;
  uint32_t n_operands, n_regions, n_results;
  const tpu_val *operands;
  const tpu_attrs *attrs;
  const tpu_region *regions;
  const tpu_type *types;
} tpu_node_spec;
bool tpu_build_node(tpu_build *b, const tpu_node_spec *spec, tpu_val *out);
/* One result; v, n: the attributes. */
tpu_val tpu_build_simple(tpu_build *b, tpu_hlo op, uint32_t n_operands, const tpu_val *operands, const int64_t *v, uint32_t n,
                         const tpu_type *type);

/* A splat constant of one element as host bytes. */
tpu_val tpu_splat_element(tpu_build *b, tpu_dtype dtype, int rank, const int64_t *dims, const void *element);
/* If v is a splat constant: its element, else NULL. */
const void *tpu_splat_of(const tpu_build *b, tpu_val v);
/* Keeps the first failure; takes `status` (NULL allowed). */
void tpu_build_fail(tpu_build *b, tpu_status status);

/* --- copying (build_copy.c) */

/* Copies node `index` of src, with its regions, to the end of b's graph. map has an entry for each value id of src
 * (src->n_values of them, poison where unknown): operands are looked up in it, results are stored in it. `visit`, if not NULL,
 * sees every node inside regions first and says whether it has dealt with it (and stored its results). */
typedef bool (*tpu_copy_visit)(tpu_build *b, const tpu_graph *src, uint32_t index, tpu_val *map, void *arg);
void tpu_graph_copy_node(tpu_build *b, const tpu_graph *src, uint32_t index, tpu_val *map, tpu_copy_visit visit, void *arg);

#endif
