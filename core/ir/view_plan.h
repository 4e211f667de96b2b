/* How a strided view lies in a dense array: arithmetic only, no nodes. Pure functions; thread-safe.
 *
 * The array is seen as a chain of dims refined from its own: every unit (elements between neighbours along a dim) divides
 * the next larger one. A view that has a plan is a strided box in such a chain.
 */
#ifndef TPU_IR_VIEW_PLAN_H
#define TPU_IR_VIEW_PLAN_H

#include <stdbool.h>
#include <stdint.h>

/* Dims of more than one element; a product below 2^63 has at most 62 of them. */
enum { TPU_VIEW_DIMS = 64 };
typedef struct tpu_view_dims {
  int n;
  int64_t size[TPU_VIEW_DIMS], stride[TPU_VIEW_DIMS]; /* from outermost (largest stride) to innermost */
} tpu_view_dims;

/* A dense array, its dims of size 1 left out. */
typedef struct tpu_view_space {
  int rank;
  int64_t dims[TPU_VIEW_DIMS];
  int64_t numel;
} tpu_view_space;

/* Where the view begins: a number, or any multiple of `multiple` up to `max`. */
typedef struct tpu_view_start {
  bool dynamic;
  int64_t value;
  int64_t max, multiple;
} tpu_view_start;

typedef struct tpu_view_plan {
  tpu_view_dims view; /* the view's dims, some split in two */
  int rank;           /* of the chain */
  int64_t size[TPU_VIEW_DIMS], unit[TPU_VIEW_DIMS];
  int64_t start[TPU_VIEW_DIMS], count[TPU_VIEW_DIMS], step[TPU_VIEW_DIMS]; /* the box; start: static plans only */
  bool stepped;                                                            /* some step is not 1 */
  bool whole;                                                              /* the box is everything */
} tpu_view_plan;

/* The chain that keeps as many of the space's own dims as the view allows. `unit_steps`: split dims rather than step
 * over them, where the sizes divide. False: there is none. */
bool tpu_view_plan_make(const tpu_view_space *space, const tpu_view_dims *view, const tpu_view_start *start, bool unit_steps,
                        tpu_view_plan *out_plan);
/* The chain over a flat array of view.size[0] * view.stride[0] elements that begins at the view's first. */
bool tpu_view_plan_flat(const tpu_view_dims *view, bool unit_steps, tpu_view_plan *out_plan);

/* Elements from the first to the last, without the last: 0 for one element. */
int64_t tpu_view_extent(const tpu_view_dims *view, int from);
/* Drops dims of size 1 and joins neighbours that are one run. */
void tpu_view_dims_merge(tpu_view_dims *view);
/* The first dim that reaches into the next outer element (then elements may coincide); -1: none. */
int tpu_view_first_overlap(const tpu_view_dims *view);

#endif
