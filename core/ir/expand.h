/* Composite nodes as StableHLO, one form per kind of target. Private to expand*.c. Thread-compatible.
 *
 * The exact meaning of each composite is the same in all forms; the forms differ in speed.
 */
#ifndef TPU_IR_EXPAND_H
#define TPU_IR_EXPAND_H

#include "ir/build.h"

/* Inclusive scan of x along dim with op (ADD .. OR). Floating sums may associate differently per target; MAX and MIN propagate
 * NaN. */
tpu_val tpu_expand_cumulative(tpu_build *b, tpu_monoid op, tpu_val x, int dim, bool reverse);

/* The k largest or smallest along the last dim of x [.., n]: values [.., k] in order, and their i32 indices. NaN is the
 * largest, -0 equals 0, equal values keep the order of their indices. Values are x's own elements, bit by bit. */
void tpu_expand_top_k(tpu_build *b, tpu_val x, int64_t k, bool largest, tpu_val out[2]);

/* A maximum along the last dim as a few wide ones, where the target's loop over a row is slow. False: not here, nothing was
 * built. */
bool tpu_expand_row_max(tpu_build *b, tpu_val x, tpu_val init, tpu_val *out);

/* Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) of state = (seed, offset).
 * A block is philox(key = (low, high half of seed), counter = (low, high half of offset + i, 0, 0)): four words.
 * U32, n elements, m = ceil(n / 4) blocks: element e in row-major order is word e / m of block i = e % m.
 * U64, n elements, m = ceil(n / 2) blocks: element e is words 2 (e / m) (low half) and 2 (e / m) + 1 of block e % m.
 * So a draw of n elements takes m blocks, and the next may start at offset + m. */
tpu_val tpu_expand_random_bits(tpu_build *b, tpu_val state, tpu_dtype dtype, int rank, const int64_t *dims);

#endif
