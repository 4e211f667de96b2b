/* What reading and writing a view share: its dims in memory order, its bounds, its bytes under another dtype. Private to
 * view*.c. Thread-compatible.
 */
#ifndef TPU_IR_VIEW_FRAME_H
#define TPU_IR_VIEW_FRAME_H

#include "ir/view.h"
#include "ir/view_plan.h"

typedef struct tpu_view_frame {
  tpu_view_space space; /* the base as elements of the view's dtype */
  tpu_view_start start;
  tpu_val dyn_offset; /* of the space's index type */
  tpu_dtype index;    /* I32 where all offsets fit, else I64 */
  int n_order;
  int order[TPU_VIEW_DIMS]; /* the view's dims with size > 1 and stride > 0, by falling stride */
  tpu_view_dims dims;       /* their sizes and strides */
  bool repeats;             /* some dim has size > 1 and stride 0 */
  bool apart;               /* writes: the value reads the base too, so not every update in place is safe */
} tpu_view_frame;

/* False: a failure is set, or the view has no elements (out_empty). */
bool tpu_view_frame_make(tpu_build *b, tpu_type base, const tpu_view_geometry *view, tpu_view_frame *out_frame, bool *out_empty);

/* x's bytes as elements of dtype; dims follow x's where they can. A rest too short for an element is left out. bool is a
 * byte of 0 or 1. */
tpu_val tpu_view_cast(tpu_build *b, tpu_val x, tpu_dtype dtype);
/* The inverse: `cast` as a value of base's type; a rest that the cast left out comes from base. */
tpu_val tpu_view_uncast(tpu_build *b, tpu_val cast, tpu_val base);
/* Elements of tpu_view_cast's result, which has out_space's dims but for those of size 1. */
void tpu_view_cast_space(tpu_type base, tpu_dtype dtype, tpu_view_space *out_space);
/* A view of only the real or only the imaginary parts of a complex base, as a view of that part (sizes and strides in
 * `strides`): TPU_HLO_REAL, TPU_HLO_IMAG, or -1. */
int tpu_view_complex_part(tpu_type base, const tpu_view_geometry *view, int64_t *strides, tpu_view_geometry *out_view);

/* Flat indices of `dims` from `offset` in row-major order: [sizes] of dtype index. */
tpu_val tpu_view_indices(tpu_build *b, tpu_dtype index, const tpu_view_dims *dims, int64_t offset);
/* Scalar starts of the plan's box. */
void tpu_view_starts(tpu_build *b, const tpu_view_frame *frame, const tpu_view_plan *plan, tpu_val *out_starts);
tpu_val tpu_view_flatten(tpu_build *b, tpu_val x);
/* The flat elements [dyn_offset, dyn_offset + numel) of base. */
tpu_val tpu_view_window(tpu_build *b, tpu_val base, const tpu_view_frame *frame, int64_t numel);
/* For a view that has no plan: the dim to cut into runs of out_part elements so that the pieces are nearer to having one. */
bool tpu_view_cut(const tpu_view_dims *view, int *out_dim, int64_t *out_part);

#endif
