/* One index vector along one dim: index_select, index_add, index_copy, index_fill, index_reduce. Source:
 * aten/src/ATen/native/TensorAdvancedIndexing.cpp. */
#include <inttypes.h>
#include <string.h>

#include "aten/indexing.h"

/* A scalar counts as a vector of one element. */
static tpu_val as_vector(tpu_build *b, tpu_val x) { return tpu_rank_of(b, x) ? x : index_flatten(b, x); }

static tpu_val like(tpu_build *b, tpu_val y, const tpu_operand *self) { return tpu_reshape(b, y, self->rank, self->sizes); }

void lower_index_select(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *self = arg_operand(b, a, 0), *index = arg_operand(b, a, 2);
  if (!self || !index) return;
  int dim = arg_dim(b, a, 1, self->rank);
  if (tpu_build_failed(b)) return;
  int64_t size = self->rank ? self->sizes[dim] : 1, n = tpu_numel_of(b, index->val);
  if (index->rank > 1)
    tpu_fail(b, TPU_OUT_OF_RANGE, "index_select(): Index is supposed to be a vector");
  else if (!index_is_integer(index->dtype))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "index_select(): Expected dtype int32 or int64 for index");
  else if (self->rank == 0 && n != 1)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "index_select(): Index to scalar can have only 1 value, got %" PRId64 " value(s)", n);
  else if (size == 0 && n != 0)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "index_select(): self indexing axis dim should be positive");
  if (tpu_build_failed(b)) return;
  tpu_val position = as_vector(b, index_prepare(b, index->val, size, false));
  tpu_val y = index_read_rows(b, as_vector(b, self->val), dim, position);
  o->out[0].val = self->rank ? y : tpu_reshape(b, y, 0, NULL);
}

/* The operands of index_add and index_reduce, checked. x and source have a rank of at least 1. */
typedef struct along_dim {
  const tpu_operand *self, *source_operand;
  int dim;
  tpu_val x, index, source;
} along_dim;

static bool same_but(const tpu_operand *self, const tpu_operand *source, int dim) {
  if (self->rank != source->rank) return false;
  for (int d = 0; d < self->rank; d++)
    if (d != dim && self->sizes[d] != source->sizes[d]) return false;
  return true;
}

static bool read_along(tpu_build *b, const tpu_args *a, const char *name, along_dim *out) {
  const tpu_operand *self = arg_operand(b, a, 0), *index = arg_operand(b, a, 2), *source = arg_operand(b, a, 3);
  if (!self || !index || !source) return false;
  int dim = arg_dim(b, a, 1, self->rank);
  if (tpu_build_failed(b)) return false;
  int64_t n = tpu_numel_of(b, index->val), m = source->rank ? source->sizes[dim < source->rank ? dim : 0] : 1;
  if (index->rank > 1)
    tpu_fail(b, TPU_OUT_OF_RANGE, "%s_(): Index is supposed to be a vector, but got dim: %d with type: %s and size: %s", name,
             index->rank, tpu_dtype_scalar_name(index->dtype), index_dims_text(b, index->rank, index->sizes));
  else if (!index_is_integer(index->dtype))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s_(): Expected dtype int32/int64 for index but got: %s", name,
             tpu_dtype_scalar_name(index->dtype));
  else if (self->dtype != source->dtype)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s_(): self (%s) and source (%s) must have the same scalar type", name,
             tpu_dtype_scalar_name(self->dtype), tpu_dtype_scalar_name(source->dtype));
  else if (!same_but(self, source, dim))
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "source tensor shape must match self tensor shape, excluding the specified dimension. Got self.shape = %s "
             "source.shape = %s",
             index_dims_text(b, self->rank, self->sizes), index_dims_text(b, source->rank, source->sizes));
  else if (n != m)
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "%s_(): Number of indices (%" PRId64 ") should be equal to source.size(dim): (%" PRId64 "), for dim: %d", name, n, m,
             dim);
  if (tpu_build_failed(b)) return false;
  int64_t dims[TPU_MAX_RANK] = {n};
  for (int d = 0; d < self->rank; d++) dims[d] = d == dim ? n : self->sizes[d];
  *out = (along_dim){.self = self, .source_operand = source, .dim = dim, .x = as_vector(b, self->val)};
  out->source = tpu_reshape(b, source->val, self->rank ? self->rank : 1, dims);
  out->index = as_vector(b, index_prepare(b, index->val, tpu_dim_of(b, out->x, dim), false));
  return !tpu_build_failed(b);
}

/* index_add(self, dim, index, source, *, alpha=1) */
void lower_index_add(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  along_dim s;
  if (!read_along(b, a, "index_add", &s)) return;
  if (arg_present(a, 4) && !arg_is_default(a, 4)) {
    tpu_dtype math = tpu_dtype_opmath(s.self->dtype);
    tpu_val alpha = arg_number(b, a, 4, math);
    tpu_hlo op = s.self->dtype == TPU_BOOL ? TPU_HLO_AND : TPU_HLO_MULTIPLY;
    s.source = tpu_convert(b, bcast_binary(b, op, tpu_convert(b, s.source, math), alpha), s.self->dtype);
  }
  o->out[0].val = like(b, index_write_rows(b, TPU_MONOID_ADD, s.x, s.dim, s.index, s.source), s.self);
}

/* Dims other than `dim`, as text: slice shapes in index_copy's message. */
static const char *slice_text(tpu_build *b, int rank, const int64_t *sizes, int dim) {
  int64_t rest[TPU_MAX_RANK];
  int n = 0;
  for (int d = 0; d < rank; d++)
    if (d != dim) rest[n++] = sizes[d];
  char *text = (char *)tpu_build_alloc(b, 24 * (size_t)(n + 1));
  if (!text) return "";
  const char *full = index_dims_text(b, n, rest);
  size_t length = strlen(full), at = 0;
  for (size_t i = 1; i + 1 < length; i++)
    if (full[i] != ',') text[at++] = full[i]; /* at::IntArrayRef without brackets and commas */
  text[at] = 0;
  return text;
}

void lower_index_copy(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *self = arg_operand(b, a, 0), *index = arg_operand(b, a, 2), *source = arg_operand(b, a, 3);
  if (!self || !index || !source) return;
  int dim = arg_dim(b, a, 1, self->rank);
  if (tpu_build_failed(b)) return;
  int64_t n = tpu_numel_of(b, index->val);
  if (index->rank > 1)
    tpu_fail(b, TPU_OUT_OF_RANGE, "index_copy_(): Index should have dimension 1 or 0 (got %d)", index->rank);
  else if (source->rank == 0 && n != 1)
    tpu_fail(b, TPU_OUT_OF_RANGE, "index_copy_(): When source is scalar, index should have one element (got %" PRId64 ")", n);
  else if (source->rank != self->rank && source->rank && self->rank)
    tpu_fail(b, TPU_OUT_OF_RANGE,
             "index_copy_(): When source and destination are not scalars, their dimensionality must match. Source "
             "dimensionality (%d), destination dimensionality (%d)",
             source->rank, self->rank);
  else if (index->dtype != TPU_I64)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "index_copy_(): Expected a long tensor for index, but got %s",
             tpu_dtype_scalar_name(index->dtype));
  else if (self->dtype != source->dtype)
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "index_copy_(): self and source expected to have the same dtype, but got (self) %s and (source) %s",
             tpu_dtype_scalar_name(self->dtype), tpu_dtype_scalar_name(source->dtype));
  if (tpu_build_failed(b)) return;
  bool slices_equal = self->rank == source->rank ? same_but(self, source, dim) : self->rank <= 1 && source->rank <= 1;
  if (!slices_equal) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "index_copy_(): Source/destination tensor must have same slice shapes. Destination slice shape: %s at "
             "dimension %d and source slice shape: %s at dimension 0.",
             slice_text(b, self->rank, self->sizes, dim), dim, slice_text(b, source->rank, source->sizes, dim));
    return;
  }
  if (source->rank && n != source->sizes[dim]) {
    tpu_fail(b, TPU_OUT_OF_RANGE,
             "index_copy_(): Number of indices (%" PRId64 ") should be equal to source.size(dim) (%" PRId64 ")", n,
             source->sizes[dim]);
    return;
  }
  tpu_val x = as_vector(b, self->val);
  tpu_val position = as_vector(b, index_prepare(b, index->val, tpu_dim_of(b, x, dim), false));
  tpu_val y = index_write_rows(b, TPU_MONOID_ASSIGN, x, dim, position, as_vector(b, source->val));
  o->out[0].val = like(b, y, self);
}

/* index_fill(self, dim, index, value), for both kinds of value */
void lower_index_fill(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *self = arg_operand(b, a, 0), *index = arg_operand(b, a, 2);
  if (!self || !index) return;
  bool is_number = arg_is_number(a, 3);
  const tpu_operand *value_operand = is_number ? NULL : arg_operand(b, a, 3);
  int dim = arg_dim(b, a, 1, self->rank);
  if (tpu_build_failed(b)) return;
  tpu_dtype value_dtype = is_number ? arg_number_dtype(a, 3) : value_operand->dtype;
  if (value_operand && value_operand->rank)
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "index_fill_ only supports a 0-dimensional value tensor, but got tensor with %d dimension(s).", value_operand->rank);
  else if (index->dtype != TPU_I64)
    tpu_fail(b, TPU_OUT_OF_RANGE, "index_fill_(): Expected dtype int64 for index.");
  else if (index->rank > 1)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Index has to be a vector/scalar");
  else if (tpu_is_complex(value_dtype) && !tpu_is_complex(self->dtype))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "index_fill_(): Converting complex Scalar to non-complex type is not supported");
  if (tpu_build_failed(b)) return;
  tpu_val x = as_vector(b, self->val), value = arg_as(b, a, 3, self->dtype);
  int rank = tpu_rank_of(b, x);
  int64_t size = tpu_dim_of(b, x, dim), n = tpu_numel_of(b, index->val), to_dim = dim;
  tpu_val position = as_vector(b, index_prepare(b, index->val, size, true));
  if (n == 1) {
    int64_t dims[TPU_MAX_RANK];
    memcpy(dims, tpu_dims_of(b, x), sizeof *dims * (size_t)rank);
    dims[dim] = 1;
    tpu_val row = tpu_broadcast_to(b, value, rank, dims);
    o->out[0].val = like(b, index_write_rows(b, TPU_MONOID_ASSIGN, x, dim, position, row), self);
    return;
  }
  /* Marking n positions and selecting is one pass; a scatter of n rows of copies is not faster anywhere. */
  tpu_val marks =
      index_write_rows(b, TPU_MONOID_ASSIGN, tpu_full(b, TPU_BOOL, 1, &size, 0), 0, position, tpu_full(b, TPU_BOOL, 1, &n, 1));
  marks = tpu_broadcast_in_dim(b, marks, rank, tpu_dims_of(b, x), &to_dim);
  o->out[0].val = like(b, tpu_select(b, marks, tpu_broadcast_like(b, value, x), x), self);
}

/* index_reduce(self, dim, index, source, reduce, *, include_self=True) */
void lower_index_reduce(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const char *reduce = arg_str(a, 4);
  index_reduction op;
  if (!index_reduction_parse(reduce, &op) || op == INDEX_SUM) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got %s.",
             reduce);
    return;
  }
  along_dim s;
  if (!read_along(b, a, "index_reduce", &s)) return;
  /* Rows, or the same thing with the index repeated along them, which index_scatter undoes. */
  tpu_type type = tpu_type_of(b, s.source);
  int64_t to_dim = s.dim, strides[TPU_MAX_RANK] = {0};
  strides[s.dim] = 1;
  tpu_val index = tpu_broadcast_in_dim(b, s.index, type.rank, type.dims, &to_dim);
  bool include_self = !arg_present(a, 5) || arg_bool(b, a, 5);
  o->out[0].val = like(b, index_scatter_reduce(b, op, s.x, s.dim, index, strides, s.source, include_self), s.self);
}
