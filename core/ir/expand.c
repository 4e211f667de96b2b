#include "ir/expand.h"

#include "ir/emit.h"
#include "ir/graph_private.h"

static bool expand_node(tpu_build *b, const tpu_graph *src, uint32_t index, tpu_val *map, void *arg);

/* A dot of half-precision operands into float32 takes them as float32: their products are exact there. */
static bool widen_dot(tpu_build *b, const tpu_graph *src, uint32_t index, tpu_val *map) {
  const tpu_node *node = tpu_node_at(src, index);
  uint32_t id[2] = {node->operands[0].id, node->operands[1].id};
  tpu_type x = tpu_value_at(src, id[0])->type, y = tpu_value_at(src, id[1])->type;
  bool half = x.dtype == TPU_BF16 || x.dtype == TPU_F16;
  if (!half || x.dtype != y.dtype || tpu_value_at(src, node->first_result)->type.dtype != TPU_F32) return false;
  if (x.rank == 2 && y.rank == 2 && tpu_node_attr(node, 0) == 0 && tpu_node_attr(node, 1) == 1) return false;
  tpu_val kept[2] = {map[id[0]], map[id[1]]};
  for (int i = 0; i < 2; i++)
    if (i == 0 || id[1] != id[0]) map[id[i]] = tpu_convert(b, kept[i], TPU_F32);
  tpu_graph_copy_node(b, src, index, map, expand_node, NULL);
  for (int i = 0; i < 2; i++) map[id[i]] = kept[i];
  return true;
}

static bool is_row_max(const tpu_graph *src, const tpu_node *node) {
  const tpu_attrs *a = node->attrs;
  if (node->n_operands != 2 || a->n != 1 || node->regions[0].n_nodes != 1) return false;
  if (a->v[0] != tpu_value_at(src, node->operands[0].id)->type.rank - 1) return false;
  return tpu_node_at(src, node->regions[0].nodes[0])->op == TPU_HLO_MAXIMUM;
}

/* Builds the node anew if the target wants another form of it. */
static bool expand_node(tpu_build *b, const tpu_graph *src, uint32_t index, tpu_val *map, void *arg) {
  (void)arg;
  const tpu_node *node = tpu_node_at(src, index);
  uint32_t scope = b->scope;
  tpu_val x = node->n_operands ? map[node->operands[0].id] : TPU_POISON, *out = &map[node->first_result];
  b->scope = node->scope;
  bool done = true;
  switch (node->op) {
    case TPU_HLO_CUMULATIVE:
      out[0] = tpu_expand_cumulative(b, (tpu_monoid)tpu_node_attr(node, 0), x, (int)tpu_node_attr(node, 1),
                                     tpu_node_attr(node, 2) != 0);
      break;
    case TPU_HLO_TOP_K: tpu_expand_top_k(b, x, tpu_node_attr(node, 0), tpu_node_attr(node, 1) != 0, out); break;
    case TPU_HLO_RANDOM_BITS: {
      tpu_type t = tpu_value_at(src, node->first_result)->type;
      out[0] = tpu_expand_random_bits(b, x, t.dtype, t.rank, t.dims);
      break;
    }
    case TPU_HLO_CHLO_ATAN: /* recorded, perhaps, for another target */
      done = b->target->atan_is_broken;
      if (done) out[0] = tpu_unary(b, TPU_HLO_CHLO_ATAN, x);
      break;
    case TPU_HLO_REDUCE: done = is_row_max(src, node) && tpu_expand_row_max(b, x, map[node->operands[1].id], out); break;
    case TPU_HLO_DOT_GENERAL: done = b->target->widens_half_dots && widen_dot(b, src, index, map); break;
    default: done = false;
  }
  b->scope = scope;
  return done;
}

tpu_status tpu_graph_expand(const tpu_graph *src, const tpu_target *target, tpu_graph *out) {
  tpu_build b;
  tpu_graph_reset(out);
  tpu_build_init(&b, out, target);
  tpu_val *map = tpu_arena_calloc(&out->arena, src->n_values, sizeof *map);
  tpu_val *outputs = tpu_arena_alloc(&out->arena, (src->n_outputs + 1) * sizeof *outputs);
  if (!map || !outputs) return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  tpu_graph_mark_live(src);
  for (uint32_t i = 0; i < src->n_nodes && !b.status; i++) {
    const tpu_node *node = tpu_node_at(src, i);
    /* Params that nothing needs stay, so that numbers keep their meaning. */
    if (node->block || (node->op != TPU_HLO_PARAM && !tpu_node_is_live(src, node))) continue;
    if (!expand_node(&b, src, i, map, NULL)) tpu_graph_copy_node(&b, src, i, map, expand_node, NULL);
  }
  TPU_TRY(tpu_build_status(&b));
  for (uint32_t i = 0; i < src->n_outputs; i++) outputs[i] = map[src->outputs[i].id];
  out->n_slots = src->n_slots;
  return tpu_graph_set_outputs(out, outputs, src->n_outputs);
}
