/* Type inference: one rule for every node. Used by the builder when it appends and by the verifier afterwards. */
#ifndef TPU_IR_SHAPE_H
#define TPU_IR_SHAPE_H

#include "ir/graph_private.h"

/* The `rule` column of hlo.inc. */
enum { TPU_RULE_SAME, TPU_RULE_SAME_FLOAT, TPU_RULE_REAL, TPU_RULE_PRED, TPU_RULE_NODE };

typedef struct tpu_infer {
  const tpu_graph *graph;
  tpu_hlo op;
  uint32_t n_operands, n_regions, n_results;
  const tpu_val *operands;
  const tpu_attrs *attrs;
  const tpu_region *regions;
  /* n_results: on entry the types asked for where operands and attributes do not imply them (PARAM, SLOT, CONSTANT, IOTA,
   * CONVERT, RESHAPE, BITCAST_CONVERT, BROADCAST_IN_DIM, CUSTOM_CALL, RNG_BIT_GENERATOR, RANDOM_BITS; of DOT_GENERAL and
   * CONVOLUTION the dtype); on return the results' types, with dims that belong to an operand, to the caller or to `dims`. */
  tpu_type *types;
  int64_t dims[TPU_MAX_RANK];
} tpu_infer;

/* Checks operands, attributes and regions, and fills in->types. INVALID_ARGUMENT says what is wrong, without the op's name. */
tpu_status tpu_infer_types(tpu_infer *in) TPU_MUST_USE;

/* --- for the files of rules */
static inline tpu_type tpu_infer_operand(const tpu_infer *in, uint32_t i) {
  return tpu_value_at(in->graph, in->operands[i].id)->type;
}
/* "f32[2,3]" */
typedef struct tpu_type_text {
  char text[200];
} tpu_type_text;
const char *tpu_type_print(tpu_type_text *buffer, tpu_type type);
/* The node's attributes have n numbers, or at least n. */
tpu_status tpu_infer_attr_count(const tpu_infer *in, uint32_t n) TPU_MUST_USE;
/* n distinct dims, each in [0, rank). */
tpu_status tpu_infer_dims_distinct(const char *what, int n, const int64_t *dims, int rank) TPU_MUST_USE;
/* One region of `n_params` scalar parameters of dtypes[i % n] that returns n_returns scalars, of `returns[i]`. */
tpu_status tpu_infer_scalar_region(const tpu_infer *in, uint32_t region, uint32_t n_params, const tpu_dtype *params,
                                   uint32_t n_returns, const tpu_dtype *returns) TPU_MUST_USE;

/* The rules that are more than the table's column. */
typedef tpu_status (*tpu_rule)(tpu_infer *in);
tpu_status tpu_rule_cholesky(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_convolution(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_dot_general(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_fft(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_reduce(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_reduce_window(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_select_and_scatter(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_triangular_solve(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_gather(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_scatter(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_sort(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_custom_call(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_optimization_barrier(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_rng_bit_generator(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_while(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_if(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_cumulative(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_top_k(tpu_infer *in) TPU_MUST_USE;
tpu_status tpu_rule_random_bits(tpu_infer *in) TPU_MUST_USE;

#endif
