#include "ir/view_plan.h"

static int64_t gcd(int64_t a, int64_t b) {
  while (b) {
    int64_t r = a % b;
    a = b;
    b = r;
  }
  return a;
}

int64_t tpu_view_extent(const tpu_view_dims *view, int from) {
  int64_t extent = 0;
  for (int i = from; i < view->n; i++) extent += (view->size[i] - 1) * view->stride[i];
  return extent;
}

void tpu_view_dims_merge(tpu_view_dims *view) {
  int n = view->n;
  view->n = 0;
  for (int i = 0; i < n; i++) {
    int64_t size = view->size[i], stride = view->stride[i];
    if (size == 1) continue;
    int last = view->n - 1;
    if (last >= 0 && view->stride[last] == stride * size)
      view->size[last] *= size;
    else
      view->size[last = view->n++] = size;
    view->stride[last] = stride;
  }
}

int tpu_view_first_overlap(const tpu_view_dims *view) {
  for (int i = 0; i + 1 < view->n; i++)
    if (tpu_view_extent(view, i + 1) >= view->stride[i]) return i;
  return -1;
}

/* The largest remainder by `unit` that the start can have. */
static int64_t residue(const tpu_view_start *start, int64_t unit) {
  if (!start->dynamic) return start->value % unit;
  int64_t most = unit - gcd(unit, start->multiple);
  return start->max < most ? start->max : most;
}

typedef struct cuts {
  int n;
  int64_t unit[TPU_VIEW_DIMS]; /* descending, without the total and without 1 */
} cuts;

static void space_cuts(const tpu_view_space *space, cuts *out) {
  out->n = 0;
  int64_t unit = space->numel;
  for (int i = 0; i + 1 < space->rank; i++) out->unit[out->n++] = unit /= space->dims[i];
}

/* Splits view dims where the space's dims meet, so that the box has the space's own dims. */
static void split_at(const cuts *c, const tpu_view_start *start, const tpu_view_dims *view, tpu_view_dims *out) {
  out->n = 0;
  for (int i = 0; i < view->n; i++) {
    int64_t size = view->size[i], stride = view->stride[i], inner = tpu_view_extent(view, i + 1);
    for (int k = 0; k < c->n; k++) {
      int64_t unit = c->unit[k], part = unit / stride;
      if (unit % stride != 0 || part <= 1 || part >= size || size % part != 0) continue;
      if (residue(start, unit) + (part - 1) * stride + inner >= unit) continue;
      out->size[out->n] = size / part;
      out->stride[out->n++] = unit;
      size = part;
    }
    out->size[out->n] = size;
    out->stride[out->n++] = stride;
  }
}

static void push(tpu_view_plan *p, int64_t *last, int64_t unit) {
  p->size[p->rank] = *last / unit;
  p->unit[p->rank] = unit;
  p->count[p->rank] = p->step[p->rank] = 1;
  p->rank++;
  *last = unit;
}

/* Chooses the chain from the outside in. The gap below view dim i needs a unit that divides the strides of all dims above
 * and is larger than all that lies below (with the start's remainder), so that nothing carries. */
static bool chain(const cuts *c, int64_t total, const tpu_view_dims *view, const tpu_view_start *start, bool unit_steps,
                  tpu_view_plan *p) {
  p->view = *view;
  p->rank = 0;
  int64_t last = total;
  for (int i = -1; i < view->n; i++) {
    int64_t inner = tpu_view_extent(view, i + 1), stride = i < 0 ? 0 : view->stride[i];
    int first = p->rank;
    int64_t top = last;
    for (int k = 0; k < c->n; k++) {
      int64_t unit = c->unit[k];
      if (unit >= last || last % unit != 0 || (i >= 0 && stride % unit != 0)) continue;
      if (residue(start, unit) + inner >= unit) continue;
      if (i >= 0 && p->rank == first && unit_steps && unit != stride && top % stride == 0 &&
          residue(start, stride) + inner < stride)
        push(p, &last, stride);
      push(p, &last, unit);
    }
    if (i < 0) continue;
    if (p->rank == first) {
      int64_t unit = gcd(last, stride);
      if (i == view->n - 1 && !(unit_steps && unit == stride)) unit = 1;
      if (unit == last || residue(start, unit) + inner >= unit) return false;
      push(p, &last, unit);
    }
    p->count[first] = view->size[i];
    p->step[first] = stride / p->unit[first];
  }
  if (last > 1) push(p, &last, 1);
  p->stepped = false;
  p->whole = true;
  for (int j = 0; j < p->rank; j++) {
    p->start[j] = start->dynamic ? 0 : start->value / p->unit[j] % p->size[j];
    if (p->step[j] != 1) p->stepped = true;
    if (p->count[j] != p->size[j]) p->whole = false;
  }
  return true;
}

bool tpu_view_plan_make(const tpu_view_space *space, const tpu_view_dims *view, const tpu_view_start *start, bool unit_steps,
                        tpu_view_plan *out_plan) {
  cuts c;
  space_cuts(space, &c);
  tpu_view_dims split;
  split_at(&c, start, view, &split);
  return chain(&c, space->numel, &split, start, unit_steps, out_plan) ||
         chain(&c, space->numel, view, start, unit_steps, out_plan);
}

bool tpu_view_plan_flat(const tpu_view_dims *view, bool unit_steps, tpu_view_plan *out_plan) {
  static const cuts none = {0};
  static const tpu_view_start zero = {.dynamic = false, .value = 0, .max = 0, .multiple = 1};
  return chain(&none, view->size[0] * view->stride[0], view, &zero, unit_steps, out_plan);
}
