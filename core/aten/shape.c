/* Rows that rearrange elements: cat, repeat, roll, flip, triangles, shuffles, clone. */
#include "aten/shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "aten/lower.h"

const char *shape_text(int rank, const int64_t *dims, char *buffer, size_t size) {
  size_t at = (size_t)snprintf(buffer, size, "[");
  for (int i = 0; i < rank && at < size; i++)
    at += (size_t)snprintf(buffer + at, size - at, "%s%" PRId64, i ? ", " : "", dims[i]);
  if (at < size) snprintf(buffer + at, size - at, "]");
  return buffer;
}

const int64_t *shape_strides_copy(tpu_build *b, int rank, const int64_t *strides) {
  int64_t *copy = tpu_build_alloc(b, sizeof *copy * (size_t)(rank ? rank : 1));
  if (copy) memcpy(copy, strides, sizeof *copy * (size_t)rank);
  return copy;
}

/* --- cat, stack */

typedef struct part {
  tpu_val val;
  int rank;
  int64_t sizes[TPU_MAX_RANK], strides[TPU_MAX_RANK];
} part;

/* at::native::cat_compute_output_memory_format: channels_last if all parts suggest it. */
static bool all_channels_last(int n, const part *parts) {
  for (int k = 0; k < n; k++)
    if (!strides_are_channels_last(parts[k].rank, parts[k].sizes, parts[k].strides)) return false;
  return n > 0;
}

static bool same_but_dim(tpu_build *b, const part *first, const part *other, int dim, int number) {
  if (first->rank != other->rank) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Tensors must have same number of dimensions: got %d and %d", first->rank, other->rank);
    return false;
  }
  for (int i = 0; i < first->rank; i++) {
    if (i == dim || first->sizes[i] == other->sizes[i]) continue;
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Sizes of tensors must match except in dimension %d. Expected size %" PRId64 " but got size %" PRId64
             " for tensor number %d in the list.",
             dim, first->sizes[i], other->sizes[i], number);
    return false;
  }
  return true;
}

static tpu_val concat_parts(tpu_build *b, int n, const part *parts, int dim) {
  tpu_val *vals = tpu_build_alloc(b, sizeof *vals * (size_t)n);
  if (!vals) return TPU_POISON;
  for (int k = 0; k < n; k++) vals[k] = parts[k].val;
  return n == 1 ? vals[0] : tpu_concat(b, n, vals, dim);
}

static void keep_channels_last(tpu_build *b, int n, const part *parts, tpu_out *out) {
  if (!all_channels_last(n, parts)) return;
  int64_t strides[TPU_MAX_RANK];
  strides_channels_last(tpu_rank_of(b, out->val), tpu_dims_of(b, out->val), strides);
  out->strides = shape_strides_copy(b, tpu_rank_of(b, out->val), strides);
}

/* cat(tensors, dim). One-dimensional empty tensors are skipped, whatever the others' rank. */
void lower_cat(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int n = arg_list_size(a, 0), kept = 0;
  if (n == 0) {
    tpu_fail(b, TPU_VALUE_ERROR, "torch.cat(): expected a non-empty list of Tensors");
    return;
  }
  tpu_dtype dtype = promote_list(b, a, 0);
  part *parts = tpu_build_alloc(b, sizeof *parts * (size_t)n);
  int *number = tpu_build_alloc(b, sizeof *number * (size_t)n);
  if (!parts || !number || tpu_build_failed(b)) return;
  for (int k = 0; k < n; k++) {
    const tpu_operand *x = arg_list_operand(b, a, 0, k);
    if (!x) return;
    if (x->rank == 0) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "zero-dimensional tensor (at position %d) cannot be concatenated", k);
      return;
    }
    if (x->rank == 1 && x->sizes[0] == 0) continue;
    part *p = &parts[kept];
    number[kept++] = k;
    p->val = tpu_convert(b, x->val, dtype);
    p->rank = x->rank;
    memcpy(p->sizes, x->sizes, sizeof *x->sizes * (size_t)x->rank);
    memcpy(p->strides, x->strides, sizeof *x->strides * (size_t)x->rank);
  }
  int dim = arg_dim(b, a, 1, kept ? parts[0].rank : 1);
  if (tpu_build_failed(b)) return;
  if (kept == 0) {
    int64_t zero = 0;
    o->out[0].val = tpu_full(b, dtype, 1, &zero, 0);
    return;
  }
  for (int k = 1; k < kept; k++)
    if (!same_but_dim(b, &parts[0], &parts[k], dim, number[k])) return;
  o->out[0].val = concat_parts(b, kept, parts, dim);
  keep_channels_last(b, kept, parts, &o->out[0]);
}

/* stack(tensors, dim), _stack */
void lower_stack(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int n = arg_list_size(a, 0);
  if (n == 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "stack expects a non-empty TensorList");
    return;
  }
  tpu_dtype dtype = promote_list(b, a, 0);
  const tpu_operand *first = arg_list_operand(b, a, 0, 0);
  part *parts = tpu_build_alloc(b, sizeof *parts * (size_t)n);
  if (!first || !parts || tpu_build_failed(b)) return;
  int dim = arg_dim(b, a, 1, first->rank + 1);
  if (tpu_build_failed(b)) return;
  for (int k = 0; k < n; k++) {
    const tpu_operand *x = arg_list_operand(b, a, 0, k);
    if (!x) return;
    if (x->rank != first->rank || memcmp(x->sizes, first->sizes, sizeof *x->sizes * (size_t)x->rank) != 0) {
      char want[256], got[256];
      tpu_fail(b, TPU_INVALID_ARGUMENT, "stack expects each tensor to be equal size, but got %s at entry 0 and %s at entry %d",
               shape_text(first->rank, first->sizes, want, sizeof want), shape_text(x->rank, x->sizes, got, sizeof got), k);
      return;
    }
    part *p = &parts[k];
    p->val = tpu_unsqueeze(b, tpu_convert(b, x->val, dtype), dim);
    p->rank = dim < x->rank ? x->rank : x->rank + 1;
    memcpy(p->sizes, x->sizes, sizeof *x->sizes * (size_t)x->rank);
    memcpy(p->strides, x->strides, sizeof *x->strides * (size_t)x->rank);
    if (dim == x->rank) p->sizes[dim] = p->strides[dim] = 1;
  }
  o->out[0].val = concat_parts(b, n, parts, dim);
  if (dim == first->rank) {
    keep_channels_last(b, n, parts, &o->out[0]);
  } else if (all_channels_last(n, parts)) {
    /* As PyTorch does it: a cat along dim, which is then split in two. */
    int64_t sizes[TPU_MAX_RANK], joined[TPU_MAX_RANK], strides[TPU_MAX_RANK];
    for (int i = 0; i < first->rank; i++) sizes[i] = first->sizes[i] * (i == dim ? n : 1);
    strides_channels_last(first->rank, sizes, joined);
    for (int i = 0; i <= first->rank; i++) strides[i] = i == dim ? joined[i] * first->sizes[i] : joined[i < dim ? i : i - 1];
    o->out[0].strides = shape_strides_copy(b, first->rank + 1, strides);
  }
}

/* --- repeat, roll, flip */

/* repeat(self, repeats): x [A, B] repeated (r, s) times is [r, A, s, B] flattened to [r A, s B]. */
void lower_repeat(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int n, rank = tpu_rank_of(b, x), m = 0;
  const int64_t *repeats = arg_ints(a, 1, &n);
  if (tpu_build_failed(b)) return;
  if (n < rank) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor");
    return;
  }
  int64_t wide[2 * TPU_MAX_RANK], flat[TPU_MAX_RANK], map[TPU_MAX_RANK];
  if (2 * n > TPU_MAX_RANK) {
    tpu_fail(b, TPU_UNIMPLEMENTED, "repeat of more than %d dimensions", TPU_MAX_RANK / 2);
    return;
  }
  for (int i = 0; i < n; i++) {
    int at = i - (n - rank);
    int64_t size = at >= 0 ? tpu_dim_of(b, x, at) : 1;
    if (repeats[i] < 0) {
      char text[256];
      int64_t bad[TPU_MAX_RANK];
      for (int k = 0; k < n; k++) bad[k] = repeats[k] * (k - (n - rank) >= 0 ? tpu_dim_of(b, x, k - (n - rank)) : 1);
      tpu_fail(b, TPU_INVALID_ARGUMENT, "Trying to create tensor with negative dimension %" PRId64 ": %s", bad[i],
               shape_text(n, bad, text, sizeof text));
      return;
    }
    flat[i] = repeats[i] * size;
    if (repeats[i] != 1) wide[m++] = repeats[i];
    if (at >= 0) {
      map[at] = m;
      wide[m++] = size;
    }
  }
  o->out[0].val = tpu_reshape(b, tpu_broadcast_in_dim(b, x, m, wide, map), n, flat);
}

static tpu_val roll_dim(tpu_build *b, tpu_val x, int dim, int64_t by) {
  int64_t size = tpu_dim_of(b, x, dim);
  if (size == 0) return x;
  int64_t start = ((size - by % size) % size + size) % size;
  if (start == 0) return x;
  tpu_val parts[2] = {tpu_slice_dim(b, x, dim, start, size, 1), tpu_slice_dim(b, x, dim, 0, start, 1)};
  return tpu_concat(b, 2, parts, dim);
}

/* roll(self, shifts, dims) */
void lower_roll(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int n_shifts, n_dims, rank = tpu_rank_of(b, x);
  const int64_t *shifts = arg_ints(a, 1, &n_shifts), *dims = arg_ints(a, 2, &n_dims);
  if (tpu_build_failed(b)) return;
  if (n_shifts == 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "`shifts` required");
    return;
  }
  if (n_dims == 0 && n_shifts == 1) {
    int64_t numel = tpu_numel_of(b, x);
    tpu_val flat = roll_dim(b, tpu_reshape(b, x, 1, &numel), 0, shifts[0]);
    o->out[0].val = tpu_reshape(b, flat, rank, tpu_dims_of(b, x));
    return;
  }
  if (n_shifts != n_dims) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "shifts and dimensions must align. shifts: %d, dims:%d", n_shifts, n_dims);
    return;
  }
  if (rank == 0) {
    tpu_fail(b, TPU_OUT_OF_RANGE, "Dimension specified as 0 but tensor has no dimensions");
    return;
  }
  for (int i = 0; i < n_dims; i++) {
    int dim = wrap_dim(b, dims[i], rank);
    if (tpu_build_failed(b)) return;
    x = roll_dim(b, x, dim, shifts[i]);
  }
  o->out[0].val = x;
}

/* flip(self, dims) */
void lower_flip(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int64_t axes[TPU_MAX_RANK];
  int n = arg_list_size(a, 1) == 0 ? 0 : arg_axes(b, a, 1, tpu_rank_of(b, x), axes);
  o->out[0].val = n ? tpu_reverse(b, x, n, axes) : x;
}

/* --- triangles and diagonals */

/* column - row of the last two of `dims`, i32: [dims]. */
static tpu_val column_minus_row(tpu_build *b, int rank, const int64_t *dims, int row, int column) {
  return tpu_sub(b, tpu_iota(b, TPU_I32, rank, dims, column), tpu_iota(b, TPU_I32, rank, dims, row));
}

static double clamp_offset(int64_t offset, int64_t rows, int64_t columns) {
  int64_t low = -rows - 1, high = columns + 1;
  return (double)(offset < low ? low : offset > high ? high : offset);
}

/* tril, triu (self, diagonal): rule is the comparison of column - row with diagonal that keeps an element. */
void lower_triangle(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int rank = tpu_rank_of(b, x);
  if (tpu_build_failed(b)) return;
  if (rank < 2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s: input tensor must have at least 2 dimensions", a->row->aten);
    return;
  }
  int64_t rows = tpu_dim_of(b, x, rank - 2), columns = tpu_dim_of(b, x, rank - 1), dims[2] = {rows, columns};
  tpu_val off = column_minus_row(b, 2, dims, 0, 1);
  tpu_val keep =
      tpu_compare(b, (tpu_compare_dir)a->row->rule, off, tpu_full_like(b, off, clamp_offset(arg_int(b, a, 1, 0), rows, columns)));
  keep = tpu_broadcast_to(b, keep, rank, tpu_dims_of(b, x));
  o->out[0].val = tpu_select(b, keep, x, tpu_full_like(b, x, 0));
}

tpu_val shape_on_diagonal(tpu_build *b, int rank, const int64_t *dims, int dim1, int dim2, int64_t offset) {
  tpu_val off = column_minus_row(b, rank, dims, dim1, dim2);
  return tpu_compare(b, TPU_EQ, off, tpu_full_like(b, off, clamp_offset(offset, dims[dim1], dims[dim2])));
}

tpu_val shape_along_diagonal(tpu_build *b, tpu_val x, int rank, const int64_t *dims, int dim1, int dim2, int64_t offset) {
  /* Moved so that element k of x stands at row k + max(0, -offset), in every column. */
  int last = tpu_rank_of(b, x) - 1;
  int64_t before = offset < 0 ? -offset : 0, lo[TPU_MAX_RANK] = {0}, hi[TPU_MAX_RANK] = {0}, map[TPU_MAX_RANK];
  lo[last] = before;
  hi[last] = dims[dim1] - before - tpu_dim_of(b, x, last);
  tpu_val column = tpu_pad(b, x, tpu_scalar(b, tpu_dtype_of(b, x), 0), lo, hi, NULL);
  int at = 0;
  for (int i = 0; i < rank; i++)
    if (i != dim1 && i != dim2) map[at++] = i;
  map[at] = dim1;
  /* broadcast_in_dim wants its map ascending: move the diagonal's dim to its place first. */
  int64_t perm[TPU_MAX_RANK], sorted[TPU_MAX_RANK];
  int place = 0;
  while (place < at && map[place] < dim1) place++;
  for (int i = 0; i <= at; i++) {
    perm[i] = i < place ? i : i == place ? at : i - 1;
    sorted[i] = map[perm[i]];
  }
  return tpu_broadcast_in_dim(b, tpu_transpose(b, column, perm), rank, dims, sorted);
}

/* diag_embed(self, offset, dim1, dim2) */
void lower_diag_embed(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int rank = tpu_rank_of(b, x) + 1, at = 0;
  int64_t offset = arg_int(b, a, 1, 0), dims[TPU_MAX_RANK];
  int dim1 = wrap_dim(b, arg_int(b, a, 2, -2), rank), dim2 = wrap_dim(b, arg_int(b, a, 3, -1), rank);
  if (tpu_build_failed(b)) return;
  if (dim1 == dim2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "diagonal dimensions cannot be identical %" PRId64 ", %" PRId64, arg_int(b, a, 2, -2),
             arg_int(b, a, 3, -1));
    return;
  }
  int64_t side = tpu_dim_of(b, x, rank - 2) + (offset < 0 ? -offset : offset);
  for (int i = 0; i < rank; i++) dims[i] = i == dim1 || i == dim2 ? side : tpu_dim_of(b, x, at++);
  tpu_val y = shape_along_diagonal(b, x, rank, dims, dim1, dim2, offset);
  o->out[0].val = tpu_select(b, shape_on_diagonal(b, rank, dims, dim1, dim2, offset), y, tpu_full_like(b, y, 0));
}

/* --- shuffles */

static bool channels_divide(tpu_build *b, int64_t channels, int64_t by) {
  return !tpu_build_failed(b) && by > 0 && channels % by == 0;
}

/* pixel_shuffle(self, r): [.., C r r, H, W] -> [.., C, H r, W r] */
void lower_pixel_shuffle(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int rank = tpu_rank_of(b, x), n = rank - 3;
  int64_t r = arg_int(b, a, 1, 1), dims[TPU_MAX_RANK], perm[TPU_MAX_RANK], out[TPU_MAX_RANK];
  if (tpu_build_failed(b)) return;
  if (rank < 3) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "pixel_shuffle expects input to have at least 3 dimensions, but got input with %d dimension(s)", rank);
    return;
  }
  if (r <= 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "pixel_shuffle expects a positive upscale_factor, but got %" PRId64, r);
    return;
  }
  int64_t c = tpu_dim_of(b, x, n), h = tpu_dim_of(b, x, n + 1), w = tpu_dim_of(b, x, n + 2);
  if (!channels_divide(b, c, r * r)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, but "
             "input.size(-3)=%" PRId64 " is not divisible by %" PRId64,
             c, r * r);
    return;
  }
  for (int i = 0; i < n; i++) {
    dims[i] = out[i] = tpu_dim_of(b, x, i);
    perm[i] = i;
  }
  const int64_t split[5] = {c / (r * r), r, r, h, w}, order[5] = {0, 3, 1, 4, 2}, merged[3] = {c / (r * r), h * r, w * r};
  for (int i = 0; i < 5; i++) {
    dims[n + i] = split[i];
    perm[n + i] = n + order[i];
  }
  for (int i = 0; i < 3; i++) out[n + i] = merged[i];
  o->out[0].val = tpu_reshape(b, tpu_transpose(b, tpu_reshape(b, x, n + 5, dims), perm), rank, out);
}

/* pixel_unshuffle(self, r): [.., C, H r, W r] -> [.., C r r, H, W] */
void lower_pixel_unshuffle(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int rank = tpu_rank_of(b, x), n = rank - 3;
  int64_t r = arg_int(b, a, 1, 1), dims[TPU_MAX_RANK], perm[TPU_MAX_RANK], out[TPU_MAX_RANK];
  if (tpu_build_failed(b)) return;
  if (rank < 3) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "pixel_unshuffle expects input to have at least 3 dimensions, but got input with %d dimension(s)", rank);
    return;
  }
  if (r <= 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "pixel_unshuffle expects a positive downscale_factor, but got %" PRId64, r);
    return;
  }
  static const char *const names[2] = {"height", "width"};
  for (int k = 0; k < 2; k++) {
    int64_t size = tpu_dim_of(b, x, n + 1 + k);
    if (size % r == 0) continue;
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "pixel_unshuffle expects %s to be divisible by downscale_factor, but input.size(%d)=%" PRId64
             " is not divisible by %" PRId64,
             names[k], k - 2, size, r);
    return;
  }
  int64_t c = tpu_dim_of(b, x, n), h = tpu_dim_of(b, x, n + 1) / r, w = tpu_dim_of(b, x, n + 2) / r;
  for (int i = 0; i < n; i++) {
    dims[i] = out[i] = tpu_dim_of(b, x, i);
    perm[i] = i;
  }
  const int64_t split[5] = {c, h, r, w, r}, order[5] = {0, 2, 4, 1, 3}, merged[3] = {c * r * r, h, w};
  for (int i = 0; i < 5; i++) {
    dims[n + i] = split[i];
    perm[n + i] = n + order[i];
  }
  for (int i = 0; i < 3; i++) out[n + i] = merged[i];
  o->out[0].val = tpu_reshape(b, tpu_transpose(b, tpu_reshape(b, x, n + 5, dims), perm), rank, out);
}

/* channel_shuffle(self, groups): [N, G C, ..] -> [N, C G, ..] */
void lower_channel_shuffle(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int rank = tpu_rank_of(b, x);
  int64_t groups = arg_int(b, a, 1, 1), dims[TPU_MAX_RANK], perm[TPU_MAX_RANK];
  if (tpu_build_failed(b)) return;
  if (rank <= 2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "channel_shuffle expects input with > 2 dims, but got input with sizes %s",
             shape_text(rank, tpu_dims_of(b, x), (char[256]){0}, 256));
    return;
  }
  int64_t c = tpu_dim_of(b, x, 1);
  if (groups <= 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Number of groups to divide channels in must be positive. Value of groups:%" PRId64,
             groups);
    return;
  }
  if (!channels_divide(b, c, groups)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Number of channels must be divisible by groups. Got %" PRId64 " channels and %" PRId64 " groups.", c, groups);
    return;
  }
  for (int i = 0; i < rank + 1; i++) {
    dims[i] = i == 1 ? groups : i == 2 ? c / groups : tpu_dim_of(b, x, i == 0 ? 0 : i - 1);
    perm[i] = i == 1 ? 2 : i == 2 ? 1 : i;
  }
  o->out[0].val = tpu_reshape(b, tpu_transpose(b, tpu_reshape(b, x, rank + 1, dims), perm), rank, tpu_dims_of(b, x));
}

/* --- copies */

/* clone(self, memory_format): c10 numbers 0 contiguous, 1 preserve, 2 channels_last, 3 channels_last_3d. */
void lower_clone(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *x = arg_operand(b, a, 0);
  if (!x) return;
  int64_t format = arg_int(b, a, 1, 1), strides[TPU_MAX_RANK];
  o->out[0].val = x->val;
  if (format >= 2) {
    int want = format == 2 ? 4 : 5;
    if (x->rank != want) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "required rank %d tensor to use channels_last%s format", want, format == 2 ? "" : "_3d");
      return;
    }
    strides_channels_last(x->rank, x->sizes, strides);
  } else if (format == 1) {
    strides_preserve(x->rank, x->sizes, x->strides, strides);
  } else {
    strides_contiguous(x->rank, x->sizes, strides);
  }
  o->out[0].strides = shape_strides_copy(b, x->rank, strides);
}

/* split_with_sizes_copy(self, split_sizes, dim) */
void lower_split_with_sizes_copy(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int n, dim = arg_dim(b, a, 2, tpu_rank_of(b, x));
  const int64_t *sizes = arg_ints(a, 1, &n);
  int64_t at = 0, total = 0;
  if (tpu_build_failed(b)) return;
  if (tpu_rank_of(b, x) == 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "split expects at least a 1-dimensional tensor");
    return;
  }
  for (int i = 0; i < n; i++) {
    if (sizes[i] < 0) {
      tpu_fail(b, TPU_INVALID_ARGUMENT,
               "split_with_sizes expects split_sizes have only non-negative entries, but got split_sizes=%s",
               shape_text(n, sizes, (char[256]){0}, 256));
      return;
    }
    total += sizes[i];
  }
  if (total != tpu_dim_of(b, x, dim)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "split_with_sizes expects split_sizes to sum exactly to %" PRId64
             " (input tensor's size at dimension %d), but got split_sizes=%s",
             tpu_dim_of(b, x, dim), dim, shape_text(n, sizes, (char[256]){0}, 256));
    return;
  }
  outs_resize(b, o, n);
  for (int i = 0; i < n && !tpu_build_failed(b); i++) {
    o->out[i].val = tpu_slice_dim(b, x, dim, at, at + sizes[i], 1);
    at += sizes[i];
  }
}
