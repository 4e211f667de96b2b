/* What the rows of linear algebra share. A batch of matrices is one value [B, M, N] inside these functions, whatever the rank of
 * the operand was. Thread-compatible. */
#ifndef TPU_ATEN_LINALG_H
#define TPU_ATEN_LINALG_H

#include "aten/lower.h"

/* False and a failure, in PyTorch's words, unless x is a batch of (square) matrices of a float or complex dtype. */
bool linalg_check(tpu_build *b, tpu_val x, const char *function, bool square);
/* [.., M, N] -> [B, M, N]. */
tpu_val linalg_flatten(tpu_build *b, tpu_val x);
/* x [B, tail..] with the batch dims of `like`, which has n more dims than its batch. */
tpu_val linalg_restore(tpu_build *b, tpu_val x, tpu_val like, int n);
/* Sets out to val with column-major matrices, as LAPACK wants them and PyTorch keeps them. */
void linalg_column_major(tpu_build *b, tpu_out *out, tpu_val val);
/* x [.., M, K] and y [.., K, N] (or any matrices) with common batch dims. */
void linalg_broadcast(tpu_build *b, tpu_val *x, tpu_val *y);

tpu_val linalg_transpose(tpu_build *b, tpu_val x); /* the last two dims */
tpu_val linalg_conj(tpu_build *b, tpu_val x);      /* of a real value: itself */
tpu_val linalg_adjoint(tpu_build *b, tpu_val x);
/* 1 on the diagonal: [.., rows, columns] with the batch dims of `like`. */
tpu_val linalg_eye(tpu_build *b, tpu_val like, int64_t rows, int64_t columns);
/* x where column - row is <= 0 (lower) or >= 0, else 0. */
tpu_val linalg_triangle(tpu_build *b, tpu_val x, bool lower);
tpu_val linalg_diagonal(tpu_build *b, tpu_val x); /* [.., M, N] -> [.., min(M, N)] */
/* x[b, index[b, i], :]: rows of [B, M, N] by i32 index [B, K] -> [B, K, N]. */
tpu_val linalg_take_rows(tpu_build *b, tpu_val x, tpu_val index);
/* x^-1 y for a triangular x; nothing to do for empty matrices. transpose: 0 no, 1 T, 2 H. */
tpu_val linalg_triangular(tpu_build *b, tpu_val x, tpu_val y, bool left, bool lower, bool unit, int transpose);

/* Reduced (or complete) QR of [B, M, N]: Q [B, M, K], R [B, K, N], K = min(M, N) (or M). out_q NULL: not wanted. */
void linalg_qr(tpu_build *b, tpu_val x, bool complete, tpu_val *out_q, tpu_val *out_r);

#endif
