/* Losses whose targets are class numbers. One element a row is taken by comparing with an iota, not by a gather: it fuses with
 * the log-softmax before it and is as fast on the CPU plugin ([1024, 256]: 0.13 ms against 0.11 ms; [1024, 32000]: 52 against
 * 66). */
#include <inttypes.h>

#include "aten/reduce.h"
#include "aten/shape.h"

static const char *sizes_text(tpu_build *b, tpu_val x, char *buffer, size_t size) {
  return shape_text(tpu_rank_of(b, x), tpu_dims_of(b, x), buffer, size);
}

/* What nll_loss's four forms compute with. Classes are along `axis`; everything per target has the dims of target. */
typedef struct nll {
  tpu_val x, target, hit; /* hit: target == class, [dims of x] */
  tpu_val weight;         /* of each target, 0 where it is ignored; opmath */
  tpu_dtype dtype;
  int axis;
} nll;

static bool nll_check(tpu_build *b, tpu_val x, tpu_val target, bool spatial) {
  if (tpu_build_failed(b)) return false;
  char xs[256], ts[256];
  int rank = tpu_rank_of(b, x), target_rank = tpu_rank_of(b, target);
  if (spatial) {
    if (target_rank != 3) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "only batches of spatial targets supported (3D tensors) but got targets of dimension: %d",
               target_rank);
    } else if (rank != 4) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "only batches of spatial inputs supported (4D tensors), but got input of dimension: %d",
               rank);
    } else if (tpu_dim_of(b, x, 0) != tpu_dim_of(b, target, 0) || tpu_dim_of(b, x, 2) != tpu_dim_of(b, target, 1) ||
               tpu_dim_of(b, x, 3) != tpu_dim_of(b, target, 2)) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "size mismatch (got input: %s , target: %s", sizes_text(b, x, xs, sizeof xs),
               sizes_text(b, target, ts, sizeof ts));
    }
  } else if (rank < 1 || rank > 2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "input tensor should be 1D or 2D");
  } else if (target_rank > 1) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "0D or 1D target tensor expected, multi-target not supported");
  } else if (rank == 1 ? target_rank == 1 && tpu_dim_of(b, target, 0) != 1
                       : target_rank != 1 || tpu_dim_of(b, x, 0) != tpu_dim_of(b, target, 0)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "size mismatch (got input: %s, target: %s)", sizes_text(b, x, xs, sizeof xs),
             sizes_text(b, target, ts, sizeof ts));
  }
  return !tpu_build_failed(b);
}

/* self, target, weight at arguments i .. i + 2, ignore_index at i + 4. */
static bool nll_prepare(tpu_build *b, const tpu_args *a, int i, nll *out) {
  tpu_val x = arg_tensor(b, a, i), target = arg_tensor(b, a, i + 1);
  if (!nll_check(b, x, target, a->row->rule == 2)) return false;
  tpu_dtype kind = tpu_dtype_of(b, target);
  if (kind != TPU_I64 && kind != TPU_U8) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "expected target dtype to be Long or Byte, but got %s", tpu_dtype_scalar_name(kind));
    return false;
  }
  int rank = tpu_rank_of(b, x);
  out->axis = rank == 1 ? 0 : 1;
  out->dtype = tpu_dtype_of(b, x);
  int64_t classes = tpu_dim_of(b, x, out->axis), axes[1] = {out->axis};
  if (rank == 1) target = tpu_reshape(b, target, 0, NULL);
  tpu_dtype math = tpu_dtype_opmath(out->dtype);
  /* i32 compares twice as fast; a number that does not fit must not wrap into a class. */
  target = tpu_convert(b, target, TPU_I64);
  tpu_val ignored =
      tpu_compare(b, TPU_EQ, target, tpu_broadcast_like(b, tpu_scalar_i(b, TPU_I64, arg_int(b, a, i + 4, -100)), target));
  tpu_val none = tpu_full_like(b, target, -1);
  tpu_val last = tpu_full_like(b, target, (double)classes);
  if (b->checks) {
    tpu_val wrong = tpu_or(b, tpu_compare(b, TPU_LT, target, tpu_full_like(b, target, 0)), tpu_compare(b, TPU_GE, target, last));
    tpu_build_check(b, tpu_and(b, wrong, tpu_not(b, ignored)));
  }
  target = tpu_convert(b, tpu_clamp(b, none, tpu_select(b, ignored, none, target), last), TPU_I32);
  out->x = tpu_convert(b, x, math);
  out->target = target;
  tpu_val iota = tpu_iota(b, TPU_I32, rank, tpu_dims_of(b, x), out->axis);
  out->hit = tpu_compare(b, TPU_EQ, iota, reduce_spread(b, target, x, 1, axes));
  tpu_val weight;
  if (arg_present(a, i + 2)) {
    tpu_val w = arg_tensor(b, a, i + 2);
    if (tpu_rank_of(b, w) != 1 || tpu_dim_of(b, w, 0) != classes) {
      char ws[256];
      tpu_fail(b, TPU_INVALID_ARGUMENT,
               "weight tensor should be defined either for all %" PRId64
               " classes or no classes but got weight tensor of shape: %s",
               classes, sizes_text(b, w, ws, sizeof ws));
      return false;
    }
    int64_t map[1] = {out->axis};
    w = tpu_broadcast_in_dim(b, tpu_convert(b, w, math), rank, tpu_dims_of(b, x), map);
    weight = reduce_over(b, TPU_MONOID_ADD, tpu_select(b, out->hit, w, tpu_full_like(b, w, 0)), 1, axes);
  } else {
    weight = tpu_broadcast_to(b, tpu_scalar(b, math, 1), tpu_rank_of(b, target), tpu_dims_of(b, target));
  }
  out->weight = tpu_select(b, ignored, tpu_full_like(b, weight, 0), weight);
  return true;
}

/* nll_loss_forward, nll_loss2d_forward (self, target, weight, reduction, ignore_index) -> output, total_weight. rule: 2 is the 2d
 * one. */
void lower_nll_loss_forward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  nll l;
  if (!nll_prepare(b, a, 0, &l)) return;
  int64_t reduction = arg_int(b, a, 3, REDUCTION_MEAN), axes[1] = {l.axis};
  tpu_val picked = reduce_over(b, TPU_MONOID_ADD, tpu_select(b, l.hit, l.x, tpu_full_like(b, l.x, 0)), 1, axes);
  tpu_val loss = tpu_neg(b, tpu_mul(b, l.weight, picked));
  if (reduction == REDUCTION_NONE && tpu_rank_of(b, loss) > 0) {
    o->out[0].val = tpu_convert(b, loss, l.dtype);
    o->out[1].val = tpu_scalar(b, l.dtype, 0);
    return;
  }
  tpu_val sum = reduce_all(b, TPU_MONOID_ADD, loss), total = reduce_all(b, TPU_MONOID_ADD, l.weight);
  if (reduction == REDUCTION_MEAN) sum = tpu_div(b, sum, total);
  o->out[0].val = tpu_convert(b, sum, l.dtype);
  o->out[1].val = tpu_convert(b, total, l.dtype);
}

/* nll_loss_backward, nll_loss2d_backward (grad_output, self, target, weight, reduction, ignore_index, total_weight) */
void lower_nll_loss_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  nll l;
  if (!nll_prepare(b, a, 1, &l)) return;
  int64_t axes[1] = {l.axis};
  tpu_dtype math = tpu_dtype_of(b, l.x);
  tpu_val grad = tpu_convert(b, arg_tensor(b, a, 0), math);
  if (arg_int(b, a, 4, REDUCTION_MEAN) == REDUCTION_MEAN)
    grad = tpu_div(b, grad, tpu_reshape(b, tpu_convert(b, arg_tensor(b, a, 6), math), 0, NULL));
  if (tpu_rank_of(b, l.weight) == 0) grad = tpu_reshape(b, grad, 0, NULL);
  tpu_val each = tpu_neg(b, bcast_binary(b, TPU_HLO_MULTIPLY, l.weight, grad));
  tpu_val y = tpu_select(b, l.hit, reduce_spread(b, each, l.x, 1, axes), tpu_full_like(b, l.x, 0));
  o->out[0].val = tpu_convert(b, y, l.dtype);
}

/* x as [N, C] and target as [N] or [N, C] for the margin losses; out_batch: x had two dims. */
static bool margin_operands(tpu_build *b, const tpu_args *a, int i, bool target_is_matrix, tpu_val *out_x, tpu_val *out_target) {
  tpu_val x = arg_tensor(b, a, i), target = arg_tensor(b, a, i + 1);
  if (tpu_build_failed(b)) return false;
  int rank = tpu_rank_of(b, x);
  if (rank > 2 || (tpu_numel_of(b, x) == 0 && (rank < 2 || tpu_dim_of(b, x, 1) == 0))) {
    char xs[256];
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected non-empty vector or matrix with optional 0-dim batch size, but got: %s",
             sizes_text(b, x, xs, sizeof xs));
    return false;
  }
  int64_t rows = rank == 2 ? tpu_dim_of(b, x, 0) : 1, classes = rank == 0 ? 1 : tpu_dim_of(b, x, rank - 1);
  int64_t dims[2] = {rows, classes};
  if (tpu_numel_of(b, target) != (target_is_matrix ? rows * classes : rows)) {
    char ts[256];
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             target_is_matrix ? "inconsistent target size: %s"
                              : "inconsistent target size, expected 1D target of the batch's size but got %s",
             sizes_text(b, target, ts, sizeof ts));
    return false;
  }
  if (tpu_dtype_of(b, target) != TPU_I64) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "expected scalar type Long but found %s", tpu_dtype_scalar_name(tpu_dtype_of(b, target)));
    return false;
  }
  *out_x = tpu_convert(b, tpu_reshape(b, x, 2, dims), tpu_dtype_opmath(tpu_dtype_of(b, x)));
  *out_target = tpu_convert(b, tpu_reshape(b, target, target_is_matrix ? 2 : 1, dims), TPU_I32);
  return true;
}

/* max(0, margin - x[n, target] + x[n, c]) for c != target, else 0; and where c is the target; and the weight of each row, or
 * poison. */
static tpu_val margins(tpu_build *b, const tpu_args *a, int margin, tpu_val x, tpu_val target, tpu_val *out_hit,
                       tpu_val *out_weight) {
  int64_t axes[1] = {1};
  tpu_val zero = tpu_full_like(b, x, 0);
  tpu_val hit = tpu_compare(b, TPU_EQ, tpu_iota(b, TPU_I32, 2, tpu_dims_of(b, x), 1), reduce_spread(b, target, x, 1, axes));
  tpu_val wanted = reduce_over(b, TPU_MONOID_ADD, tpu_select(b, hit, x, zero), 1, axes);
  tpu_val z = tpu_sub(b, x, reduce_spread(b, wanted, x, 1, axes));
  z = tpu_add(b, z, tpu_broadcast_like(b, arg_number(b, a, margin, tpu_dtype_of(b, x)), z));
  *out_hit = hit;
  *out_weight = TPU_POISON;
  if (arg_present(a, margin + 1)) {
    int64_t map[1] = {1};
    tpu_val w = tpu_convert(b, arg_tensor(b, a, margin + 1), tpu_dtype_of(b, x));
    w = tpu_broadcast_in_dim(b, w, 2, tpu_dims_of(b, x), map);
    *out_weight = reduce_over(b, TPU_MONOID_ADD, tpu_select(b, hit, w, zero), 1, axes);
  }
  return tpu_select(b, hit, zero, tpu_max(b, z, zero));
}

static bool power_of_margin(tpu_build *b, const tpu_args *a, int i, bool *out_square) {
  double p = arg_static(b, a, i);
  if (tpu_build_failed(b)) return false;
  if (p != 1 && p != 2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "only p == 1 and p == 2 supported");
    return false;
  }
  *out_square = p == 2;
  return true;
}

/* The loss of each row as `like`'s batch has it ([N] or a scalar), reduced. */
static tpu_val finish_rows(tpu_build *b, tpu_val rows, tpu_val like, int64_t reduction) {
  tpu_dtype dtype = tpu_dtype_of(b, like);
  if (tpu_rank_of(b, like) < 2) rows = tpu_reshape(b, rows, 0, NULL);
  return reduce_loss(b, rows, dtype, reduction);
}

/* multi_margin_loss(self, target, p, margin, weight, reduction) */
void lower_multi_margin_loss(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x, target, hit, weight;
  bool square;
  if (!margin_operands(b, a, 0, false, &x, &target) || !power_of_margin(b, a, 2, &square)) return;
  tpu_val z = margins(b, a, 3, x, target, &hit, &weight);
  int64_t axes[1] = {1};
  tpu_val rows = reduce_over(b, TPU_MONOID_ADD, square ? tpu_mul(b, z, z) : z, 1, axes);
  if (weight.id) rows = tpu_mul(b, rows, weight);
  rows = binary_c(b, TPU_HLO_DIVIDE, rows, (double)tpu_dim_of(b, x, 1));
  o->out[0].val = finish_rows(b, rows, arg_tensor(b, a, 0), arg_int(b, a, 5, REDUCTION_MEAN));
}

/* Each row's share of grad_output: [N], divided by the rows for the mean and by the classes. */
static tpu_val row_gradient(tpu_build *b, tpu_val grad, tpu_val x, int64_t reduction) {
  int64_t n = tpu_dim_of(b, x, 0), classes = tpu_dim_of(b, x, 1);
  grad = tpu_convert(b, grad, tpu_dtype_of(b, x));
  if (reduction != REDUCTION_NONE || tpu_numel_of(b, grad) != n) grad = tpu_reshape(b, grad, 0, NULL);
  grad = tpu_rank_of(b, grad) == 1 ? grad : tpu_broadcast_to(b, grad, 1, &n);
  return binary_c(b, TPU_HLO_DIVIDE, grad, (double)classes * (reduction == REDUCTION_MEAN ? (double)n : 1));
}

/* multi_margin_loss_backward(grad_output, self, target, p, margin, weight, reduction) */
void lower_multi_margin_loss_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x, target, hit, weight;
  bool square;
  if (!margin_operands(b, a, 1, false, &x, &target) || !power_of_margin(b, a, 3, &square)) return;
  tpu_val like = arg_tensor(b, a, 1), z = margins(b, a, 4, x, target, &hit, &weight);
  tpu_val grad = row_gradient(b, arg_tensor(b, a, 0), x, arg_int(b, a, 6, REDUCTION_MEAN));
  if (weight.id) grad = tpu_mul(b, grad, weight);
  int64_t axes[1] = {1};
  tpu_val slope = square ? binary_c(b, TPU_HLO_MULTIPLY, z, 2)
                         : tpu_convert(b, tpu_compare(b, TPU_GT, z, tpu_full_like(b, z, 0)), tpu_dtype_of(b, x));
  tpu_val sum = reduce_over(b, TPU_MONOID_ADD, slope, 1, axes);
  slope = tpu_select(b, hit, tpu_neg(b, reduce_spread(b, sum, x, 1, axes)), slope);
  tpu_val y = tpu_convert(b, tpu_mul(b, slope, reduce_spread(b, grad, x, 1, axes)), tpu_dtype_of(b, like));
  o->out[0].val = tpu_reshape(b, y, tpu_rank_of(b, like), tpu_dims_of(b, like));
}

/* The targets of a row are its classes up to the first negative one. out_one_hot: [N, J, C], target j is class c and counts. */
static tpu_val label_hits(tpu_build *b, tpu_val x, tpu_val target) {
  int64_t n = tpu_dim_of(b, x, 0), classes = tpu_dim_of(b, x, 1), dims[3] = {n, classes, classes}, map[2] = {0, 1};
  tpu_val valid = tpu_compare(b, TPU_GE, target, tpu_full_like(b, target, 0));
  if (tpu_numel_of(b, valid) > 0) valid = tpu_cumulative(b, TPU_MONOID_AND, valid, 1, false);
  target = tpu_select(b, valid, target, tpu_full_like(b, target, -1));
  return tpu_compare(b, TPU_EQ, tpu_iota(b, TPU_I32, 3, dims, 2), tpu_broadcast_in_dim(b, target, 3, dims, map));
}

/* For the labels j of a row and the classes c that are none: max(0, 1 - x[n, target j] + x[n, c]), else 0. [N, J, C] */
static tpu_val label_margins(tpu_build *b, tpu_val x, tpu_val hits, tpu_val is_target) {
  int64_t last[1] = {2}, mid[1] = {1};
  tpu_val each = reduce_spread(b, x, hits, 1, mid), zero = tpu_full_like(b, each, 0);
  tpu_val counts = reduce_over(b, TPU_MONOID_OR, hits, 1, last);
  tpu_val wanted = reduce_over(b, TPU_MONOID_ADD, tpu_select(b, hits, each, zero), 1, last);
  tpu_val z = binary_c(b, TPU_HLO_ADD, tpu_sub(b, each, reduce_spread(b, wanted, hits, 1, last)), 1);
  tpu_val on = tpu_and(b, reduce_spread(b, counts, hits, 1, last), tpu_not(b, reduce_spread(b, is_target, hits, 1, mid)));
  return tpu_select(b, on, tpu_max(b, z, zero), zero);
}

/* multilabel_margin_loss_forward(self, target, reduction) -> output, is_target */
void lower_multilabel_margin_loss(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x, target, like = arg_tensor(b, a, 0);
  if (!margin_operands(b, a, 0, true, &x, &target)) return;
  int64_t mid[1] = {1}, both[2] = {1, 2};
  tpu_val hits = label_hits(b, x, target), is_target = reduce_over(b, TPU_MONOID_OR, hits, 1, mid);
  tpu_val rows = reduce_over(b, TPU_MONOID_ADD, label_margins(b, x, hits, is_target), 2, both);
  rows = binary_c(b, TPU_HLO_DIVIDE, rows, (double)tpu_dim_of(b, x, 1));
  o->out[0].val = finish_rows(b, rows, like, arg_int(b, a, 2, REDUCTION_MEAN));
  tpu_val shape = arg_tensor(b, a, 1);
  o->out[1].val = tpu_reshape(b, tpu_convert(b, is_target, tpu_dtype_of(b, like)), tpu_rank_of(b, shape), tpu_dims_of(b, shape));
}

/* multilabel_margin_loss_backward(grad_output, self, target, reduction, is_target) */
void lower_multilabel_margin_loss_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x, target, like = arg_tensor(b, a, 1);
  if (!margin_operands(b, a, 1, true, &x, &target)) return;
  int64_t mid[1] = {1}, last[1] = {2}, row[1] = {1};
  tpu_val hits = label_hits(b, x, target), is_target = reduce_over(b, TPU_MONOID_OR, hits, 1, mid);
  tpu_val z = label_margins(b, x, hits, is_target);
  tpu_val on = tpu_convert(b, tpu_compare(b, TPU_GT, z, tpu_full_like(b, z, 0)), tpu_dtype_of(b, x));
  tpu_val up = reduce_over(b, TPU_MONOID_ADD, on, 1, mid);
  tpu_val down = reduce_spread(b, reduce_over(b, TPU_MONOID_ADD, on, 1, last), hits, 1, last);
  down = reduce_over(b, TPU_MONOID_ADD, tpu_select(b, hits, down, tpu_full_like(b, down, 0)), 1, mid);
  tpu_val grad = row_gradient(b, arg_tensor(b, a, 0), x, arg_int(b, a, 3, REDUCTION_MEAN));
  tpu_val y = tpu_mul(b, tpu_sub(b, up, down), reduce_spread(b, grad, x, 1, row));
  o->out[0].val = tpu_reshape(b, tpu_convert(b, y, tpu_dtype_of(b, like)), tpu_rank_of(b, like), tpu_dims_of(b, like));
}
