#include "ir/emit.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ir/emit_private.h"

typedef struct emitter {
  tpu_graph *graph;
  tpu_strbuf *out;
  tpu_status status;
  uint32_t next; /* number of the next value; a value's mark is its number + 1 */
  bool isolated; /* inside a region that XLA lets capture nothing */
  uint32_t base; /* while isolated: values with a smaller id come from outside */
} emitter;

static void put_number(emitter *e, uint32_t number) {
  EMIT(e->out, "%");
  tpu_strbuf_put_u64(e->out, number);
}

static void put_value(emitter *e, tpu_val v) {
  const tpu_value *value = tpu_value_at(e->graph, v.id);
  const tpu_node *node = tpu_producer_of(e->graph, v);
  if (node && node->n_results > 1) {
    put_number(e, tpu_value_at(e->graph, node->first_result)->mark - 1);
    EMIT(e->out, "#");
    tpu_strbuf_put_u64(e->out, value->result);
  } else {
    put_number(e, value->mark - 1);
  }
}

static void put_types(emitter *e, uint32_t n, const tpu_val *values) {
  for (uint32_t i = 0; i < n; i++) {
    if (i) EMIT(e->out, ", ");
    tpu_emit_type(e->out, tpu_value_at(e->graph, values[i].id)->type);
  }
}

static void put_values(emitter *e, uint32_t n, const tpu_val *values) {
  for (uint32_t i = 0; i < n; i++) {
    if (i) EMIT(e->out, ", ");
    put_value(e, values[i]);
  }
}

static void put_result_types(emitter *e, const tpu_node *node) {
  if (node->n_results != 1) EMIT(e->out, "(");
  for (uint32_t i = 0; i < node->n_results; i++) {
    if (i) EMIT(e->out, ", ");
    tpu_emit_type(e->out, tpu_value_at(e->graph, node->first_result + i)->type);
  }
  if (node->n_results != 1) EMIT(e->out, ")");
}

/* A line `%n = "stablehlo.op"(%x) {attrs} : (from) -> to` that stands for no node. Returns n. */
static uint32_t put_line(emitter *e, const char *op, uint32_t n, const uint32_t *operands, const char *attrs, tpu_type from,
                         tpu_type to) {
  tpu_strbuf *s = e->out;
  uint32_t number = e->next++;
  EMIT(s, "    ");
  put_number(e, number);
  EMIT(s, " = \"stablehlo.");
  tpu_strbuf_put(s, op);
  EMIT(s, "\"(");
  for (uint32_t i = 0; i < n; i++) {
    if (i) EMIT(s, ", ");
    put_number(e, operands[i]);
  }
  EMIT(s, ")");
  tpu_strbuf_put(s, attrs);
  EMIT(s, " : (");
  for (uint32_t i = 0; i < n; i++) {
    if (i) EMIT(s, ", ");
    tpu_emit_type(s, from);
  }
  EMIT(s, ") -> ");
  tpu_emit_type(s, to);
  EMIT(s, "\n");
  return number;
}

/* --- constants */

/* A large splat is a scalar and a broadcast: XLA would make a literal of all its elements. */
static void put_constant(emitter *e, const tpu_node *node) {
  enum { LARGE = 16 };
  tpu_strbuf *s = e->out;
  tpu_value *value = tpu_value_at(e->graph, node->first_result);
  const tpu_attrs *attrs = tpu_node_attrs(node);
  tpu_type scalar = {value->type.dtype, 0, NULL};
  bool splits = attrs->bytes == (uint32_t)tpu_dtype_bytes(scalar.dtype) && tpu_type_numel(value->type) > LARGE;
  uint32_t number = e->next++;
  EMIT(s, "    ");
  put_number(e, number);
  EMIT(s, " = \"stablehlo.constant\"() {value = ");
  tpu_emit_dense(s, splits ? scalar : value->type, attrs->data, attrs->bytes);
  EMIT(s, "} : () -> ");
  tpu_emit_type(s, splits ? scalar : value->type);
  EMIT(s, "\n");
  if (splits) number = put_line(e, "broadcast_in_dim", 1, &number, " {broadcast_dimensions = array<i64>}", scalar, value->type);
  value->mark = number + 1;
}

/* Constants used inside an isolated region, but made outside of it, are made again inside. */
typedef struct sunk {
  struct sunk *previous;
  uint32_t id, mark;
} sunk;

static void sink(emitter *e, tpu_val v, sunk **list) {
  const tpu_node *node = tpu_producer_of(e->graph, v);
  if (v.id >= e->base) return;
  for (sunk *s = *list; s; s = s->previous)
    if (s->id == v.id) return;
  if (!node || node->op != TPU_HLO_CONSTANT) {
    if (!e->status)
      e->status = tpu_error(TPU_INTERNAL, "emit: a region captures value %u (%s), which is no constant", v.id,
                            node ? tpu_hlo_info_get((tpu_hlo)node->op)->name : "a parameter");
    return;
  }
  sunk *s = tpu_arena_alloc(&e->graph->arena, sizeof *s);
  if (!s) return;
  *s = (sunk){*list, v.id, tpu_value_at(e->graph, v.id)->mark};
  *list = s;
  put_constant(e, node);
}

/* --- nodes */

static void put_node(emitter *e, const tpu_node *node);

static void put_region(emitter *e, tpu_hlo op, const tpu_region *region) {
  const tpu_graph *g = e->graph;
  tpu_strbuf *s = e->out;
  bool was_isolated = e->isolated;
  uint32_t was_base = e->base;
  sunk *sunk_values = NULL;
  EMIT(s, "{\n");
  if (region->n_params) {
    EMIT(s, "    ^bb0(");
    for (uint32_t i = 0; i < region->n_params; i++) {
      tpu_value *value = tpu_value_at(g, region->params[i].id);
      value->mark = ++e->next;
      if (i) EMIT(s, ", ");
      put_number(e, value->mark - 1);
      EMIT(s, ": ");
      tpu_emit_type(s, value->type);
    }
    EMIT(s, "):\n");
  }
  if (!e->isolated && tpu_region_is_isolated(op) && region->n_params) {
    e->isolated = true;
    e->base = region->params[0].id; /* values made inside come after its parameters */
    for (uint32_t i = 0; i < region->n_nodes; i++) {
      const tpu_node *node = tpu_node_at(g, region->nodes[i]);
      if (!tpu_node_is_live(g, node)) continue;
      for (uint32_t k = 0; k < node->n_operands; k++) sink(e, node->operands[k], &sunk_values);
    }
    for (uint32_t i = 0; i < region->n_returns; i++) sink(e, region->returns[i], &sunk_values);
  }
  for (uint32_t i = 0; i < region->n_nodes; i++) put_node(e, tpu_node_at(g, region->nodes[i]));
  EMIT(s, "    \"stablehlo.return\"(");
  put_values(e, region->n_returns, region->returns);
  EMIT(s, ") : (");
  put_types(e, region->n_returns, region->returns);
  EMIT(s, ") -> ()\n    }");
  for (; sunk_values; sunk_values = sunk_values->previous) tpu_value_at(g, sunk_values->id)->mark = sunk_values->mark;
  e->isolated = was_isolated;
  e->base = was_base;
}

static void put_node(emitter *e, const tpu_node *node) {
  const tpu_graph *g = e->graph;
  tpu_strbuf *s = e->out;
  tpu_hlo op = (tpu_hlo)node->op;
  if (!tpu_node_is_live(g, node) || op == TPU_HLO_PARAM || op == TPU_HLO_SLOT) return;
  if (op >= TPU_HLO_CUMULATIVE) {
    if (!e->status) e->status = tpu_error(TPU_INTERNAL, "emit: %s is not expanded", tpu_hlo_info_get(op)->name);
    return;
  }
  if (op == TPU_HLO_CONSTANT) {
    put_constant(e, node);
    return;
  }
  const char *name = tpu_hlo_info_get(op)->name;
  uint32_t number = e->next++;
  EMIT(s, "    ");
  put_number(e, number);
  if (node->n_results > 1) {
    EMIT(s, ":");
    tpu_strbuf_put_u64(s, node->n_results);
  }
  EMIT(s, " = \"");
  if (!strchr(name, '.')) EMIT(s, "stablehlo.");
  tpu_strbuf_put(s, name);
  EMIT(s, "\"(");
  put_values(e, node->n_operands, node->operands);
  EMIT(s, ")");
  if (node->n_regions) {
    EMIT(s, " (");
    for (uint32_t i = 0; i < node->n_regions; i++) {
      if (i) EMIT(s, ", ");
      put_region(e, op, &node->regions[i]);
    }
    EMIT(s, ")");
  }
  tpu_emit_attrs(s, g, node);
  EMIT(s, " : (");
  put_types(e, node->n_operands, node->operands);
  EMIT(s, ") -> ");
  put_result_types(e, node);
  EMIT(s, "\n");
  tpu_value_at(g, node->first_result)->mark = number + 1;
}

/* --- the function: parameters, slots, results */

static int compare_slots(const void *a, const void *b) {
  const tpu_slot_use *x = a, *y = b;
  if (x->index != y->index) return x->index < y->index ? -1 : 1;
  return (int)x->dtype - (int)y->dtype;
}

static uint32_t slot_elements(tpu_dtype t, tpu_pack *out_pack) {
  *out_pack = t == TPU_F64 || t == TPU_C128 ? TPU_PACK_F64 : TPU_PACK_WORDS;
  return t == TPU_I64 || t == TPU_U64 || t == TPU_C64 || t == TPU_C128 ? 2 : 1;
}

static tpu_status collect_inputs(tpu_graph *g, tpu_module *m) {
  uint32_t n_params = 0, n_slots = 0;
  for (uint32_t i = 0; i < g->n_nodes; i++) {
    const tpu_node *node = tpu_node_at(g, i);
    if (!tpu_node_is_live(g, node)) continue;
    n_params += node->op == TPU_HLO_PARAM;
    n_slots += node->op == TPU_HLO_SLOT;
  }
  uint32_t *params = TPU_ARENA_ARRAY(&g->arena, uint32_t, n_params);
  tpu_slot_use *slots = TPU_ARENA_ARRAY(&g->arena, tpu_slot_use, n_slots);
  if (!params || !slots) return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  for (uint32_t i = 0; i < g->n_nodes; i++) {
    const tpu_node *node = tpu_node_at(g, i);
    if (!tpu_node_is_live(g, node)) continue;
    if (node->op == TPU_HLO_PARAM) params[m->n_params++] = (uint32_t)tpu_node_attr(node, 0);
    if (node->op == TPU_HLO_SLOT)
      slots[m->n_slots++] =
          (tpu_slot_use){.index = (uint32_t)tpu_node_attr(node, 0), .dtype = tpu_value_at(g, node->first_result)->type.dtype};
  }
  if (n_slots > 1) qsort(slots, n_slots, sizeof *slots, compare_slots);
  for (uint32_t i = 0; i < n_slots; i++) {
    uint32_t n = slot_elements(slots[i].dtype, &slots[i].pack);
    slots[i].at = m->pack_size[slots[i].pack];
    m->pack_size[slots[i].pack] += n;
  }
  m->params = params;
  m->slots = slots;
  return NULL;
}

static tpu_type pack_type(tpu_pack pack, const int64_t *size) {
  return (tpu_type){pack == TPU_PACK_F64 ? TPU_F64 : TPU_U32, 1, size};
}

/* Element `at` of a pack as a scalar. */
static uint32_t put_element(emitter *e, const tpu_module *m, tpu_pack pack, uint32_t argument, uint32_t at) {
  static const int64_t one = 1;
  int64_t size = m->pack_size[pack];
  tpu_type whole = pack_type(pack, &size), element = pack_type(pack, &one), scalar = {element.dtype, 0, NULL};
  if (size > 1) {
    tpu_strbuf *s = e->out;
    uint32_t number = e->next++;
    EMIT(s, "    ");
    put_number(e, number);
    EMIT(s, " = \"stablehlo.slice\"(");
    put_number(e, argument);
    tpu_strbuf_printf(
        s, ") {start_indices = array<i64: %" PRIu32 ">, limit_indices = array<i64: %" PRIu32 ">, strides = array<i64: 1>} : (",
        at, at + 1);
    tpu_emit_type(s, whole);
    EMIT(s, ") -> ");
    tpu_emit_type(s, element);
    EMIT(s, "\n");
    argument = number;
  }
  return put_line(e, "reshape", 1, &argument, "", element, scalar);
}

static uint32_t put_scalar_constant(emitter *e, const char *text, tpu_type type) {
  tpu_strbuf *s = e->out;
  uint32_t number = e->next++;
  EMIT(s, "    ");
  put_number(e, number);
  tpu_strbuf_printf(s, " = \"stablehlo.constant\"() {value = dense<%s> : ", text);
  tpu_emit_type(s, type);
  EMIT(s, "} : () -> ");
  tpu_emit_type(s, type);
  EMIT(s, "\n");
  return number;
}

static const tpu_type word_type = {TPU_U32, 0, NULL}, i32_type = {TPU_I32, 0, NULL}, f32_type = {TPU_F32, 0, NULL},
                      f64_type = {TPU_F64, 0, NULL};

/* 64-bit integers are put together from words, since a bitcast between 32 and 64 bits is no good on TPUs. */
static uint32_t put_wide(emitter *e, const uint32_t words[2], tpu_type type) {
  uint32_t shift = put_scalar_constant(e, "32", type), pair[2];
  uint32_t low = put_line(e, "convert", 1, &words[0], "", word_type, type);
  pair[0] = put_line(e, "convert", 1, &words[1], "", word_type, type);
  pair[1] = shift;
  pair[0] = put_line(e, "shift_left", 2, pair, "", type, type);
  pair[1] = low;
  return put_line(e, "or", 2, pair, "", type, type);
}

static uint32_t put_slot(emitter *e, const tpu_module *m, const tpu_slot_use *use, uint32_t argument) {
  tpu_type type = {use->dtype, 0, NULL};
  tpu_pack pack;
  uint32_t parts[2] = {0, 0}, n = slot_elements(use->dtype, &pack);
  for (uint32_t i = 0; i < n; i++) parts[i] = put_element(e, m, pack, argument, use->at + i);
  switch (tpu_dtype_kind(use->dtype)) {
    case TPU_KIND_BOOL:
      parts[1] = put_scalar_constant(e, "0", word_type);
      return put_line(
          e, "compare", 2, parts,
          " {comparison_direction = #stablehlo<comparison_direction NE>, compare_type = #stablehlo<comparison_type UNSIGNED>}",
          word_type, type);
    case TPU_KIND_UINT:
      if (n == 2) return put_wide(e, parts, type);
      return use->dtype == TPU_U32 ? parts[0] : put_line(e, "convert", 1, parts, "", word_type, type);
    case TPU_KIND_INT:
      if (n == 2) return put_wide(e, parts, type);
      parts[0] = put_line(e, "bitcast_convert", 1, parts, "", word_type, i32_type);
      return use->dtype == TPU_I32 ? parts[0] : put_line(e, "convert", 1, parts, "", i32_type, type);
    case TPU_KIND_FLOAT:
      if (use->dtype == TPU_F64) return parts[0];
      parts[0] = put_line(e, "bitcast_convert", 1, parts, "", word_type, f32_type);
      return use->dtype == TPU_F32 ? parts[0] : put_line(e, "convert", 1, parts, "", f32_type, type);
    case TPU_KIND_COMPLEX:
      for (uint32_t i = 0; i < 2 && use->dtype == TPU_C64; i++)
        parts[i] = put_line(e, "bitcast_convert", 1, &parts[i], "", word_type, f32_type);
      return put_line(e, "complex", 2, parts, "", use->dtype == TPU_C64 ? f32_type : f64_type, type);
  }
  return 0;
}

/* Arguments: the used params, then the packs. Gives their values numbers; out_packs: the packs' numbers. */
static tpu_status put_arguments(emitter *e, const tpu_module *m, const tpu_alias *aliases, uint32_t n_aliases,
                                uint32_t out_packs[TPU_PACK_COUNT]) {
  tpu_graph *g = e->graph;
  tpu_strbuf *s = e->out;
  uint32_t at = 0;
  uint8_t *taken = tpu_arena_calloc(&g->arena, g->n_outputs + 1, 1);
  if (!taken) return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  for (uint32_t i = 0; i < g->n_nodes && at < m->n_params; i++) {
    const tpu_node *node = tpu_node_at(g, i);
    if (node->op != TPU_HLO_PARAM || !tpu_node_is_live(g, node)) continue;
    tpu_value *value = tpu_value_at(g, node->first_result);
    value->mark = ++e->next;
    if (at) EMIT(s, ", ");
    put_number(e, value->mark - 1);
    EMIT(s, ": ");
    tpu_emit_type(s, value->type);
    bool aliased = false;
    for (uint32_t k = 0; k < n_aliases; k++) {
      if (aliases[k].param != m->params[at]) continue;
      uint32_t output = aliases[k].output;
      if (output >= g->n_outputs || taken[output] || aliased ||
          !tpu_type_equal(value->type, tpu_value_at(g, g->outputs[output].id)->type))
        return tpu_error(TPU_INTERNAL, "emit: param %u cannot alias output %u", aliases[k].param, output);
      taken[output] = 1;
      aliased = true;
      EMIT(s, " {tf.aliasing_output = ");
      tpu_strbuf_put_u64(s, output);
      EMIT(s, " : i32}");
    }
    at++;
  }
  for (uint32_t pack = 0; pack < TPU_PACK_COUNT; pack++) {
    if (!m->pack_size[pack]) continue;
    int64_t size = m->pack_size[pack];
    if (at++) EMIT(s, ", ");
    put_number(e, out_packs[pack] = e->next++);
    EMIT(s, ": ");
    tpu_emit_type(s, pack_type((tpu_pack)pack, &size));
  }
  return NULL;
}

/* In the order of the packs, whatever the order the slots were made in. */
static tpu_status put_slots(emitter *e, const tpu_module *m, const uint32_t packs[TPU_PACK_COUNT]) {
  const tpu_graph *g = e->graph;
  if (!m->n_slots) return NULL;
  tpu_value **values = TPU_ARENA_ARRAY(&e->graph->arena, tpu_value *, m->n_slots);
  if (!values) return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  for (uint32_t i = 0; i < g->n_nodes; i++) {
    const tpu_node *node = tpu_node_at(g, i);
    if (node->op != TPU_HLO_SLOT || !tpu_node_is_live(g, node)) continue;
    tpu_value *value = tpu_value_at(g, node->first_result);
    tpu_slot_use key = {.index = (uint32_t)tpu_node_attr(node, 0), .dtype = value->type.dtype};
    const tpu_slot_use *use = bsearch(&key, m->slots, m->n_slots, sizeof key, compare_slots);
    values[use - m->slots] = value;
  }
  for (uint32_t i = 0; i < m->n_slots; i++) values[i]->mark = put_slot(e, m, &m->slots[i], packs[m->slots[i].pack]) + 1;
  return NULL;
}

static bool name_ok(const char *name) {
  static const char legal[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  return *name && (*name < '0' || *name > '9') && strspn(name, legal) == strlen(name);
}

tpu_status tpu_graph_emit(tpu_graph *g, const tpu_target *target, const char *name, const tpu_alias *aliases, uint32_t n_aliases,
                          tpu_strbuf *s, tpu_module *out_module) {
  (void)target; /* nodes already carry what depends on it */
  if (!name_ok(name)) return tpu_error(TPU_INVALID_ARGUMENT, "emit: \"%s\" is no module name", name);
  emitter e = {.graph = g, .out = s};
  tpu_module m = {0};
  uint32_t packs[TPU_PACK_COUNT] = {0};
  tpu_graph_mark_live(g);
  TPU_TRY(collect_inputs(g, &m));
  EMIT(s, "module @");
  tpu_strbuf_put(s, name);
  EMIT(s, " {\n  func.func public @main(");
  TPU_TRY(put_arguments(&e, &m, aliases, n_aliases, packs));
  EMIT(s, ") -> (");
  put_types(&e, g->n_outputs, g->outputs);
  EMIT(s, ") {\n");
  TPU_TRY(put_slots(&e, &m, packs));
  for (uint32_t i = 0; i < g->n_nodes && !e.status; i++)
    if (!tpu_node_at(g, i)->block) put_node(&e, tpu_node_at(g, i));
  EMIT(s, "    \"func.return\"(");
  put_values(&e, g->n_outputs, g->outputs);
  EMIT(s, ") : (");
  put_types(&e, g->n_outputs, g->outputs);
  EMIT(s, ") -> ()\n  }\n}\n");
  TPU_TRY(e.status);
  if (s->failed || g->arena.failed) return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  *out_module = m;
  return NULL;
}
