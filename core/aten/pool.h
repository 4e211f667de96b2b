/* Windows that slide over planes. Thread-compatible.
 *
 * The working order of a value is memory's: [N, C, *] or, where the input is channels_last, [N, *, C]; `first` is its first
 * spatial dim in that order.
 */
#ifndef TPU_ATEN_POOL_H
#define TPU_ATEN_POOL_H

#include "aten/lower.h"

#define POOL_MAX_SPATIAL 3
typedef struct pool {
  int spatial, rank, first;
  bool channels_last;
  bool ceil_mode;
  int64_t kernel[POOL_MAX_SPATIAL], stride[POOL_MAX_SPATIAL], padding[POOL_MAX_SPATIAL], dilation[POOL_MAX_SPATIAL];
  int64_t in[POOL_MAX_SPATIAL], out[POOL_MAX_SPATIAL];
} pool;

/* Fills spatial, rank, first, channels_last and in from an input [.., C, *]; checks its rank in PyTorch's words, which begin with
 * `name`. */
bool pool_input(tpu_build *b, const tpu_operand *x, int spatial, pool *out_p);
/* Reads kernel, stride, padding from argument i on (dilation at `dilation`, -1: ones), ceil_mode at `ceil_mode`; fills out. */
bool pool_window(tpu_build *b, const tpu_args *a, int i, int dilation, int ceil_mode, const char *name, pool *p);
/* Checks that a gradient [.., *] fits the pool's output. */
bool pool_check_gradient(tpu_build *b, const pool *p, tpu_val g);

tpu_val pool_to_order(tpu_build *b, const pool *p, tpu_val x);
tpu_val pool_from_order(tpu_build *b, const pool *p, tpu_val x);

/* All below in working order. */
/* x padded (or cropped) so that every window lies inside. */
tpu_val pool_pad(tpu_build *b, const pool *p, tpu_val x, tpu_val value);
int64_t pool_taps(const pool *p);
void pool_tap_position(const pool *p, int64_t tap, int64_t *out_position);
/* What the tap at `position` sees of the padded x, along the dims `from` .. `to` - 1 only. */
tpu_val pool_seen(tpu_build *b, const pool *p, tpu_val x, const int64_t *position, int from, int to);
/* Flat index in the input plane of each window's first tap (which may lie in the padding), of x's dims but the pool's output
 * sizes, i32 or i64. dims: of the result. */
tpu_val pool_window_index(tpu_build *b, const pool *p, tpu_dtype dtype, const int64_t *dims);
/* How far tap `position` is from that in the flat plane. */
int64_t pool_tap_offset(const pool *p, const int64_t *position);
/* Does the flat index fit i32? Else i64. */
tpu_dtype pool_index_dtype(const pool *p);

/* The planes of g [.., out], added into planes of the input's size at `indices` (flat in the plane, int64, logical order). */
tpu_val pool_scatter(tpu_build *b, tpu_monoid op, tpu_val g, tpu_val indices, int spatial, const int64_t *sizes);

#endif
