/* LU with partial pivoting and what follows from it: solve, inverse, determinant. */
#include <inttypes.h>

#include "aten/linalg.h"
#include "aten/reduce.h"

typedef struct lu {
  tpu_val factors; /* [B, M, N] */
  tpu_val pivots;  /* i32 [B, K], from 1, as LAPACK's ipiv */
  tpu_val perm;    /* i32 [B, M]: the row of A that stands in each row */
  tpu_val info;    /* i32 [B]: 1 + the first zero pivot, or 0 */
} lu;

typedef struct lu_loop {
  int64_t k;
  bool pivot;
} lu_loop;

static tpu_val spread(tpu_build *b, tpu_val x, tpu_val like, int first, int second) {
  int64_t map[2] = {first, second};
  return tpu_broadcast_in_dim(b, x, tpu_rank_of(b, like), tpu_dims_of(b, like), map);
}

static tpu_val at_dim(tpu_build *b, tpu_val x, int dim, tpu_val k) {
  int rank = tpu_rank_of(b, x);
  tpu_val starts[3];
  int64_t sizes[3];
  for (int i = 0; i < rank; i++) {
    starts[i] = i == dim ? k : tpu_scalar_i(b, TPU_I32, 0);
    sizes[i] = i == dim ? 1 : tpu_dim_of(b, x, i);
  }
  return tpu_squeeze(b, tpu_dynamic_slice(b, x, starts, sizes), dim);
}

/* |re| + |im|, which LAPACK compares pivots by. */
static tpu_val size_of(tpu_build *b, tpu_val x) {
  if (!tpu_is_complex(tpu_dtype_of(b, x))) return tpu_unary(b, TPU_HLO_ABS, x);
  return tpu_add(b, tpu_unary(b, TPU_HLO_ABS, tpu_unary(b, TPU_HLO_REAL, x)),
                 tpu_unary(b, TPU_HLO_ABS, tpu_unary(b, TPU_HLO_IMAG, x)));
}

/* x [B, M, ..] with rows k and p exchanged; row_k, row_p: those rows. on_k, on_p: [dims of x]. */
static tpu_val exchange(tpu_build *b, tpu_val x, tpu_val row_k, tpu_val row_p, tpu_val on_k, tpu_val on_p) {
  return tpu_select(b, on_k, row_p, tpu_select(b, on_p, row_k, x));
}

static tpu_val more(tpu_build *b, const tpu_val *params, void *arg) {
  const lu_loop *loop = arg;
  return tpu_compare(b, TPU_LT, params[0], tpu_scalar_i(b, TPU_I32, loop->k));
}

/* Carried: k, A, pivots, perm. Eliminates column k. */
static void eliminate(tpu_build *b, const tpu_val *params, tpu_val *out_returns, void *arg) {
  const lu_loop *loop = arg;
  tpu_val k = params[0], x = params[1], pivots = params[2], perm = params[3];
  tpu_val column = at_dim(b, x, 2, k), rows = tpu_iota(b, TPU_I32, 2, tpu_dims_of(b, column), 1);
  tpu_val ks = tpu_broadcast_like(b, k, rows), p;
  if (loop->pivot) {
    tpu_val size = size_of(b, column);
    size = tpu_select(b, tpu_compare(b, TPU_GE, rows, ks), size, tpu_full_like(b, size, -1));
    p = reduce_index(b, TPU_MONOID_MAX, size, 1, NULL);
  } else {
    int64_t batch = tpu_dim_of(b, x, 0);
    p = tpu_broadcast_to(b, k, 1, &batch);
  }
  tpu_val on_p = tpu_compare(b, TPU_EQ, rows, spread(b, p, rows, 0, 0)), on_k = tpu_compare(b, TPU_EQ, rows, ks);
  int64_t row_axis[1] = {1};
  tpu_val wide_p = spread(b, on_p, x, 0, 1), wide_k = spread(b, on_k, x, 0, 1);
  tpu_val row_k = at_dim(b, x, 1, k);
  tpu_val row_p = reduce_over(b, TPU_MONOID_ADD, tpu_select(b, wide_p, x, tpu_full_like(b, x, 0)), 1, row_axis);
  x = exchange(b, x, spread(b, row_k, x, 0, 2), spread(b, row_p, x, 0, 2), wide_k, wide_p);
  tpu_val perm_p = reduce_over(b, TPU_MONOID_ADD, tpu_select(b, on_p, perm, tpu_full_like(b, perm, 0)), 1, row_axis);
  perm = exchange(b, perm, spread(b, at_dim(b, perm, 1, k), perm, 0, 0), spread(b, perm_p, perm, 0, 0), on_k, on_p);
  tpu_val starts[2] = {tpu_scalar_i(b, TPU_I32, 0), k};
  pivots = tpu_dynamic_update_slice(b, pivots, tpu_unsqueeze(b, binary_c(b, TPU_HLO_ADD, p, 1), 1), starts);

  tpu_val pivot = spread(b, at_dim(b, row_p, 1, k), rows, 0, 0);
  column = at_dim(b, x, 2, k);
  tpu_val zero = tpu_full_like(b, column, 0);
  tpu_val factor = tpu_select(b, tpu_compare(b, TPU_EQ, pivot, zero), column, tpu_div(b, column, pivot));
  tpu_val below = tpu_compare(b, TPU_GT, rows, ks);
  factor = tpu_select(b, below, factor, zero);
  tpu_val columns = tpu_iota(b, TPU_I32, 3, tpu_dims_of(b, x), 2), wide = tpu_broadcast_like(b, k, columns);
  tpu_val factors = spread(b, factor, x, 0, 1), product = tpu_mul(b, factors, spread(b, row_p, x, 0, 2));
  product = tpu_select(b, tpu_compare(b, TPU_GT, columns, wide), product, tpu_full_like(b, x, 0));
  tpu_val here = tpu_and(b, tpu_compare(b, TPU_EQ, columns, wide), spread(b, below, x, 0, 1));
  out_returns[0] = binary_c(b, TPU_HLO_ADD, k, 1);
  out_returns[1] = tpu_select(b, here, factors, tpu_sub(b, x, product));
  out_returns[2] = pivots;
  out_returns[3] = perm;
}

static lu factorise(tpu_build *b, tpu_val x, bool pivot) {
  lu f = {x, TPU_POISON, TPU_POISON, TPU_POISON};
  if (tpu_build_failed(b)) return f;
  int64_t batch = tpu_dim_of(b, x, 0), m = tpu_dim_of(b, x, 1), n = tpu_dim_of(b, x, 2), k = m < n ? m : n;
  int64_t pivot_dims[2] = {batch, k}, perm_dims[2] = {batch, m}, last[1] = {1};
  f.pivots = tpu_full(b, TPU_I32, 2, pivot_dims, 0);
  f.perm = tpu_iota(b, TPU_I32, 2, perm_dims, 1);
  f.info = tpu_full(b, TPU_I32, 1, &batch, 0);
  if (batch * k == 0) return f;
  lu_loop loop = {k, pivot};
  tpu_val init[4] = {tpu_scalar_i(b, TPU_I32, 0), x, f.pivots, f.perm}, out[4];
  tpu_while(b, 4, init, more, eliminate, &loop, out);
  f.factors = out[1];
  f.pivots = out[2];
  f.perm = out[3];
  tpu_val diagonal = linalg_diagonal(b, f.factors), places = tpu_iota(b, TPU_I32, 2, pivot_dims, 1);
  tpu_val bad = tpu_compare(b, TPU_EQ, diagonal, tpu_full_like(b, diagonal, 0)), none = tpu_full_like(b, places, (double)k);
  tpu_val first = reduce_over(b, TPU_MONOID_MIN, tpu_select(b, bad, places, none), 1, last);
  tpu_val clean = tpu_compare(b, TPU_EQ, first, tpu_full_like(b, first, (double)k));
  f.info = tpu_select(b, clean, tpu_full_like(b, first, 0), binary_c(b, TPU_HLO_ADD, first, 1));
  return f;
}

/* Carried: k, perm, pivots. */
static void apply_pivot(tpu_build *b, const tpu_val *params, tpu_val *out_returns, void *arg) {
  (void)arg;
  tpu_val k = params[0], perm = params[1], p = binary_c(b, TPU_HLO_SUBTRACT, at_dim(b, params[2], 1, k), 1);
  int64_t last[1] = {1};
  tpu_val rows = tpu_iota(b, TPU_I32, 2, tpu_dims_of(b, perm), 1);
  tpu_val on_p = tpu_compare(b, TPU_EQ, rows, spread(b, p, rows, 0, 0)),
          on_k = tpu_compare(b, TPU_EQ, rows, tpu_broadcast_like(b, k, rows));
  tpu_val at_p = reduce_over(b, TPU_MONOID_ADD, tpu_select(b, on_p, perm, tpu_full_like(b, perm, 0)), 1, last);
  out_returns[0] = binary_c(b, TPU_HLO_ADD, k, 1);
  out_returns[1] = exchange(b, perm, spread(b, at_dim(b, perm, 1, k), perm, 0, 0), spread(b, at_p, perm, 0, 0), on_k, on_p);
  out_returns[2] = params[2];
}

/* pivots i32 [B, K] -> the permutation of M rows they stand for. */
static tpu_val permutation(tpu_build *b, tpu_val pivots, int64_t m) {
  int64_t dims[2] = {tpu_dim_of(b, pivots, 0), m};
  tpu_val perm = tpu_iota(b, TPU_I32, 2, dims, 1);
  if (tpu_numel_of(b, pivots) == 0) return perm;
  lu_loop loop = {tpu_dim_of(b, pivots, 1), true};
  tpu_val init[3] = {tpu_scalar_i(b, TPU_I32, 0), perm, tpu_convert(b, pivots, TPU_I32)}, out[3];
  tpu_while(b, 3, init, more, apply_pivot, &loop, out);
  return out[1];
}

/* P [B, M, M] with A = P L U. */
static tpu_val permutation_matrix(tpu_build *b, tpu_val perm, tpu_dtype dtype) {
  int64_t m = tpu_dim_of(b, perm, 1), dims[3] = {tpu_dim_of(b, perm, 0), m, m};
  tpu_val rows = tpu_iota(b, TPU_I32, 3, dims, 1);
  return tpu_convert(b, tpu_compare(b, TPU_EQ, rows, spread(b, perm, rows, 0, 2)), dtype);
}

/* y's rows in the order perm: [B, M, R]. */
static tpu_val permute_rows(tpu_build *b, tpu_val y, tpu_val perm) {
  return tpu_numel_of(b, y) ? linalg_take_rows(b, y, perm) : y;
}

/* A^-1 y. */
static tpu_val solve(tpu_build *b, tpu_val factors, tpu_val perm, tpu_val y) {
  y = linalg_triangular(b, factors, permute_rows(b, y, perm), true, true, true, 0);
  return linalg_triangular(b, factors, y, true, false, false, 0);
}

/* (A^T)^-1 y or (A^H)^-1 y. */
static tpu_val solve_transposed(tpu_build *b, tpu_val factors, tpu_val perm, tpu_val y, int transpose) {
  y = linalg_triangular(b, factors, y, true, false, false, transpose);
  y = linalg_triangular(b, factors, y, true, true, true, transpose);
  /* Row i goes to row perm[i]. */
  int64_t m = tpu_dim_of(b, perm, 1), dims[3] = {tpu_dim_of(b, perm, 0), m, m}, last[1] = {2};
  tpu_val from = tpu_iota(b, TPU_I32, 3, dims, 2), to = tpu_iota(b, TPU_I32, 3, dims, 1);
  tpu_val hit = tpu_compare(b, TPU_EQ, spread(b, perm, from, 0, 2), to);
  tpu_val inverse = reduce_over(b, TPU_MONOID_ADD, tpu_select(b, hit, from, tpu_full_like(b, from, 0)), 1, last);
  return permute_rows(b, y, inverse);
}

/* linalg_lu_factor_ex(A, *, pivot, check_errors) -> LU, pivots, info */
void lower_lu_factor(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  if (!linalg_check(b, x, "torch.lu_factor", false)) return;
  lu f = factorise(b, linalg_flatten(b, x), arg_bool(b, a, 1));
  linalg_column_major(b, &o->out[0], linalg_restore(b, f.factors, x, 2));
  o->out[1].val = linalg_restore(b, f.pivots, x, 2);
  o->out[2].val = linalg_restore(b, f.info, x, 2);
}

/* L [B, M, K] and U [B, K, N]. */
static void unpack(tpu_build *b, tpu_val factors, tpu_val *out_l, tpu_val *out_u) {
  int64_t m = tpu_dim_of(b, factors, 1), n = tpu_dim_of(b, factors, 2), k = m < n ? m : n;
  *out_u = linalg_triangle(b, tpu_slice_dim(b, factors, 1, 0, k, 1), false);
  tpu_val lower = linalg_triangle(b, tpu_slice_dim(b, factors, 2, 0, k, 1), true), eye = linalg_eye(b, lower, m, k);
  *out_l = tpu_select(b, tpu_convert(b, eye, TPU_BOOL), eye, lower);
}

/* linalg_lu(A, *, pivot) -> P, L, U */
void lower_lu(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0), l, u;
  bool pivot = arg_bool(b, a, 1);
  if (!linalg_check(b, x, "linalg.lu", false)) return;
  lu f = factorise(b, linalg_flatten(b, x), pivot);
  unpack(b, f.factors, &l, &u);
  int64_t none = 0;
  o->out[0].val = pivot ? linalg_restore(b, permutation_matrix(b, f.perm, tpu_dtype_of(b, x)), x, 2)
                        : tpu_full(b, tpu_dtype_of(b, x), 1, &none, 0);
  o->out[1].val = linalg_restore(b, l, x, 2);
  o->out[2].val = linalg_restore(b, u, x, 2);
}

static tpu_val flat_pivots(tpu_build *b, tpu_val pivots) {
  int rank = tpu_rank_of(b, pivots);
  int64_t k = tpu_dim_of(b, pivots, rank - 1), dims[2] = {1, k};
  for (int i = 0; i < rank - 1; i++) dims[0] *= tpu_dim_of(b, pivots, i);
  return tpu_reshape(b, pivots, 2, dims);
}

/* lu_unpack(LU_data, LU_pivots, unpack_data, unpack_pivots) -> P, L, U; what is not wanted is empty. */
void lower_lu_unpack(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0), pivots = arg_tensor(b, a, 1), l, u;
  bool data = arg_bool(b, a, 2), with_pivots = arg_bool(b, a, 3);
  if (!linalg_check(b, x, "torch.lu_unpack", false)) return;
  if (with_pivots && tpu_dtype_of(b, pivots) != TPU_I32) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "torch.lu_unpack: LU_pivots is expected to be a contiguous tensor of torch.int32 dtype.\nNote: this function is "
             "intended to be used "
             "with the output produced by torch.linalg.lu_factor");
    return;
  }
  int64_t none = 0;
  tpu_val flat = linalg_flatten(b, x), empty = tpu_full(b, tpu_dtype_of(b, x), 1, &none, 0);
  o->out[0].val = o->out[1].val = o->out[2].val = empty;
  if (data) {
    unpack(b, flat, &l, &u);
    o->out[1].val = linalg_restore(b, l, x, 2);
    o->out[2].val = linalg_restore(b, u, x, 2);
  }
  if (!with_pivots) return;
  tpu_val perm = permutation(b, flat_pivots(b, pivots), tpu_dim_of(b, flat, 1));
  o->out[0].val = linalg_restore(b, permutation_matrix(b, perm, tpu_dtype_of(b, x)), x, 2);
}

/* linalg_lu_solve(LU, pivots, B, *, left, adjoint) */
void lower_lu_solve(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val factors = arg_tensor(b, a, 0), pivots = arg_tensor(b, a, 1), y = arg_tensor(b, a, 2);
  bool left = arg_bool(b, a, 3), adjoint = arg_bool(b, a, 4);
  if (!linalg_check(b, factors, "torch.linalg.lu_solve", true) || tpu_build_failed(b)) return;
  /* The pivots of a matrix are a column to broadcast with. */
  tpu_val column = tpu_unsqueeze(b, pivots, tpu_rank_of(b, pivots));
  linalg_broadcast(b, &factors, &y);
  linalg_broadcast(b, &column, &y);
  if (tpu_build_failed(b)) return;
  tpu_val f = linalg_flatten(b, factors), flat = linalg_flatten(b, y);
  tpu_val perm = permutation(b, flat_pivots(b, tpu_squeeze(b, column, tpu_rank_of(b, column) - 1)), tpu_dim_of(b, f, 1));
  if (left) {
    flat = adjoint ? solve_transposed(b, f, perm, flat, 2) : solve(b, f, perm, flat);
  } else if (adjoint) { /* X A^H = B: conj(A) X^T = B^T */
    flat = linalg_transpose(b, linalg_conj(b, solve(b, f, perm, linalg_adjoint(b, flat))));
  } else { /* A^T X^T = B^T */
    flat = linalg_transpose(b, solve_transposed(b, f, perm, linalg_transpose(b, flat), 1));
  }
  tpu_val result = linalg_restore(b, flat, y, 2);
  if (left)
    linalg_column_major(b, &o->out[0], result);
  else
    o->out[0].val = result;
}

/* _linalg_solve_ex(A, B, *, left, check_errors) -> result, LU, pivots, info. B may be a batch of vectors. */
void lower_solve(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0), y = arg_tensor(b, a, 1);
  bool left = arg_bool(b, a, 2);
  if (!linalg_check(b, x, "linalg.solve", true)) return;
  int rank = tpu_rank_of(b, x), rank_y = tpu_rank_of(b, y);
  bool vector = rank_y == 1 || rank_y == rank - 1;
  for (int i = 0; vector && rank_y > 1 && i < rank_y; i++) vector = tpu_dim_of(b, x, i) == tpu_dim_of(b, y, i);
  lu f = factorise(b, linalg_flatten(b, x), true);
  linalg_column_major(b, &o->out[1], linalg_restore(b, f.factors, x, 2));
  o->out[2].val = linalg_restore(b, f.pivots, x, 2);
  o->out[3].val = linalg_restore(b, f.info, x, 2);
  tpu_val matrix = vector ? tpu_unsqueeze(b, y, rank_y) : y;
  if (vector && !left) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "linalg.solve: Vector broadcasting of the left hand side is not supported for left=False. In this case "
             "linalg.solve is equivalent to B / A.squeeze(-1)");
    return;
  }
  int64_t n = tpu_dim_of(b, x, rank - 1);
  if (tpu_rank_of(b, matrix) < 2 || tpu_dim_of(b, matrix, tpu_rank_of(b, matrix) - (left ? 2 : 1)) != n) {
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "linalg.solve: Incompatible shapes of A and B for the equation %s (%" PRId64 "x%" PRId64 " and %" PRId64 "x%" PRId64
             ")",
             left ? "AX = B" : "XA = B", n, n, tpu_dim_of(b, matrix, tpu_rank_of(b, matrix) - 2),
             tpu_dim_of(b, matrix, tpu_rank_of(b, matrix) - 1));
    return;
  }
  tpu_val factors = o->out[1].val, column = tpu_unsqueeze(b, linalg_restore(b, f.perm, x, 2), rank - 1);
  linalg_broadcast(b, &factors, &matrix);
  linalg_broadcast(b, &column, &matrix);
  if (tpu_build_failed(b)) return;
  tpu_val flat = linalg_flatten(b, matrix), wide = linalg_flatten(b, factors);
  tpu_val perm = flat_pivots(b, tpu_squeeze(b, column, tpu_rank_of(b, column) - 1));
  if (!left) flat = linalg_transpose(b, flat);
  flat = left ? solve(b, wide, perm, flat) : solve_transposed(b, wide, perm, flat, 1);
  if (!left) flat = linalg_transpose(b, flat);
  tpu_val result = linalg_restore(b, flat, matrix, 2);
  if (vector) result = tpu_squeeze(b, result, tpu_rank_of(b, result) - 1);
  if (left)
    linalg_column_major(b, &o->out[0], result);
  else
    o->out[0].val = result;
}

/* linalg_inv_ex(A, *, check_errors) -> inverse, info */
void lower_inverse(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  if (!linalg_check(b, x, "linalg.inv", true)) return;
  tpu_val flat = linalg_flatten(b, x);
  lu f = factorise(b, flat, true);
  int64_t n = tpu_dim_of(b, flat, 1);
  linalg_column_major(b, &o->out[0], linalg_restore(b, solve(b, f.factors, f.perm, linalg_eye(b, flat, n, n)), x, 2));
  o->out[1].val = linalg_restore(b, f.info, x, 2);
}

/* -1 for an odd number of exchanges, else 1: [B]. */
static tpu_val parity(tpu_build *b, tpu_val pivots, tpu_dtype dtype) {
  int64_t last[1] = {1};
  tpu_val own = binary_c(b, TPU_HLO_ADD, tpu_iota(b, TPU_I32, 2, tpu_dims_of(b, pivots), 1), 1);
  tpu_val odd = reduce_over(b, TPU_MONOID_XOR, tpu_convert(b, tpu_compare(b, TPU_NE, pivots, own), TPU_I32), 1, last);
  return tpu_convert(b, tpu_sub(b, tpu_full_like(b, odd, 1), binary_c(b, TPU_HLO_MULTIPLY, odd, 2)), dtype);
}

/* PyTorch factorises the transpose of a contiguous real matrix for determinants, to save LAPACK a copy, and the gradients
 * rely on it (aten/src/ATen/native/BatchLinearAlgebra.cpp, use_A_T). */
static bool takes_transpose(const tpu_operand *x) {
  int64_t expected = 1;
  if (tpu_is_complex(x->dtype)) return false;
  for (int d = x->rank - 1; d >= 0; d--) {
    if (x->sizes[d] == 0) return true;
    if (x->sizes[d] != 1 && x->strides[d] != expected) return false;
    expected *= x->sizes[d];
  }
  return true;
}

/* _linalg_det(A) -> result, LU, pivots; _linalg_slogdet(A) -> sign, logabsdet, LU, pivots. rule: 1 is the latter. */
void lower_det(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  bool log = a->row->rule == 1;
  if (!linalg_check(b, x, log ? "linalg.slogdet" : "linalg.det", true)) return;
  int64_t last[1] = {1};
  tpu_dtype dtype = tpu_dtype_of(b, x);
  bool transposed = takes_transpose(arg_operand(b, a, 0));
  lu f = factorise(b, linalg_flatten(b, transposed ? linalg_transpose(b, x) : x), true);
  tpu_val diagonal = linalg_diagonal(b, f.factors), sign = parity(b, f.pivots, dtype);
  int at = 0;
  if (log) {
    tpu_val size = tpu_unary(b, TPU_HLO_ABS, diagonal), units = tpu_unary(b, TPU_HLO_SIGN, diagonal);
    sign = tpu_mul(b, sign, reduce_over(b, TPU_MONOID_MUL, units, 1, last));
    o->out[at++].val = linalg_restore(b, sign, x, 2);
    o->out[at++].val = linalg_restore(b, reduce_over(b, TPU_MONOID_ADD, tpu_log(b, size), 1, last), x, 2);
  } else {
    o->out[at++].val = linalg_restore(b, tpu_mul(b, sign, reduce_over(b, TPU_MONOID_MUL, diagonal, 1, last)), x, 2);
  }
  linalg_column_major(b, &o->out[at++], linalg_restore(b, f.factors, x, 2));
  o->out[at].val = linalg_restore(b, f.pivots, x, 2);
}
