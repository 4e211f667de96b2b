#include "aten/linalg.h"

#include <inttypes.h>

#include "aten/reduce.h"
#include "aten/shape.h"

bool linalg_check(tpu_build *b, tpu_val x, const char *function, bool square) {
  if (tpu_build_failed(b)) return false;
  int rank = tpu_rank_of(b, x);
  tpu_dtype dtype = tpu_dtype_of(b, x);
  if (rank < 2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s: The input tensor A must have at least 2 dimensions.", function);
    return false;
  }
  int64_t m = tpu_dim_of(b, x, rank - 2), n = tpu_dim_of(b, x, rank - 1);
  if (square && m != n) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "%s: A must be batches of square matrices, but they are %" PRId64 " by %" PRId64 " matrices", function, m, n);
    return false;
  }
  if (!tpu_is_float(dtype) && !tpu_is_complex(dtype)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s: Expected a floating point or complex tensor as input. Got %s", function,
             tpu_dtype_scalar_name(dtype));
    return false;
  }
  if (tpu_dtype_opmath(dtype) != dtype) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s: Low precision dtypes not supported. Got %s", function, tpu_dtype_scalar_name(dtype));
    return false;
  }
  return true;
}

tpu_val linalg_flatten(tpu_build *b, tpu_val x) {
  int rank = tpu_rank_of(b, x);
  int64_t dims[3] = {1, tpu_dim_of(b, x, rank - 2), tpu_dim_of(b, x, rank - 1)};
  for (int i = 0; i < rank - 2; i++) dims[0] *= tpu_dim_of(b, x, i);
  return tpu_reshape(b, x, 3, dims);
}

tpu_val linalg_restore(tpu_build *b, tpu_val x, tpu_val like, int n) {
  int batch = tpu_rank_of(b, like) - n, rank = batch;
  int64_t dims[TPU_MAX_RANK];
  for (int i = 0; i < batch; i++) dims[i] = tpu_dim_of(b, like, i);
  for (int i = 1; i < tpu_rank_of(b, x); i++) dims[rank++] = tpu_dim_of(b, x, i);
  return tpu_reshape(b, x, rank, dims);
}

void linalg_column_major(tpu_build *b, tpu_out *out, tpu_val val) {
  int rank = tpu_rank_of(b, val);
  int64_t strides[TPU_MAX_RANK];
  out->val = val;
  if (tpu_build_failed(b)) return;
  strides_contiguous(rank, tpu_dims_of(b, val), strides);
  if (rank >= 2) {
    int64_t rows = tpu_dim_of(b, val, rank - 2);
    strides[rank - 2] = 1;
    strides[rank - 1] = rows > 1 ? rows : 1;
  }
  out->strides = shape_strides_copy(b, rank, strides);
}

void linalg_broadcast(tpu_build *b, tpu_val *x, tpu_val *y) {
  tpu_val in[2] = {*x, *y}, lead[2];
  int64_t dims[TPU_MAX_RANK];
  for (int k = 0; k < 2; k++) lead[k] = tpu_full(b, TPU_BOOL, tpu_rank_of(b, in[k]) - 2, tpu_dims_of(b, in[k]), 0);
  int n = broadcast_dims(b, 2, lead, dims);
  for (int k = 0; k < 2 && !tpu_build_failed(b); k++) {
    int rank = tpu_rank_of(b, in[k]);
    dims[n] = tpu_dim_of(b, in[k], rank - 2);
    dims[n + 1] = tpu_dim_of(b, in[k], rank - 1);
    in[k] = tpu_broadcast_to(b, in[k], n + 2, dims);
  }
  *x = in[0];
  *y = in[1];
}

tpu_val linalg_transpose(tpu_build *b, tpu_val x) {
  int rank = tpu_rank_of(b, x);
  int64_t perm[TPU_MAX_RANK];
  if (tpu_build_failed(b)) return TPU_POISON;
  for (int i = 0; i < rank - 2; i++) perm[i] = i;
  perm[rank - 2] = rank - 1;
  perm[rank - 1] = rank - 2;
  return tpu_transpose(b, x, perm);
}

tpu_val linalg_conj(tpu_build *b, tpu_val x) {
  if (!tpu_is_complex(tpu_dtype_of(b, x))) return x;
  return tpu_complex(b, tpu_unary(b, TPU_HLO_REAL, x), tpu_neg(b, tpu_unary(b, TPU_HLO_IMAG, x)));
}

tpu_val linalg_adjoint(tpu_build *b, tpu_val x) { return linalg_conj(b, linalg_transpose(b, x)); }

/* column - row of the last two dims. */
static tpu_val off_diagonal(tpu_build *b, int rank, const int64_t *dims) {
  return tpu_sub(b, tpu_iota(b, TPU_I32, rank, dims, rank - 1), tpu_iota(b, TPU_I32, rank, dims, rank - 2));
}

tpu_val linalg_eye(tpu_build *b, tpu_val like, int64_t rows, int64_t columns) {
  int rank = tpu_rank_of(b, like);
  int64_t dims[TPU_MAX_RANK];
  if (tpu_build_failed(b)) return TPU_POISON;
  for (int i = 0; i < rank - 2; i++) dims[i] = tpu_dim_of(b, like, i);
  dims[rank - 2] = rows;
  dims[rank - 1] = columns;
  tpu_val off = off_diagonal(b, rank, dims);
  return tpu_convert(b, tpu_compare(b, TPU_EQ, off, tpu_full_like(b, off, 0)), tpu_dtype_of(b, like));
}

tpu_val linalg_triangle(tpu_build *b, tpu_val x, bool lower) {
  if (tpu_build_failed(b)) return TPU_POISON;
  tpu_val off = off_diagonal(b, tpu_rank_of(b, x), tpu_dims_of(b, x));
  tpu_val keep = tpu_compare(b, lower ? TPU_LE : TPU_GE, off, tpu_full_like(b, off, 0));
  return tpu_select(b, keep, x, tpu_full_like(b, x, 0));
}

tpu_val linalg_diagonal(tpu_build *b, tpu_val x) {
  int rank = tpu_rank_of(b, x);
  if (tpu_build_failed(b)) return TPU_POISON;
  int64_t m = tpu_dim_of(b, x, rank - 2), n = tpu_dim_of(b, x, rank - 1), k = m < n ? m : n;
  int64_t axes[1] = {rank - 1};
  x = tpu_slice_dim(b, tpu_slice_dim(b, x, rank - 2, 0, k, 1), rank - 1, 0, k, 1);
  tpu_val off = off_diagonal(b, rank, tpu_dims_of(b, x));
  tpu_val on = tpu_compare(b, TPU_EQ, off, tpu_full_like(b, off, 0));
  return reduce_over(b, TPU_MONOID_ADD, tpu_select(b, on, x, tpu_full_like(b, x, 0)), 1, axes);
}

tpu_val linalg_take_rows(tpu_build *b, tpu_val x, tpu_val index) {
  int64_t zero[1] = {0}, one[1] = {1}, two[1] = {2}, sizes[3] = {1, 1, tpu_dim_of(b, x, 2)};
  tpu_gather_dims dims = {.n_offset = 1,
                          .offset = two,
                          .n_collapsed = 1,
                          .collapsed = one,
                          .n_batch = 1,
                          .operand_batch = zero,
                          .indices_batch = zero,
                          .n_map = 1,
                          .start_index_map = one,
                          .index_vector_dim = 2};
  return tpu_gather(b, x, tpu_unsqueeze(b, index, 2), &dims, sizes);
}

tpu_val linalg_triangular(tpu_build *b, tpu_val x, tpu_val y, bool left, bool lower, bool unit, int transpose) {
  if (tpu_build_failed(b)) return TPU_POISON;
  if (tpu_numel_of(b, x) == 0 || tpu_numel_of(b, y) == 0) return y;
  return tpu_triangular_solve(b, x, y, left, lower, unit, transpose);
}

/* --- Cholesky */

/* Carried: k, the number of steps, A, info. One step of elimination, which keeps the first pivot that is not positive. */
static tpu_val minors_left(tpu_build *b, const tpu_val *params, void *arg) {
  (void)arg;
  return tpu_compare(b, TPU_LT, params[0], params[1]);
}

static void next_minor(tpu_build *b, const tpu_val *params, tpu_val *out_returns, void *arg) {
  (void)arg;
  tpu_val k = params[0], x = params[2], info = params[3], zero = tpu_scalar_i(b, TPU_I32, 0), starts[3] = {zero, zero, k};
  int64_t batch = tpu_dim_of(b, x, 0), n = tpu_dim_of(b, x, 1), sizes[3] = {batch, n, 1}, flat[2] = {batch, n};
  int64_t both[2] = {0, 1}, across[2] = {0, 2}, first[1] = {0}, one[2] = {batch, 1};
  tpu_val column = tpu_reshape(b, tpu_dynamic_slice(b, x, starts, sizes), 2, flat), at[2] = {zero, k};
  tpu_val pivot = tpu_reshape(b, tpu_dynamic_slice(b, column, at, one), 1, &batch);
  tpu_val size = tpu_is_complex(tpu_dtype_of(b, pivot)) ? tpu_unary(b, TPU_HLO_REAL, pivot) : pivot;
  tpu_val bad = tpu_not(b, tpu_compare(b, TPU_GT, size, tpu_full_like(b, size, 0)));
  bad = tpu_and(b, bad, tpu_compare(b, TPU_EQ, info, tpu_full_like(b, info, 0)));
  tpu_val row = tpu_broadcast_in_dim(b, tpu_div(b, linalg_conj(b, column), tpu_broadcast_in_dim(b, pivot, 2, flat, first)), 3,
                                     tpu_dims_of(b, x), across);
  out_returns[0] = binary_c(b, TPU_HLO_ADD, k, 1);
  out_returns[1] = params[1];
  out_returns[2] = tpu_sub(b, x, tpu_mul(b, tpu_broadcast_in_dim(b, column, 3, tpu_dims_of(b, x), both), row));
  out_returns[3] = tpu_select(b, bad, tpu_broadcast_like(b, binary_c(b, TPU_HLO_ADD, k, 1), info), info);
}

/* The matrix of which only one triangle is given; the diagonal of a complex one is real. */
static tpu_val mirror(tpu_build *b, tpu_val x, bool lower) {
  int64_t n = tpu_dim_of(b, x, 1);
  tpu_val half = linalg_triangle(b, x, lower), centre = half;
  if (tpu_is_complex(tpu_dtype_of(b, x))) centre = tpu_convert(b, tpu_unary(b, TPU_HLO_REAL, half), tpu_dtype_of(b, x));
  return tpu_select(b, tpu_convert(b, linalg_eye(b, x, n, n), TPU_BOOL), centre, tpu_add(b, half, linalg_adjoint(b, half)));
}

/* linalg_cholesky_ex(self, *, upper, check_errors) -> L, info: the order of the first minor that is not positive, or 0. XLA tells
 * only that there is one, by NaN; a loop that runs only then finds which. */
void lower_cholesky(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  bool lower = !arg_bool(b, a, 1);
  if (!linalg_check(b, x, "linalg.cholesky", true)) return;
  int rank = tpu_rank_of(b, x);
  if (tpu_numel_of(b, x) == 0) {
    linalg_column_major(b, &o->out[0], x);
    o->out[1].val = tpu_full(b, TPU_I32, rank - 2, tpu_dims_of(b, x), 0);
    return;
  }
  tpu_val flat = linalg_flatten(b, x), y = linalg_triangle(b, tpu_cholesky(b, flat, lower), lower);
  tpu_val diagonal = linalg_diagonal(b, y);
  if (tpu_is_complex(tpu_dtype_of(b, y))) diagonal = tpu_unary(b, TPU_HLO_REAL, diagonal);
  tpu_val failed = reduce_all(b, TPU_MONOID_OR, tpu_is_nan(b, diagonal)), none = tpu_scalar_i(b, TPU_I32, 0);
  int64_t batch = tpu_dim_of(b, flat, 0);
  tpu_val steps = tpu_select(b, failed, tpu_scalar_i(b, TPU_I32, tpu_dim_of(b, flat, 1)), none);
  tpu_val init[4] = {none, steps, mirror(b, flat, lower), tpu_full(b, TPU_I32, 1, &batch, 0)}, out[4];
  tpu_while(b, 4, init, minors_left, next_minor, NULL, out);
  linalg_column_major(b, &o->out[0], linalg_restore(b, y, x, 2));
  o->out[1].val = linalg_restore(b, out[3], x, 2);
}

/* (L L^H)^-1 y, or (U^H U)^-1 y. */
static tpu_val cholesky_solve(tpu_build *b, tpu_val factor, tpu_val y, bool upper) {
  y = linalg_triangular(b, factor, y, true, !upper, false, upper ? 2 : 0);
  return linalg_triangular(b, factor, y, true, !upper, false, upper ? 0 : 2);
}

/* _cholesky_solve_helper(self, A, upper) */
void lower_cholesky_solve(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val y = arg_tensor(b, a, 0), factor = arg_tensor(b, a, 1);
  if (tpu_build_failed(b)) return;
  linalg_column_major(b, &o->out[0], cholesky_solve(b, factor, y, arg_bool(b, a, 2)));
}

/* cholesky_inverse(self, upper) */
void lower_cholesky_inverse(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val factor = arg_tensor(b, a, 0);
  if (!linalg_check(b, factor, "cholesky_inverse", true)) return;
  int64_t n = tpu_dim_of(b, factor, tpu_rank_of(b, factor) - 1);
  linalg_column_major(b, &o->out[0], cholesky_solve(b, factor, linalg_eye(b, factor, n, n), arg_bool(b, a, 1)));
}

/* --- triangular systems */

static bool check_system(tpu_build *b, tpu_val x, tpu_val y, bool left, const char *function) {
  if (!linalg_check(b, x, function, true)) return false;
  int rank = tpu_rank_of(b, x), rank_y = tpu_rank_of(b, y);
  if (rank_y < 2) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s: The input tensor B must have at least 2 dimensions.", function);
    return false;
  }
  if (tpu_dim_of(b, x, rank - 1) != tpu_dim_of(b, y, left ? rank_y - 2 : rank_y - 1)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "%s: Incompatible shapes of A and B for the equation %s (%" PRId64 "x%" PRId64 " and %" PRId64 "x%" PRId64 ")",
             function, left ? "AX = B" : "XA = B", tpu_dim_of(b, x, rank - 2), tpu_dim_of(b, x, rank - 1),
             tpu_dim_of(b, y, rank_y - 2), tpu_dim_of(b, y, rank_y - 1));
    return false;
  }
  return true;
}

/* linalg_solve_triangular(self, B, *, upper, left, unitriangular) */
void lower_solve_triangular(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0), y = arg_tensor(b, a, 1);
  bool upper = arg_bool(b, a, 2), left = arg_bool(b, a, 3), unit = arg_bool(b, a, 4);
  if (!check_system(b, x, y, left, "linalg.solve_triangular")) return;
  linalg_broadcast(b, &x, &y);
  linalg_column_major(b, &o->out[0], linalg_triangular(b, x, y, left, !upper, unit, 0));
}

/* triangular_solve(self, A, upper, transpose, unitriangular) -> solution, A */
void lower_triangular_solve(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val y = arg_tensor(b, a, 0), x = arg_tensor(b, a, 1);
  if (!check_system(b, x, y, true, "triangular_solve")) return;
  linalg_broadcast(b, &x, &y);
  bool upper = arg_bool(b, a, 2), unit = arg_bool(b, a, 4);
  linalg_column_major(b, &o->out[0], linalg_triangular(b, x, y, true, !upper, unit, arg_bool(b, a, 3) ? 1 : 0));
  linalg_column_major(b, &o->out[1], x);
}

/* --- QR by Householder reflections: XLA expands these calls on every platform, in LAPACK's convention. */

static tpu_val householder_product(tpu_build *b, tpu_val reflectors, tpu_val tau) {
  tpu_val in[2] = {reflectors, tau}, out[1];
  tpu_type type = tpu_type_of(b, reflectors);
  tpu_custom_call(b, "ProductOfElementaryHouseholderReflectors", "", 2, in, 1, &type, out);
  return out[0];
}

void linalg_qr(tpu_build *b, tpu_val x, bool complete, tpu_val *out_q, tpu_val *out_r) {
  if (tpu_build_failed(b)) return;
  int64_t batch = tpu_dim_of(b, x, 0), m = tpu_dim_of(b, x, 1), n = tpu_dim_of(b, x, 2), k = m < n ? m : n;
  int64_t columns = complete ? m : k;
  if (batch * m * n == 0) {
    int64_t r_dims[3] = {batch, columns, n};
    if (out_q) *out_q = linalg_eye(b, x, m, columns);
    *out_r = tpu_full(b, tpu_dtype_of(b, x), 3, r_dims, 0);
    return;
  }
  int64_t tau_dims[2] = {batch, k};
  tpu_type types[2] = {tpu_type_of(b, x), {tpu_dtype_of(b, x), 2, tau_dims}};
  tpu_val out[2];
  tpu_custom_call(b, "Qr", "", 1, &x, 2, types, out);
  tpu_val zero = tpu_scalar(b, tpu_dtype_of(b, x), 0);
  int64_t lo[3] = {0}, hi[3] = {0, columns - m, 0};
  *out_r = linalg_triangle(b, tpu_pad(b, out[0], zero, lo, hi, NULL), false);
  if (!out_q) return;
  int64_t hi_q[3] = {0, 0, columns - n}, hi_tau[2] = {0, columns - k};
  *out_q = householder_product(b, tpu_pad(b, out[0], zero, lo, hi_q, NULL), tpu_pad(b, out[1], zero, lo, hi_tau, NULL));
}

/* linalg_qr(A, mode): "reduced", "complete" or "r" (then Q is empty). */
void lower_qr(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0), q = TPU_POISON, r = TPU_POISON;
  const char *mode = arg_str(a, 1);
  bool complete = mode[0] == 'c', only_r = mode[0] == 'r' && mode[1] == '\0';
  if (!linalg_check(b, x, "linalg.qr", false)) return;
  linalg_qr(b, linalg_flatten(b, x), complete, only_r ? NULL : &q, &r);
  int64_t none = 0;
  if (only_r)
    o->out[0].val = tpu_full(b, tpu_dtype_of(b, x), 1, &none, 0);
  else
    linalg_column_major(b, &o->out[0], linalg_restore(b, q, x, 2));
  linalg_column_major(b, &o->out[1], linalg_restore(b, r, x, 2));
}

/* linalg_householder_product(input, tau): the first columns of H_1 H_2 .. H_k. */
void lower_householder_product(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0), tau = arg_tensor(b, a, 1);
  if (!linalg_check(b, x, "torch.linalg.householder_product", false)) return;
  int rank = tpu_rank_of(b, x);
  int64_t n = tpu_dim_of(b, x, rank - 1), k = tpu_dim_of(b, tau, rank - 2);
  if (n > tpu_dim_of(b, x, rank - 2)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "torch.linalg.householder_product: input.shape[-2] must be greater than or equal to input.shape[-1]");
    return;
  }
  if (tpu_numel_of(b, x) == 0 || k == 0) {
    linalg_column_major(b, &o->out[0], linalg_eye(b, x, tpu_dim_of(b, x, rank - 2), n));
    return;
  }
  int64_t batch[2] = {tpu_numel_of(b, tau) / k, k}, lo[2] = {0}, hi[2] = {0, n - k};
  tpu_val padded = tpu_pad(b, tpu_reshape(b, tau, 2, batch), tpu_scalar(b, tpu_dtype_of(b, tau), 0), lo, hi, NULL);
  linalg_column_major(b, &o->out[0], linalg_restore(b, householder_product(b, linalg_flatten(b, x), padded), x, 2));
}

/* --- symmetric eigenvalues */

/* _linalg_eigh(A, UPLO, compute_v) -> eigenvalues (ascending), eigenvectors */
void lower_eigh(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  bool lower = arg_str(a, 1)[0] != 'U' && arg_str(a, 1)[0] != 'u', vectors = arg_bool(b, a, 2);
  if (!linalg_check(b, x, "linalg.eigh", true)) return;
  tpu_dtype dtype = tpu_dtype_of(b, x), real = tpu_dtype_real(dtype);
  int64_t none = 0, n = tpu_dim_of(b, x, tpu_rank_of(b, x) - 1);
  tpu_val flat = linalg_flatten(b, x), out[2] = {flat, TPU_POISON};
  int64_t value_dims[2] = {tpu_dim_of(b, flat, 0), n};
  if (tpu_numel_of(b, x) == 0) {
    out[1] = tpu_full(b, real, 2, value_dims, 0);
  } else {
    flat = mirror(b, flat, lower);
    tpu_type types[2] = {tpu_type_of(b, flat), {real, 2, value_dims}};
    /* lower, sorted, most sweeps, tolerance */
    tpu_custom_call(b, "Eigh", real == TPU_F64 ? "1,1,100,1e-14" : "1,1,100,1e-7", 1, &flat, 2, types, out);
  }
  o->out[0].val = linalg_restore(b, out[1], x, 2);
  if (vectors)
    linalg_column_major(b, &o->out[1], linalg_restore(b, out[0], x, 2));
  else
    o->out[1].val = tpu_full(b, dtype, 1, &none, 0);
}

/* --- cross product */

/* linalg_cross(self, other, *, dim) of dims of size 3 */
void lower_cross(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_dtype dtype = promote_args(b, a, 0, 2);
  tpu_val xs[2] = {arg_as(b, a, 0, dtype), arg_as(b, a, 1, dtype)};
  if (tpu_build_failed(b)) return;
  int rank = tpu_rank_of(b, xs[0]);
  if (rank != tpu_rank_of(b, xs[1])) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "linalg.cross: inputs must have the same number of dimensions.");
    return;
  }
  int dim = arg_dim(b, a, 2, rank);
  if (tpu_build_failed(b)) return;
  if (tpu_dim_of(b, xs[0], dim) != 3 || tpu_dim_of(b, xs[1], dim) != 3) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "linalg.cross: inputs dimension %" PRId64 " must have length 3. Got %" PRId64 " and %" PRId64, arg_int(b, a, 2, -1),
             tpu_dim_of(b, xs[0], dim), tpu_dim_of(b, xs[1], dim));
    return;
  }
  broadcast_all(b, 2, xs);
  tpu_val part[2][3], out[3];
  for (int k = 0; k < 2; k++)
    for (int i = 0; i < 3; i++) part[k][i] = tpu_slice_dim(b, xs[k], dim, i, i + 1, 1);
  for (int i = 0; i < 3; i++) {
    int j = (i + 1) % 3, k = (i + 2) % 3;
    out[i] = tpu_sub(b, tpu_mul(b, part[0][j], part[1][k]), tpu_mul(b, part[0][k], part[1][j]));
  }
  o->out[0].val = tpu_concat(b, 3, out, dim);
}
