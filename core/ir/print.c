#include <string.h>

#include "ir/emit.h"
#include "ir/graph_private.h"
#include "ir/number.h"

static void put_type(tpu_strbuf *s, tpu_type t) {
  tpu_strbuf_put(s, tpu_dtype_hlo(t.dtype));
  tpu_strbuf_put(s, "[");
  for (int i = 0; i < t.rank; i++) {
    if (i) tpu_strbuf_put(s, ",");
    tpu_strbuf_put_i64(s, t.dims[i]);
  }
  tpu_strbuf_put(s, "]");
}

static void put_value(tpu_strbuf *s, const tpu_graph *g, tpu_val v) {
  tpu_strbuf_printf(s, "%%%u ", v.id);
  put_type(s, tpu_value_at(g, v.id)->type);
}

static void put_attrs(tpu_strbuf *s, const tpu_graph *g, const tpu_node *node) {
  const tpu_attrs *a = tpu_node_attrs(node);
  if (!a) return;
  tpu_strbuf_put(s, " {");
  for (uint32_t i = 0; i < a->n; i++) {
    if (i) tpu_strbuf_put(s, ", ");
    tpu_strbuf_put_i64(s, a->v[i]);
  }
  if (node->op == TPU_HLO_CUSTOM_CALL) {
    tpu_strbuf_put(s, ": ");
    tpu_strbuf_put_n(s, a->data, (size_t)a->v[0]);
  } else if (a->bytes) {
    tpu_dtype t = tpu_value_at(g, node->first_result)->type.dtype;
    if (a->bytes != (uint32_t)tpu_dtype_bytes(t))
      tpu_strbuf_printf(s, "%u bytes", a->bytes);
    else if (tpu_is_integral(t))
      tpu_strbuf_put_i64(s, tpu_number_to_int(t, a->data));
    else
      tpu_strbuf_printf(s, "%.9g", tpu_number_to_double(t, a->data));
  }
  tpu_strbuf_put(s, "}");
}

static void put_node(tpu_strbuf *s, const tpu_graph *g, const tpu_node *node, int depth) {
  for (int i = 0; i < depth; i++) tpu_strbuf_put(s, "  ");
  for (uint32_t i = 0; i < node->n_results; i++) {
    if (i) tpu_strbuf_put(s, ", ");
    put_value(s, g, (tpu_val){node->first_result + i});
  }
  tpu_strbuf_put(s, " = ");
  tpu_strbuf_put(s, tpu_hlo_info_get((tpu_hlo)node->op)->name);
  for (uint32_t i = 0; i < node->n_operands; i++) tpu_strbuf_printf(s, "%s%%%u", i ? ", " : " ", node->operands[i].id);
  put_attrs(s, g, node);
  tpu_strbuf_put(s, "\n");
  for (uint32_t k = 0; k < node->n_regions; k++) {
    const tpu_region *region = &node->regions[k];
    for (int i = 0; i <= depth; i++) tpu_strbuf_put(s, "  ");
    tpu_strbuf_put(s, "(");
    for (uint32_t i = 0; i < region->n_params; i++) {
      if (i) tpu_strbuf_put(s, ", ");
      put_value(s, g, region->params[i]);
    }
    tpu_strbuf_put(s, ") ->");
    for (uint32_t i = 0; i < region->n_returns; i++) tpu_strbuf_printf(s, " %%%u", region->returns[i].id);
    tpu_strbuf_put(s, "\n");
    for (uint32_t i = 0; i < region->n_nodes; i++) put_node(s, g, tpu_node_at(g, region->nodes[i]), depth + 2);
  }
}

void tpu_graph_print(const tpu_graph *g, tpu_strbuf *out) {
  for (uint32_t i = 0; i < g->n_nodes; i++)
    if (!tpu_node_at(g, i)->block) put_node(out, g, tpu_node_at(g, i), 0);
  tpu_strbuf_put(out, "return");
  for (uint32_t i = 0; i < g->n_outputs; i++) tpu_strbuf_printf(out, "%s%%%u", i ? ", " : " ", g->outputs[i].id);
  tpu_strbuf_put(out, "\n");
}
