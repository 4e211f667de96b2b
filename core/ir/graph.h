/* tpu_graph: a StableHLO program as nodes in SSA form. Thread-compatible.
 *
 * Nodes are only made through build.h (which infers types) and never change afterwards. All memory is the
 * graph's arena. May include: base.
 */
#ifndef TPU_IR_GRAPH_H
#define TPU_IR_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/hash.h"
#include "base/status.h"

typedef enum tpu_hlo {
#define HLO(name, ...) TPU_HLO_##name,
#include "ir/hlo.inc"
  TPU_HLO_COUNT
} tpu_hlo;

typedef struct tpu_hlo_info {
  const char *name; /* "add" */
  int operands, results;
  int rule;
} tpu_hlo_info;
const tpu_hlo_info *tpu_hlo_info_get(tpu_hlo op);

/* Dims are borrowed from the graph's arena, or from the caller where the type is an argument. Room is left for a
 * bound per dim (dynamic shapes). rank <= TPU_MAX_RANK. */
#define TPU_MAX_RANK 64
typedef struct tpu_type {
  tpu_dtype dtype;
  int rank;
  const int64_t *dims;
} tpu_type;
int64_t tpu_type_numel(tpu_type type); /* product of dims; 1 for a scalar */
bool tpu_type_equal(tpu_type a, tpu_type b);

/* A value: one result of a node. id 0 is poison. */
typedef struct tpu_val {
  uint32_t id;
} tpu_val;
#define TPU_POISON ((tpu_val){0})

/* Attributes that have no meaning outside their op are in one struct per op; nodes keep a pointer to it. */
typedef enum tpu_compare_dir { TPU_EQ, TPU_NE, TPU_GE, TPU_GT, TPU_LE, TPU_LT } tpu_compare_dir;
/* What a region of one binary op does: reducers, scatters, scans. */
typedef enum tpu_monoid {
  TPU_MONOID_ADD,
  TPU_MONOID_MUL,
  TPU_MONOID_MAX,
  TPU_MONOID_MIN,
  TPU_MONOID_AND,
  TPU_MONOID_OR,
  TPU_MONOID_XOR,
  TPU_MONOID_ASSIGN /* scatter only: the update replaces */
} tpu_monoid;
typedef enum tpu_precision { TPU_PRECISION_DEFAULT, TPU_PRECISION_HIGH, TPU_PRECISION_HIGHEST } tpu_precision;
typedef enum tpu_fft_kind { TPU_FFT, TPU_IFFT, TPU_RFFT, TPU_IRFFT } tpu_fft_kind;

typedef struct tpu_dot_dims {
  int n_batch, n_contract;
  const int64_t *lhs_batch, *rhs_batch, *lhs_contract, *rhs_contract;
} tpu_dot_dims;

/* All arrays have one entry per spatial dim unless said otherwise. */
typedef struct tpu_conv_dims {
  int spatial; /* number of spatial dims */
  const int64_t *strides, *pad_lo, *pad_hi, *lhs_dilation, *rhs_dilation;
  const bool *reversal;                                                    /* of the kernel; NULL: none */
  int64_t lhs_batch, lhs_feature, rhs_in, rhs_out, out_batch, out_feature; /* dim numbers */
  const int64_t *lhs_spatial, *rhs_spatial, *out_spatial;
  int64_t feature_groups, batch_groups;
} tpu_conv_dims;

typedef struct tpu_window {                                                   /* one entry per dim of the operand */
  const int64_t *dims, *strides, *base_dilation, *dilation, *pad_lo, *pad_hi; /* NULL: 1 (0 for pads) */
} tpu_window;

typedef struct tpu_gather_dims { /* https://openxla.org/stablehlo/spec#gather */
  int n_offset, n_collapsed, n_batch, n_map;
  const int64_t *offset, *collapsed, *operand_batch, *indices_batch, *start_index_map;
  int64_t index_vector_dim;
  bool sorted;
} tpu_gather_dims;

typedef struct tpu_scatter_dims { /* https://openxla.org/stablehlo/spec#scatter */
  int n_window, n_inserted, n_batch, n_map;
  const int64_t *window, *inserted, *operand_batch, *indices_batch, *scatter_map;
  int64_t index_vector_dim;
  bool sorted, unique;
} tpu_scatter_dims;

/* A nested block: its parameters, its nodes (in order) and what it returns. Values of enclosing blocks are visible. */
typedef struct tpu_region {
  uint32_t n_params, n_nodes, n_returns;
  const tpu_val *params;
  const uint32_t *nodes; /* node indices */
  const tpu_val *returns;
} tpu_region;

typedef struct tpu_node {
  uint16_t op; /* tpu_hlo */
  uint16_t n_regions;
  uint32_t n_operands, n_results;
  const tpu_val *operands;
  uint32_t first_result; /* ids first_result .. + n_results - 1 */
  const void *attrs;     /* the op's attribute struct (attrs.h), or NULL */
  const tpu_region *regions;
  uint32_t scope; /* which record (ATen op) it came from; 0: none. For messages and source locations. */
  uint32_t block; /* 0: the graph's top level; else the region it stands in (a private number) */
} tpu_node;

typedef struct tpu_graph tpu_graph;

tpu_graph *tpu_graph_create(void);        /* NULL: out of memory */
void tpu_graph_reset(tpu_graph *graph);   /* empties it, keeping memory for reuse */
void tpu_graph_destroy(tpu_graph *graph); /* NULL allowed */
tpu_arena *tpu_graph_arena(tpu_graph *graph);

uint32_t tpu_graph_node_count(const tpu_graph *graph);
const tpu_node *tpu_graph_node(const tpu_graph *graph, uint32_t index);
tpu_type tpu_graph_type(const tpu_graph *graph, tpu_val v);                                  /* of a non-poison value */
const tpu_node *tpu_graph_producer(const tpu_graph *graph, tpu_val v, uint32_t *out_result); /* NULL: region param */
uint32_t tpu_graph_param_count(const tpu_graph *graph);
uint32_t tpu_graph_slot_count(const tpu_graph *graph); /* 1 + the highest slot index used; 0: none */
const tpu_val *tpu_graph_outputs(const tpu_graph *graph, uint32_t *out_n);
tpu_status tpu_graph_set_outputs(tpu_graph *graph, const tpu_val *outputs, uint32_t n) TPU_MUST_USE;

/* 128 bits over everything that decides what the program computes (not scopes, not nodes that no output needs). Like verify and
 * emit it writes scratch in the graph: one caller at a time. */
tpu_hash tpu_graph_hash(const tpu_graph *graph);
/* A graph apart from its sizes: what the same program at other sizes has in common with it, and its numbers in order. For each
 * live node of the top level its attributes' numbers (CONSTANT: the element as two words, or a hash of its elements), then its
 * results' dims. */
typedef enum tpu_number_kind { TPU_NUMBER_DIM, TPU_NUMBER_ATTR, TPU_NUMBER_ELEMENT, TPU_NUMBER_ELEMENTS } tpu_number_kind;
typedef struct tpu_numbers_of {
  tpu_hash skeleton;
  uint32_t n, capacity;
  int64_t *v;
  uint8_t *kind; /* tpu_number_kind */
  uint32_t *at;  /* per node: its first number */
  bool failed;
} tpu_numbers_of;
bool tpu_graph_numbers(const tpu_graph *graph, tpu_numbers_of *out) TPU_MUST_USE; /* false: out of memory */
void tpu_numbers_of_destroy(tpu_numbers_of *numbers);
/* Checks every node again (operand ids, types by rule, regions, attributes). INTERNAL names node and op. */
tpu_status tpu_graph_verify(const tpu_graph *graph) TPU_MUST_USE;

#endif
