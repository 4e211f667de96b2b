/* Softmax and its kin. Half types are computed in float32. Source: aten/src/ATen/native/SoftMax.cpp. */
#include "aten/nn.h"
#include "aten/reduce.h"

/* The input in its opmath type, with the dim and the result's dtype; a 0-d input counts as [1]. */
typedef struct softmax_input {
  tpu_val x;
  int64_t dim;
  int rank;
  tpu_dtype out_dtype;
} softmax_input;

static tpu_val at_least_1d(tpu_build *b, tpu_val x) { return tpu_rank_of(b, x) ? x : tpu_unsqueeze(b, x, 0); }

static tpu_val finish(tpu_build *b, const softmax_input *in, tpu_val y) {
  y = tpu_convert(b, y, in->out_dtype);
  return in->rank ? y : tpu_squeeze(b, y, 0);
}

static softmax_input read_input(tpu_build *b, const tpu_args *a, bool is_log, bool half_to_float) {
  tpu_val x = arg_tensor(b, a, 0);
  softmax_input in = {.x = x, .rank = tpu_rank_of(b, x), .out_dtype = tpu_dtype_of(b, x)};
  in.dim = arg_dim(b, a, 1, in.rank);
  if (tpu_build_failed(b)) return in;
  if (!tpu_is_float(in.out_dtype))
    tpu_fail(b, TPU_UNIMPLEMENTED, "\"%ssoftmax_%skernel_impl\" not implemented for '%s'", is_log ? "log_" : "",
             in.dim == in.rank - 1 ? "lastdim_" : "", tpu_dtype_scalar_name(in.out_dtype));
  if (half_to_float) {
    if (in.out_dtype != TPU_F16 && in.out_dtype != TPU_BF16)
      tpu_fail(b, TPU_INVALID_ARGUMENT, "conversion is supported for Half and BFloat16 types only");
    in.out_dtype = TPU_F32;
  }
  in.x = at_least_1d(b, tpu_convert(b, x, tpu_dtype_opmath(in.out_dtype)));
  return in;
}

static tpu_val max_keep(tpu_build *b, tpu_val x, int64_t dim) {
  return reduce_keep(b, max_over(b, x, 1, &dim), x, 1, &dim, true);
}
static tpu_val sum_keep(tpu_build *b, tpu_val x, int64_t dim) {
  return reduce_keep(b, sum_over(b, x, 1, &dim), x, 1, &dim, true);
}

static tpu_val softmax(tpu_build *b, tpu_val x, int64_t dim) {
  tpu_val e = tpu_exp(b, with_kept(b, TPU_HLO_SUBTRACT, x, max_keep(b, x, dim)));
  return with_kept(b, TPU_HLO_DIVIDE, e, sum_keep(b, e, dim));
}

void lower_softmax(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  softmax_input in = read_input(b, a, false, arg_bool(b, a, 2));
  if (tpu_build_failed(b)) return;
  o->out[0].val = finish(b, &in, tpu_numel_of(b, in.x) ? softmax(b, in.x, in.dim) : in.x);
}

void lower_log_softmax(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  softmax_input in = read_input(b, a, true, arg_bool(b, a, 2));
  if (tpu_build_failed(b)) return;
  tpu_val x = in.x;
  if (tpu_numel_of(b, x)) {
    x = with_kept(b, TPU_HLO_SUBTRACT, x, max_keep(b, x, in.dim));
    x = with_kept(b, TPU_HLO_SUBTRACT, x, tpu_log(b, sum_keep(b, tpu_exp(b, x), in.dim)));
  }
  o->out[0].val = finish(b, &in, x);
}

/* softmax, and 0 where a whole row is -inf. */
void lower_safe_softmax(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  softmax_input in = read_input(b, a, false, false);
  if (tpu_build_failed(b)) return;
  in.out_dtype = arg_dtype(a, 2, in.out_dtype);
  tpu_val x = tpu_convert(b, in.x, tpu_dtype_opmath(in.out_dtype));
  if (tpu_numel_of(b, x)) {
    tpu_val max = max_keep(b, x, in.dim);
    tpu_val masked = tpu_compare(b, TPU_EQ, max, tpu_broadcast_like(b, tpu_lowest(b, tpu_dtype_of(b, x)), max));
    tpu_val zero = tpu_full_like(b, x, 0);
    x = tpu_select(b, tpu_broadcast_like(b, masked, x), zero, softmax(b, x, in.dim));
  }
  o->out[0].val = finish(b, &in, x);
}

/* (grad_output, output, dim, input_dtype) */
static void backward(tpu_build *b, const tpu_args *a, tpu_outs *o, bool log) {
  tpu_val g = arg_tensor(b, a, 0), y = arg_tensor(b, a, 1);
  int rank = tpu_rank_of(b, g);
  int64_t dim = arg_dim(b, a, 2, rank);
  tpu_dtype out_dtype = arg_dtype(a, 3, tpu_dtype_of(b, g)), math = tpu_dtype_opmath(tpu_dtype_of(b, g));
  if (tpu_build_failed(b)) return;
  g = at_least_1d(b, tpu_convert(b, g, math));
  y = at_least_1d(b, tpu_convert(b, y, math));
  tpu_val x;
  if (log) {
    x = tpu_sub(b, g, with_kept(b, TPU_HLO_MULTIPLY, tpu_exp(b, y), sum_keep(b, g, dim)));
  } else {
    x = tpu_mul(b, with_kept(b, TPU_HLO_SUBTRACT, g, sum_keep(b, tpu_mul(b, g, y), dim)), y);
  }
  x = tpu_convert(b, x, out_dtype);
  o->out[0].val = rank ? x : tpu_squeeze(b, x, 0);
}
void lower_softmax_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) { backward(b, a, o, false); }
void lower_log_softmax_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) { backward(b, a, o, true); }

/* (self, mask, dim, mask_type): mask True is left out. mask_type 0: [L, L]; 1: [B, L]; 2: as self. A row all masked gives 0. */
static tpu_val spread_mask(tpu_build *b, tpu_val mask, tpu_val x, int64_t mask_type) {
  int rank = tpu_rank_of(b, x), mr = tpu_rank_of(b, mask);
  if (mask_type == 1 && mr == 2 && rank == 4)
    return tpu_broadcast_in_dim(b, mask, rank, tpu_dims_of(b, x), (const int64_t[]){0, 3});
  return expand_to(b, mask, rank, tpu_dims_of(b, x));
}

void lower_masked_softmax(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0), mask = arg_tensor(b, a, 1);
  int rank = tpu_rank_of(b, x);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  int64_t dim = wrap_dim(b, arg_int(b, a, 2, rank - 1), rank);
  if (tpu_dtype_of(b, mask) != TPU_BOOL) tpu_fail(b, TPU_INVALID_ARGUMENT, "Mask should be a boolean tensor");
  if (tpu_build_failed(b)) return;
  x = at_least_1d(b, tpu_convert(b, x, tpu_dtype_opmath(dtype)));
  mask = spread_mask(b, at_least_1d(b, mask), x, arg_int(b, a, 3, 2));
  tpu_val zero = tpu_full_like(b, x, 0), lowest = tpu_broadcast_like(b, tpu_lowest(b, tpu_dtype_of(b, x)), x);
  x = tpu_select(b, mask, lowest, x);
  x = tpu_convert(b, tpu_select(b, mask, zero, softmax(b, x, dim)), dtype);
  o->out[0].val = rank ? x : tpu_squeeze(b, x, 0);
}

void lower_masked_softmax_backward(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val g = arg_tensor(b, a, 0), y = arg_tensor(b, a, 1), mask = arg_tensor(b, a, 2);
  int rank = tpu_rank_of(b, g);
  tpu_dtype dtype = tpu_dtype_of(b, g), math = tpu_dtype_opmath(dtype);
  int64_t dim = wrap_dim(b, arg_int(b, a, 3, rank - 1), rank);
  if (tpu_build_failed(b)) return;
  g = at_least_1d(b, tpu_convert(b, g, math));
  y = at_least_1d(b, tpu_convert(b, y, math));
  mask = spread_mask(b, at_least_1d(b, mask), g, 2);
  tpu_val zero = tpu_full_like(b, g, 0);
  tpu_val x = tpu_mul(b, with_kept(b, TPU_HLO_SUBTRACT, g, sum_keep(b, tpu_mul(b, g, y), dim)), y);
  x = tpu_convert(b, tpu_select(b, mask, zero, x), dtype);
  o->out[0].val = rank ? x : tpu_squeeze(b, x, 0);
}
