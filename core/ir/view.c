#include "ir/view_frame.h"

/* Overlapping windows are slices put side by side, up to so many. A gather costs a TPU more (libtpu's estimate for patches of 3x3
 * of f32[4, 16, 32, 32]: 37 MB moved, a gather 2.2 GB), a CPU half of it (measured there: 0.18 ms, 0.09 ms). */
enum { MAX_PIECES = 64 };
static int64_t piece_limit(const tpu_build *b) { return b->target->platform == TPU_TARGET_CPU ? 1 : MAX_PIECES; }

tpu_val tpu_view_window(tpu_build *b, tpu_val base, const tpu_view_frame *f, int64_t numel) {
  return tpu_dynamic_slice(b, tpu_view_flatten(b, base), &f->dyn_offset, &numel);
}

bool tpu_view_cut(const tpu_view_dims *view, int *out_dim, int64_t *out_part) {
  int best = -1;
  int64_t part = 1, pieces = INT64_MAX;
  int i = tpu_view_first_overlap(view);
  if (i >= 0) {
    /* Cut the inner dim into runs that end before the next outer element, or take the outer elements one by one. */
    int64_t room = view->stride[i] - 1 - tpu_view_extent(view, i + 2);
    part = room > 0 ? room / view->stride[i + 1] + 1 : 1;
    best = i + 1;
    pieces = (view->size[best] + part - 1) / part;
    if (view->size[i] < pieces) best = i, part = 1, pieces = view->size[i];
  } else {
    /* Strides do not divide: the shortest dim down to where they fail. */
    for (i = 0; i < view->n; i++)
      if (view->size[i] < pieces) best = i, pieces = view->size[i];
  }
  *out_dim = best;
  *out_part = part;
  return best >= 0 && part < view->size[best];
}

/* Pieces that the view needs, or more than `most`. */
static int64_t count_pieces(const tpu_view_space *space, tpu_view_dims view, int64_t most) {
  tpu_view_plan plan;
  tpu_view_dims_merge(&view);
  if (view.n == 0 || (tpu_view_first_overlap(&view) < 0 && tpu_view_plan_flat(&view, false, &plan))) return 1;
  int dim;
  int64_t part;
  if (!tpu_view_cut(&view, &dim, &part)) return most + 1;
  int64_t size = view.size[dim], pieces = (size + part - 1) / part;
  if (pieces > most) return most + 1;
  view.size[dim] = part;
  return pieces * count_pieces(space, view, most / pieces);
}

static tpu_val read_plan(tpu_build *b, tpu_val base, const tpu_view_frame *f, const tpu_view_plan *p) {
  tpu_val x = tpu_reshape(b, base, p->rank, p->size);
  if (f->start.dynamic) {
    tpu_val starts[TPU_VIEW_DIMS];
    int64_t window[TPU_VIEW_DIMS], zeros[TPU_VIEW_DIMS];
    for (int j = 0; j < p->rank; j++) {
      window[j] = (p->count[j] - 1) * p->step[j] + 1;
      zeros[j] = 0;
    }
    tpu_view_starts(b, f, p, starts);
    x = tpu_dynamic_slice(b, x, starts, window);
    if (p->stepped) x = tpu_slice(b, x, zeros, window, p->step);
  } else {
    int64_t limit[TPU_VIEW_DIMS];
    for (int j = 0; j < p->rank; j++) limit[j] = p->start[j] + (p->count[j] - 1) * p->step[j] + 1;
    x = tpu_slice(b, x, p->start, limit, p->step);
  }
  return tpu_reshape(b, x, p->view.n, p->view.size);
}

/* The flat elements [offset, offset + numel), with zeros behind the end. */
static tpu_val flat_range(tpu_build *b, tpu_val base, int64_t offset, int64_t numel) {
  tpu_val x = tpu_view_flatten(b, base);
  int64_t all = tpu_numel_of(b, x), end = offset + numel < all ? offset + numel : all;
  x = tpu_slice_dim(b, x, 0, offset, end, 1);
  int64_t lo = 0, hi = offset + numel - end;
  return hi > 0 ? tpu_pad(b, x, tpu_scalar(b, tpu_dtype_of(b, x), 0), &lo, &hi, NULL) : x;
}

static tpu_val read_gather(tpu_build *b, tpu_val base, const tpu_view_frame *f, const tpu_view_dims *view) {
  tpu_view_dims outer = *view;
  int64_t run = 1; /* elements in a row that one index fetches */
  if (view->stride[view->n - 1] == 1) run = view->size[--outer.n];
  tpu_val index = tpu_view_indices(b, f->index, &outer, f->start.value);
  int64_t dims[2] = {tpu_numel_of(b, index), 1};
  index = tpu_reshape(b, index, 2, dims);
  static const int64_t zero = 0, one = 1;
  tpu_gather_dims g = {.n_map = 1, .start_index_map = &zero, .index_vector_dim = 1};
  if (run > 1)
    g.n_offset = 1, g.offset = &one;
  else
    g.n_collapsed = 1, g.collapsed = &zero;
  return tpu_reshape(b, tpu_gather(b, tpu_view_flatten(b, base), index, &g, &run), view->n, view->size);
}

/* [view's sizes]. pieces: whether slices may be put together, else what has no plan is gathered. */
static tpu_val read_dims(tpu_build *b, tpu_val base, const tpu_view_frame *frame, tpu_view_dims view, int64_t pieces) {
  tpu_view_dims merged = view;
  tpu_view_dims_merge(&merged);
  tpu_view_plan plan;
  tpu_val x;
  int dim;
  int64_t part;
  if (tpu_view_plan_make(&frame->space, &merged, &frame->start, false, &plan)) {
    x = read_plan(b, base, frame, &plan);
  } else if (frame->start.dynamic) {
    tpu_view_frame window = *frame;
    window.start = (tpu_view_start){.multiple = 1};
    window.space.rank = 1;
    window.space.dims[0] = window.space.numel = tpu_view_extent(&merged, 0) + 1;
    return read_dims(b, tpu_view_window(b, base, frame, window.space.numel), &window, view, pieces);
  } else if (tpu_view_first_overlap(&merged) < 0 && tpu_view_plan_flat(&merged, false, &plan)) {
    tpu_view_frame flat = *frame;
    flat.start = (tpu_view_start){.multiple = 1};
    x = read_plan(b, flat_range(b, base, frame->start.value, merged.size[0] * merged.stride[0]), &flat, &plan);
  } else if (pieces > 1 && tpu_view_cut(&merged, &dim, &part) && (merged.size[dim] + part - 1) / part <= MAX_PIECES) {
    int64_t size = merged.size[dim];
    tpu_val parts[MAX_PIECES];
    int n = 0;
    for (int64_t at = 0; at < size; at += part) {
      tpu_view_frame f = *frame;
      f.start.value += at * merged.stride[dim];
      tpu_view_dims piece = merged;
      piece.size[dim] = at + part < size ? part : size - at;
      parts[n++] = read_dims(b, base, &f, piece, pieces);
    }
    x = tpu_concat(b, n, parts, dim);
  } else {
    x = read_gather(b, base, frame, &merged);
  }
  return tpu_reshape(b, x, view.n, view.size);
}

tpu_val tpu_view_read(tpu_build *b, tpu_val base, const tpu_view_geometry *v) {
  if (tpu_build_failed(b) || !base.id) return TPU_POISON;
  tpu_type type = tpu_type_of(b, base);
  int64_t strides[TPU_MAX_RANK];
  tpu_view_geometry half;
  int part = tpu_view_complex_part(type, v, strides, &half);
  if (part >= 0) return tpu_view_read(b, tpu_unary(b, (tpu_hlo)part, base), &half);
  tpu_view_frame f;
  bool empty;
  if (!tpu_view_frame_make(b, type, v, &f, &empty)) return empty ? tpu_full(b, v->dtype, v->rank, v->sizes, 0) : TPU_POISON;
  tpu_val x = tpu_reshape(b, tpu_view_cast(b, base, v->dtype), f.space.rank, f.space.dims);

  tpu_view_dims merged = f.dims;
  tpu_view_dims_merge(&merged);
  int64_t limit = piece_limit(b), pieces = count_pieces(&f.space, merged, limit);
  x = read_dims(b, x, &f, f.dims, pieces <= limit ? pieces : 1);

  /* From memory order to logical order; then dims of size 1 and repeated ones. */
  int64_t perm[TPU_VIEW_DIMS], map[TPU_VIEW_DIMS];
  int n = 0;
  for (int i = 0; i < v->rank; i++) {
    for (int k = 0; k < f.n_order; k++)
      if (f.order[k] == i) perm[n] = k, map[n++] = i;
  }
  x = tpu_transpose(b, x, perm);
  return f.repeats ? tpu_broadcast_in_dim(b, x, v->rank, v->sizes, map) : tpu_reshape(b, x, v->rank, v->sizes);
}
