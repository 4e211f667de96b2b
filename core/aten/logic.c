/* Rows: logical and bitwise. Source: aten/src/ATen/native/BinaryOps.cpp, cpu/BinaryOpsKernel.cpp. */
#include "aten/elementwise.h"

static tpu_val truth(tpu_build *b, const tpu_args *a, int i) {
  if (arg_is_number(a, i)) return arg_number(b, a, i, TPU_BOOL);
  return tpu_convert(b, arg_tensor(b, a, i), TPU_BOOL);
}

void lower_logical(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  o->out[0].val = bcast_binary(b, (tpu_hlo)a->row->hlo, truth(b, a, 0), truth(b, a, 1));
}

void lower_logical_not(tpu_build *b, const tpu_args *a, tpu_outs *o) { o->out[0].val = tpu_not(b, truth(b, a, 0)); }

static bool need_whole(tpu_build *b, const tpu_args *a, tpu_dtype dtype, bool allow_bool) {
  if (tpu_is_integral(dtype) || (allow_bool && dtype == TPU_BOOL)) return true;
  if (!tpu_build_failed(b)) fail_not_implemented(b, a, dtype);
  return false;
}

void lower_bitwise(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  tpu_dtype dtype = same_operands(b, a, 2, xs);
  if (need_whole(b, a, dtype, true)) o->out[0].val = tpu_binary(b, (tpu_hlo)a->row->hlo, xs[0], xs[1]);
}

void lower_bitwise_not(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  if (need_whole(b, a, tpu_dtype_of(b, x), true)) o->out[0].val = tpu_not(b, x);
}

/* A shift by a negative amount counts as one by the whole width: 0, or the sign. */
void lower_shift(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val xs[2];
  tpu_dtype dtype = same_operands(b, a, 2, xs);
  if (!need_whole(b, a, dtype, false)) return;
  tpu_hlo op = (tpu_hlo)a->row->hlo;
  if (op == TPU_HLO_SHIFT_RIGHT_ARITH && tpu_dtype_kind(dtype) == TPU_KIND_UINT) op = TPU_HLO_SHIFT_RIGHT_LOGIC;
  o->out[0].val = tpu_binary(b, op, xs[0], xs[1]);
}
