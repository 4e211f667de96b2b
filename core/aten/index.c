/* Indexing with several tensors: index, index_put and their kin. Source: aten/src/ATen/native/TensorAdvancedIndexing.cpp,
 * IndexingUtils.h. */
#include <inttypes.h>
#include <string.h>

#include "aten/indexing.h"

/* A boolean mask stands for as many dims as it has. */
typedef struct mask_place {
  const tpu_operand *operand;
  int dim, position; /* position: in the list of indices */
} mask_place;

typedef struct index_list {
  int n, n_masks;
  int dims[TPU_MAX_RANK];
  const tpu_operand *operands[TPU_MAX_RANK]; /* of integers */
  mask_place mask;                           /* the first */
} index_list;

static bool check_mask(tpu_build *b, const tpu_operand *self, const tpu_operand *mask, int position, int dim) {
  for (int j = 0; j < mask->rank && dim + j < self->rank; j++) {
    if (mask->sizes[j] == self->sizes[dim + j]) continue;
    tpu_fail(b, TPU_OUT_OF_RANGE,
             "The shape of the mask %s at index %d does not match the shape of the indexed tensor %s at index %d",
             index_dims_text(b, mask->rank, mask->sizes), position, index_dims_text(b, self->rank, self->sizes), dim + j);
    return false;
  }
  return true;
}

static bool read_list(tpu_build *b, const tpu_args *a, const tpu_operand *self, index_list *out) {
  int count = arg_list_size(a, 1), dim = 0;
  *out = (index_list){0};
  for (int k = 0; k < count; k++) {
    const tpu_operand *index = arg_list_operand(b, a, 1, k);
    if (!index) {
      dim++;
      continue;
    }
    bool is_mask = index->dtype == TPU_BOOL || index->dtype == TPU_U8;
    if (!is_mask && !index_is_integer(index->dtype)) {
      tpu_fail(b, TPU_OUT_OF_RANGE, "tensors used as indices must be long, int, byte or bool tensors");
      return false;
    }
    int width = is_mask ? index->rank : 1;
    if (is_mask && !check_mask(b, self, index, k, dim)) return false;
    if (is_mask && out->n_masks++ == 0) out->mask = (mask_place){.operand = index, .dim = dim, .position = k};
    if (!is_mask && dim < self->rank) {
      out->dims[out->n] = dim;
      out->operands[out->n++] = index;
    }
    dim += width;
  }
  if (dim > self->rank) tpu_fail(b, TPU_OUT_OF_RANGE, "too many indices for tensor of dimension %d (got %d)", self->rank, dim);
  return !tpu_build_failed(b);
}

static bool broadcast_blocks(tpu_build *b, index_list *list, index_plan *plan) {
  plan->block_rank = 0;
  for (int k = 0; k < list->n; k++)
    if (list->operands[k]->rank > plan->block_rank) plan->block_rank = list->operands[k]->rank;
  for (int d = 0; d < plan->block_rank; d++) plan->block[d] = 1;
  for (int k = 0; k < list->n; k++) {
    const tpu_operand *index = list->operands[k];
    int offset = plan->block_rank - index->rank;
    for (int d = 0; d < index->rank; d++) {
      int64_t size = index->sizes[d], *have = &plan->block[offset + d];
      if (*have == 1) *have = size;
      if (size == *have || size == 1) continue;
      char *text = tpu_build_alloc(b, 64 * (size_t)list->n * TPU_MAX_RANK);
      if (!text) return false;
      text[0] = 0;
      for (int i = 0; i < list->n; i++) {
        strcat(text, i ? ", " : "");
        strcat(text, index_dims_text(b, list->operands[i]->rank, list->operands[i]->sizes));
      }
      tpu_fail(b, TPU_OUT_OF_RANGE, "shape mismatch: indexing tensors could not be broadcast together with shapes %s", text);
      return false;
    }
  }
  return true;
}

static bool make_plan(tpu_build *b, const tpu_operand *self, index_list *list, index_plan *plan) {
  *plan = (index_plan){.n = list->n};
  if (!broadcast_blocks(b, list, plan)) return false;
  bool adjacent = true, empty = false;
  for (int d = 0; d < plan->block_rank; d++) empty = empty || plan->block[d] == 0;
  for (int k = 0; k < list->n; k++) {
    int dim = plan->dims[k] = list->dims[k];
    adjacent = adjacent && dim == plan->dims[0] + k;
    if (self->sizes[dim] == 0 && !empty) {
      tpu_fail(b, TPU_OUT_OF_RANGE, "index is out of bounds for dimension with size 0");
      return false;
    }
    tpu_val index = index_prepare(b, list->operands[k]->val, self->sizes[dim], true);
    plan->indices[k] = tpu_broadcast_to(b, index, plan->block_rank, plan->block);
  }
  plan->at = list->n && adjacent ? plan->dims[0] : 0;
  return true;
}

/* TensorIterator's strides of the result: operands are self with stride 0 along the block, then the indices. */
static const int64_t *read_strides(tpu_build *b, const tpu_operand *self, const index_list *list, const index_plan *plan) {
  enum { MOST = 16 };
  tpu_operand parts[MOST] = {{.dtype = self->dtype}};
  const tpu_operand *operands[MOST];
  int n = list->n + 1 < MOST ? list->n + 1 : MOST;
  int64_t sizes[TPU_MAX_RANK];
  int rank = index_result_dims(b, self->val, plan, sizes), last = plan->at + plan->block_rank;
  size_t bytes = sizeof(int64_t) * (size_t)(rank ? rank : 1);
  for (int i = 0; i < n; i++) {
    int64_t *strides = tpu_build_alloc(b, 2 * bytes), *own = strides + rank;
    if (!strides) return NULL;
    const tpu_operand *index = i ? list->operands[i - 1] : NULL;
    int other = 0;
    for (int d = 0; d < rank; d++) {
      bool block = d >= plan->at && d < last;
      own[d] = i && !block ? 1 : sizes[d];
      if (i) {
        int at = d - plan->at - (plan->block_rank - index->rank); /* dim of the index tensor */
        strides[d] = block && at >= 0 && index->sizes[at] == sizes[d] ? index->strides[at] : 0;
        if (own[d] == 1) strides[d] = 1;
        continue;
      }
      strides[d] = 0;
      if (block) continue;
      for (int k = 0; k < list->n; k++) /* dims are ascending */
        if (list->dims[k] == other) other++;
      strides[d] = self->strides[other++];
    }
    parts[i] = (tpu_operand){.dtype = self->dtype, .rank = rank, .sizes = own, .strides = strides};
    operands[i] = &parts[i];
  }
  int64_t *out = tpu_build_alloc(b, bytes);
  if (out) strides_elementwise(n, operands, false, rank, sizes, out);
  return out;
}

void lower_index(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *self = arg_operand(b, a, 0);
  index_list list;
  index_plan plan;
  if (!self) return;
  if (arg_list_size(a, 1) == 0) {
    tpu_fail(b, TPU_OUT_OF_RANGE, "at least one index must be provided");
    return;
  }
  if (!read_list(b, a, self, &list)) return;
  if (list.n_masks) {
    tpu_fail(b, TPU_UNIMPLEMENTED, "index with a boolean mask: the size of the result depends on the mask's values");
    return;
  }
  if (!make_plan(b, self, &list, &plan)) return;
  o->out[0].val = index_read(b, self->val, &plan);
  if (tpu_numel_of(b, self->val)) o->out[0].strides = read_strides(b, self, &list, &plan);
}

/* --- index_put */

static tpu_val fail_values(tpu_build *b, tpu_val values, int rank, const int64_t *dims) {
  tpu_type type = tpu_type_of(b, values);
  return tpu_fail(b, TPU_INVALID_ARGUMENT,
                  "shape mismatch: value tensor of shape %s cannot be broadcast to indexing result of shape %s",
                  index_dims_text(b, type.rank, type.dims), index_dims_text(b, rank, dims));
}

static bool broadcasts_to(tpu_type type, int rank, const int64_t *dims) {
  for (int d = 0; d < type.rank; d++) {
    int at = rank - type.rank + d;
    if (at < 0 || (type.dims[d] != 1 && type.dims[d] != dims[at])) return false;
  }
  return true;
}

/* x[mask] = values, where the values do not depend on how many elements the mask selects: no index is needed. */
static tpu_val put_masked(tpu_build *b, const tpu_operand *self, const mask_place *place, tpu_val values, bool accumulate) {
  const tpu_operand *mask = place->operand;
  tpu_type type = tpu_type_of(b, values);
  int after = self->rank - place->dim - mask->rank;
  int64_t dims[TPU_MAX_RANK];
  int rank = 0;
  for (int d = 0; d < type.rank; d++) {
    if (type.rank - d != after + 1) {
      dims[rank++] = type.dims[d];
      continue;
    }
    if (type.dims[d] != 1) /* one row for each selected element */
      return tpu_fail(b, TPU_UNIMPLEMENTED, "index_put with a boolean mask and values that are not broadcast over it");
    for (int k = 0; k < mask->rank; k++) dims[rank++] = 1;
  }
  tpu_val v = tpu_reshape(b, values, rank, dims);
  if (!broadcasts_to(tpu_type_of(b, v), self->rank, self->sizes)) {
    int64_t result[TPU_MAX_RANK];
    memcpy(result, self->sizes, sizeof *result * (size_t)place->dim);
    result[place->dim] = -1; /* not known */
    memcpy(result + place->dim + 1, self->sizes + place->dim + mask->rank, sizeof *result * (size_t)after);
    return fail_values(b, values, self->rank - mask->rank + 1, result);
  }
  int64_t map[TPU_MAX_RANK];
  for (int k = 0; k < mask->rank; k++) map[k] = place->dim + k;
  tpu_val where = tpu_broadcast_in_dim(b, tpu_convert(b, mask->val, TPU_BOOL), self->rank, self->sizes, map);
  v = tpu_broadcast_to(b, v, self->rank, self->sizes);
  if (accumulate) v = self->dtype == TPU_BOOL ? tpu_or(b, self->val, v) : tpu_add(b, self->val, v);
  return tpu_select(b, where, v, self->val);
}

void lower_index_put(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *self = arg_operand(b, a, 0);
  tpu_val values = arg_tensor(b, a, 2);
  bool accumulate = arg_bool(b, a, 3);
  index_list list;
  index_plan plan;
  if (!self || tpu_build_failed(b)) return;
  tpu_dtype dtype = tpu_dtype_of(b, values);
  if (dtype != self->dtype && !(a->arg[2].kind == TPU_ARG_NUMBER && (a->arg[2].flags & TPU_ARG_WRAPPED))) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Index put requires the source and destination dtypes match, got %s for the destination and %s for the source.",
             tpu_dtype_scalar_name(self->dtype), tpu_dtype_scalar_name(dtype));
    return;
  }
  values = arg_as(b, a, 2, self->dtype);
  if (!read_list(b, a, self, &list)) return;
  if (list.n_masks == 1 && list.n == 0 && list.mask.operand->rank > 0) {
    o->out[0].val = put_masked(b, self, &list.mask, values, accumulate);
    return;
  }
  if (list.n_masks) {
    tpu_fail(b, TPU_UNIMPLEMENTED, "index_put with a boolean mask among other indices");
    return;
  }
  if (!make_plan(b, self, &list, &plan)) return;
  int64_t result[TPU_MAX_RANK];
  int rank = index_result_dims(b, self->val, &plan, result);
  if (!broadcasts_to(tpu_type_of(b, values), rank, result)) {
    fail_values(b, values, rank, result);
    return;
  }
  values = tpu_broadcast_to(b, values, rank, result);
  if (list.n == 0) {
    if (!accumulate)
      o->out[0].val = values;
    else
      o->out[0].val = self->dtype == TPU_BOOL ? tpu_or(b, self->val, values) : tpu_add(b, self->val, values);
    return;
  }
  o->out[0].val = index_write(b, accumulate ? TPU_MONOID_ADD : TPU_MONOID_ASSIGN, self->val, &plan, values);
}

/* take(self, index): self as one dim. */
void lower_take(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val self = arg_tensor(b, a, 0), index = arg_tensor(b, a, 1);
  if (tpu_build_failed(b)) return;
  if (tpu_dtype_of(b, index) != TPU_I64) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "take(): Expected a long tensor for index, but got %s",
             tpu_dtype_scalar_name(tpu_dtype_of(b, index)));
    return;
  }
  int64_t numel = tpu_numel_of(b, self);
  if (numel == 0 && tpu_numel_of(b, index) != 0) {
    tpu_fail(b, TPU_OUT_OF_RANGE, "take(): tried to take from an empty tensor");
    return;
  }
  o->out[0].val = index_read_rows(b, index_flatten(b, self), 0, index_prepare(b, index, numel, true));
}

void lower_put(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *self = arg_operand(b, a, 0);
  tpu_val index = arg_tensor(b, a, 1), source = arg_tensor(b, a, 2);
  if (!self || tpu_build_failed(b)) return;
  int64_t n = tpu_numel_of(b, index), numel = tpu_numel_of(b, self->val);
  if (tpu_dtype_of(b, index) != TPU_I64)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "put_(): Expected a long tensor for index, but got %s",
             tpu_dtype_scalar_name(tpu_dtype_of(b, index)));
  else if (tpu_dtype_of(b, source) != self->dtype)
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "put_(): self and source expected to have the same dtype, but got self.dtype = %s and source.dtype = %s",
             tpu_dtype_scalar_name(self->dtype), tpu_dtype_scalar_name(tpu_dtype_of(b, source)));
  else if (tpu_numel_of(b, source) != n)
    tpu_fail(b, TPU_OUT_OF_RANGE,
             "put_(): Expected source and index to have the same number of elements, but got source.numel() = %" PRId64
             ", index.numel() = %" PRId64,
             tpu_numel_of(b, source), n);
  else if (numel == 0 && n != 0)
    tpu_fail(b, TPU_OUT_OF_RANGE, "put_(): Tried to put elements into an empty tensor");
  if (tpu_build_failed(b)) return;
  index = index_flatten(b, index_prepare(b, index, numel, true));
  tpu_monoid op = arg_bool(b, a, 3) ? TPU_MONOID_ADD : TPU_MONOID_ASSIGN;
  tpu_val flat = index_write_rows(b, op, index_flatten(b, self->val), 0, index, index_flatten(b, source));
  o->out[0].val = tpu_reshape(b, flat, self->rank, self->sizes);
}
