/* Products of matrices and vectors. Source: aten/src/ATen/native/LinearAlgebra.cpp, Blas.cpp. */
#include <inttypes.h>

#include "aten/elementwise.h"
#include "aten/nn.h"

static bool is_supported(tpu_build *b, const tpu_args *a, tpu_dtype dtype) {
  if (tpu_build_failed(b)) return false;
  if (dtype != TPU_BOOL) return true;
  fail_not_implemented(b, a, dtype);
  return false;
}

/* at::linear's epilogue: beta * self + alpha * product, in the opmath type. With beta = 0, self's NaN do not count. */
static tpu_val scale_and_add(tpu_build *b, const tpu_args *a, tpu_val product, tpu_val self, int beta, int alpha) {
  tpu_dtype math = tpu_dtype_of(b, product);
  if (!arg_is_default(a, alpha)) product = tpu_mul(b, product, tpu_broadcast_like(b, arg_number(b, a, alpha, math), product));
  self = tpu_convert(b, self, math);
  if (!arg_is_default(a, beta)) {
    tpu_val factor = arg_number(b, a, beta, math), zero = tpu_scalar(b, math, 0);
    tpu_val is_zero = tpu_broadcast_like(b, tpu_compare(b, TPU_EQ, factor, zero), self);
    tpu_val scaled = tpu_mul(b, self, tpu_broadcast_like(b, factor, self));
    self = tpu_select(b, is_zero, tpu_full_like(b, self, 0), scaled);
  }
  return tpu_add(b, self, product);
}

static bool check_mm(tpu_build *b, tpu_val x, tpu_val y) {
  if (tpu_build_failed(b)) return false;
  int64_t m = tpu_dim_of(b, x, 0), k = tpu_dim_of(b, x, 1), k2 = tpu_dim_of(b, y, 0), n = tpu_dim_of(b, y, 1);
  if (k == k2) return true;
  tpu_fail(b, TPU_INVALID_ARGUMENT,
           "mat1 and mat2 shapes cannot be multiplied (%" PRId64 "x%" PRId64 " and %" PRId64 "x%" PRId64 ")", m, k, k2, n);
  return false;
}

void lower_mm(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0), y = arg_tensor(b, a, 1);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  if (tpu_rank_of(b, x) != 2) tpu_fail(b, TPU_INVALID_ARGUMENT, "self must be a matrix");
  if (tpu_rank_of(b, y) != 2) tpu_fail(b, TPU_INVALID_ARGUMENT, "mat2 must be a matrix");
  if (!check_mm(b, x, y)) return;
  if (dtype != tpu_dtype_of(b, y))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "expected m1 and m2 to have the same dtype, but got: %s != %s", tpu_dtype_c_name(dtype),
             tpu_dtype_c_name(tpu_dtype_of(b, y)));
  if (!is_supported(b, a, dtype)) return;
  o->out[0].val = tpu_convert(b, contract(b, x, y, 0, 1, 0), arg_dtype(a, 2, dtype));
}

void lower_int_mm(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0), y = arg_tensor(b, a, 1);
  if (tpu_rank_of(b, x) != 2)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected self to be of dimension 2 but got %d", tpu_rank_of(b, x));
  if (tpu_rank_of(b, y) != 2)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected mat2 to be of dimension 2 but got %d", tpu_rank_of(b, y));
  if (tpu_build_failed(b)) return;
  tpu_dtype xt = tpu_dtype_of(b, x), yt = tpu_dtype_of(b, y);
  if (xt != TPU_I8 && xt != TPU_U8)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected self dtype to be int8 or uint8 but got %s", tpu_dtype_c_name(xt));
  else if (yt != TPU_I8)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected mat2 dtype to be int8 but got %s", tpu_dtype_c_name(yt));
  else if (tpu_dim_of(b, x, 1) != tpu_dim_of(b, y, 0))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "self.size(1) needs to match mat2.size(0) but got %" PRId64 " and %" PRId64,
             tpu_dim_of(b, x, 1), tpu_dim_of(b, y, 0));
  if (xt != yt) x = tpu_convert(b, x, TPU_I32), y = tpu_convert(b, y, TPU_I32);
  const int64_t cx = 1, cy = 0;
  o->out[0].val = tpu_dot_general(b, x, y, &(tpu_dot_dims){.n_contract = 1, .lhs_contract = &cx, .rhs_contract = &cy}, TPU_I32);
}

/* [M, N] of addmm(self, mat1, mat2, [dtype], beta, alpha), in the opmath type. */
static tpu_val addmm(tpu_build *b, const tpu_args *a, int beta) {
  tpu_val self = arg_tensor(b, a, 0), x = arg_tensor(b, a, 1), y = arg_tensor(b, a, 2);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  for (int i = 1; i <= 2; i++)
    if (tpu_rank_of(b, i == 1 ? x : y) != 2)
      tpu_fail(b, TPU_INVALID_ARGUMENT, "mat%d must be a matrix, got %d-D tensor", i, tpu_rank_of(b, i == 1 ? x : y));
  if (!check_mm(b, x, y)) return TPU_POISON;
  const int64_t dims[2] = {tpu_dim_of(b, x, 0), tpu_dim_of(b, y, 1)};
  self = expand_to(b, self, 2, dims);
  if (tpu_build_failed(b)) return TPU_POISON;
  bool widened = beta > 3 && tpu_dtype_of(b, self) == arg_dtype(a, 3, dtype);
  if (tpu_dtype_of(b, self) != tpu_dtype_of(b, y) && !widened)
    return tpu_fail(b, TPU_INVALID_ARGUMENT, "self and mat2 must have the same dtype, but got %s and %s",
                    tpu_dtype_scalar_name(tpu_dtype_of(b, self)), tpu_dtype_scalar_name(tpu_dtype_of(b, y)));
  if (dtype != tpu_dtype_of(b, y))
    return tpu_fail(b, TPU_INVALID_ARGUMENT, "mat1 and mat2 must have the same dtype, but got %s and %s",
                    tpu_dtype_scalar_name(dtype), tpu_dtype_scalar_name(tpu_dtype_of(b, y)));
  if (!is_supported(b, a, dtype)) return TPU_POISON;
  return scale_and_add(b, a, contract(b, x, y, 0, 1, 0), self, beta, beta + 1);
}

void lower_addmm(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int beta = a->n > 5 ? 4 : 3;
  tpu_dtype dtype = arg_dtype(a, 3, tpu_dtype_of(b, arg_tensor(b, a, 1)));
  o->out[0].val = tpu_convert(b, addmm(b, a, beta), dtype);
}

/* relu, or gelu in its exact form, on addmm's result. */
void lower_addmm_activation(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_dtype dtype = tpu_dtype_of(b, arg_tensor(b, a, 1));
  tpu_val x = addmm(b, a, 3);
  if (arg_bool(b, a, 5)) {
    x = tpu_convert(b, tpu_convert(b, x, dtype), tpu_dtype_opmath(dtype));
    tpu_val phi = tpu_unary(b, TPU_HLO_CHLO_ERF, binary_c(b, TPU_HLO_MULTIPLY, x, 0.70710678118654752440));
    x = tpu_mul(b, x, binary_c(b, TPU_HLO_MULTIPLY, binary_c(b, TPU_HLO_ADD, phi, 1), 0.5));
  } else {
    x = tpu_max(b, x, tpu_full_like(b, x, 0));
  }
  o->out[0].val = tpu_convert(b, x, dtype);
}

static bool check_bmm(tpu_build *b, tpu_val x, tpu_val y) {
  if (tpu_rank_of(b, x) != 3) tpu_fail(b, TPU_INVALID_ARGUMENT, "batch1 must be a 3D tensor");
  if (tpu_rank_of(b, y) != 3) tpu_fail(b, TPU_INVALID_ARGUMENT, "batch2 must be a 3D tensor");
  if (tpu_build_failed(b)) return false;
  const int64_t *dx = tpu_dims_of(b, x), *dy = tpu_dims_of(b, y);
  if (dx[0] == dy[0] && dx[2] == dy[1]) return true;
  tpu_fail(b, TPU_INVALID_ARGUMENT,
           "Expected size for first two dimensions of batch2 tensor to be: [%" PRId64 ", %" PRId64 "] but got: [%" PRId64
           ", %" PRId64 "].",
           dx[0], dx[2], dy[0], dy[1]);
  return false;
}

void lower_bmm(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0), y = arg_tensor(b, a, 1);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  if (!check_bmm(b, x, y)) return;
  if (dtype != tpu_dtype_of(b, y))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "expected scalar type %s but found %s", tpu_dtype_scalar_name(dtype),
             tpu_dtype_scalar_name(tpu_dtype_of(b, y)));
  if (!is_supported(b, a, dtype)) return;
  o->out[0].val = tpu_convert(b, contract(b, x, y, 1, 2, 1), arg_dtype(a, 2, dtype));
}

void lower_baddbmm(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int beta = a->n > 5 ? 4 : 3;
  tpu_val self = arg_tensor(b, a, 0), x = arg_tensor(b, a, 1), y = arg_tensor(b, a, 2);
  tpu_dtype dtype = tpu_dtype_of(b, x), out = arg_dtype(a, 3, dtype);
  if (!check_bmm(b, x, y)) return;
  const int64_t dims[3] = {tpu_dim_of(b, x, 0), tpu_dim_of(b, x, 1), tpu_dim_of(b, y, 2)};
  self = expand_to(b, self, 3, dims);
  if (tpu_build_failed(b)) return;
  tpu_dtype st = tpu_dtype_of(b, self);
  if ((st != dtype && st != out) || dtype != tpu_dtype_of(b, y))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Input dtypes must be the same, got: input %s, batch1: %s, batch2: %s",
             tpu_dtype_c_name(st), tpu_dtype_c_name(dtype), tpu_dtype_c_name(tpu_dtype_of(b, y)));
  if (!is_supported(b, a, dtype)) return;
  o->out[0].val = tpu_convert(b, scale_and_add(b, a, contract(b, x, y, 1, 2, 1), self, beta, beta + 1), out);
}

/* Sums the products over the batch: contracts batch and inner dim at once. */
void lower_addbmm(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val self = arg_tensor(b, a, 0), x = arg_tensor(b, a, 1), y = arg_tensor(b, a, 2);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  if (tpu_rank_of(b, x) != 3) tpu_fail(b, TPU_INVALID_ARGUMENT, "batch1 must be a 3D tensor");
  if (tpu_rank_of(b, y) != 3) tpu_fail(b, TPU_INVALID_ARGUMENT, "batch2 must be a 3D tensor");
  if (tpu_build_failed(b)) return;
  const int64_t *dx = tpu_dims_of(b, x), *dy = tpu_dims_of(b, y), dims[2] = {dx[1], dy[2]};
  self = expand_to(b, self, 2, dims);
  if (dx[0] != dy[0])
    tpu_fail(b, TPU_INVALID_ARGUMENT, "batch1 and batch2 must have same number of batches, got %" PRId64 " and %" PRId64, dx[0],
             dy[0]);
  else if (dx[2] != dy[1])
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Incompatible matrix sizes for bmm (%" PRId64 "x%" PRId64 " and %" PRId64 "x%" PRId64 ")",
             dx[1], dx[2], dy[1], dy[2]);
  else if (tpu_dtype_of(b, self) != tpu_dtype_of(b, y) || dtype != tpu_dtype_of(b, y))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "self and mat2 must have the same dtype, but got %s and %s",
             tpu_dtype_scalar_name(tpu_dtype_of(b, self)), tpu_dtype_scalar_name(tpu_dtype_of(b, y)));
  if (!is_supported(b, a, dtype)) return;
  const int64_t cx[2] = {0, 2}, cy[2] = {0, 1};
  tpu_val product = contract_dims(b, x, y, &(tpu_dot_dims){.n_contract = 2, .lhs_contract = cx, .rhs_contract = cy});
  o->out[0].val = tpu_convert(b, scale_and_add(b, a, product, self, 3, 4), dtype);
}

/* mv(mat, vec), or addmv(self, mat, vec, beta, alpha) when has_self. */
static void matrix_vector(tpu_build *b, const tpu_args *a, tpu_outs *o, bool has_self) {
  tpu_val self = has_self ? arg_tensor(b, a, 0) : TPU_POISON;
  tpu_val mat = arg_tensor(b, a, has_self), vec = arg_tensor(b, a, has_self + 1);
  int self_rank = has_self ? tpu_rank_of(b, self) : 1;
  if (tpu_build_failed(b)) return;
  if (tpu_rank_of(b, mat) != 2 || tpu_rank_of(b, vec) != 1 || self_rank > 1) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "vector + matrix @ vector expected, got %d, %d, %d", self_rank, tpu_rank_of(b, mat),
             tpu_rank_of(b, vec));
    return;
  }
  int64_t m = tpu_dim_of(b, mat, 0), k = tpu_dim_of(b, mat, 1), have = has_self ? tpu_numel_of(b, self) : m;
  tpu_dtype dtype = tpu_dtype_of(b, mat), vt = tpu_dtype_of(b, vec), st = has_self ? tpu_dtype_of(b, self) : vt;
  if (k != tpu_dim_of(b, vec, 0) || (have != m && have != 1))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "size mismatch, got input (%" PRId64 "), mat (%" PRId64 "x%" PRId64 "), vec (%" PRId64 ")",
             have, m, k, tpu_dim_of(b, vec, 0));
  else if (dtype != vt || dtype != st)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "addmv input tensors must have the same dtype, but got %s, %s, and %s",
             tpu_dtype_scalar_name(st), tpu_dtype_scalar_name(dtype), tpu_dtype_scalar_name(vt));
  if (!is_supported(b, a, dtype)) return;
  tpu_val product = contract(b, mat, vec, 0, 1, 0);
  if (has_self) product = scale_and_add(b, a, product, tpu_broadcast_to(b, self, 1, &m), 3, 4);
  o->out[0].val = tpu_convert(b, product, dtype);
}
void lower_mv(tpu_build *b, const tpu_args *a, tpu_outs *o) { matrix_vector(b, a, o, false); }
void lower_addmv(tpu_build *b, const tpu_args *a, tpu_outs *o) { matrix_vector(b, a, o, true); }

static void vector_product(tpu_build *b, const tpu_args *a, tpu_outs *o, bool conjugate) {
  tpu_val x = arg_tensor(b, a, 0), y = arg_tensor(b, a, 1);
  if (tpu_build_failed(b)) return;
  tpu_dtype dtype = tpu_dtype_of(b, x);
  if (tpu_rank_of(b, x) != 1 || tpu_rank_of(b, y) != 1)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "1D tensors expected, but got %dD and %dD tensors", tpu_rank_of(b, x), tpu_rank_of(b, y));
  else if (dtype != tpu_dtype_of(b, y))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "dot : expected both vectors to have same dtype, but found %s and %s",
             tpu_dtype_scalar_name(dtype), tpu_dtype_scalar_name(tpu_dtype_of(b, y)));
  else if (tpu_dim_of(b, x, 0) != tpu_dim_of(b, y, 0))
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "inconsistent tensor size, expected tensor [%" PRId64 "] and src [%" PRId64
             "] to have the same number of elements, but got %" PRId64 " and %" PRId64 " elements respectively",
             tpu_dim_of(b, x, 0), tpu_dim_of(b, y, 0), tpu_dim_of(b, x, 0), tpu_dim_of(b, y, 0));
  if (!is_supported(b, a, dtype)) return;
  if (conjugate && tpu_is_complex(dtype))
    x = tpu_complex(b, tpu_unary(b, TPU_HLO_REAL, x), tpu_neg(b, tpu_unary(b, TPU_HLO_IMAG, x)));
  o->out[0].val = tpu_convert(b, contract(b, x, y, 0, 0, 0), dtype);
}
void lower_dot(tpu_build *b, const tpu_args *a, tpu_outs *o) { vector_product(b, a, o, false); }
void lower_vdot(tpu_build *b, const tpu_args *a, tpu_outs *o) { vector_product(b, a, o, true); }

static bool is_inexact(tpu_dtype t) { return tpu_is_float(t) || tpu_is_complex(t); }

void lower_addr(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val self = arg_tensor(b, a, 0), x = arg_tensor(b, a, 1), y = arg_tensor(b, a, 2);
  if (tpu_build_failed(b)) return;
  for (int i = 1; i <= 2; i++)
    if (tpu_rank_of(b, i == 1 ? x : y) != 1)
      tpu_fail(b, TPU_INVALID_ARGUMENT, "addr: Expected 1-D argument vec%d, but got %d-D", i, tpu_rank_of(b, i == 1 ? x : y));
  tpu_dtype dtype = promote_args(b, a, 0, 3);
  static const char *const names[] = {"beta", "alpha"};
  for (int i = 0; i < 2; i++) {
    tpu_dtype t = arg_number_dtype(a, 3 + i);
    if (t == TPU_BOOL && dtype != TPU_BOOL)
      tpu_fail(b, TPU_INVALID_ARGUMENT, "Boolean %s only supported for Boolean results.", names[i]);
    if (!is_inexact(dtype) && is_inexact(t))
      tpu_fail(b, TPU_INVALID_ARGUMENT, "For integral input tensors, argument %s must not be a floating point number.", names[i]);
  }
  const int64_t dims[2] = {tpu_dim_of(b, x, 0), tpu_dim_of(b, y, 0)}, rows = 0, columns = 1;
  self = expand_to(b, self, 2, dims);
  tpu_dtype math = tpu_dtype_opmath(dtype);
  x = tpu_broadcast_in_dim(b, tpu_convert(b, x, math), 2, dims, &rows);
  y = tpu_broadcast_in_dim(b, tpu_convert(b, y, math), 2, dims, &columns);
  if (dtype == TPU_BOOL) { /* there, * is and, + is or */
    tpu_val product = tpu_and(b, x, y);
    if (!arg_is_default(a, 4)) product = tpu_and(b, product, tpu_broadcast_like(b, arg_number(b, a, 4, dtype), product));
    if (!arg_is_default(a, 3)) self = tpu_and(b, self, tpu_broadcast_like(b, arg_number(b, a, 3, dtype), self));
    o->out[0].val = tpu_or(b, self, product);
    return;
  }
  o->out[0].val = tpu_convert(b, scale_and_add(b, a, tpu_mul(b, x, y), self, 3, 4), dtype);
}
