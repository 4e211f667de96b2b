#include "aten/indexing.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool index_is_integer(tpu_dtype dtype) { return dtype == TPU_I64 || dtype == TPU_I32; }

static tpu_dtype position_dtype(int64_t size) { return size <= INT32_MAX ? TPU_I32 : TPU_I64; }

tpu_val index_prepare(tpu_build *b, tpu_val index, int64_t size, bool wrap) {
  if (b->checks) {
    tpu_val last = tpu_full_like(b, index, (double)(size - 1)), first = tpu_full_like(b, index, wrap ? -(double)size : 0);
    tpu_build_check(b, tpu_or(b, tpu_compare(b, TPU_LT, index, first), tpu_compare(b, TPU_GT, index, last)));
  }
  index = tpu_convert(b, index, position_dtype(size));
  if (!wrap) return index;
  tpu_val negative = tpu_compare(b, TPU_LT, index, tpu_full_like(b, index, 0));
  return tpu_select(b, negative, tpu_add(b, index, tpu_full_like(b, index, (double)size)), index);
}

tpu_val index_trusted(tpu_build *b, tpu_val index, int64_t size) { return tpu_convert(b, index, position_dtype(size)); }

tpu_val index_flatten(tpu_build *b, tpu_val x) {
  int64_t n = tpu_numel_of(b, x);
  return tpu_reshape(b, x, 1, &n);
}

const char *index_dims_text(tpu_build *b, int rank, const int64_t *dims) {
  enum { MOST = 22 }; /* ", " and 20 digits */
  size_t room = (size_t)(rank + 1) * MOST, at = 1;
  char *text = tpu_build_alloc(b, room);
  if (!text) return "[]";
  text[0] = '[';
  for (int d = 0; d < rank; d++) at += (size_t)snprintf(text + at, room - at, d ? ", %" PRId64 : "%" PRId64, dims[d]);
  memcpy(text + at, "]", 2);
  return text;
}

static bool is_selected(const index_plan *plan, int dim) {
  for (int k = 0; k < plan->n; k++)
    if (plan->dims[k] == dim) return true;
  return false;
}

int index_result_dims(tpu_build *b, tpu_val x, const index_plan *plan, int64_t *out_dims) {
  int rank = tpu_rank_of(b, x), n = 0, others = 0;
  const int64_t *dims = tpu_dims_of(b, x);
  for (int d = 0; d <= rank; d++) {
    if (d < rank && is_selected(plan, d)) continue;
    if (others++ == plan->at) {
      memcpy(out_dims + n, plan->block, sizeof *out_dims * (size_t)plan->block_rank);
      n += plan->block_rank;
    }
    if (d < rank) out_dims[n++] = dims[d];
  }
  return n;
}

/* Of gather and scatter alike: the dims of the result (or the updates) that are no block dims, x's selected dims, and the index
 * vectors. */
typedef struct plan_numbers {
  int n_window;
  int64_t window[TPU_MAX_RANK], selected[TPU_MAX_RANK];
  int64_t vector_dim;
  tpu_val vectors;
} plan_numbers;

static void number_plan(tpu_build *b, tpu_val x, const index_plan *plan, plan_numbers *out) {
  int others = tpu_rank_of(b, x) - plan->n;
  out->n_window = others;
  for (int i = 0; i < others; i++) out->window[i] = i < plan->at ? i : i + plan->block_rank;
  for (int k = 0; k < plan->n; k++) out->selected[k] = plan->dims[k];
  out->vector_dim = plan->block_rank;
  out->vectors = plan->indices[0];
  if (plan->n == 1) return;
  tpu_dtype dtype = TPU_I32;
  for (int k = 0; k < plan->n; k++)
    if (tpu_dtype_of(b, plan->indices[k]) == TPU_I64) dtype = TPU_I64;
  tpu_val columns[TPU_MAX_RANK];
  for (int k = 0; k < plan->n; k++) columns[k] = tpu_unsqueeze(b, tpu_convert(b, plan->indices[k], dtype), plan->block_rank);
  out->vectors = tpu_concat(b, plan->n, columns, plan->block_rank);
}

static int64_t block_numel(const index_plan *plan) {
  int64_t n = 1;
  for (int d = 0; d < plan->block_rank; d++) n *= plan->block[d];
  return n;
}

/* For a block of one element: the start of a slice, and the slice's dims. */
static void single_start(tpu_build *b, tpu_val x, const index_plan *plan, tpu_val *out_starts, int64_t *out_sizes) {
  int rank = tpu_rank_of(b, x);
  tpu_dtype dtype = TPU_I32;
  for (int k = 0; k < plan->n; k++)
    if (tpu_dtype_of(b, plan->indices[k]) == TPU_I64) dtype = TPU_I64;
  for (int d = 0; d < rank; d++) {
    out_starts[d] = tpu_scalar_i(b, dtype, 0);
    out_sizes[d] = tpu_dim_of(b, x, d);
  }
  for (int k = 0; k < plan->n; k++) {
    out_starts[plan->dims[k]] = tpu_convert(b, tpu_reshape(b, plan->indices[k], 0, NULL), dtype);
    out_sizes[plan->dims[k]] = 1;
  }
}

tpu_val index_read(tpu_build *b, tpu_val x, const index_plan *plan) {
  if (tpu_build_failed(b)) return TPU_POISON;
  int64_t result[TPU_MAX_RANK], sizes[TPU_MAX_RANK];
  int result_rank = index_result_dims(b, x, plan, result);
  if (plan->n == 0) return tpu_reshape(b, x, result_rank, result);
  int64_t numel = 1;
  for (int d = 0; d < result_rank; d++) numel *= result[d];
  if (numel == 0 || tpu_numel_of(b, x) == 0) return tpu_full(b, tpu_dtype_of(b, x), result_rank, result, 0);
  if (block_numel(plan) == 1) {
    tpu_val starts[TPU_MAX_RANK];
    single_start(b, x, plan, starts, sizes);
    return tpu_reshape(b, tpu_dynamic_slice(b, x, starts, sizes), result_rank, result);
  }
  plan_numbers p;
  number_plan(b, x, plan, &p);
  for (int d = 0; d < tpu_rank_of(b, x); d++) sizes[d] = is_selected(plan, d) ? 1 : tpu_dim_of(b, x, d);
  tpu_gather_dims dims = {.n_offset = p.n_window,
                          .offset = p.window,
                          .n_collapsed = plan->n,
                          .collapsed = p.selected,
                          .n_map = plan->n,
                          .start_index_map = p.selected,
                          .index_vector_dim = p.vector_dim};
  return tpu_gather(b, x, p.vectors, &dims, sizes);
}

static tpu_monoid monoid_of_bool(tpu_monoid op) {
  switch (op) {
    case TPU_MONOID_ADD:
    case TPU_MONOID_MAX: return TPU_MONOID_OR;
    case TPU_MONOID_MUL:
    case TPU_MONOID_MIN: return TPU_MONOID_AND;
    default: return op;
  }
}

/* tpu_scatter, with the types seen to. */
static tpu_val scatter(tpu_build *b, tpu_monoid op, tpu_val x, tpu_val indices, tpu_val updates, const tpu_scatter_dims *dims) {
  tpu_dtype dtype = tpu_dtype_of(b, x);
  if (dtype == TPU_BOOL) op = monoid_of_bool(op);
  bool wide = op == TPU_MONOID_ADD || op == TPU_MONOID_MUL;
  tpu_dtype math = wide ? tpu_dtype_opmath(dtype) : dtype;
  tpu_val y = tpu_scatter(b, op, tpu_convert(b, x, math), indices, tpu_convert(b, updates, math), dims);
  return tpu_convert(b, y, dtype);
}

tpu_val index_write(tpu_build *b, tpu_monoid op, tpu_val x, const index_plan *plan, tpu_val updates) {
  if (tpu_build_failed(b)) return TPU_POISON;
  if (tpu_numel_of(b, x) == 0 || tpu_numel_of(b, updates) == 0) return x;
  if (block_numel(plan) == 1 && op == TPU_MONOID_ASSIGN) {
    tpu_val starts[TPU_MAX_RANK];
    int64_t sizes[TPU_MAX_RANK];
    single_start(b, x, plan, starts, sizes);
    return tpu_dynamic_update_slice(b, x, tpu_reshape(b, updates, tpu_rank_of(b, x), sizes), starts);
  }
  plan_numbers p;
  number_plan(b, x, plan, &p);
  tpu_scatter_dims dims = {.n_window = p.n_window,
                           .window = p.window,
                           .n_inserted = plan->n,
                           .inserted = p.selected,
                           .n_map = plan->n,
                           .scatter_map = p.selected,
                           .index_vector_dim = p.vector_dim};
  return scatter(b, op, x, p.vectors, updates, &dims);
}

static void rows_plan(tpu_build *b, int dim, tpu_val index, index_plan *out) {
  tpu_type type = tpu_type_of(b, index);
  *out = (index_plan){.n = 1, .dims = {dim}, .indices = {index}, .block_rank = type.rank, .at = dim};
  for (int d = 0; d < type.rank; d++) out->block[d] = type.dims[d];
}

tpu_val index_read_rows(tpu_build *b, tpu_val x, int dim, tpu_val index) {
  index_plan plan;
  rows_plan(b, dim, index, &plan);
  return index_read(b, x, &plan);
}

tpu_val index_write_rows(tpu_build *b, tpu_monoid op, tpu_val x, int dim, tpu_val index, tpu_val updates) {
  index_plan plan;
  rows_plan(b, dim, index, &plan);
  return index_write(b, op, x, &plan, updates);
}

/* The dims of x for an index along `dim`: the index is the same all along `window` dims, and `batch` dims go in step with it. */
typedef struct along {
  int n_window, n_batch;
  int64_t window[TPU_MAX_RANK], batch[TPU_MAX_RANK]; /* dims of x */
  int64_t indices_batch[TPU_MAX_RANK];               /* where the batch dims are in `index` */
  int64_t dim, index_dim;                            /* index_dim: where dim is in `index` */
  tpu_val index;                                     /* without the window dims */
} along;

static void split_dims(tpu_build *b, int dim, tpu_val index, const int64_t *strides, along *out) {
  tpu_type type = tpu_type_of(b, index);
  int64_t limit[TPU_MAX_RANK], start[TPU_MAX_RANK] = {0}, kept[TPU_MAX_RANK];
  int n_kept = 0;
  *out = (along){.dim = dim};
  for (int d = 0; d < type.rank; d++) {
    limit[d] = type.dims[d];
    if (d != dim && (type.dims[d] == 1 || (strides && strides[d] == 0))) {
      out->window[out->n_window++] = d;
      limit[d] = 1;
      continue;
    }
    if (d == dim) {
      out->index_dim = n_kept;
    } else {
      out->indices_batch[out->n_batch] = n_kept;
      out->batch[out->n_batch++] = d;
    }
    kept[n_kept++] = type.dims[d];
  }
  out->index = tpu_reshape(b, tpu_slice(b, index, start, limit, NULL), n_kept, kept);
}

/* x cut to the index's dims, all but `dim`. */
static tpu_val cut_to_index(tpu_build *b, tpu_val x, int dim, tpu_val index) {
  tpu_type type = tpu_type_of(b, x);
  int64_t start[TPU_MAX_RANK] = {0}, limit[TPU_MAX_RANK];
  for (int d = 0; d < type.rank; d++) limit[d] = d == dim ? type.dims[d] : tpu_dim_of(b, index, d);
  return tpu_slice(b, x, start, limit, NULL);
}

tpu_val index_gather(tpu_build *b, tpu_val x, int dim, tpu_val index, const int64_t *strides) {
  if (tpu_build_failed(b)) return TPU_POISON;
  tpu_type type = tpu_type_of(b, index);
  if (tpu_type_numel(type) == 0 || tpu_numel_of(b, x) == 0) return tpu_full(b, tpu_dtype_of(b, x), type.rank, type.dims, 0);
  if (type.rank == 0) return x;
  x = cut_to_index(b, x, dim, index);
  along s;
  split_dims(b, dim, index, strides, &s);
  if (s.n_batch == 0) return index_read_rows(b, x, dim, s.index);
  int64_t sizes[TPU_MAX_RANK];
  for (int d = 0; d < type.rank; d++) sizes[d] = 1;
  for (int i = 0; i < s.n_window; i++) sizes[s.window[i]] = type.dims[s.window[i]];
  tpu_gather_dims dims = {.n_offset = s.n_window,
                          .offset = s.window,
                          .n_collapsed = 1,
                          .collapsed = &s.dim,
                          .n_batch = s.n_batch,
                          .operand_batch = s.batch,
                          .indices_batch = s.indices_batch,
                          .n_map = 1,
                          .start_index_map = &s.dim,
                          .index_vector_dim = s.n_batch + 1};
  return tpu_gather(b, x, s.index, &dims, sizes);
}

/* On XLA:CPU a scatter with one index component into a flat array takes half the time of one with batch dims (64 K updates: 83 us
 * against 170); for a TPU both access as many bytes. The window dims must be the last ones. A position outside `dim` becomes one
 * outside everything, and is dropped. */
static tpu_val scatter_flat(tpu_build *b, tpu_monoid op, tpu_val x, const along *s, tpu_val src) {
  tpu_type type = tpu_type_of(b, x);
  int lead = type.rank - s->n_window;
  int64_t rows = 1, flat[TPU_MAX_RANK], updates[TPU_MAX_RANK];
  for (int d = 0; d < lead; d++) rows *= type.dims[d];
  tpu_dtype dtype = position_dtype(rows);
  tpu_type index_type = tpu_type_of(b, s->index);
  tpu_val index = tpu_convert(b, s->index, dtype), position = TPU_POISON;
  int64_t stride = 1;
  for (int d = lead - 1; d >= 0; d--) { /* without window dims among them, index dim d is x's dim d */
    tpu_val step = d == s->dim ? index : tpu_iota(b, dtype, index_type.rank, index_type.dims, d);
    step = tpu_mul(b, step, tpu_full_i(b, dtype, index_type.rank, index_type.dims, stride));
    position = position.id ? tpu_add(b, position, step) : step;
    stride *= type.dims[d];
  }
  tpu_val size = tpu_full_i(b, dtype, index_type.rank, index_type.dims, type.dims[s->dim]);
  tpu_val inside = tpu_and(b, tpu_compare(b, TPU_LT, index, size), tpu_compare(b, TPU_GE, index, tpu_full_like(b, index, 0)));
  position = tpu_select(b, inside, position, tpu_full_i(b, dtype, index_type.rank, index_type.dims, rows));
  position = index_flatten(b, position);
  flat[0] = rows;
  updates[0] = tpu_numel_of(b, position);
  int64_t window[TPU_MAX_RANK], zero = 0;
  for (int i = 0; i < s->n_window; i++) {
    flat[1 + i] = updates[1 + i] = type.dims[lead + i];
    window[i] = 1 + i;
  }
  tpu_scatter_dims dims = {.n_window = s->n_window,
                           .window = window,
                           .n_inserted = 1,
                           .inserted = &zero,
                           .n_map = 1,
                           .scatter_map = &zero,
                           .index_vector_dim = 1};
  tpu_val y =
      scatter(b, op, tpu_reshape(b, x, 1 + s->n_window, flat), position, tpu_reshape(b, src, 1 + s->n_window, updates), &dims);
  return tpu_reshape(b, y, type.rank, type.dims);
}

tpu_val index_scatter(tpu_build *b, tpu_monoid op, tpu_val x, int dim, tpu_val index, const int64_t *strides, tpu_val src) {
  if (tpu_build_failed(b)) return TPU_POISON;
  tpu_type type = tpu_type_of(b, index);
  if (tpu_type_numel(type) == 0 || tpu_numel_of(b, x) == 0) return x;
  if (type.rank == 0) {
    int64_t one = 1;
    tpu_val y =
        index_scatter(b, op, tpu_reshape(b, x, 1, &one), 0, tpu_reshape(b, index, 1, &one), NULL, tpu_reshape(b, src, 1, &one));
    return tpu_reshape(b, y, 0, NULL);
  }
  tpu_val part = cut_to_index(b, x, dim, index), y;
  along s;
  split_dims(b, dim, index, strides, &s);
  bool last = true; /* are the window dims the last ones? */
  for (int i = 0; i < s.n_window; i++) last = last && s.window[i] == type.rank - s.n_window + i;
  if (s.n_batch == 0) {
    y = index_write_rows(b, op, part, dim, s.index, src);
  } else if (last) {
    y = scatter_flat(b, op, part, &s, src);
  } else {
    tpu_scatter_dims dims = {.n_window = s.n_window,
                             .window = s.window,
                             .n_inserted = 1,
                             .inserted = &s.dim,
                             .n_batch = s.n_batch,
                             .operand_batch = s.batch,
                             .indices_batch = s.indices_batch,
                             .n_map = 1,
                             .scatter_map = &s.dim,
                             .index_vector_dim = s.n_batch + 1};
    y = scatter(b, op, part, s.index, src, &dims);
  }
  if (part.id == x.id) return y;
  tpu_val starts[TPU_MAX_RANK];
  for (int d = 0; d < type.rank; d++) starts[d] = tpu_scalar_i(b, TPU_I32, 0);
  return tpu_dynamic_update_slice(b, x, y, starts);
}

tpu_val index_rank_true(tpu_build *b, tpu_val mask) {
  tpu_val one = tpu_convert(b, mask, position_dtype(tpu_numel_of(b, mask)));
  if (tpu_numel_of(b, mask) == 0) return one;
  return tpu_sub(b, tpu_cumulative(b, TPU_MONOID_ADD, one, 0, false), one);
}

tpu_val index_count_ends(tpu_build *b, tpu_val ends, int64_t n) {
  /* On the CPU 512 x 128 comparisons take 30 us, marking the ends and a scan 10. */
  int64_t most = b->target->platform == TPU_TARGET_CPU ? 1 << 12 : 1 << 21;
  int64_t m = tpu_numel_of(b, ends), dims[2] = {n, m}, axis = 1, to_row = 1;
  if (n == 0 || m == 0) return tpu_full(b, TPU_I32, 1, &n, 0);
  if (n <= most / m) {
    tpu_val end = tpu_broadcast_in_dim(b, ends, 2, dims, &to_row);
    tpu_val passed = tpu_compare(b, TPU_LE, end, tpu_iota(b, tpu_dtype_of(b, ends), 2, dims, 0));
    return tpu_reduce(b, TPU_MONOID_ADD, tpu_convert(b, passed, TPU_I32), tpu_scalar_i(b, TPU_I32, 0), 1, &axis);
  }
  tpu_val marks = tpu_full(b, TPU_I32, 1, &n, 0), ones = tpu_full(b, TPU_I32, 1, &m, 1);
  marks = index_write_rows(b, TPU_MONOID_ADD, marks, 0, ends, ones);
  return tpu_cumulative(b, TPU_MONOID_ADD, marks, 0, false);
}
