/* Programs for many sizes. Graphs of one program at several sizes have one skeleton and differ in numbers. Those that were seen
 * to vary, and always together, are a class; from such graphs comes a plan, and from a plan and a bound for each class of dims a
 * bounded graph: its buffers have the bounds' sizes, the true sizes and all other numbers that vary are slots. What lies beyond a
 * true size is undefined, in params, results and between: where an operation would let it be seen, it is masked.
 * Thread-compatible. May include: base, ir.
 */
#ifndef TPU_IR_BOUND_H
#define TPU_IR_BOUND_H

#include "ir/build.h"

/* More numbers that vary each in their own way are not sizes of one program. */
#define TPU_MOST_CLASSES 64
typedef struct tpu_class { /* numbers that vary together */
  uint32_t number;         /* the first of them */
  bool is_dim;             /* some are dims, so there is a bound */
  tpu_dtype dtype;         /* of constants' elements; TPU_DTYPE_NONE: sizes and positions */
} tpu_class;
typedef struct tpu_plan {
  uint32_t n, n_classes;
  int32_t *class_of; /* per number; -1: it did not vary */
  tpu_class *classes;
  uint32_t n_samples;
  const int64_t *const *samples; /* borrowed */
} tpu_plan;
/* From the numbers of n_samples graphs, `graph` one of them; they must stay. NULL: out of memory, or what varies is part of the
 * program. */
tpu_plan *tpu_plan_create(const tpu_graph *graph, const tpu_numbers_of *numbers, uint32_t n_samples,
                          const int64_t *const *samples);
void tpu_plan_destroy(tpu_plan *plan); /* NULL allowed */
/* Do these numbers vary as the plan says? */
bool tpu_plan_fits(const tpu_plan *plan, const int64_t *numbers, const int64_t *base);
/* `graph` (with its numbers) at the bounds (per class; those of dims count); class c is slot first_slot + c. UNIMPLEMENTED: an
 * operation whose numbers vary has no form here; the message names it. */
tpu_status tpu_graph_bound(const tpu_graph *graph, const tpu_numbers_of *numbers, const tpu_plan *plan, const int64_t *bounds,
                           uint32_t first_slot, const tpu_target *target, tpu_graph *out) TPU_MUST_USE;

#endif
