#include "ir/graph_private.h"

static void copy_region(tpu_build *b, const tpu_graph *src, tpu_hlo op, const tpu_region *region, tpu_val *map,
                        tpu_copy_visit visit, void *arg, tpu_region *out) {
  uint32_t most = region->n_params > region->n_returns ? region->n_params : region->n_returns;
  tpu_type *types = tpu_build_alloc(b, sizeof *types * region->n_params);
  tpu_val *returns = tpu_build_alloc(b, sizeof *returns * most);
  tpu_block block;
  if (!types || !returns) return;
  for (uint32_t i = 0; i < region->n_params; i++) {
    types[i] = tpu_value_at(src, region->params[i].id)->type;
    if (b->graph == src) continue;
    /* Parameters' dims are not copied by the block: they belong to an operand there. */
    const int64_t *dims = tpu_arena_copy(&b->graph->arena, types[i].dims, sizeof *dims * (size_t)types[i].rank);
    if (!dims) {
      (void)tpu_fail(b, TPU_RESOURCE_EXHAUSTED, "out of host memory");
      return;
    }
    types[i].dims = dims;
  }
  if (!tpu_block_begin(b, &block, tpu_region_is_isolated(op), region->n_params, types)) return;
  for (uint32_t i = 0; i < region->n_params; i++) map[region->params[i].id] = block.params[i];
  for (uint32_t i = 0; i < region->n_nodes && !b->status; i++)
    if (!visit || !visit(b, src, region->nodes[i], map, arg)) tpu_graph_copy_node(b, src, region->nodes[i], map, visit, arg);
  for (uint32_t i = 0; i < region->n_returns; i++) returns[i] = map[region->returns[i].id];
  (void)tpu_block_end(b, &block, region->n_returns, returns, out);
}

void tpu_graph_copy_node(tpu_build *b, const tpu_graph *src, uint32_t index, tpu_val *map, tpu_copy_visit visit, void *arg) {
  const tpu_node *node = tpu_node_at(src, index);
  for (uint32_t i = 0; i < node->n_results; i++) map[node->first_result + i] = TPU_POISON;
  if (b->status) return;
  tpu_val *operands = tpu_build_alloc(b, sizeof *operands * node->n_operands);
  tpu_type *types = tpu_build_alloc(b, sizeof *types * node->n_results);
  tpu_region *regions = tpu_build_alloc(b, sizeof *regions * node->n_regions);
  if (!operands || !types || !regions) return;
  for (uint32_t i = 0; i < node->n_operands; i++) operands[i] = map[node->operands[i].id];
  for (uint32_t i = 0; i < node->n_results; i++) types[i] = tpu_value_at(src, node->first_result + i)->type;
  uint32_t scope = b->scope;
  b->scope = node->scope;
  for (uint32_t i = 0; i < node->n_regions && !b->status; i++)
    copy_region(b, src, (tpu_hlo)node->op, &node->regions[i], map, visit, arg, &regions[i]);
  tpu_node_spec spec = {.op = (tpu_hlo)node->op,
                        .n_operands = node->n_operands,
                        .n_regions = node->n_regions,
                        .n_results = node->n_results,
                        .operands = operands,
                        .attrs = node->attrs,
                        .regions = regions,
                        .types = types};
  if (tpu_build_node(b, &spec, &map[node->first_result])) {
    if (node->op == TPU_HLO_PARAM) b->graph->n_params++;
    if (node->op == TPU_HLO_SLOT && tpu_node_attr(node, 0) >= b->graph->n_slots)
      b->graph->n_slots = (uint32_t)tpu_node_attr(node, 0) + 1;
  }
  b->scope = scope;
}
