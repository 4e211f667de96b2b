/* tpu_attrs: the attributes of a node, as numbers and bytes without pointers in them, so that comparing, hashing and
 * copying need no knowledge of the op. `node->attrs` is a `const tpu_attrs *`, or NULL where the table says "none".
 *
 * What v holds (r: rank of operand 0; s: spatial dims; a name with [n] is n entries):
 *   PARAM        number                          SLOT          index
 *   CONSTANT     none; data: one element (splat) or all of them, row-major
 *   IOTA         dim                             COMPARE       tpu_compare_dir, total order
 *   REDUCE_PRECISION  exponent, mantissa bits    BROADCAST_IN_DIM  map[r]
 *   CONCATENATE  dim                             DYNAMIC_SLICE sizes[r]
 *   PAD          lo[r], hi[r], interior[r]       REVERSE       dims[]
 *   SLICE        start[r], limit[r], stride[r]   TRANSPOSE     permutation[r]
 *   CHOLESKY     lower                           TRIANGULAR_SOLVE  left, lower, unit, transpose (0, 1 T, 2 H)
 *   DOT_GENERAL  n_batch, n_contract, tpu_precision, lhs_batch[], rhs_batch[], lhs_contract[], rhs_contract[]
 *   CONVOLUTION  the TPU_CONV_* numbers, then strides[s], pad_lo[s], pad_hi[s], lhs_dilation[s], rhs_dilation[s],
 *                reversal[s], lhs_spatial[s], rhs_spatial[s], out_spatial[s]
 *   FFT          tpu_fft_kind, lengths[]         REDUCE        axes[]
 *   REDUCE_WINDOW, SELECT_AND_SCATTER            dims[r], strides[r], base_dilation[r], dilation[r], lo[r], hi[r]
 *   GATHER       n_offset, n_collapsed, n_batch, n_map, index_vector_dim, sorted, then offset[], collapsed[],
 *                operand_batch[], indices_batch[], start_index_map[], slice_sizes[r]
 *   SCATTER      n_window, n_inserted, n_batch, n_map, index_vector_dim, sorted, unique, then window[], inserted[],
 *                operand_batch[], indices_batch[], scatter_map[]
 *   SORT         dim, stable                     RNG_BIT_GENERATOR tpu_rng_algorithm
 *   CUSTOM_CALL  length of the target's name, of the backend config; data: both, one after the other
 *   CUMULATIVE   tpu_monoid, dim, reverse        TOP_K         k, largest
 * May include: base, ir.
 */
#ifndef TPU_IR_ATTRS_H
#define TPU_IR_ATTRS_H

#include "ir/graph.h"

typedef struct tpu_attrs {
  uint32_t n, bytes;
  const int64_t *v;
  const void *data;
} tpu_attrs;

enum {
  TPU_CONV_SPATIAL,
  TPU_CONV_LHS_BATCH,
  TPU_CONV_LHS_FEATURE,
  TPU_CONV_RHS_IN,
  TPU_CONV_RHS_OUT,
  TPU_CONV_OUT_BATCH,
  TPU_CONV_OUT_FEATURE,
  TPU_CONV_FEATURE_GROUPS,
  TPU_CONV_BATCH_GROUPS,
  TPU_CONV_PRECISION,
  TPU_CONV_ARRAYS /* where the arrays start */
};
typedef enum tpu_rng_algorithm { TPU_RNG_DEFAULT, TPU_RNG_THREE_FRY, TPU_RNG_PHILOX } tpu_rng_algorithm;

static inline const tpu_attrs *tpu_node_attrs(const tpu_node *node) { return (const tpu_attrs *)node->attrs; }
/* The i-th number of a node's attributes. */
static inline int64_t tpu_node_attr(const tpu_node *node, uint32_t i) { return tpu_node_attrs(node)->v[i]; }

/* Views into a node's attributes; the arrays live as long as the graph. */
typedef struct tpu_conv_view {
  int spatial;
  const int64_t *strides, *pad_lo, *pad_hi, *lhs_dilation, *rhs_dilation, *reversal, *lhs_spatial, *rhs_spatial, *out_spatial;
} tpu_conv_view;
tpu_dot_dims tpu_attrs_dot(const tpu_attrs *attrs);
tpu_conv_view tpu_attrs_conv(const tpu_attrs *attrs);
tpu_window tpu_attrs_window(const tpu_attrs *attrs, int rank);
tpu_gather_dims tpu_attrs_gather(const tpu_attrs *attrs, const int64_t **out_slice_sizes);
tpu_scatter_dims tpu_attrs_scatter(const tpu_attrs *attrs);

#endif
