/* Padding and its gradients. A pad list names the last dim first: (before, after) pairs. */
#include <inttypes.h>

#include "aten/shape.h"

typedef struct padding {
  int n;                                      /* padded dims: the last n */
  int64_t lo[TPU_MAX_RANK], hi[TPU_MAX_RANK]; /* by dim of x */
} padding;

static void read_padding(const tpu_args *a, int i, int rank, padding *out) {
  int n;
  const int64_t *pad = arg_ints(a, i, &n);
  out->n = n / 2;
  for (int d = 0; d < rank; d++) {
    int k = rank - 1 - d;
    out->lo[d] = k < out->n ? pad[2 * k] : 0;
    out->hi[d] = k < out->n ? pad[2 * k + 1] : 0;
  }
}

/* constant_pad_nd(self, pad, value): negative numbers crop. */
void lower_constant_pad(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  int n = arg_list_size(a, 1), rank = tpu_rank_of(b, x);
  if (tpu_build_failed(b)) return;
  if (n % 2 != 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Length of pad must be even but instead it equals %d", n);
    return;
  }
  if (n / 2 > rank) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Length of pad should be no more than twice the number of dimensions of the input. Pad length is %dwhile the input "
             "has %ddimensions.", /* PyTorch's text lacks the spaces, too */

             n, rank);
    return;
  }
  padding p;
  read_padding(a, 1, rank, &p);
  for (int d = 0; d < rank; d++) {
    if (tpu_dim_of(b, x, d) + p.lo[d] + p.hi[d] >= 0) continue;
    tpu_fail(b, TPU_INVALID_ARGUMENT, "narrow(): length must be non-negative.");
    return;
  }
  o->out[0].val = tpu_pad(b, x, arg_number(b, a, 2, tpu_dtype_of(b, x)), p.lo, p.hi, NULL);
  bool grows = false;
  for (int d = 0; d < rank; d++) grows = grows || p.lo[d] > 0 || p.hi[d] > 0;
  const tpu_operand *operand = arg_operand(b, a, 0);
  if (grows || tpu_build_failed(b) || !operand) return;
  /* Cropping alone is a clone of a narrowed view. */
  int64_t strides[TPU_MAX_RANK];
  strides_preserve(rank, tpu_dims_of(b, o->out[0].val), operand->strides, strides);
  o->out[0].strides = shape_strides_copy(b, rank, strides);
}

/* What the checks of the ..._pad{1,2,3}d rows say. rule of these rows: the number of padded dims. */
static bool check_pad(tpu_build *b, const tpu_args *a, tpu_val x, const padding *p, bool reflect) {
  if (tpu_build_failed(b)) return false;
  int n = a->row->rule, rank = tpu_rank_of(b, x);
  const char *kind = reflect ? "reflection" : "replication";
  static const char *const inputs[] = {"", "2D or 3D", "3D or 4D", "4D or 5D"};
  if (p->n != n) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "padding size is expected to be %d", 2 * n);
    return false;
  }
  bool good = rank == n + 1 || rank == n + 2;
  for (int d = rank - n - 1; good && d < rank; d++) good = tpu_dim_of(b, x, d) != 0;
  if (!good) {
    char text[256];
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Expected %s (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, but got: %s",
             inputs[n], shape_text(rank, tpu_dims_of(b, x), text, sizeof text));
    return false;
  }
  for (int d = rank - n; d < rank; d++) {
    int64_t size = tpu_dim_of(b, x, d);
    if (reflect && (p->lo[d] >= size || p->hi[d] >= size)) {
      char text[256];
      tpu_fail(b, TPU_INVALID_ARGUMENT,
               "Argument #%d: Padding size should be less than the corresponding input dimension, but got: padding (%" PRId64
               ", %" PRId64 ") at dimension %d of input %s",
               n == 1 ? 4 : 2 * (rank - d) + 2, p->lo[d], p->hi[d], d, shape_text(rank, tpu_dims_of(b, x), text, sizeof text));
      return false;
    }
    if (size + p->lo[d] + p->hi[d] < 1) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "%s_pad%dd: padding leaves no elements in dimension %d of size %" PRId64, kind, n, d,
               size);
      return false;
    }
  }
  return true;
}

static tpu_val reverse_dim(tpu_build *b, tpu_val x, int dim) {
  int64_t dims[1] = {dim};
  return tpu_reverse(b, x, 1, dims);
}

/* x padded along one dim by its mirror image (without the border element) or its border element. */
static tpu_val extend(tpu_build *b, tpu_val x, int dim, int64_t lo, int64_t hi, bool reflect) {
  int64_t size = tpu_dim_of(b, x, dim), dims[TPU_MAX_RANK], map[TPU_MAX_RANK];
  int rank = tpu_rank_of(b, x), n = 0;
  for (int i = 0; i < rank; i++) {
    dims[i] = tpu_dim_of(b, x, i);
    map[i] = i;
  }
  tpu_val parts[3];
  if (lo > 0) {
    dims[dim] = lo;
    parts[n++] = reflect ? reverse_dim(b, tpu_slice_dim(b, x, dim, 1, lo + 1, 1), dim)
                         : tpu_broadcast_in_dim(b, tpu_slice_dim(b, x, dim, 0, 1, 1), rank, dims, map);
  }
  int64_t from = lo < 0 ? -lo : 0, to = size + (hi < 0 ? hi : 0);
  parts[n++] = tpu_slice_dim(b, x, dim, from, to, 1);
  if (hi > 0) {
    dims[dim] = hi;
    parts[n++] = reflect ? reverse_dim(b, tpu_slice_dim(b, x, dim, size - 1 - hi, size - 1, 1), dim)
                         : tpu_broadcast_in_dim(b, tpu_slice_dim(b, x, dim, size - 1, size, 1), rank, dims, map);
  }
  return n == 1 ? parts[0] : tpu_concat(b, n, parts, dim);
}

static tpu_val place(tpu_build *b, tpu_val x, int dim, int64_t before, int64_t size) {
  int64_t lo[TPU_MAX_RANK] = {0}, hi[TPU_MAX_RANK] = {0};
  lo[dim] = before;
  hi[dim] = size - before - tpu_dim_of(b, x, dim);
  return tpu_pad(b, x, tpu_scalar(b, tpu_dtype_of(b, x), 0), lo, hi, NULL);
}

static tpu_val sum_dim(tpu_build *b, tpu_val x, int dim) {
  int64_t axes[1] = {dim};
  return tpu_unsqueeze(b, tpu_reduce(b, TPU_MONOID_ADD, x, tpu_scalar(b, tpu_dtype_of(b, x), 0), 1, axes), dim);
}

/* The transpose of extend: grad along dim has size + lo + hi elements. */
static tpu_val fold(tpu_build *b, tpu_val grad, int dim, int64_t size, int64_t lo, int64_t hi, bool reflect) {
  int64_t total = size + lo + hi, from = lo > 0 ? lo : 0, to = total - (hi > 0 ? hi : 0);
  tpu_val y = place(b, tpu_slice_dim(b, grad, dim, from, to, 1), dim, lo < 0 ? -lo : 0, size);
  if (lo > 0) {
    tpu_val part = tpu_slice_dim(b, grad, dim, 0, lo, 1);
    part = reflect ? place(b, reverse_dim(b, part, dim), dim, 1, size) : place(b, sum_dim(b, part, dim), dim, 0, size);
    y = tpu_add(b, y, part);
  }
  if (hi > 0) {
    tpu_val part = tpu_slice_dim(b, grad, dim, total - hi, total, 1);
    part = reflect ? place(b, reverse_dim(b, part, dim), dim, size - 1 - hi, size)
                   : place(b, sum_dim(b, part, dim), dim, size - 1, size);
    y = tpu_add(b, y, part);
  }
  return y;
}

static void pad_rows(tpu_build *b, const tpu_args *a, tpu_outs *o, bool reflect) {
  tpu_val x = arg_tensor(b, a, 0);
  padding p;
  read_padding(a, 1, tpu_rank_of(b, x), &p);
  if (!check_pad(b, a, x, &p, reflect)) return;
  for (int d = tpu_rank_of(b, x) - 1; d >= 0; d--)
    if (p.lo[d] || p.hi[d]) x = extend(b, x, d, p.lo[d], p.hi[d], reflect);
  o->out[0].val = x;
}

/* (grad_output, self, padding) */
static void pad_gradient(tpu_build *b, const tpu_args *a, tpu_outs *o, bool reflect) {
  tpu_val grad = arg_tensor(b, a, 0), x = arg_tensor(b, a, 1);
  padding p;
  read_padding(a, 2, tpu_rank_of(b, x), &p);
  if (!check_pad(b, a, x, &p, reflect)) return;
  tpu_dtype dtype = tpu_dtype_of(b, grad);
  for (int d = 0; d < tpu_rank_of(b, x); d++) {
    int64_t want = tpu_dim_of(b, x, d) + p.lo[d] + p.hi[d];
    if (tpu_rank_of(b, grad) == tpu_rank_of(b, x) && tpu_dim_of(b, grad, d) == want) continue;
    tpu_fail(b, TPU_INVALID_ARGUMENT, "grad_output width unexpected. Expected: %" PRId64 ", Got: %" PRId64, want,
             d < tpu_rank_of(b, grad) ? tpu_dim_of(b, grad, d) : 0);
    return;
  }
  tpu_val y = tpu_convert(b, grad, tpu_dtype_opmath(dtype));
  for (int d = 0; d < tpu_rank_of(b, x); d++)
    if (p.lo[d] || p.hi[d]) y = fold(b, y, d, tpu_dim_of(b, x, d), p.lo[d], p.hi[d], reflect);
  o->out[0].val = tpu_convert(b, y, dtype);
}

void lower_reflection_pad(tpu_build *b, const tpu_args *a, tpu_outs *o) { pad_rows(b, a, o, true); }
void lower_replication_pad(tpu_build *b, const tpu_args *a, tpu_outs *o) { pad_rows(b, a, o, false); }
void lower_reflection_pad_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) { pad_gradient(b, a, o, true); }
void lower_replication_pad_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) { pad_gradient(b, a, o, false); }
