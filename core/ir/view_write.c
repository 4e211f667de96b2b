#include "ir/view_frame.h"

/* An update in place must not be fused with reads of the old elements at other places. XLA sees to that, but not where the
 * updated operand is a reshape of what is read (wrong results on every CPU plugin, also JAX's own, of 2026: x[1:4] += x[0:3]
 * through a flat x). Then the update is made as a new array. */
enum { VISITS = 2048 };
static bool is_fused(uint16_t op) {
  switch (op) {
    case TPU_HLO_DOT_GENERAL:
    case TPU_HLO_CONVOLUTION:
    case TPU_HLO_SORT:
    case TPU_HLO_SCATTER:
    case TPU_HLO_WHILE:
    case TPU_HLO_IF:
    case TPU_HLO_CUSTOM_CALL:
    case TPU_HLO_FFT: return false;
    default: return true;
  }
}
/* Does x, computed within one fusion, read `from`? */
static bool reads(const tpu_build *b, tpu_val x, tpu_val from, int *visits) {
  if (x.id == from.id) return true;
  if (x.id < from.id) return false;
  if (--*visits < 0) return true;
  const tpu_node *node = tpu_graph_producer(b->graph, x, NULL);
  if (!node || !is_fused(node->op)) return false;
  for (uint32_t i = 0; i < node->n_operands; i++)
    if (reads(b, node->operands[i], from, visits)) return true;
  return false;
}
static bool is_reshape(const tpu_build *b, tpu_val x, tpu_val *out_of) {
  const tpu_node *node = tpu_graph_producer(b->graph, x, NULL);
  if (!node || node->op != TPU_HLO_RESHAPE) return false;
  *out_of = node->operands[0];
  return true;
}
static tpu_val update(tpu_build *b, const tpu_view_frame *f, tpu_val base, tpu_val value, const tpu_val *starts) {
  tpu_val of;
  if (!f->apart || !is_reshape(b, base, &of)) return tpu_dynamic_update_slice(b, base, value, starts);
  tpu_type t = tpu_type_of(b, base);
  tpu_val at[TPU_VIEW_DIMS], yes = tpu_full_i(b, TPU_BOOL, t.rank, tpu_dims_of(b, value), 1);
  for (int i = 0; i < t.rank; i++) {
    tpu_dtype index = tpu_dtype_of(b, starts[i]);
    at[i] = tpu_sub(b, tpu_scalar_i(b, index, t.dims[i]), starts[i]);
  }
  tpu_val moved = tpu_pad(b, value, tpu_scalar(b, t.dtype, 0), t.dims, t.dims, NULL);
  tpu_val mask = tpu_pad(b, yes, tpu_scalar_i(b, TPU_BOOL, 0), t.dims, t.dims, NULL);
  return tpu_select(b, tpu_dynamic_slice(b, mask, at, t.dims), tpu_dynamic_slice(b, moved, at, t.dims), base);
}

enum {
  MAX_WRITES = 16, /* values written one after the other; more are scattered */
  SPARSE = 16      /* a stepped view of less than this part of the base is scattered */
};

/* True where the stepped box has elements. */
static tpu_val box_mask(tpu_build *b, const tpu_view_frame *f, const tpu_view_plan *p) {
  tpu_val mask = TPU_POISON;
  for (int j = 0; j < p->rank; j++) {
    if (p->count[j] == p->size[j]) continue;
    int64_t n = p->size[j], last = p->start[j] + (p->count[j] - 1) * p->step[j], map = j;
    tpu_val at = tpu_iota(b, f->index, 1, &n, 0), in = TPU_POISON;
    if (p->count[j] == 1) {
      in = tpu_compare(b, TPU_EQ, at, tpu_full_i(b, f->index, 1, &n, p->start[j]));
    } else {
      if (p->start[j] >= p->step[j] || p->step[j] == 1)
        in = tpu_compare(b, TPU_GE, at, tpu_full_i(b, f->index, 1, &n, p->start[j]));
      if (last + p->step[j] < n) {
        tpu_val below = tpu_compare(b, TPU_LE, at, tpu_full_i(b, f->index, 1, &n, last));
        in = in.id ? tpu_and(b, in, below) : below;
      }
      if (p->step[j] > 1) {
        tpu_val rest = tpu_binary(b, TPU_HLO_REMAINDER, at, tpu_full_i(b, f->index, 1, &n, p->step[j]));
        rest = tpu_compare(b, TPU_EQ, rest, tpu_full_i(b, f->index, 1, &n, p->start[j] % p->step[j]));
        in = in.id ? tpu_and(b, in, rest) : rest;
      }
    }
    in = tpu_broadcast_in_dim(b, in, p->rank, p->size, &map);
    mask = mask.id ? tpu_and(b, mask, in) : in;
  }
  return mask;
}

/* base (any dims, p's elements) with value [view's sizes] in p's box: [p's sizes]. */
static tpu_val write_plan(tpu_build *b, tpu_val base, const tpu_view_frame *f, const tpu_view_plan *p, tpu_val value) {
  value = tpu_reshape(b, value, p->rank, p->count);
  if (p->whole) return value;
  base = tpu_reshape(b, base, p->rank, p->size);
  if (!p->stepped) {
    tpu_val starts[TPU_VIEW_DIMS];
    tpu_view_starts(b, f, p, starts);
    return update(b, f, base, value, starts);
  }
  int64_t hi[TPU_VIEW_DIMS], interior[TPU_VIEW_DIMS];
  for (int j = 0; j < p->rank; j++) {
    interior[j] = p->step[j] - 1;
    hi[j] = p->size[j] - 1 - p->start[j] - (p->count[j] - 1) * p->step[j];
  }
  tpu_val zero = tpu_scalar(b, tpu_dtype_of(b, value), 0);
  return tpu_select(b, box_mask(b, f, p), tpu_pad(b, value, zero, p->start, hi, interior), base);
}

/* Elements from the space of `index` values; each lands in its own place. */
static tpu_val write_scatter(tpu_build *b, tpu_val base, const tpu_view_frame *f, const tpu_view_dims *view, tpu_val value) {
  tpu_view_dims outer = *view;
  int64_t run = 1;
  if (view->stride[view->n - 1] == 1) run = view->size[--outer.n];
  tpu_val index = tpu_view_indices(b, f->index, &outer, f->start.value);
  int64_t n = tpu_numel_of(b, index), index_dims[2] = {n, 1}, value_dims[2] = {n, run};
  static const int64_t zero = 0, one = 1;
  tpu_scatter_dims s = {.n_map = 1, .scatter_map = &zero, .index_vector_dim = 1, .unique = true};
  if (run > 1)
    s.n_window = 1, s.window = &one;
  else
    s.n_inserted = 1, s.inserted = &zero;
  return tpu_scatter(b, TPU_MONOID_ASSIGN, tpu_view_flatten(b, base), tpu_reshape(b, index, 2, index_dims),
                     tpu_reshape(b, value, run > 1 ? 2 : 1, value_dims), &s);
}

static tpu_val write_dims(tpu_build *b, tpu_val base, const tpu_view_frame *frame, tpu_view_dims view, tpu_val value,
                          int64_t writes);

/* Writes into the flat elements [offset, offset + numel), which then go back as one run. */
static tpu_val write_window(tpu_build *b, tpu_val base, const tpu_view_frame *frame, const tpu_view_dims *view, tpu_val value,
                            int64_t writes) {
  tpu_view_frame f = *frame;
  f.start = (tpu_view_start){.multiple = 1};
  f.space.rank = 1;
  f.space.dims[0] = f.space.numel = tpu_view_extent(view, 0) + 1;
  tpu_val window = tpu_view_window(b, base, frame, f.space.numel);
  window = tpu_view_flatten(b, write_dims(b, window, &f, *view, value, writes));
  return update(b, frame, tpu_view_flatten(b, base), window, &frame->dyn_offset);
}

static tpu_val write_flat(tpu_build *b, tpu_val base, const tpu_view_frame *frame, const tpu_view_plan *p,
                          const tpu_view_dims *view, tpu_val value) {
  int64_t all = frame->space.numel, start = frame->start.value, n = view->size[0] * view->stride[0], lo = 0;
  int64_t end = start + n < all ? start + n : all, spare = start + n - end;
  base = tpu_view_flatten(b, base);
  tpu_val x = tpu_slice_dim(b, base, 0, start, end, 1);
  if (spare > 0) x = tpu_pad(b, x, tpu_scalar(b, tpu_dtype_of(b, x), 0), &lo, &spare, NULL);
  tpu_view_frame f = *frame;
  f.start = (tpu_view_start){.multiple = 1};
  x = tpu_view_flatten(b, write_plan(b, x, &f, p, value));
  x = tpu_slice_dim(b, x, 0, 0, end - start, 1);
  tpu_val at = tpu_scalar_i(b, frame->index, start);
  return update(b, frame, base, x, &at);
}

/* value: [view's sizes]; no two elements coincide. The result has base's elements, in any dims. */
static tpu_val write_dims(tpu_build *b, tpu_val base, const tpu_view_frame *frame, tpu_view_dims view, tpu_val value,
                          int64_t writes) {
  tpu_view_dims_merge(&view);
  value = tpu_reshape(b, value, view.n, view.size);
  /* A TPU pays for small minor dims; elsewhere an update in place is worth the split. */
  bool unit_steps = b->target->platform != TPU_TARGET_TPU;
  tpu_view_plan plan;
  bool planned = tpu_view_plan_make(&frame->space, &view, &frame->start, unit_steps, &plan);
  /* Few elements far apart (a diagonal) touch less than a select over everything: f32[1024, 1024] 0.2 ms, not 2 ms. */
  if (planned && plan.stepped && unit_steps && !frame->start.dynamic && tpu_numel_of(b, value) <= frame->space.numel / SPARSE)
    return write_scatter(b, base, frame, &view, value);
  if (planned && !(plan.stepped && frame->start.dynamic)) return write_plan(b, base, frame, &plan, value);
  if (frame->start.dynamic) return write_window(b, base, frame, &view, value, writes);
  if (tpu_view_plan_flat(&view, unit_steps, &plan)) return write_flat(b, base, frame, &plan, &view, value);
  int dim;
  int64_t part;
  if (!tpu_view_cut(&view, &dim, &part) || (view.size[dim] + part - 1) / part > writes)
    return write_scatter(b, base, frame, &view, value);
  int64_t size = view.size[dim], pieces = (size + part - 1) / part;
  for (int64_t at = 0; at < size; at += part) {
    tpu_view_frame f = *frame;
    f.start.value += at * view.stride[dim];
    tpu_view_dims piece = view;
    piece.size[dim] = at + part < size ? part : size - at;
    tpu_val x = tpu_slice_dim(b, value, dim, at, at + piece.size[dim], 1);
    base = tpu_reshape(b, base, frame->space.rank, frame->space.dims);
    base = write_dims(b, base, &f, piece, x, writes / pieces);
  }
  return base;
}

/* Elements may coincide: each place first learns the last element (in row-major order) that goes there, by a maximum, which
 * no order of execution changes. value: [dims' sizes], logical order. */
static tpu_val write_last_wins(tpu_build *b, tpu_val base, const tpu_view_frame *f, const tpu_view_dims *logical, tpu_val value) {
  int64_t n = tpu_numel_of(b, value), index_dims[2] = {n, 1};
  tpu_dtype count = n <= INT32_MAX ? TPU_I32 : TPU_I64;
  tpu_val index = tpu_view_indices(b, f->index, logical, f->start.value);
  base = tpu_view_flatten(b, base);
  static const int64_t zero = 0;
  const int64_t one = 1;
  tpu_scatter_dims s = {.n_map = 1, .scatter_map = &zero, .n_inserted = 1, .inserted = &zero, .index_vector_dim = 1};
  tpu_val winner = tpu_scatter(b, TPU_MONOID_MAX, tpu_full_i(b, count, 1, tpu_dims_of(b, base), -1),
                               tpu_reshape(b, index, 2, index_dims), tpu_iota(b, count, 1, &n, 0), &s);
  tpu_val none = tpu_compare(b, TPU_LT, winner, tpu_full_i(b, count, 1, tpu_dims_of(b, base), 0));
  int64_t winner_dims[2] = {tpu_numel_of(b, base), 1};
  tpu_gather_dims g = {.n_map = 1, .start_index_map = &zero, .n_collapsed = 1, .collapsed = &zero, .index_vector_dim = 1};
  tpu_val x = tpu_gather(b, tpu_view_flatten(b, value), tpu_reshape(b, winner, 2, winner_dims), &g, &one);
  return tpu_select(b, none, base, x);
}

/* value [sizes] without dims of size 1 and, of repeated ones, only the last element. */
static tpu_val drop_dims(tpu_build *b, const tpu_view_geometry *v, tpu_val value, tpu_view_dims *out_logical) {
  tpu_view_dims d = {0};
  for (int i = 0; i < v->rank; i++) {
    if (v->sizes[i] == 1) continue;
    if (v->strides[i] == 0)
      value = tpu_slice_dim(b, value, i, v->sizes[i] - 1, v->sizes[i], 1);
    else
      d.size[d.n] = v->sizes[i], d.stride[d.n++] = v->strides[i];
  }
  *out_logical = d;
  return tpu_reshape(b, value, d.n, d.size);
}

tpu_val tpu_view_write(tpu_build *b, tpu_val base, const tpu_view_geometry *v, tpu_val value) {
  if (tpu_build_failed(b) || !base.id || !value.id) return TPU_POISON;
  tpu_type type = tpu_type_of(b, base), given = tpu_type_of(b, value);
  if (!tpu_type_equal(given, (tpu_type){.dtype = v->dtype, .rank = v->rank, .dims = v->sizes}))
    return tpu_fail(b, TPU_INTERNAL, "the value written through a view has another type than the view");
  int64_t strides[TPU_MAX_RANK];
  tpu_view_geometry half;
  int part = tpu_view_complex_part(type, v, strides, &half);
  if (part >= 0) {
    tpu_val re = tpu_unary(b, TPU_HLO_REAL, base), im = tpu_unary(b, TPU_HLO_IMAG, base);
    return part == TPU_HLO_REAL ? tpu_complex(b, tpu_view_write(b, re, &half, value), im)
                                : tpu_complex(b, re, tpu_view_write(b, im, &half, value));
  }
  tpu_view_frame f;
  bool empty;
  if (!tpu_view_frame_make(b, type, v, &f, &empty)) return empty ? base : TPU_POISON;
  tpu_val root = base;
  while (is_reshape(b, root, &root)) {
  }
  int visits = VISITS;
  f.apart = reads(b, value, root, &visits);
  tpu_view_dims logical;
  value = drop_dims(b, v, value, &logical);
  tpu_val x = tpu_reshape(b, tpu_view_cast(b, base, v->dtype), f.space.rank, f.space.dims);
  if (tpu_view_first_overlap(&f.dims) >= 0) {
    tpu_view_frame window = f;
    tpu_val whole = x;
    if (f.start.dynamic) {
      window.start = (tpu_view_start){.multiple = 1};
      x = tpu_view_window(b, x, &f, tpu_view_extent(&f.dims, 0) + 1);
    }
    x = write_last_wins(b, x, &window, &logical, value);
    if (f.start.dynamic) x = update(b, &f, tpu_view_flatten(b, whole), x, &f.dyn_offset);
  } else {
    /* From logical order to memory order. */
    int64_t perm[TPU_VIEW_DIMS];
    for (int k = 0; k < f.n_order; k++) {
      perm[k] = 0;
      for (int i = 0; i < f.order[k]; i++) perm[k] += v->sizes[i] > 1 && v->strides[i] > 0;
    }
    x = write_dims(b, x, &f, f.dims, tpu_transpose(b, value, perm), MAX_WRITES);
  }
  return tpu_view_uncast(b, x, base);
}
