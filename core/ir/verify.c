#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ir/shape.h"

/* A nested block, as the verifier learns of it. */
typedef struct scope {
  uint32_t parent;
  bool isolated;
} scope;

typedef struct verifier {
  const tpu_graph *graph;
  scope *scopes; /* by block number; 0 is the top level */
} verifier;

/* The block a value stands in. */
static uint32_t block_of(const tpu_graph *g, tpu_val v) {
  const tpu_value *value = tpu_value_at(g, v.id);
  return value->node == TPU_NO_NODE ? value->result : tpu_node_at(g, value->node)->block;
}

/* May a node of block `at` use v, known to be made before it? */
static tpu_status check_visible(const verifier *f, tpu_val v, uint32_t at) {
  uint32_t want = block_of(f->graph, v);
  const tpu_node *producer = tpu_producer_of(f->graph, v);
  bool constant = producer && producer->op == TPU_HLO_CONSTANT;
  for (; at != want; at = f->scopes[at].parent) {
    if (at == 0) return tpu_error(TPU_INTERNAL, "value %u belongs to another block", v.id);
    if (f->scopes[at].isolated && !constant)
      return tpu_error(TPU_INTERNAL, "value %u is captured by a region that may use only its parameters and constants", v.id);
  }
  return NULL;
}

static tpu_status check_use(const verifier *f, tpu_val v, uint32_t before, uint32_t block) {
  if (!v.id || v.id >= before) return tpu_error(TPU_INTERNAL, "value %u is used before it is made", v.id);
  return check_visible(f, v, block);
}

static tpu_status check_types(const tpu_graph *g, const tpu_node *node, tpu_type *scratch) {
  tpu_infer in;
  in.graph = g;
  in.op = (tpu_hlo)node->op;
  in.n_operands = node->n_operands;
  in.n_regions = node->n_regions;
  in.n_results = node->n_results;
  in.operands = node->operands;
  in.attrs = node->attrs;
  in.regions = node->regions;
  in.types = scratch;
  for (uint32_t i = 0; i < node->n_results; i++) scratch[i] = tpu_value_at(g, node->first_result + i)->type;
  TPU_TRY(tpu_infer_types(&in));
  for (uint32_t i = 0; i < node->n_results; i++) {
    tpu_type_text have = {{0}}, want = {{0}};
    tpu_type t = tpu_value_at(g, node->first_result + i)->type;
    if (!tpu_type_equal(t, scratch[i]))
      return tpu_error(TPU_INTERNAL, "result %u is %s, by its rule %s", i, tpu_type_print(&have, t),
                       tpu_type_print(&want, scratch[i]));
  }
  return NULL;
}

static tpu_status check_node(verifier *f, uint32_t index, tpu_type *scratch) {
  const tpu_graph *g = f->graph;
  const tpu_node *node = tpu_node_at(g, index);
  if (node->op >= TPU_HLO_COUNT) return tpu_error(TPU_INTERNAL, "no such op");
  if (node->block > g->n_blocks || node->first_result + node->n_results > g->n_values)
    return tpu_error(TPU_INTERNAL, "numbers out of range");
  for (uint32_t i = 0; i < node->n_operands; i++) TPU_TRY(check_use(f, node->operands[i], node->first_result, node->block));
  for (uint32_t k = 0; k < node->n_regions; k++) {
    const tpu_region *region = &node->regions[k];
    uint32_t block = 0;
    if (region->n_params)
      block = tpu_value_at(g, region->params[0].id)->result;
    else if (region->n_nodes)
      block = tpu_node_at(g, region->nodes[0])->block;
    for (uint32_t i = 0; i < region->n_nodes; i++)
      if (region->nodes[i] >= index || tpu_node_at(g, region->nodes[i])->block != block)
        return tpu_error(TPU_INTERNAL, "node %u is not of region %u", region->nodes[i], k);
    for (uint32_t i = 0; i < region->n_returns; i++)
      TPU_TRY(check_use(f, region->returns[i], node->first_result, block ? block : node->block));
  }
  return check_types(g, node, scratch);
}

/* A region's nodes come before the node it belongs to, so the blocks' parents are learnt first. */
static void learn_scopes(verifier *f) {
  const tpu_graph *g = f->graph;
  for (uint32_t i = 0; i < g->n_nodes; i++) {
    const tpu_node *node = tpu_node_at(g, i);
    for (uint32_t k = 0; k < node->n_regions; k++) {
      const tpu_region *region = &node->regions[k];
      uint32_t block = 0;
      if (region->n_params)
        block = tpu_value_at(g, region->params[0].id)->result;
      else if (region->n_nodes)
        block = tpu_node_at(g, region->nodes[0])->block;
      if (block && block <= g->n_blocks) f->scopes[block] = (scope){node->block, tpu_region_is_isolated((tpu_hlo)node->op)};
    }
  }
}

tpu_status tpu_graph_verify(const tpu_graph *g) {
  uint32_t most = 1;
  for (uint32_t i = 0; i < g->n_nodes; i++)
    if (tpu_node_at(g, i)->n_results > most) most = tpu_node_at(g, i)->n_results;
  verifier f = {g, tpu_calloc(g->n_blocks + (size_t)1, sizeof *f.scopes)};
  tpu_type *scratch = tpu_calloc(most, sizeof *scratch);
  tpu_status status = f.scopes && scratch ? NULL : tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  if (!status) learn_scopes(&f);
  for (uint32_t i = 0; i < g->n_nodes && !status; i++) {
    status = check_node(&f, i, scratch);
    if (!status) continue;
    const tpu_node *node = tpu_node_at(g, i);
    const char *name = node->op < TPU_HLO_COUNT ? tpu_hlo_info_get((tpu_hlo)node->op)->name : "?";
    tpu_status wrapped = tpu_error(TPU_INTERNAL, "node %u (%s): %s", i, name, tpu_status_message(status));
    tpu_status_release(status);
    status = wrapped;
  }
  for (uint32_t i = 0; i < g->n_outputs && !status; i++) status = check_use(&f, g->outputs[i], g->n_values, 0);
  tpu_free(scratch);
  tpu_free(f.scopes);
  return status;
}
