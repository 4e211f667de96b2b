/* Source: aten/src/ATen/TensorIterator.cpp (compute_fast_setup_type, reorder_dimensions, allocate_or_resize_outputs),
 * aten/src/ATen/ExpandUtils.cpp (infer_dense_strides), c10/core/MemoryFormat.h. */
#include <string.h>

#include "aten/lower.h"
#include "ir/view.h"

void strides_contiguous(int rank, const int64_t *sizes, int64_t *out_strides) {
  int64_t stride = 1;
  for (int d = rank - 1; d >= 0; d--) {
    out_strides[d] = stride;
    stride *= sizes[d] > 1 ? sizes[d] : 1;
  }
}

/* Dims from innermost to outermost. */
static const int *channels_last_order(int rank) {
  static const int order4[] = {1, 3, 2, 0}, order5[] = {1, 4, 3, 2, 0};
  return rank == 4 ? order4 : rank == 5 ? order5 : NULL;
}

void strides_channels_last(int rank, const int64_t *sizes, int64_t *out_strides) {
  const int *order = channels_last_order(rank);
  if (!order) {
    strides_contiguous(rank, sizes, out_strides);
    return;
  }
  int64_t stride = 1;
  for (int i = 0; i < rank; i++) {
    out_strides[order[i]] = stride;
    stride *= sizes[order[i]];
  }
}

bool strides_are_channels_last(int rank, const int64_t *sizes, const int64_t *strides) {
  const int *order = channels_last_order(rank);
  if (!order || strides[1] == 0) return false;
  int64_t min = 0;
  for (int i = 0; i < rank; i++) {
    int d = order[i];
    if (sizes[d] == 0 || strides[d] < min) return false;
    if (d == 0 && min == strides[1]) return false; /* N111: ambiguous, taken as row-major */
    min = strides[d] * (sizes[d] > 1 ? sizes[d] : 1);
  }
  return true;
}

static bool is_contiguous(int rank, const int64_t *sizes, const int64_t *strides) {
  int64_t expected = 1;
  for (int d = 0; d < rank; d++)
    if (sizes[d] == 0) return true;
  for (int d = rank - 1; d >= 0; d--) {
    if (sizes[d] == 1) continue;
    if (strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

static bool is_channels_last_contiguous(int rank, const int64_t *sizes, const int64_t *strides) {
  if (rank != 4) return false; /* the fast path asks for ChannelsLast only, not ChannelsLast3d */
  const int *order = channels_last_order(rank);
  int64_t expected = 1;
  for (int i = 0; i < rank; i++) {
    int d = order[i];
    if (sizes[d] == 1) continue;
    if (strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

static bool is_dense(int rank, const int64_t *sizes, const int64_t *strides) {
  int perm[TPU_MAX_RANK];
  return tpu_memory_order(rank, sizes, strides, perm);
}

/* Operand strides broadcast to `rank` dims, as TensorIterator keeps them. */
typedef struct iter_operand {
  int64_t strides[TPU_MAX_RANK];
} iter_operand;

static int should_swap(int n, const iter_operand *operands, const int64_t *sizes, int dim0, int dim1) {
  for (int i = 0; i < n; i++) {
    int64_t stride0 = operands[i].strides[dim0], stride1 = operands[i].strides[dim1];
    if (stride0 == 0 || stride1 == 0) continue;
    if (stride0 != stride1) return stride0 < stride1 ? -1 : 1;
    if (sizes[dim0] > sizes[dim1]) return 1;
  }
  return 0;
}

/* perm: dims from innermost to outermost. The insertion sort must be this one: comparisons may be ambiguous. */
static void sort_dims(int n, const iter_operand *operands, int rank, const int64_t *sizes, int *perm) {
  for (int i = 0; i < rank; i++) perm[i] = rank - 1 - i;
  for (int i = 1; i < rank; i++) {
    int dim1 = i;
    for (int dim0 = i - 1; dim0 >= 0; dim0--) {
      int comparison = should_swap(n, operands, sizes, perm[dim0], perm[dim1]);
      if (comparison < 0) break;
      if (comparison == 0) continue;
      int t = perm[dim0];
      perm[dim0] = perm[dim1];
      perm[dim1] = t;
      dim1 = dim0;
    }
  }
}

static bool same_sizes(const tpu_operand *o, int rank, const int64_t *sizes) {
  return o->rank == rank && (rank == 0 || memcmp(o->sizes, sizes, sizeof *sizes * (size_t)rank) == 0);
}

static bool fast_strides(int n, const tpu_operand *const *operands, int rank, const int64_t *sizes, int64_t *out_strides) {
  bool contiguous = true, channels_last = true, dense = true;
  for (int i = 0; i < n; i++) {
    const tpu_operand *o = operands[i];
    if (!same_sizes(o, rank, sizes)) return false;
    contiguous = contiguous && is_contiguous(rank, sizes, o->strides);
    channels_last = channels_last && is_channels_last_contiguous(rank, sizes, o->strides);
    dense = dense && is_dense(rank, sizes, o->strides);
  }
  if (contiguous) {
    strides_contiguous(rank, sizes, out_strides);
    return true;
  }
  if (channels_last) {
    strides_channels_last(rank, sizes, out_strides);
    return true;
  }
  if (!dense) return false;
  for (int i = 1; i < n; i++)
    if (memcmp(operands[0]->strides, operands[i]->strides, sizeof *sizes * (size_t)rank) != 0) return false;
  memcpy(out_strides, operands[0]->strides, sizeof *sizes * (size_t)rank);
  return true;
}

void strides_elementwise(int n, const tpu_operand *const *operands, bool with_scalars, int rank, const int64_t *sizes,
                         int64_t *out_strides) {
  enum { MOST = 16 }; /* operands of one elementwise op */
  if (n > MOST) n = MOST;
  if (rank == 0) return;
  if (n == 0) {
    strides_contiguous(rank, sizes, out_strides);
    return;
  }
  if (!with_scalars && fast_strides(n, operands, rank, sizes, out_strides)) return;
  iter_operand iter[MOST];
  for (int i = 0; i < n; i++) {
    const tpu_operand *o = operands[i];
    int offset = rank - o->rank;
    for (int d = 0; d < rank; d++) {
      bool broadcast = d < offset || (o->sizes[d - offset] == 1 && sizes[d] != 1);
      iter[i].strides[d] = broadcast ? 0 : o->strides[d - offset];
    }
  }
  int perm[TPU_MAX_RANK];
  sort_dims(n, iter, rank, sizes, perm);
  bool inverted = true;
  for (int i = 0; i < rank; i++) inverted = inverted && perm[i] == rank - 1 - i;
  if (inverted) {
    strides_contiguous(rank, sizes, out_strides);
    return;
  }
  int64_t stride = 1;
  for (int i = 0; i < rank; i++) {
    out_strides[perm[i]] = stride;
    stride *= sizes[perm[i]];
  }
}

void strides_preserve(int rank, const int64_t *sizes, const int64_t *strides, int64_t *out_strides) {
  if (is_dense(rank, sizes, strides)) {
    memcpy(out_strides, strides, sizeof *strides * (size_t)rank);
    return;
  }
  if (rank == 1) {
    out_strides[0] = 1;
    return;
  }
  iter_operand iter;
  memcpy(iter.strides, strides, sizeof *strides * (size_t)rank);
  int perm[TPU_MAX_RANK];
  sort_dims(1, &iter, rank, sizes, perm);
  int64_t stride = 1;
  for (int i = 0; i < rank; i++) {
    out_strides[perm[i]] = stride;
    stride *= sizes[perm[i]] > 1 ? sizes[perm[i]] : 1;
  }
}

/* TensorIterator on the CPU and on meta first casts operands to the common dtype, and the copy of a tensor that is not dense has
 * strides of its own: these. Sizes and strides of the result live in `storage`. */
enum { MOST_OPERANDS = 16 };
typedef struct cast_operands {
  tpu_operand operand[MOST_OPERANDS];
  int64_t strides[MOST_OPERANDS][TPU_MAX_RANK];
} cast_operands;

static const tpu_operand *cast(const tpu_operand *o, tpu_dtype common, cast_operands *storage, int i) {
  if (o->dtype == common || common == TPU_DTYPE_NONE || is_dense(o->rank, o->sizes, o->strides)) return o;
  strides_preserve(o->rank, o->sizes, o->strides, storage->strides[i]);
  storage->operand[i] = *o;
  storage->operand[i].strides = storage->strides[i];
  return &storage->operand[i];
}

void strides_promoted(int n, const tpu_operand *const *operands, const bool *casts, tpu_dtype common, bool with_scalars, int rank,
                      const int64_t *sizes, int64_t *out_strides) {
  cast_operands storage;
  const tpu_operand *ready[MOST_OPERANDS];
  if (n > MOST_OPERANDS) n = MOST_OPERANDS;
  for (int i = 0; i < n; i++) ready[i] = !casts || casts[i] ? cast(operands[i], common, &storage, i) : operands[i];
  strides_elementwise(n, ready, with_scalars, rank, sizes, out_strides);
}

static tpu_dtype common_dtype(const tpu_args *a) {
  tpu_build scratch = {0};
  tpu_dtype common = promote_args(&scratch, a, 0, a->n);
  tpu_status failed = tpu_build_status(&scratch); /* not promotable: the op has no common type */
  if (!failed) return common;
  tpu_status_release(failed);
  return TPU_DTYPE_NONE;
}

static bool all_dense(int n, const tpu_operand *const *operands) {
  for (int i = 0; i < n; i++)
    if (!is_dense(operands[i]->rank, operands[i]->sizes, operands[i]->strides)) return false;
  return true;
}

void stride_rule_apply(tpu_stride_rule rule, const tpu_args *a, int rank, const int64_t *sizes, int64_t *out_strides) {
  const tpu_operand *operands[MOST_OPERANDS];
  int n = 0;
  bool scalars = false;
  for (int i = 0; i < a->n && n < MOST_OPERANDS; i++) {
    const tpu_arg *arg = &a->arg[i];
    if (arg->kind == TPU_ARG_TENSOR) {
      const tpu_operand *o = &a->operands[arg->first];
      if (o->rank <= rank) operands[n++] = o;
    } else if (arg->kind == TPU_ARG_NUMBER) {
      scalars = scalars || (arg->flags & (TPU_ARG_WRAPPED | TPU_ARG_ZERO_DIM)) || rule == TPU_STRIDES_ELEMENTWISE_SCALAR;
    }
  }
  switch (rule) {
    case TPU_STRIDES_ELEMENTWISE:
    case TPU_STRIDES_ELEMENTWISE_SCALAR:
      strides_promoted(n, operands, NULL, all_dense(n, operands) ? TPU_DTYPE_NONE : common_dtype(a), scalars, rank, sizes,
                       out_strides);
      return;
    case TPU_STRIDES_PRESERVE:
      if (n == 0 || !same_sizes(operands[0], rank, sizes)) break;
      strides_preserve(rank, sizes, operands[0]->strides, out_strides);
      return;
    case TPU_STRIDES_CHANNELS_LAST:
      for (int i = 0; i < n && i < 2; i++) {
        if (operands[i]->rank != rank) continue;
        if (!strides_are_channels_last(rank, operands[i]->sizes, operands[i]->strides)) continue;
        strides_channels_last(rank, sizes, out_strides);
        return;
      }
      break;
    case TPU_STRIDES_CONTIGUOUS: break;
  }
  strides_contiguous(rank, sizes, out_strides);
}
