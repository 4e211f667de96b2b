/* Row: singular values, by one-sided Jacobi rotations (Hestenes): columns of the matrix are turned against each other until all
 * are orthogonal; their lengths are the singular values, and the rotations give the right singular vectors. A round turns n/2
 * pairs at once, and n - 1 rounds meet every pair (a round-robin tournament). Accurate to the last bits for small singular values
 * too. Source: Golub and Van Loan, Matrix Computations, 8.6.3. */
#include <math.h>

#include "aten/linalg.h"
#include "aten/reduce.h"
#include "aten/shape.h"

#define MOST_SWEEPS 40

/* State of the loop. Columns are kept as rows: W^T [B, 2h, M], V^T [B, 2h, 2h]. */
enum { ROUND, SWEEP, WORST_NOW, WORST, W, V, PARTS };

static double epsilon(tpu_dtype real) { return real == TPU_F64 ? 0x1p-52 : 0x1p-23; }

static tpu_val part(tpu_build *b, tpu_val x, int64_t from, int64_t to) {
  int64_t starts[3] = {0, from, 0}, limits[3] = {tpu_dim_of(b, x, 0), to, tpu_dim_of(b, x, 2)};
  return tpu_slice(b, x, starts, limits, NULL);
}

static tpu_val real_of(tpu_build *b, tpu_val x) { return tpu_is_complex(tpu_dtype_of(b, x)) ? tpu_unary(b, TPU_HLO_REAL, x) : x; }
static tpu_val like_value(tpu_build *b, tpu_val real, tpu_val like) { return tpu_convert(b, real, tpu_dtype_of(b, like)); }

/* sum over the last dim, kept with size 1, of conj(x) y. */
static tpu_val inner(tpu_build *b, tpu_val x, tpu_val y) {
  int64_t axes[1] = {2};
  return tpu_unsqueeze(b, reduce_over(b, TPU_MONOID_ADD, tpu_mul(b, linalg_conj(b, x), y), 1, axes), 2);
}

static tpu_val greatest(tpu_build *b, tpu_val x) {
  int64_t axes[3] = {0, 1, 2};
  return tpu_reduce(b, TPU_MONOID_MAX, x, tpu_scalar(b, tpu_dtype_of(b, x), 0), 3, axes);
}

static tpu_val spread(tpu_build *b, tpu_val x, tpu_val like) { return tpu_broadcast_to(b, x, 3, tpu_dims_of(b, like)); }

/* (c x - s y, s x + c y) */
static void turn(tpu_build *b, tpu_val c, tpu_val s, tpu_val x, tpu_val y, tpu_val *out_x, tpu_val *out_y) {
  c = spread(b, like_value(b, c, x), x);
  s = spread(b, like_value(b, s, x), x);
  *out_x = tpu_sub(b, tpu_mul(b, c, x), tpu_mul(b, s, y));
  *out_y = tpu_add(b, tpu_mul(b, s, x), tpu_mul(b, c, y));
}

/* The next round's pairs are rows (i, h + i) again: all but the first row move on by one place of a circle. */
static tpu_val seat(tpu_build *b, tpu_val top, tpu_val bottom) {
  int64_t h = tpu_dim_of(b, top, 1);
  if (h == 1) return tpu_concat(b, 2, (tpu_val[2]){top, bottom}, 1);
  tpu_val parts[5] = {part(b, top, 0, 1), part(b, bottom, 0, 1), part(b, top, 1, h - 1), part(b, bottom, 1, h),
                      part(b, top, h - 1, h)};
  if (h == 2) { /* no middle */
    parts[2] = parts[3];
    parts[3] = parts[4];
    return tpu_concat(b, 4, parts, 1);
  }
  return tpu_concat(b, 5, parts, 1);
}

static tpu_val unfinished(tpu_build *b, const tpu_val *v, void *arg) {
  tpu_dtype real = tpu_dtype_of(b, v[WORST]);
  tpu_val rough = tpu_compare(b, TPU_GT, v[WORST], tpu_scalar(b, real, *(const double *)arg));
  return tpu_and(b, rough, tpu_compare(b, TPU_LT, v[SWEEP], tpu_scalar_i(b, TPU_I32, MOST_SWEEPS)));
}

static void next_round(tpu_build *b, const tpu_val *v, tpu_val *out, void *arg) {
  (void)arg;
  int64_t n = tpu_dim_of(b, v[W], 1), h = n / 2;
  tpu_val x = part(b, v[W], 0, h), y = part(b, v[W], h, n), p = part(b, v[V], 0, h), q = part(b, v[V], h, n);
  tpu_val xx = real_of(b, inner(b, x, x)), yy = real_of(b, inner(b, y, y)), xy = inner(b, x, y);
  tpu_dtype real = tpu_dtype_of(b, xx);
  tpu_val size = tpu_unary(b, TPU_HLO_ABS, xy), one = tpu_full_like(b, size, 1), zero = tpu_full_like(b, size, 0);
  tpu_val scale = tpu_mul(b, tpu_unary(b, TPU_HLO_SQRT, xx), tpu_unary(b, TPU_HLO_SQRT, yy));
  tpu_val skew = tpu_compare(b, TPU_GT, size, tpu_mul(b, scale, tpu_full_like(b, scale, epsilon(real) / 4)));
  tpu_val safe = tpu_select(b, skew, size, one);
  tpu_val off = tpu_select(b, skew, tpu_div(b, size, tpu_select(b, skew, scale, one)), zero);
  if (tpu_is_complex(tpu_dtype_of(b, xy))) { /* y's phase is turned so that the product is real */
    tpu_val phase = tpu_div(b, linalg_conj(b, xy), like_value(b, safe, xy)), plain = tpu_full_like(b, phase, 1);
    phase = tpu_select(b, skew, phase, plain);
    y = tpu_mul(b, y, spread(b, phase, y));
    q = tpu_mul(b, q, spread(b, phase, q));
  }
  tpu_val zeta = tpu_div(b, tpu_sub(b, yy, xx), tpu_mul(b, safe, tpu_full_like(b, safe, 2)));
  tpu_val root = tpu_unary(b, TPU_HLO_SQRT, tpu_add(b, tpu_mul(b, zeta, zeta), one));
  tpu_val t = tpu_div(b, one, tpu_add(b, tpu_unary(b, TPU_HLO_ABS, zeta), root));
  t = tpu_select(b, tpu_compare(b, TPU_LT, zeta, zero), tpu_neg(b, t), t);
  if (!tpu_is_complex(tpu_dtype_of(b, xy))) t = tpu_select(b, tpu_compare(b, TPU_LT, xy, zero), tpu_neg(b, t), t);
  t = tpu_select(b, skew, t, zero);
  tpu_val c = tpu_div(b, one, tpu_unary(b, TPU_HLO_SQRT, tpu_add(b, tpu_mul(b, t, t), one))), s = tpu_mul(b, c, t);
  turn(b, c, s, x, y, &x, &y);
  turn(b, c, s, p, q, &p, &q);

  tpu_val round = tpu_add(b, v[ROUND], tpu_scalar_i(b, TPU_I32, 1)), worst = tpu_max(b, v[WORST_NOW], greatest(b, off));
  tpu_val swept = tpu_compare(b, TPU_GE, round, tpu_scalar_i(b, TPU_I32, n - 1));
  out[ROUND] = tpu_select(b, swept, tpu_scalar_i(b, TPU_I32, 0), round);
  out[SWEEP] = tpu_select(b, swept, tpu_add(b, v[SWEEP], tpu_scalar_i(b, TPU_I32, 1)), v[SWEEP]);
  out[WORST] = tpu_select(b, swept, worst, v[WORST]);
  out[WORST_NOW] = tpu_select(b, swept, tpu_scalar(b, real, 0), worst);
  out[W] = seat(b, x, y);
  out[V] = seat(b, p, q);
}

/* Of square x [B, N, N], N > 0: U^T (without zero rows made unit), S descending, V^T; so x = U S V^H. */
static void jacobi(tpu_build *b, tpu_val x, tpu_val *out_ut, tpu_val *out_s, tpu_val *out_vt) {
  tpu_dtype dtype = tpu_dtype_of(b, x), real = tpu_dtype_real(dtype);
  int64_t n = tpu_dim_of(b, x, 2), even = n + n % 2, lo[3] = {0}, hi[3] = {0, even - n, 0}, axes[1] = {2};
  tpu_val w = tpu_pad(b, linalg_transpose(b, x), tpu_scalar(b, dtype, 0), lo, hi, NULL);
  tpu_val init[PARTS] = {
      tpu_scalar_i(b, TPU_I32, 0), tpu_scalar_i(b, TPU_I32, 0), tpu_scalar(b, real, 0), tpu_scalar(b, real, 1), w,
      linalg_eye(b, x, even, even)};
  tpu_val out[PARTS];
  for (int i = 0; i < PARTS; i++) out[i] = TPU_POISON;
  double tolerance = 4 * epsilon(real);
  tpu_while(b, PARTS, init, unfinished, next_round, &tolerance, out);

  tpu_val size = tpu_unary(b, TPU_HLO_SQRT, real_of(b, inner(b, out[W], out[W])));
  size = reduce_over(b, TPU_MONOID_ADD, size, 1, axes); /* [B, even] */
  if (even > n) {                                       /* the row that was added comes last */
    int64_t from[3] = {0, 0, n}, to[3] = {tpu_dim_of(b, x, 0), even, even};
    tpu_val mark = reduce_over(b, TPU_MONOID_ADD, real_of(b, tpu_slice(b, out[V], from, to, NULL)), 1, axes);
    tpu_val added = tpu_compare(b, TPU_GT, tpu_unary(b, TPU_HLO_ABS, mark), tpu_full_like(b, mark, 0.5));
    size = tpu_select(b, added, tpu_full_like(b, size, -1), size);
  }
  tpu_val top[2] = {TPU_POISON, TPU_POISON};
  tpu_top_k(b, size, n, true, top);
  *out_s = top[0];
  int64_t starts[3] = {0}, limits[3] = {tpu_dim_of(b, x, 0), n, n};
  *out_vt = tpu_slice(b, linalg_take_rows(b, out[V], top[1]), starts, limits, NULL);
  tpu_val u = linalg_take_rows(b, out[W], top[1]);
  tpu_val length = tpu_unsqueeze(b, top[0], 2), zero = tpu_compare(b, TPU_EQ, length, tpu_full_like(b, length, 0));
  length = tpu_select(b, zero, tpu_full_like(b, length, 1), length);
  *out_ut = tpu_div(b, u, spread(b, like_value(b, length, u), u));
}

/* Orthonormal columns that continue those of u [B, N, N], whose last ones may be zero. */
static tpu_val completed(tpu_build *b, tpu_val u) {
  tpu_val q = TPU_POISON, r = TPU_POISON;
  linalg_qr(b, u, true, &q, &r);
  tpu_val phase = linalg_diagonal(b, r), size = tpu_unary(b, TPU_HLO_ABS, phase);
  tpu_val kept = tpu_compare(b, TPU_GT, size, tpu_full_like(b, size, 0.5));
  tpu_val one = tpu_full_like(b, phase, 1);
  phase = tpu_select(b, kept, tpu_div(b, phase, like_value(b, tpu_select(b, kept, size, tpu_full_like(b, size, 1)), phase)), one);
  return tpu_mul(b, q, spread(b, tpu_unsqueeze(b, phase, 1), q));
}

/* x [B, M, N] with M >= N > 0: U [B, M, N] (or [B, M, M]), S, V^H. */
static void tall_svd(tpu_build *b, tpu_val x, bool vectors, bool full, tpu_val *out_u, tpu_val *out_s, tpu_val *out_vh) {
  int64_t batch = tpu_dim_of(b, x, 0), m = tpu_dim_of(b, x, 1), n = tpu_dim_of(b, x, 2);
  tpu_val q = TPU_POISON, r = x, ut = TPU_POISON, vt = TPU_POISON;
  if (m > n) {
    linalg_qr(b, x, full, vectors ? &q : NULL, &r);
    r = part(b, r, 0, n);
  }
  jacobi(b, r, &ut, out_s, &vt);
  if (!vectors) return;
  tpu_val u = completed(b, linalg_transpose(b, ut));
  if (m > n) {
    int64_t starts[3] = {0}, limits[3] = {batch, m, n}, rest_starts[3] = {0, 0, n}, rest_limits[3] = {batch, m, m};
    tpu_val first = full ? tpu_slice(b, q, starts, limits, NULL) : q;
    u = tpu_matmul(b, first, u);
    if (full) u = tpu_concat(b, 2, (tpu_val[]){u, tpu_slice(b, q, rest_starts, rest_limits, NULL)}, 2);
  }
  *out_u = u;
  *out_vh = linalg_conj(b, vt);
}

/* _linalg_svd(A, full_matrices, compute_uv, *, driver) -> U [.., M, K or M], S [.., K], V^H [.., K or N, N]; K = min(M, N) */
void lower_svd(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  bool full = arg_bool(b, a, 1), vectors = arg_bool(b, a, 2);
  if (!linalg_check(b, x, "linalg.svd", false)) return;
  int rank = tpu_rank_of(b, x);
  tpu_dtype dtype = tpu_dtype_of(b, x), real = tpu_dtype_real(dtype);
  tpu_val flat = linalg_flatten(b, x);
  int64_t batch = tpu_dim_of(b, flat, 0), m = tpu_dim_of(b, x, rank - 2), n = tpu_dim_of(b, x, rank - 1), k = m < n ? m : n,
          none = 0;
  tpu_val u, s, vh;
  if (batch * k == 0) {
    int64_t s_dims[2] = {batch, k};
    u = linalg_eye(b, flat, m, full ? m : k);
    s = tpu_full(b, real, 2, s_dims, 0);
    vh = linalg_eye(b, flat, full ? n : k, n);
  } else if (m >= n) {
    tall_svd(b, flat, vectors, full, &u, &s, &vh);
  } else {
    tall_svd(b, linalg_adjoint(b, flat), vectors, full, &vh, &s, &u);
    if (vectors) {
      u = linalg_adjoint(b, u);
      vh = linalg_adjoint(b, vh);
    }
  }
  o->out[1].val = linalg_restore(b, s, x, 2);
  if (vectors) {
    linalg_column_major(b, &o->out[0], linalg_restore(b, u, x, 2));
    linalg_column_major(b, &o->out[2], linalg_restore(b, vh, x, 2));
  } else {
    o->out[0].val = o->out[2].val = tpu_full(b, dtype, 1, &none, 0);
  }
}
