#include "aten/nn.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "aten/reduce.h"

const char *dims_text(tpu_build *b, int rank, const int64_t *dims) {
  enum { DIM_CHARS = 22 };
  char *text = tpu_build_alloc(b, (size_t)rank * DIM_CHARS + 3);
  if (!text) return "[]";
  size_t at = 0;
  text[at++] = '[';
  for (int d = 0; d < rank; d++) at += (size_t)snprintf(text + at, DIM_CHARS + 1, d ? ", %" PRId64 : "%" PRId64, dims[d]);
  text[at++] = ']';
  text[at] = 0;
  return text;
}

tpu_val expand_to(tpu_build *b, tpu_val x, int rank, const int64_t *dims) {
  tpu_type type = tpu_type_of(b, x);
  if (tpu_build_failed(b)) return TPU_POISON;
  if (type.rank > rank)
    return tpu_fail(b, TPU_INVALID_ARGUMENT,
                    "expand(torch.%sTensor{%s}, size=%s): the number of sizes provided (%d) must be greater or equal to "
                    "the number of dimensions in the tensor (%d)",
                    tpu_dtype_scalar_name(type.dtype), dims_text(b, type.rank, type.dims), dims_text(b, rank, dims), rank,
                    type.rank);
  for (int d = rank - 1; d >= rank - type.rank; d--) {
    int64_t have = type.dims[d - (rank - type.rank)];
    if (have != dims[d] && have != 1)
      return tpu_fail(b, TPU_INVALID_ARGUMENT,
                      "The expanded size of the tensor (%" PRId64 ") must match the existing size (%" PRId64
                      ") at non-singleton dimension %d.  Target sizes: %s.  Tensor sizes: %s",
                      dims[d], have, d, dims_text(b, rank, dims), dims_text(b, type.rank, type.dims));
  }
  return tpu_broadcast_to(b, x, rank, dims);
}

tpu_val spread_dim(tpu_build *b, tpu_val x, int rank, const int64_t *dims, int dim) {
  const int64_t map = dim;
  return tpu_broadcast_in_dim(b, x, rank, dims, &map);
}

tpu_val contract_dims(tpu_build *b, tpu_val x, tpu_val y, const tpu_dot_dims *dims) {
  tpu_dtype dtype = tpu_dtype_of(b, x), math = tpu_dtype_opmath(dtype);
  return tpu_dot_general(b, x, y, dims, math == dtype ? TPU_DTYPE_NONE : math);
}

tpu_val contract(tpu_build *b, tpu_val x, tpu_val y, int n_batch, int64_t cx, int64_t cy) {
  int64_t batch[TPU_MAX_RANK];
  for (int i = 0; i < n_batch; i++) batch[i] = i;
  return contract_dims(
      b, x, y,
      &(tpu_dot_dims){
          .n_batch = n_batch, .n_contract = 1, .lhs_batch = batch, .rhs_batch = batch, .lhs_contract = &cx, .rhs_contract = &cy});
}

/* How many of the axes are the last dims of x. */
static int trailing_axes(int rank, int n_axes, const int64_t *axes) {
  int n = 0;
  while (n < n_axes && axes[n_axes - 1 - n] == rank - 1 - n) n++;
  return n;
}

/* [.., last dims] -> [.., their product] */
static tpu_val merge_last(tpu_build *b, tpu_val x, int n) {
  int64_t dims[TPU_MAX_RANK + 1];
  int rank = tpu_rank_of(b, x) - n;
  memcpy(dims, tpu_dims_of(b, x), sizeof *dims * (size_t)rank);
  dims[rank] = 1;
  for (int d = rank; d < rank + n; d++) dims[rank] *= tpu_dim_of(b, x, d);
  return tpu_reshape(b, x, rank + 1, dims);
}

enum { LONG_ROW = 16 }; /* shorter rows are reduced as well by a plain loop */

static bool has_long_rows(tpu_build *b, tpu_val x, int trailing) {
  if (tpu_build_failed(b) || b->target->platform != TPU_TARGET_CPU || trailing == 0) return false;
  if (!tpu_is_float(tpu_dtype_of(b, x)) || tpu_dtype_bytes(tpu_dtype_of(b, x)) < 4) return false;
  int64_t size = 1;
  for (int d = tpu_rank_of(b, x) - trailing; d < tpu_rank_of(b, x); d++) size *= tpu_dim_of(b, x, d);
  int64_t numel = tpu_numel_of(b, x);
  return size >= LONG_ROW && numel > size; /* a single row is reduced well as it is */
}

tpu_val sum_over(tpu_build *b, tpu_val x, int n_axes, const int64_t *axes) {
  int trailing = trailing_axes(tpu_rank_of(b, x), n_axes, axes);
  if (!has_long_rows(b, x, trailing)) return reduce_over(b, TPU_MONOID_ADD, x, n_axes, axes);
  x = merge_last(b, x, trailing);
  int last = tpu_rank_of(b, x) - 1;
  int64_t size = tpu_dim_of(b, x, last), rows = tpu_numel_of(b, x) / size;
  int64_t dims[TPU_MAX_RANK];
  memcpy(dims, tpu_dims_of(b, x), sizeof *dims * (size_t)last);
  tpu_val ones = tpu_full(b, tpu_dtype_of(b, x), 1, &size, 1);
  x = contract(b, tpu_reshape(b, x, 2, (int64_t[]){rows, size}), ones, 0, 1, 0);
  return reduce_over(b, TPU_MONOID_ADD, tpu_reshape(b, x, last, dims), n_axes - trailing, axes);
}

tpu_val max_over(tpu_build *b, tpu_val x, int n_axes, const int64_t *axes) {
  int trailing = trailing_axes(tpu_rank_of(b, x), n_axes, axes);
  if (trailing < 2) return reduce_over(b, TPU_MONOID_MAX, x, n_axes, axes);
  x = merge_last(b, x, trailing);
  const int64_t last = tpu_rank_of(b, x) - 1;
  return reduce_over(b, TPU_MONOID_MAX, reduce_over(b, TPU_MONOID_MAX, x, 1, &last), n_axes - trailing, axes);
}

tpu_val mean_keep(tpu_build *b, tpu_val x, int n_axes, const int64_t *axes) {
  tpu_val sum = reduce_keep(b, sum_over(b, x, n_axes, axes), x, n_axes, axes, true);
  return binary_c(b, TPU_HLO_DIVIDE, sum, (double)reduce_count(b, x, n_axes, axes));
}

tpu_val with_kept(tpu_build *b, tpu_hlo op, tpu_val x, tpu_val y) {
  return tpu_binary(b, op, x, tpu_broadcast_to(b, y, tpu_rank_of(b, x), tpu_dims_of(b, x)));
}

tpu_val separated(tpu_build *b, tpu_val x) {
  tpu_val y = TPU_POISON;
  tpu_barrier(b, 1, &x, &y);
  return y;
}

void out_channels_last(tpu_build *b, tpu_out *out, const tpu_operand *like) {
  tpu_type type = tpu_type_of(b, out->val);
  if (tpu_build_failed(b) || !like || like->rank != type.rank) return;
  int64_t *strides = tpu_build_alloc(b, sizeof *strides * (size_t)(type.rank ? type.rank : 1));
  if (!strides) return;
  if (strides_are_channels_last(like->rank, like->sizes, like->strides))
    strides_channels_last(type.rank, type.dims, strides);
  else
    strides_contiguous(type.rank, type.dims, strides);
  out->strides = strides;
}

void out_preserve(tpu_build *b, tpu_out *out, const tpu_operand *like) {
  tpu_type type = tpu_type_of(b, out->val);
  if (tpu_build_failed(b) || !like || like->rank != type.rank || type.rank == 0) return;
  int64_t *strides = tpu_build_alloc(b, sizeof *strides * (size_t)type.rank);
  if (!strides) return;
  strides_preserve(type.rank, like->sizes, like->strides, strides);
  out->strides = strides;
}

bool arg_ints_n(tpu_build *b, const tpu_args *a, int i, int n, const int64_t *otherwise, const char *message, int64_t *out) {
  int have;
  const int64_t *ints = arg_ints(a, i, &have);
  if (have == 0 && otherwise) {
    memmove(out, otherwise, sizeof *out * (size_t)n);
    return true;
  }
  if (have != 1 && have != n) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s", message);
    return false;
  }
  for (int d = 0; d < n; d++) out[d] = ints[have == 1 ? 0 : d];
  return true;
}

tpu_val empty_result(tpu_build *b, tpu_dtype dtype) {
  const int64_t none = 0;
  return tpu_full(b, dtype, 1, &none, 0);
}
