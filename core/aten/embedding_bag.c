/* Sums, means and maxima of bags of embedding rows. Source: aten/src/ATen/native/EmbeddingBag.cpp. The shapes of the results that
 * only the gradient reads are those of CUDA and of the meta kernel for any device but the CPU: offset2bag [N], bag_size
 * [offsets], max_indices [bags, D], or [0] where the mode is not max. */
#include "aten/embedding.h"

enum { MODE_SUM, MODE_MEAN, MODE_MAX };

/* offset2bag [N] I32: which bag each index belongs to; below 0 before the first bag. */
static tpu_val bags_of(tpu_build *b, tpu_val offsets, int64_t n) {
  tpu_val bag = index_count_ends(b, index_prepare(b, offsets, n + 1, false), n);
  return tpu_sub(b, bag, tpu_full_like(b, bag, 1));
}

/* How many rows each of `n_bags` has, [n_bags] I32. */
static tpu_val sizes_of(tpu_build *b, tpu_val bag, int64_t n_bags) {
  int64_t n = tpu_numel_of(b, bag);
  return index_write_rows(b, TPU_MONOID_ADD, tpu_full(b, TPU_I32, 1, &n_bags, 0), 0, bag, tpu_full(b, TPU_I32, 1, &n, 1));
}

static tpu_val divide_by_count(tpu_build *b, tpu_val rows, tpu_val count) {
  count = tpu_max(b, count, tpu_full_like(b, count, 1));
  return tpu_div(b, rows, embedding_beside(b, tpu_convert(b, count, tpu_dtype_of(b, rows)), tpu_dim_of(b, rows, 1)));
}

/* The largest element of each bag's column and the index of the row it came from: the first such row. */
static void max_of_bags(tpu_build *b, tpu_val rows, tpu_val index, tpu_val bag, tpu_val size, int64_t n_bags, tpu_val *out,
                        tpu_val *out_indices) {
  int64_t n = tpu_dim_of(b, rows, 0), columns = tpu_dim_of(b, rows, 1), dims[2] = {n_bags, columns};
  tpu_dtype dtype = tpu_dtype_of(b, rows);
  tpu_val start = tpu_broadcast_to(b, tpu_lowest(b, dtype), 2, dims);
  tpu_val most = index_write_rows(b, TPU_MONOID_MAX, start, 0, bag, rows);
  tpu_val is_most = tpu_compare(b, TPU_EQ, rows, index_read_rows(b, most, 0, bag));
  int64_t pairs[2] = {n, columns};
  tpu_val nowhere = tpu_full_i(b, TPU_I32, 2, pairs, n);
  tpu_val at = tpu_select(b, is_most, tpu_iota(b, TPU_I32, 2, pairs, 0), nowhere);
  at = index_write_rows(b, TPU_MONOID_MIN, tpu_full_i(b, TPU_I32, 2, dims, n), 0, bag, at);
  tpu_val empty = embedding_beside(b, tpu_compare(b, TPU_EQ, size, tpu_full_like(b, size, 0)), columns);
  *out = tpu_select(b, empty, tpu_full(b, dtype, 2, dims, 0), most);
  tpu_val found = index_read_rows(b, index, 0, at);
  *out_indices = tpu_select(b, empty, tpu_full_like(b, found, 0), found);
}

static bool check_bag_args(tpu_build *b, const tpu_operand *weight, const tpu_operand *indices, const tpu_operand *offsets,
                           const tpu_operand *scale, int64_t mode, bool include_last) {
  if (!embedding_check_index(b, indices, 1, "embedding_bag")) return false;
  if (!index_is_integer(offsets->dtype))
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Expected tensor for argument #1 'offsets' to have one of the following scalar types: Long, Int; but got "
             "torch.%sTensor instead (while checking arguments for embedding_bag)",
             tpu_dtype_scalar_name(offsets->dtype));
  else if (weight->rank != 2)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "weight has to be a 2D Tensor, but got Tensor of dimension %d", weight->rank);
  else if (indices->rank != 1)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "input has to be a 1D Tensor, but got Tensor of dimension %d", indices->rank);
  else if (offsets->rank != 1)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "offsets has to be a 1D Tensor, but got Tensor of dimension %d", offsets->rank);
  else if (mode < MODE_SUM || mode > MODE_MAX)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "embedding_bag: mode must be 0 (sum), 1 (mean) or 2 (max)");
  else if (include_last && offsets->sizes[0] < 1)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "include_last_offset: number of offset should be at least 1");
  else if (scale && mode != MODE_SUM)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "embedding_bag: per_sample_weights only supported with mode='sum'");
  else if (scale && scale->dtype != weight->dtype)
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Expected tensor for argument #1 'weight' to have the same type as tensor for argument #1 "
             "'per_sample_weights'; but type torch.%sTensor does not equal torch.%sTensor (while checking arguments for "
             "embedding_bag)",
             tpu_dtype_scalar_name(weight->dtype), tpu_dtype_scalar_name(scale->dtype));
  else if (scale && (scale->rank != 1 || scale->sizes[0] != indices->sizes[0]))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "expected per_sample_weights to be a 1D tensor with as many elements as the indices");
  return !tpu_build_failed(b);
}

/* _embedding_bag and _embedding_bag_forward_only: (weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False,
 * per_sample_weights=None, include_last_offset=False, padding_idx=-1) -> (output, offset2bag, bag_size, max_indices) */
void lower_embedding_bag(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *weight = arg_operand(b, a, 0), *indices = arg_operand(b, a, 1), *offsets = arg_operand(b, a, 2);
  const tpu_operand *scale = arg_present(a, 6) ? arg_operand(b, a, 6) : NULL;
  int64_t mode = arg_int(b, a, 4, MODE_SUM), padding = arg_int(b, a, 8, -1);
  bool include_last = arg_bool(b, a, 7);
  if (!weight || !indices || !offsets || tpu_build_failed(b)) return;
  if (!check_bag_args(b, weight, indices, offsets, scale, mode, include_last)) return;
  int64_t rows_n = weight->sizes[0], columns = weight->sizes[1], n = indices->sizes[0], n_offsets = offsets->sizes[0];
  int64_t n_bags = n_offsets - include_last, zero = 0;
  tpu_dtype dtype = weight->dtype, math = tpu_dtype_opmath(dtype), index_dtype = indices->dtype;
  tpu_val index = index_prepare(b, indices->val, rows_n, false), bag = bags_of(b, offsets->val, n);
  tpu_val rows = index_read_rows(b, weight->val, 0, index);
  tpu_val kept = bag; /* with the rows to be left out in no bag */
  if (padding >= 0) {
    tpu_val is_padding = tpu_compare(b, TPU_EQ, index, tpu_full_like(b, index, (double)padding));
    kept = embedding_drop(b, bag, n_bags, -1, is_padding);
  }
  o->out[1].val = tpu_convert(b, bag, index_dtype);
  tpu_val size = mode == MODE_SUM ? tpu_full(b, TPU_I32, 1, &n_bags, 0) : sizes_of(b, kept, n_bags);
  tpu_val sizes = size;
  if (include_last) {
    int64_t lo = 0, hi = 1;
    sizes = tpu_pad(b, size, tpu_scalar_i(b, TPU_I32, 0), &lo, &hi, NULL);
  }
  o->out[2].val = tpu_convert(b, sizes, index_dtype);
  o->out[3].val = tpu_full(b, index_dtype, 1, &zero, 0);
  tpu_val y;
  if (mode == MODE_MAX) {
    tpu_val most;
    max_of_bags(b, rows, index, kept, size, n_bags, &y, &most);
    o->out[3].val = tpu_convert(b, most, index_dtype);
  } else {
    if (scale) rows = tpu_mul(b, tpu_convert(b, rows, math), embedding_beside(b, tpu_convert(b, scale->val, math), columns));
    y = embedding_sum_rows(b, n_bags, kept, rows);
    if (mode == MODE_MEAN) y = divide_by_count(b, y, size);
  }
  o->out[0].val = tpu_convert(b, y, dtype);
}

typedef struct bag_gradient {
  const tpu_operand *grad, *indices, *bag_size, *max_indices, *scale;
  tpu_val bag; /* [N] I32 */
  int64_t n_weights, mode, padding;
  bool by_frequency;
} bag_gradient;

static tpu_val gradient_of_max(tpu_build *b, const bag_gradient *g) {
  const tpu_operand *grad = g->grad;
  int64_t n_bags = grad->sizes[0], dims[2] = {g->n_weights, grad->sizes[1]};
  tpu_dtype math = tpu_dtype_opmath(grad->dtype);
  tpu_val size = tpu_slice_dim(b, g->bag_size->val, 0, 0, n_bags, 1); /* include_last_offset: one more */
  tpu_val empty = embedding_beside(b, tpu_compare(b, TPU_EQ, size, tpu_full_like(b, size, 0)), grad->sizes[1]);
  tpu_val index = index_trusted(b, g->max_indices->val, g->n_weights); /* our own; -1 or so for an empty bag */
  index = tpu_select(b, empty, tpu_full_like(b, index, (double)g->n_weights), index);
  return index_scatter(b, TPU_MONOID_ADD, tpu_full(b, math, 2, dims, 0), 0, index, NULL, tpu_convert(b, grad->val, math));
}

static tpu_val gradient_of_sum(tpu_build *b, const bag_gradient *g) {
  const tpu_operand *grad = g->grad;
  int64_t n_bags = grad->sizes[0], columns = grad->sizes[1];
  tpu_dtype math = tpu_dtype_opmath(grad->dtype);
  tpu_val index = index_prepare(b, g->indices->val, g->n_weights, false);
  tpu_val per_bag = tpu_convert(b, grad->val, math);
  if (g->mode == MODE_MEAN) per_bag = divide_by_count(b, per_bag, tpu_slice_dim(b, g->bag_size->val, 0, 0, n_bags, 1));
  tpu_val rows = index_read_rows(b, per_bag, 0, g->bag);
  if (g->scale) rows = tpu_mul(b, rows, embedding_beside(b, tpu_convert(b, g->scale->val, math), columns));
  if (g->by_frequency) rows = tpu_div(b, rows, embedding_beside(b, embedding_frequency(b, g->n_weights, index, math), columns));
  tpu_val in_no_bag = tpu_or(b, tpu_compare(b, TPU_LT, g->bag, tpu_full_like(b, g->bag, 0)),
                             tpu_compare(b, TPU_GE, g->bag, tpu_full_like(b, g->bag, (double)n_bags)));
  index = embedding_drop(b, index, g->n_weights, g->padding, in_no_bag);
  return embedding_sum_rows(b, g->n_weights, index, rows);
}

static void gradient(tpu_build *b, const bag_gradient *g, tpu_outs *o) {
  if (tpu_build_failed(b)) return;
  int64_t dims[2] = {g->n_weights, g->grad->sizes[1]};
  tpu_val y = tpu_numel_of(b, g->grad->val) == 0 ? tpu_full(b, g->grad->dtype, 2, dims, 0)
              : g->mode == MODE_MAX              ? gradient_of_max(b, g)
                                                 : gradient_of_sum(b, g);
  o->out[0].val = tpu_convert(b, y, g->grad->dtype);
}

/* offset2bag as the forward pass left it; CPU's leaves it empty where it does not need it. */
static tpu_val read_bags(tpu_build *b, const tpu_operand *offset2bag, const tpu_operand *offsets, int64_t n) {
  if (tpu_numel_of(b, offset2bag->val) == n) return index_flatten(b, tpu_convert(b, offset2bag->val, TPU_I32));
  return offsets ? bags_of(b, offsets->val, n) : tpu_fail(b, TPU_INVALID_ARGUMENT, "offset2bag has the wrong size");
}

/* i: where the arguments after offset2bag start */
static void read_gradient(tpu_build *b, const tpu_args *a, const tpu_operand *offsets, int i, int i_scale, bag_gradient *out) {
  const tpu_operand *offset2bag = arg_operand(b, a, i - 1);
  *out = (bag_gradient){.grad = arg_operand(b, a, 0),
                        .indices = arg_operand(b, a, 1),
                        .bag_size = arg_operand(b, a, i),
                        .max_indices = arg_operand(b, a, i + 1),
                        .n_weights = arg_int(b, a, i + 2, 0),
                        .by_frequency = arg_bool(b, a, i + 3),
                        .mode = arg_int(b, a, i + 4, MODE_SUM),
                        .padding = arg_int(b, a, i_scale + 1, -1)};
  out->scale = arg_present(a, i_scale) ? arg_operand(b, a, i_scale) : NULL;
  if (!tpu_build_failed(b) && out->grad->rank != 2)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "embedding_bag: grad has to be a 2D Tensor, but got Tensor of dimension %d",
             out->grad->rank);
  if (tpu_build_failed(b)) return;
  out->bag = out->mode == MODE_MAX ? TPU_POISON : read_bags(b, offset2bag, offsets, tpu_numel_of(b, out->indices->val));
}

/* (grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, sparse,
 * per_sample_weights, padding_idx=-1) */
void lower_embedding_bag_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  bag_gradient g;
  if (arg_bool(b, a, 9)) {
    tpu_fail(b, TPU_UNIMPLEMENTED, "embedding_bag: sparse gradients are not supported");
    return;
  }
  read_gradient(b, a, arg_operand(b, a, 2), 4, 10, &g);
  gradient(b, &g, o);
}

/* (grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights,
 * padding_idx=-1) */
void lower_embedding_bag_dense_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  bag_gradient g;
  read_gradient(b, a, NULL, 3, 8, &g);
  gradient(b, &g, o);
}

/* (grad, weight, indices, offsets, offset2bag, mode, padding_idx=-1) -> [N] */
void lower_embedding_bag_weights_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *grad = arg_operand(b, a, 0), *weight = arg_operand(b, a, 1), *indices = arg_operand(b, a, 2);
  const tpu_operand *offsets = arg_operand(b, a, 3), *offset2bag = arg_operand(b, a, 4);
  int64_t padding = arg_int(b, a, 6, -1), axis = 1;
  if (arg_int(b, a, 5, MODE_SUM) != MODE_SUM)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "embedding_bag_backward: per_sample_weights only supported for mode='sum'");
  if (!tpu_build_failed(b) && (grad->rank != 2 || weight->rank != 2 || indices->rank != 1 || grad->sizes[1] != weight->sizes[1]))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "embedding_bag: grad and weight have to be 2D Tensors of as many columns, indices 1D");
  if (tpu_build_failed(b)) return;
  tpu_dtype math = tpu_dtype_opmath(grad->dtype);
  tpu_val index = index_prepare(b, indices->val, weight->sizes[0], false);
  tpu_val bag = read_bags(b, offset2bag, offsets, tpu_numel_of(b, index));
  tpu_val x = tpu_convert(b, index_read_rows(b, grad->val, 0, bag), math);
  tpu_val y = tpu_convert(b, index_read_rows(b, weight->val, 0, index), math);
  tpu_val sum = tpu_reduce(b, TPU_MONOID_ADD, tpu_mul(b, x, y), tpu_scalar(b, math, 0), 1, &axis);
  if (padding >= 0)
    sum = tpu_select(b, tpu_compare(b, TPU_EQ, index, tpu_full_like(b, index, (double)padding)), tpu_full_like(b, sum, 0), sum);
  o->out[0].val = tpu_convert(b, sum, grad->dtype);
}
