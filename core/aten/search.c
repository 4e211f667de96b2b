/* Places of values among sorted ones: searchsorted, bucketize, histc; and the indices of triangles. */
#include <inttypes.h>
#include <string.h>

#include "aten/reduce.h"
#include "aten/shape.h"

/* Up to here all comparisons at once beat a chain of dependent gathers. */
enum { SMALL_SEQUENCE = 64 };

/* x[n, index[n, m]] for x [N, S] and index [N, M]; indices in range. */
static tpu_val take_rows(tpu_build *b, tpu_val x, tpu_val index) {
  int64_t zero[1] = {0}, one[1] = {1}, sizes[2] = {1, 1};
  tpu_gather_dims dims = {.n_collapsed = 1,
                          .collapsed = one,
                          .n_batch = 1,
                          .operand_batch = zero,
                          .indices_batch = zero,
                          .n_map = 1,
                          .start_index_map = one,
                          .index_vector_dim = 2};
  return tpu_gather(b, x, tpu_unsqueeze(b, index, 2), &dims, sizes);
}

/* Whether a sequence element m stands before value v: m < v, or m <= v. NaN stands after everything. */
static tpu_val is_before(tpu_build *b, tpu_val m, tpu_val v, bool right) {
  tpu_val before = tpu_compare(b, right ? TPU_LE : TPU_LT, m, v);
  return tpu_is_float(tpu_dtype_of(b, v)) ? tpu_or(b, before, tpu_is_nan(b, v)) : before;
}

/* The number of elements of sequence [N, S] (ascending) before each value [N, M]: i32 [N, M]. */
static tpu_val count_before(tpu_build *b, tpu_val sequence, tpu_val values, bool right) {
  int64_t n = tpu_dim_of(b, sequence, 0), s = tpu_dim_of(b, sequence, 1), m = tpu_dim_of(b, values, 1), dims[2] = {n, m};
  if (s == 0 || n * m == 0) return tpu_full(b, TPU_I32, 2, dims, 0);
  if (s <= SMALL_SEQUENCE) {
    int64_t cube[3] = {n, m, s}, map_sequence[2] = {0, 2}, map_values[2] = {0, 1}, axes[1] = {2};
    tpu_val before = is_before(b, tpu_broadcast_in_dim(b, sequence, 3, cube, map_sequence),
                               tpu_broadcast_in_dim(b, values, 3, cube, map_values), right);
    return reduce_over(b, TPU_MONOID_ADD, tpu_convert(b, before, TPU_I32), 1, axes);
  }
  tpu_val low = tpu_full(b, TPU_I32, 2, dims, 0), high = tpu_full(b, TPU_I32, 2, dims, (double)s);
  tpu_val end = tpu_full(b, TPU_I32, 2, dims, (double)(s - 1));
  for (int64_t span = s; span > 0 && !tpu_build_failed(b); span /= 2) {
    tpu_val open = tpu_compare(b, TPU_LT, low, high);
    tpu_val middle = binary_c(b, TPU_HLO_DIVIDE, tpu_add(b, low, high), 2);
    tpu_val before = is_before(b, take_rows(b, sequence, tpu_min(b, middle, end)), values, right);
    tpu_val up = tpu_and(b, open, before), down = tpu_and(b, open, tpu_not(b, before));
    low = tpu_select(b, up, binary_c(b, TPU_HLO_ADD, middle, 1), low);
    high = tpu_select(b, down, middle, high);
  }
  return low;
}

static void find_places(tpu_build *b, tpu_val sequence, tpu_val values, tpu_val sorter, bool right, bool out_int32, tpu_outs *o) {
  if (tpu_build_failed(b)) return;
  int rank = tpu_rank_of(b, values), sequence_rank = tpu_rank_of(b, sequence);
  int64_t s = sequence_rank ? tpu_dim_of(b, sequence, sequence_rank - 1) : 1;
  bool shared = sequence_rank <= 1;
  int64_t m = shared ? tpu_numel_of(b, values) : tpu_dim_of(b, values, rank - 1), n = shared ? 1
                                                                                      : s    ? tpu_numel_of(b, sequence) / s
                                                                                             : 0;
  if (!shared && s == 0) {
    n = 1;
    for (int i = 0; i < rank - 1; i++) n *= tpu_dim_of(b, values, i);
  }
  int64_t sequence_dims[2] = {n, s}, value_dims[2] = {n, m};
  sequence = tpu_reshape(b, sequence, 2, sequence_dims);
  if (sorter.id && s > 0) sequence = take_rows(b, sequence, tpu_convert(b, tpu_reshape(b, sorter, 2, sequence_dims), TPU_I32));
  tpu_val y = count_before(b, sequence, tpu_reshape(b, values, 2, value_dims), right);
  o->out[0].val = tpu_convert(b, tpu_reshape(b, y, rank, tpu_dims_of(b, values)), out_int32 ? TPU_I32 : TPU_I64);
}

static bool check_sequence(tpu_build *b, tpu_val sequence, tpu_val values) {
  if (tpu_build_failed(b)) return false;
  int rank = tpu_rank_of(b, values), sequence_rank = tpu_rank_of(b, sequence);
  if (sequence_rank == 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "torch.searchsorted(): boundaries tensor should have positive dimension, but got 0 dimension");
    return false;
  }
  if (sequence_rank == 1) return true;
  bool same = rank == sequence_rank;
  for (int i = 0; same && i < rank - 1; i++) same = tpu_dim_of(b, sequence, i) == tpu_dim_of(b, values, i);
  if (same) return true;
  char x[256], y[256];
  tpu_fail(b, TPU_INVALID_ARGUMENT,
           "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries tensor and "
           "input value tensor must match, but we got boundaries tensor %s and input value tensor %s",
           shape_text(sequence_rank, tpu_dims_of(b, sequence), x, sizeof x),
           shape_text(rank, tpu_dims_of(b, values), y, sizeof y));
  return false;
}

/* searchsorted.Tensor, searchsorted.Scalar (sorted_sequence, self, *, out_int32, right, side, sorter) */
void lower_searchsorted(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_dtype dtype = promote_args(b, a, 0, 2);
  tpu_val sequence = arg_as(b, a, 0, dtype), values = arg_as(b, a, 1, dtype);
  bool right = arg_bool(b, a, 3);
  if (arg_present(a, 4)) {
    const char *side = arg_str(a, 4);
    if (strcmp(side, "left") != 0 && strcmp(side, "right") != 0) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "torch.searchsorted(): side can only be 'left' or 'right' but got %s", side);
      return;
    }
    if (right && strcmp(side, "left") == 0) {
      tpu_fail(b, TPU_INVALID_ARGUMENT,
               "torch.searchsorted(): side and right can't be set to opposites, got side of left while right was True");
      return;
    }
    right = strcmp(side, "right") == 0;
  }
  if (!check_sequence(b, sequence, values)) return;
  tpu_val sorter = arg_present(a, 5) ? arg_tensor(b, a, 5) : TPU_POISON;
  find_places(b, sequence, values, sorter, right, arg_bool(b, a, 2), o);
}

/* bucketize.Tensor, bucketize.Scalar (self, boundaries, *, out_int32, right) */
void lower_bucketize(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_dtype dtype = promote_args(b, a, 0, 2);
  tpu_val values = arg_as(b, a, 0, dtype), boundaries = arg_as(b, a, 1, dtype);
  if (tpu_build_failed(b)) return;
  if (tpu_rank_of(b, boundaries) != 1) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "boundaries tensor must be 1 dimension, but got dim(%d)", tpu_rank_of(b, boundaries));
    return;
  }
  if (!check_sequence(b, boundaries, values)) return;
  find_places(b, boundaries, values, TPU_POISON, arg_bool(b, a, 3), arg_bool(b, a, 2), o);
}

/* histc(self, bins, min, max): counts in `bins` equal cells of [min, max]; equal limits stand for the elements' own. */
void lower_histc(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  int64_t bins = arg_int(b, a, 1, 100), numel = tpu_numel_of(b, x), cell_dims[1] = {bins};
  if (tpu_build_failed(b)) return;
  if (!tpu_is_float(dtype)) {
    fail_not_implemented(b, a, dtype);
    return;
  }
  if (bins <= 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "torch.histogram(): bins must be > 0, but got %" PRId64 " for dimension 0", bins);
    return;
  }
  tpu_dtype math = tpu_dtype_opmath(dtype);
  if (numel == 0) {
    o->out[0].val = tpu_full(b, dtype, 1, cell_dims, 0);
    return;
  }
  x = tpu_convert(b, tpu_reshape(b, x, 1, &numel), math);
  tpu_val low = arg_number(b, a, 2, math), high = arg_number(b, a, 3, math);
  tpu_val own = tpu_compare(b, TPU_EQ, low, high);
  low = tpu_select(b, own, reduce_all(b, TPU_MONOID_MIN, x), low);
  high = tpu_select(b, own, reduce_all(b, TPU_MONOID_MAX, x), high);
  tpu_val flat = tpu_compare(b, TPU_EQ, low, high);
  low = tpu_select(b, flat, binary_c(b, TPU_HLO_SUBTRACT, low, 1), low);
  high = tpu_select(b, flat, binary_c(b, TPU_HLO_ADD, high, 1), high);
  tpu_val lows = tpu_broadcast_like(b, low, x), highs = tpu_broadcast_like(b, high, x);
  tpu_val inside = tpu_and(b, tpu_compare(b, TPU_GE, x, lows), tpu_compare(b, TPU_LE, x, highs));
  tpu_val width = tpu_broadcast_like(b, tpu_sub(b, high, low), x);
  tpu_val place = tpu_div(b, binary_c(b, TPU_HLO_MULTIPLY, tpu_sub(b, x, lows), (double)bins), width);
  place = tpu_select(b, inside, place, tpu_full_like(b, place, 0));
  tpu_val cell = binary_c(b, TPU_HLO_MINIMUM, tpu_convert(b, place, TPU_I32), (double)(bins - 1));
  cell = tpu_select(b, inside, cell, tpu_full_like(b, cell, (double)bins));
  int64_t zero[1] = {0};
  tpu_scatter_dims dims = {.n_inserted = 1, .inserted = zero, .n_map = 1, .scatter_map = zero, .index_vector_dim = 1};
  tpu_val ones = tpu_full(b, TPU_I32, 1, &numel, 1);
  tpu_val counts = tpu_scatter(b, TPU_MONOID_ADD, tpu_full(b, TPU_I32, 1, cell_dims, 0), tpu_unsqueeze(b, cell, 1), ones, &dims);
  o->out[0].val = tpu_convert(b, counts, dtype);
}

/* tril_indices, triu_indices (row, col, offset, *, dtype, ..) -> [2, count]. rule: 1 is the upper triangle. Element k is in the
 * row that a running count of row starts gives; its column is k plus a number of that row. */
void lower_triangle_indices(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int64_t rows = arg_int(b, a, 0, 0), columns = arg_int(b, a, 1, 0), offset = arg_int(b, a, 2, 0), count = 0;
  tpu_dtype dtype = arg_dtype(a, 3, TPU_I64);
  bool upper = a->row->rule == 1;
  if (tpu_build_failed(b)) return;
  if (rows < 0 || columns < 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             rows < 0 ? "row must be non-negative, got%" PRId64 : "col must be non-negative, got%" PRId64,
             rows < 0 ? rows : columns);
    return;
  }
  int64_t *starts = tpu_build_alloc(b, sizeof *starts * (size_t)(2 * rows + 1));
  if (!starts) return;
  int64_t *shift = starts + rows;
  for (int64_t r = 0; r < rows; r++) {
    int64_t first = upper ? (r + offset < 0 ? 0 : r + offset) : 0, end = upper ? columns : r + offset + 1;
    if (end > columns) end = columns;
    starts[r] = count;
    shift[r] = first - count;
    if (end > first) count += end - first;
  }
  int64_t out_dims[2] = {2, count};
  if (count == 0) {
    o->out[0].val = tpu_full(b, dtype, 2, out_dims, 0);
    return;
  }
  int64_t zero[1] = {0}, one[1] = {1}, start_dims[2] = {rows, 1};
  tpu_val row = tpu_full(b, TPU_I64, 1, &count, 0);
  if (rows > 1) {
    /* A start past the end (trailing empty rows) is out of range, which a scatter drops. */
    tpu_scatter_dims scatter = {.n_inserted = 1, .inserted = zero, .n_map = 1, .scatter_map = zero, .index_vector_dim = 1};
    start_dims[0] = rows - 1;
    tpu_val ones = tpu_full(b, TPU_I64, 1, start_dims, 1);
    row = tpu_scatter(b, TPU_MONOID_ADD, row, tpu_dense(b, TPU_I64, 2, start_dims, starts + 1), ones, &scatter);
    row = tpu_cumulative(b, TPU_MONOID_ADD, row, 0, false);
  }
  tpu_gather_dims gather = {.n_collapsed = 1, .collapsed = zero, .n_map = 1, .start_index_map = zero, .index_vector_dim = 1};
  tpu_val column = tpu_gather(b, tpu_dense_i64(b, rows, shift), tpu_unsqueeze(b, row, 1), &gather, one);
  column = tpu_add(b, column, tpu_iota(b, TPU_I64, 1, &count, 0));
  tpu_val both[2] = {tpu_unsqueeze(b, row, 0), tpu_unsqueeze(b, column, 0)};
  o->out[0].val = tpu_convert(b, tpu_concat(b, 2, both, 0), dtype);
}
