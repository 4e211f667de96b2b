/* What bound*.c share. */
#ifndef TPU_IR_BOUND_PRIVATE_H
#define TPU_IR_BOUND_PRIVATE_H

#include "ir/bound.h"
#include "ir/graph_private.h"

/* How a dim that varies is made: row-major factors, of which those with a class reach to their extent. */
enum { BOUND_FACTORS = 6 };
typedef struct tpu_factor {
  int32_t class; /* -1: all of `size` is there */
  int64_t size;
} tpu_factor;
typedef struct tpu_form {
  int n;
  tpu_factor f[BOUND_FACTORS];
} tpu_form;

/* Dims that must have one form are joined (a forest over all dims of top-level values). */
typedef struct tpu_bounding {
  const tpu_graph *graph;
  const tpu_numbers_of *numbers;
  const tpu_plan *plan;
  uint32_t *first;  /* per value: its first dim here */
  uint32_t *parent; /* per dim */
  int32_t *class;   /* per dim; -1: does not vary */
  tpu_form *form;   /* per root; n == 0: not decided */
  uint8_t *plain;   /* per dim: positions along it count, so it must be of one factor */
  const tpu_node *refused;
} tpu_bounding;

/* Decides which dims have one form, and the forms. False: some operation has no bounded form (b->refused). */
bool tpu_bounding_decide(tpu_bounding *b);

static inline const tpu_type *tpu_bounding_type(const tpu_bounding *b, tpu_val v) { return &tpu_value_at(b->graph, v.id)->type; }
static inline int32_t tpu_bounding_class(const tpu_bounding *b, tpu_val v, int dim) {
  return b->class[b->first[v.id] + (uint32_t)dim];
}
const tpu_form *tpu_bounding_form(tpu_bounding *b, tpu_val v, int dim);
/* Dims of one size in every graph seen. */
static inline bool tpu_bounding_same(const tpu_bounding *b, tpu_val x, int i, tpu_val y, int j) {
  int32_t c = tpu_bounding_class(b, x, i);
  return c == tpu_bounding_class(b, y, j) && (c >= 0 || tpu_bounding_type(b, x)->dims[i] == tpu_bounding_type(b, y)->dims[j]);
}
/* The class of number i of the attributes of node `index`. */
static inline int32_t tpu_bounding_attr(const tpu_bounding *b, uint32_t index, uint32_t i) {
  return b->plan->class_of[b->numbers->at[index] + i];
}
/* One scalar made wide: it takes whatever form its user needs. */
bool tpu_bounding_is_wild(const tpu_bounding *b, tpu_val v);
/* Are result and operands of one shape, scalars apart? */
bool tpu_bounding_is_elementwise(tpu_hlo op);
/* Does dim i of a window operation pass unchanged? */
bool tpu_window_is_trivial(const tpu_window *w, int i);
/* The result dim of each offset dim of a gather (or update window dim of a scatter): operand dims that are not in `gone`. */
int tpu_kept_dims(int rank, int n_a, const int64_t *a, int n_b, const int64_t *b, int *out);

#endif
