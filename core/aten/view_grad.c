/* Gradients of views, and functional writes into views: they place a part into a whole. */
#include <inttypes.h>

#include "aten/shape.h"

/* input_sizes at argument i. */
static const int64_t *whole_sizes(const tpu_args *a, int i, int *out_rank) { return arg_ints(a, i, out_rank); }

/* PyTorch's slice rules: start and end wrapped and clamped to [0, size], end >= start. */
static void clamp_slice(int64_t size, int64_t *start, int64_t *end) {
  if (*start < 0) *start += size;
  if (*end < 0) *end += size;
  *start = *start < 0 ? 0 : *start > size ? size : *start;
  *end = *end < *start ? *start : *end > size ? size : *end;
}

/* x placed along dim of a tensor of zeros: element i at start + i step. */
static tpu_val place_slice(tpu_build *b, tpu_val x, int dim, int64_t size, int64_t start, int64_t step) {
  int64_t lo[TPU_MAX_RANK] = {0}, hi[TPU_MAX_RANK] = {0}, between[TPU_MAX_RANK] = {0}, n = tpu_dim_of(b, x, dim);
  if (n == 0) start = 0;
  lo[dim] = start;
  between[dim] = step - 1;
  hi[dim] = size - start - (n ? (n - 1) * step + 1 : 0);
  return tpu_pad(b, x, tpu_scalar(b, tpu_dtype_of(b, x), 0), lo, hi, between);
}

/* slice_backward(grad_output, input_sizes, dim, start, end, step) */
void lower_slice_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val grad = arg_tensor(b, a, 0);
  int rank;
  const int64_t *sizes = whole_sizes(a, 1, &rank);
  int dim = arg_dim(b, a, 2, rank);
  if (tpu_build_failed(b)) return;
  int64_t start = arg_int(b, a, 3, 0), end = arg_int(b, a, 4, INT64_MAX);
  clamp_slice(sizes[dim], &start, &end);
  o->out[0].val = place_slice(b, grad, dim, sizes[dim], start, arg_int(b, a, 5, 1));
}

static int64_t wrap_index(tpu_build *b, int64_t index, int rank, const int64_t *sizes, int dim) {
  int64_t size = sizes[dim];
  if (index >= -size && index < size) return index < 0 ? index + size : index;
  char text[256];
  tpu_fail(b, TPU_OUT_OF_RANGE, "select(): index %" PRId64 " out of range for tensor of size %s at dimension %d", index,
           shape_text(rank, sizes, text, sizeof text), dim);
  return 0;
}

/* select_backward(grad_output, input_sizes, dim, index) */
void lower_select_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val grad = arg_tensor(b, a, 0);
  int rank;
  const int64_t *sizes = whole_sizes(a, 1, &rank);
  int dim = arg_dim(b, a, 2, rank);
  if (tpu_build_failed(b)) return;
  int64_t index = wrap_index(b, arg_int(b, a, 3, 0), rank, sizes, dim);
  if (tpu_build_failed(b)) return;
  o->out[0].val = place_slice(b, tpu_unsqueeze(b, grad, dim), dim, sizes[dim], index, 1);
}

/* diagonal_backward(grad_output, input_sizes, offset, dim1, dim2) */
void lower_diagonal_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val grad = arg_tensor(b, a, 0);
  int rank;
  const int64_t *sizes = whole_sizes(a, 1, &rank);
  int dim1 = arg_dim(b, a, 3, rank), dim2 = arg_dim(b, a, 4, rank);
  if (tpu_build_failed(b)) return;
  int64_t offset = arg_int(b, a, 2, 0);
  if (tpu_numel_of(b, grad) == 0) {
    o->out[0].val = tpu_full(b, tpu_dtype_of(b, grad), rank, sizes, 0);
    return;
  }
  tpu_val y = shape_along_diagonal(b, grad, rank, sizes, dim1, dim2, offset);
  o->out[0].val = tpu_select(b, shape_on_diagonal(b, rank, sizes, dim1, dim2, offset), y, tpu_full_like(b, y, 0));
}

/* unfold_backward(grad_in [.., windows, .., size], input_sizes, dim, size, step). A window is cut into ceil(size / step)
 * runs of step elements; runs of the same number in all windows stand side by side, so each number is one addition. */
void lower_unfold_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val grad = arg_tensor(b, a, 0);
  int rank;
  const int64_t *sizes = whole_sizes(a, 1, &rank);
  int dim = arg_dim(b, a, 2, rank);
  int64_t size = arg_int(b, a, 3, 1), step = arg_int(b, a, 4, 1);
  if (tpu_build_failed(b)) return;
  if (rank == 0) {
    o->out[0].val = tpu_reshape(b, grad, 0, NULL);
    return;
  }
  tpu_dtype dtype = tpu_dtype_of(b, grad);
  int64_t windows = tpu_dim_of(b, grad, dim), runs = (size + step - 1) / step, length = (windows - 1 + runs) * step;
  int64_t perm[TPU_MAX_RANK], lo[TPU_MAX_RANK] = {0}, hi[TPU_MAX_RANK] = {0}, split[TPU_MAX_RANK], flat[TPU_MAX_RANK];
  if (tpu_numel_of(b, grad) == 0) {
    o->out[0].val = tpu_full(b, dtype, rank, sizes, 0);
    return;
  }
  for (int i = 0; i <= rank; i++) perm[i] = i <= dim ? i : i == dim + 1 ? rank : i - 1;
  hi[dim + 1] = runs * step - size;
  tpu_val zero = tpu_scalar(b, tpu_dtype_opmath(dtype), 0);
  tpu_val x = tpu_pad(b, tpu_transpose(b, tpu_convert(b, grad, tpu_dtype_opmath(dtype)), perm), zero, lo, hi, NULL);
  for (int i = 0; i < rank; i++) flat[i] = i == dim ? windows * step : sizes[i];
  for (int i = 0; i < rank + 2; i++)
    split[i] = i == dim ? windows : i == dim + 1 ? runs : i == dim + 2 ? step : sizes[i < dim ? i : i - 2];
  x = tpu_reshape(b, x, rank + 2, split);
  hi[dim + 1] = 0;
  tpu_val sum = TPU_POISON;
  for (int64_t k = 0; k < runs && !tpu_build_failed(b); k++) {
    tpu_val run = tpu_reshape(b, tpu_slice_dim(b, x, dim + 1, k, k + 1, 1), rank, flat);
    lo[dim] = k * step;
    hi[dim] = length - k * step - windows * step + (sizes[dim] - length); /* crops the padding of the last runs */
    run = tpu_pad(b, run, zero, lo, hi, NULL);
    sum = sum.id ? tpu_add(b, sum, run) : run;
  }
  o->out[0].val = tpu_convert(b, sum, dtype);
}

static bool check_part(tpu_build *b, tpu_val src, int rank, const int64_t *want) {
  bool same = tpu_rank_of(b, src) == rank;
  for (int i = 0; same && i < rank; i++) same = tpu_dim_of(b, src, i) == want[i];
  if (same || tpu_build_failed(b)) return same;
  char got[256], wanted[256];
  tpu_fail(b, TPU_INVALID_ARGUMENT, "expected src to have a size equal to the slice of self. src size = %s, slice size = %s",
           shape_text(tpu_rank_of(b, src), tpu_dims_of(b, src), got, sizeof got), shape_text(rank, want, wanted, sizeof wanted));
  return false;
}

/* x with src [slice] written along dim at start + i step. */
static tpu_val write_slice(tpu_build *b, tpu_val x, tpu_val src, int dim, int64_t start, int64_t step) {
  int rank = tpu_rank_of(b, x);
  int64_t n = tpu_dim_of(b, src, dim), size = tpu_dim_of(b, x, dim);
  if (tpu_numel_of(b, src) == 0) return x;
  if (step == 1 || n == 1) {
    tpu_val starts[TPU_MAX_RANK];
    for (int i = 0; i < rank; i++) starts[i] = tpu_scalar_i(b, TPU_I32, i == dim ? start : 0);
    return n == size ? src : tpu_dynamic_update_slice(b, x, src, starts);
  }
  tpu_val mask = place_slice(b, tpu_full(b, TPU_BOOL, rank, tpu_dims_of(b, src), 1), dim, size, start, step);
  return tpu_select(b, mask, place_slice(b, src, dim, size, start, step), x);
}

/* slice_scatter(self, src, dim, start, end, step) */
void lower_slice_scatter(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0), src = tpu_convert(b, arg_tensor(b, a, 1), tpu_dtype_of(b, x));
  int rank = tpu_rank_of(b, x), dim = arg_dim(b, a, 2, rank);
  int64_t want[TPU_MAX_RANK], start = arg_int(b, a, 3, 0), end = arg_int(b, a, 4, INT64_MAX), step = arg_int(b, a, 5, 1);
  if (tpu_build_failed(b)) return;
  if (rank == 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "slice() cannot be applied to a 0-dim tensor.");
    return;
  }
  if (step <= 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "slice step must be positive");
    return;
  }
  clamp_slice(tpu_dim_of(b, x, dim), &start, &end);
  for (int i = 0; i < rank; i++) want[i] = i == dim ? (end - start + step - 1) / step : tpu_dim_of(b, x, i);
  if (check_part(b, src, rank, want)) o->out[0].val = write_slice(b, x, src, dim, start, step);
}

/* select_scatter(self, src, dim, index) */
void lower_select_scatter(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0), src = tpu_convert(b, arg_tensor(b, a, 1), tpu_dtype_of(b, x));
  int rank = tpu_rank_of(b, x), dim = arg_dim(b, a, 2, rank);
  int64_t want[TPU_MAX_RANK];
  if (tpu_build_failed(b)) return;
  if (rank == 0) {
    tpu_fail(b, TPU_OUT_OF_RANGE, "select() cannot be applied to a 0-dim tensor.");
    return;
  }
  int64_t index = wrap_index(b, arg_int(b, a, 3, 0), rank, tpu_dims_of(b, x), dim);
  for (int i = 0, at = 0; i < rank; i++)
    if (i != dim) want[at++] = tpu_dim_of(b, x, i);
  if (tpu_build_failed(b) || !check_part(b, src, rank - 1, want)) return;
  o->out[0].val = write_slice(b, x, tpu_unsqueeze(b, src, dim), dim, index, 1);
}

/* diagonal_scatter(self, src, offset, dim1, dim2) */
void lower_diagonal_scatter(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0), src = tpu_convert(b, arg_tensor(b, a, 1), tpu_dtype_of(b, x));
  int rank = tpu_rank_of(b, x), at = 0;
  int dim1 = arg_dim(b, a, 3, rank), dim2 = arg_dim(b, a, 4, rank);
  int64_t offset = arg_int(b, a, 2, 0), want[TPU_MAX_RANK];
  if (tpu_build_failed(b)) return;
  if (dim1 == dim2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "diagonal dimensions cannot be identical %" PRId64 ", %" PRId64, arg_int(b, a, 3, 0),
             arg_int(b, a, 4, 1));
    return;
  }
  for (int i = 0; i < rank; i++)
    if (i != dim1 && i != dim2) want[at++] = tpu_dim_of(b, x, i);
  int64_t rows = tpu_dim_of(b, x, dim1) + (offset < 0 ? offset : 0), columns = tpu_dim_of(b, x, dim2) - (offset > 0 ? offset : 0);
  want[at++] = rows < 0 || columns < 0 ? 0 : rows < columns ? rows : columns;
  if (!check_part(b, src, at, want)) return;
  if (tpu_numel_of(b, src) == 0) {
    o->out[0].val = x;
    return;
  }
  tpu_val y = shape_along_diagonal(b, src, rank, tpu_dims_of(b, x), dim1, dim2, offset);
  o->out[0].val = tpu_select(b, shape_on_diagonal(b, rank, tpu_dims_of(b, x), dim1, dim2, offset), y, x);
}
