/* Graph -> text. Thread-compatible. */
#ifndef TPU_IR_EMIT_H
#define TPU_IR_EMIT_H

#include "base/strbuf.h"
#include "ir/build.h"

/* Replaces composite nodes by StableHLO for `target`; nodes that no output needs are left out. out: a graph with the
 * same params, slots and outputs, only of StableHLO/CHLO nodes. */
tpu_status tpu_graph_expand(const tpu_graph *graph, const tpu_target *target, tpu_graph *out) TPU_MUST_USE;

/* How slots reach the program: packed into at most two arrays, one of 32-bit words (ui32) and one of f64. */
typedef enum tpu_pack { TPU_PACK_WORDS, TPU_PACK_F64, TPU_PACK_COUNT } tpu_pack;
typedef struct tpu_slot_use {
  uint32_t index;  /* slot */
  tpu_dtype dtype; /* the value the program wants */
  tpu_pack pack;
  uint32_t at; /* first element in its pack: F32/F16/BF16/f8 one word holding a float32; integers up to 32 bits
                  and bool one word (sign-extended int32 / uint32); I64/U64 two words (low, high); F64 one f64;
                  C64 two words, C128 two f64 */
} tpu_slot_use;

typedef struct tpu_module { /* arrays live in the graph's arena */
  uint32_t n_params;        /* of the graph: function arguments 0 .. n_params - 1 that are used */
  const uint32_t *params;   /* for each function argument: its graph param number, ascending */
  const tpu_slot_use *slots;
  uint32_t n_slots;
  uint32_t pack_size[TPU_PACK_COUNT]; /* elements; 0: no such argument. Arguments follow the params, in this order. */
} tpu_module;

typedef struct tpu_alias {
  uint32_t param, output; /* graph param whose buffer the output may take; types must be equal */
} tpu_alias;

/* Emits `func.func public @main` of a module named `name` (letters, digits, _). Params that nothing uses are no arguments. An
 * alias of an unused param is ignored. The graph must be expanded. */
tpu_status tpu_graph_emit(tpu_graph *graph, const tpu_target *target, const char *name, const tpu_alias *aliases,
                          uint32_t n_aliases, tpu_strbuf *out_text, tpu_module *out_module) TPU_MUST_USE;

/* For people: one line a node, with composites. */
void tpu_graph_print(const tpu_graph *graph, tpu_strbuf *out);

#endif
