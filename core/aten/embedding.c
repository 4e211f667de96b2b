/* Source: aten/src/ATen/native/Embedding.cpp. */
#include "aten/embedding.h"

#include <inttypes.h>

/* On a TPU a matrix product with a one-hot matrix beats a scatter, while that matrix is small. It has to be exact: float32 in
 * full precision, or bfloat16, whose products are. On the CPU the scatter wins at any size (256 rows, 1024 indices, 64 columns:
 * 17 us against 230). */
static bool prefers_one_hot(const tpu_build *b, int64_t n, tpu_val index, tpu_val rows) {
  enum { MOST = 1 << 22 };
  int64_t count = tpu_numel_of(b, index);
  tpu_dtype dtype = tpu_dtype_of(b, rows);
  if (b->target->platform != TPU_TARGET_TPU || count == 0 || n == 0 || n > MOST / count) return false;
  return dtype == TPU_BF16 || (dtype == TPU_F32 && b->target->precision == TPU_PRECISION_HIGHEST);
}

tpu_val embedding_sum_rows(tpu_build *b, int64_t n, tpu_val index, tpu_val rows) {
  int64_t count = tpu_numel_of(b, index), columns = tpu_dim_of(b, rows, 1), dims[2] = {n, columns};
  tpu_dtype dtype = tpu_dtype_of(b, rows), math = tpu_dtype_opmath(dtype);
  if (!prefers_one_hot(b, n, index, rows)) {
    tpu_val zero = tpu_full(b, math, 2, dims, 0);
    return index_write_rows(b, TPU_MONOID_ADD, zero, 0, index, tpu_convert(b, rows, math));
  }
  int64_t pairs[2] = {n, count}, to_column = 1, one = 1, zero = 0;
  tpu_val wanted = tpu_broadcast_in_dim(b, index, 2, pairs, &to_column);
  tpu_val is_row = tpu_compare(b, TPU_EQ, wanted, tpu_iota(b, tpu_dtype_of(b, index), 2, pairs, 0));
  tpu_dot_dims dot = {.n_contract = 1, .lhs_contract = &one, .rhs_contract = &zero};
  return tpu_dot_general(b, tpu_convert(b, is_row, dtype), rows, &dot, math);
}

tpu_val embedding_frequency(tpu_build *b, int64_t n, tpu_val index, tpu_dtype dtype) {
  int64_t count = tpu_numel_of(b, index);
  tpu_val counts =
      index_write_rows(b, TPU_MONOID_ADD, tpu_full(b, TPU_I32, 1, &n, 0), 0, index, tpu_full(b, TPU_I32, 1, &count, 1));
  return tpu_convert(b, index_read_rows(b, counts, 0, index), dtype);
}

tpu_val embedding_drop(tpu_build *b, tpu_val index, int64_t n, int64_t padding, tpu_val drop) {
  tpu_val outside = tpu_full_like(b, index, (double)n);
  if (padding >= 0) {
    tpu_val is_padding = tpu_compare(b, TPU_EQ, index, tpu_full_like(b, index, (double)padding));
    drop = drop.id ? tpu_or(b, drop, is_padding) : is_padding;
  }
  return drop.id ? tpu_select(b, drop, outside, index) : index;
}

tpu_val embedding_beside(tpu_build *b, tpu_val x, int64_t row_size) {
  int64_t dims[2] = {tpu_numel_of(b, x), row_size}, to_row = 0;
  return tpu_broadcast_in_dim(b, x, 2, dims, &to_row);
}

bool embedding_check_index(tpu_build *b, const tpu_operand *index, int position, const char *function) {
  if (index_is_integer(index->dtype)) return true;
  tpu_fail(b, TPU_INVALID_ARGUMENT,
           "Expected tensor for argument #%d 'indices' to have one of the following scalar types: Long, Int; but got "
           "torch.%sTensor instead (while checking arguments for %s)",
           position, tpu_dtype_scalar_name(index->dtype), function);
  return false;
}

/* embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False) */
void lower_embedding(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *weight = arg_operand(b, a, 0), *index = arg_operand(b, a, 1);
  if (!weight || !index) return;
  if (weight->rank != 2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "'weight' must be 2-D");
    return;
  }
  if (!embedding_check_index(b, index, 1, "embedding")) return;
  o->out[0].val = index_read_rows(b, weight->val, 0, index_prepare(b, index->val, weight->sizes[0], false));
}

/* embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq) -> [num_weights, D] */
void lower_embedding_dense_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *grad = arg_operand(b, a, 0), *indices = arg_operand(b, a, 1);
  int64_t n = arg_int(b, a, 2, 0), padding = arg_int(b, a, 3, -1);
  if (!grad || !indices || !embedding_check_index(b, indices, 2, "embedding_backward")) return;
  tpu_val index = index_flatten(b, index_prepare(b, indices->val, n, false));
  int64_t columns = grad->rank ? grad->sizes[grad->rank - 1] : 1, dims[2] = {tpu_numel_of(b, index), columns};
  if (dims[0] * dims[1] != tpu_numel_of(b, grad->val)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "shape '%s' is invalid for input of size %" PRId64, index_dims_text(b, 2, dims),
             tpu_numel_of(b, grad->val));
    return;
  }
  tpu_val rows = tpu_reshape(b, grad->val, 2, dims);
  if (arg_bool(b, a, 4)) {
    tpu_dtype math = tpu_dtype_opmath(grad->dtype);
    tpu_val frequency = embedding_beside(b, embedding_frequency(b, n, index, math), columns);
    rows = tpu_div(b, tpu_convert(b, rows, math), frequency);
  }
  index = embedding_drop(b, index, n, padding, TPU_POISON);
  o->out[0].val = tpu_convert(b, embedding_sum_rows(b, n, index, rows), grad->dtype);
}

static tpu_val row_norms(tpu_build *b, tpu_val rows, double p) {
  tpu_dtype dtype = tpu_dtype_of(b, rows);
  int64_t axis = 1;
  tpu_val zero = tpu_scalar(b, dtype, 0), x = tpu_unary(b, TPU_HLO_ABS, rows);
  if (p > 1e308) return tpu_reduce(b, TPU_MONOID_MAX, x, zero, 1, &axis);
  if (p == 2)
    x = tpu_mul(b, x, x);
  else if (p != 1)
    x = tpu_binary(b, TPU_HLO_POWER, x, tpu_full_like(b, x, p));
  x = tpu_reduce(b, TPU_MONOID_ADD, x, zero, 1, &axis);
  if (p == 2) return tpu_unary(b, TPU_HLO_SQRT, x);
  return p == 1 ? x : tpu_binary(b, TPU_HLO_POWER, x, tpu_full_like(b, x, 1 / p));
}

/* embedding_renorm(self, indices, max_norm, norm_type): the rows that indices name, scaled down to max_norm */
void lower_embedding_renorm(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *self = arg_operand(b, a, 0), *indices = arg_operand(b, a, 1);
  double p = arg_static(b, a, 3);
  if (!self || !indices || !embedding_check_index(b, indices, 2, "embedding_renorm_")) return;
  if (self->rank != 2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Expected 2-dimensional tensor, but got %d-dimensional tensor for argument #1 'self' (while checking "
             "arguments for embedding_renorm_)",
             self->rank);
    return;
  }
  tpu_dtype math = tpu_dtype_opmath(self->dtype);
  tpu_val index = index_flatten(b, index_prepare(b, indices->val, self->sizes[0], false));
  tpu_val rows = index_read_rows(b, self->val, 0, index), wide = tpu_convert(b, rows, math);
  tpu_val norms = row_norms(b, wide, p), most = tpu_broadcast_like(b, arg_number(b, a, 2, math), norms);
  tpu_val scale = tpu_div(b, most, tpu_add(b, norms, tpu_full_like(b, norms, 1e-7)));
  tpu_val scaled = tpu_convert(b, tpu_mul(b, wide, embedding_beside(b, scale, self->sizes[1])), self->dtype);
  tpu_val too_long = embedding_beside(b, tpu_compare(b, TPU_GT, norms, most), self->sizes[1]);
  /* A row that is named twice is written twice, alike. */
  o->out[0].val = index_write_rows(b, TPU_MONOID_ASSIGN, self->val, 0, index, tpu_select(b, too_long, scaled, rows));
}
