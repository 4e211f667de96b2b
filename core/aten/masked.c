/* Rows whose positions come from counting: masked_scatter, nonzero_static, repeat_interleave. */
#include <inttypes.h>
#include <string.h>

#include "aten/indexing.h"

/* masked_scatter(self, mask, source): the k-th true element takes source's k-th. */
void lower_masked_scatter(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val self = arg_tensor(b, a, 0), mask = arg_tensor(b, a, 1), source = arg_tensor(b, a, 2);
  if (tpu_build_failed(b)) return;
  tpu_dtype dtype = tpu_dtype_of(b, self);
  if (dtype != tpu_dtype_of(b, source))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "masked_scatter: expected self and source to have same dtypes but got%s and %s",
             tpu_dtype_scalar_name(dtype), tpu_dtype_scalar_name(tpu_dtype_of(b, source)));
  else if (tpu_dtype_of(b, mask) != TPU_BOOL)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "masked_scatter_ only supports boolean masks, but got mask with dtype %s",
             tpu_dtype_scalar_name(tpu_dtype_of(b, mask)));
  if (tpu_build_failed(b)) return;
  tpu_val both[2] = {self, mask};
  broadcast_all(b, 2, both);
  tpu_type type = tpu_type_of(b, both[0]);
  if (tpu_numel_of(b, source) == 0 || tpu_build_failed(b)) {
    o->out[0].val = both[0];
    return;
  }
  tpu_val at = index_rank_true(b, index_flatten(b, both[1]));
  tpu_val taken = index_read_rows(b, index_flatten(b, source), 0, at);
  o->out[0].val = tpu_select(b, both[1], tpu_reshape(b, taken, type.rank, type.dims), both[0]);
}

/* masked_scatter_backward(grad_output, mask, sizes): the gradient of source, of dims `sizes` */
void lower_masked_scatter_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val grad = arg_tensor(b, a, 0), mask = arg_tensor(b, a, 1);
  int rank;
  const int64_t *sizes = arg_ints(a, 2, &rank);
  if (tpu_build_failed(b)) return;
  tpu_val both[2] = {grad, tpu_convert(b, mask, TPU_BOOL)};
  broadcast_all(b, 2, both);
  int64_t numel = 1;
  for (int d = 0; d < rank; d++) numel *= sizes[d];
  mask = index_flatten(b, both[1]);
  tpu_val at = index_rank_true(b, mask);
  at = tpu_select(b, mask, at, tpu_full_like(b, at, (double)(numel > tpu_numel_of(b, mask) ? numel : tpu_numel_of(b, mask))));
  tpu_val zero = tpu_full(b, tpu_dtype_of(b, grad), 1, &numel, 0);
  tpu_val y = index_write_rows(b, TPU_MONOID_ASSIGN, zero, 0, at, index_flatten(b, both[0]));
  o->out[0].val = tpu_reshape(b, y, rank, sizes);
}

/* nonzero_static(self, *, size, fill_value=-1) -> [size, rank] */
void lower_nonzero_static(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val self = arg_tensor(b, a, 0);
  int64_t size = arg_int(b, a, 1, 0), fill = arg_int(b, a, 2, -1);
  if (size < 0) tpu_fail(b, TPU_INVALID_ARGUMENT, "nonzero_static: 'size' must be an non-negative integer");
  if (tpu_build_failed(b)) return;
  tpu_type type = tpu_type_of(b, self);
  int64_t n = tpu_type_numel(type), dims[2] = {size, type.rank}, column[2] = {size, 1};
  if (size == 0 || type.rank == 0 || n == 0) {
    o->out[0].val = tpu_full_i(b, TPU_I64, 2, dims, fill);
    return;
  }
  tpu_val mask = index_flatten(b, tpu_convert(b, self, TPU_BOOL)), at = index_rank_true(b, mask);
  tpu_dtype dtype = tpu_dtype_of(b, at);
  int64_t beyond = size > n ? size : n;
  tpu_val target = tpu_select(b, mask, at, tpu_full_like(b, at, (double)beyond));
  target = index_write_rows(b, TPU_MONOID_ASSIGN, tpu_full_i(b, dtype, 1, &size, -1), 0, target,
                            tpu_iota(b, dtype, 1, &n, 0)); /* flat positions of the true elements, then -1 */
  tpu_val is_fill = tpu_compare(b, TPU_LT, target, tpu_full_like(b, target, 0)), columns[TPU_MAX_RANK];
  tpu_val rest = target, filler = tpu_full_i(b, TPU_I64, 1, &size, fill);
  for (int d = type.rank - 1; d >= 0; d--) {
    tpu_val extent = tpu_full_i(b, dtype, 1, &size, type.dims[d]);
    tpu_val coordinate = d ? tpu_binary(b, TPU_HLO_REMAINDER, rest, extent) : rest;
    rest = tpu_div(b, rest, extent);
    coordinate = tpu_select(b, is_fill, filler, tpu_convert(b, coordinate, TPU_I64));
    columns[d] = tpu_reshape(b, coordinate, 2, column);
  }
  o->out[0].val = tpu_concat(b, type.rank, columns, 1);
}

/* repeat_interleave.Tensor(repeats, *, output_size): i, repeats[i] times */
void lower_repeat_interleave(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *repeats = arg_operand(b, a, 0);
  if (!repeats) return;
  int64_t size = arg_int(b, a, 1, -1), n = tpu_numel_of(b, repeats->val);
  if (repeats->rank != 1) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "repeat_interleave only accept 1D vector as repeat");
    return;
  }
  if (!index_is_integer(repeats->dtype)) {
    fail_not_implemented(b, a, repeats->dtype);
    return;
  }
  if (n == 0) size = 0;
  if (size < 0) {
    tpu_fail(b, TPU_UNIMPLEMENTED, "repeat_interleave without output_size: the size of the result depends on values");
    return;
  }
  tpu_val ends = tpu_cumulative(b, TPU_MONOID_ADD, repeats->val, 0, false);
  if (b->checks && n > 0) { /* output_size must be the sum */
    tpu_val sum = tpu_convert(b, tpu_slice_dim(b, ends, 0, n - 1, n, 1), TPU_I64);
    tpu_build_check(b, tpu_compare(b, TPU_NE, sum, tpu_full_like(b, sum, (double)size)));
  }
  o->out[0].val = tpu_convert(b, index_count_ends(b, ends, size), repeats->dtype);
}
