#include "ir/expand.h"

enum { ROUNDS = 10 };
static const int64_t multiplier[2] = {INT64_C(0xD2511F53), INT64_C(0xCD9E8D57)};
static const int64_t weyl[2] = {INT64_C(0x9E3779B9), INT64_C(0xBB67AE85)};
static const int64_t low_half = INT64_C(0xFFFFFFFF);

typedef struct philox {
  tpu_val c[4], key[2]; /* arrays of one shape; scalars */
} philox;

static tpu_val constant(tpu_build *b, tpu_val like, int64_t v) {
  tpu_type t = tpu_type_of(b, like);
  return tpu_full_i(b, t.dtype, t.rank, t.dims, v);
}
static tpu_val mask(tpu_build *b, tpu_val x) { return tpu_and(b, x, constant(b, x, low_half)); }
static tpu_val shift_right(tpu_build *b, tpu_val x, int64_t bits) {
  return tpu_binary(b, TPU_HLO_SHIFT_RIGHT_LOGIC, x, constant(b, x, bits));
}
static tpu_val xor3(tpu_build *b, tpu_val x, tpu_val y, tpu_val scalar) {
  return tpu_binary(b, TPU_HLO_XOR, tpu_binary(b, TPU_HLO_XOR, x, y), tpu_broadcast_like(b, scalar, x));
}

/* Words in U64 lanes: a product needs no second multiplication. */
static void product_wide(tpu_build *b, tpu_val x, int64_t m, tpu_val *out_high, tpu_val *out_low) {
  tpu_val p = tpu_mul(b, x, constant(b, x, m));
  *out_high = shift_right(b, p, 32);
  *out_low = mask(b, p);
}

/* Words in U32 lanes: the high half from 16-bit parts, for machines without wide integers. */
static void product_narrow(tpu_build *b, tpu_val x, int64_t m, tpu_val *out_high, tpu_val *out_low) {
  tpu_val m_low = constant(b, x, m & 0xFFFF), m_high = constant(b, x, m >> 16), half = constant(b, x, 0xFFFF);
  tpu_val low = tpu_and(b, x, half), high = shift_right(b, x, 16);
  tpu_val lh = tpu_mul(b, low, m_high), hl = tpu_mul(b, high, m_low);
  tpu_val mid = tpu_add(b, shift_right(b, tpu_mul(b, low, m_low), 16), tpu_add(b, tpu_and(b, lh, half), tpu_and(b, hl, half)));
  tpu_val carry = tpu_add(b, shift_right(b, lh, 16), tpu_add(b, shift_right(b, hl, 16), shift_right(b, mid, 16)));
  *out_high = tpu_add(b, tpu_mul(b, high, m_high), carry);
  *out_low = tpu_mul(b, x, constant(b, x, m));
}

static void run_rounds(tpu_build *b, philox *p, bool wide) {
  for (int r = 0; r < ROUNDS; r++) {
    tpu_val high[2], low[2];
    for (int i = 0; i < 2; i++) (wide ? product_wide : product_narrow)(b, p->c[2 * i], multiplier[i], &high[i], &low[i]);
    tpu_val c0 = xor3(b, high[1], p->c[1], p->key[0]), c2 = xor3(b, high[0], p->c[3], p->key[1]);
    p->c[0] = c0, p->c[1] = low[1], p->c[2] = c2, p->c[3] = low[0];
    for (int i = 0; i < 2; i++) {
      p->key[i] = tpu_add(b, p->key[i], constant(b, p->key[i], weyl[i]));
      if (wide) p->key[i] = mask(b, p->key[i]);
    }
  }
}

/* Blocks `block` (U64) of the state, as lanes of U64 or U32. */
static philox blocks(tpu_build *b, tpu_val state, tpu_val block, bool wide) {
  tpu_val seed = tpu_reshape(b, tpu_slice_dim(b, state, 0, 0, 1, 1), 0, NULL);
  tpu_val offset = tpu_reshape(b, tpu_slice_dim(b, state, 0, 1, 2, 1), 0, NULL);
  tpu_val counter = tpu_add(b, block, tpu_broadcast_like(b, offset, block));
  philox p = {.c = {mask(b, counter), shift_right(b, counter, 32)}, .key = {mask(b, seed), shift_right(b, seed, 32)}};
  if (!wide)
    for (int i = 0; i < 2; i++) {
      p.c[i] = tpu_convert(b, p.c[i], TPU_U32);
      p.key[i] = tpu_convert(b, p.key[i], TPU_U32);
    }
  p.c[2] = p.c[3] = constant(b, p.c[0], 0);
  run_rounds(b, &p, wide);
  return p;
}

static tpu_val join(tpu_build *b, tpu_val low, tpu_val high) {
  low = tpu_convert(b, low, TPU_U64), high = tpu_convert(b, high, TPU_U64);
  return tpu_or(b, low, tpu_binary(b, TPU_HLO_SHIFT_LEFT, high, constant(b, high, 32)));
}

/* Each element computes its block and keeps one word: one loop that fuses with whatever uses the bits. On the CPU it compiles
 * in half the time of words put side by side and runs four times faster (1 M words: 1.2 ms, 5 ms; XLA's own
 * rng_bit_generator: 17 ms). libtpu compiles it in 1.4 s, side by side in 42 s, rng_bit_generator in 16 s. */
static tpu_val bits_by_element(tpu_build *b, tpu_val state, tpu_dtype dtype, int64_t n) {
  int64_t parts = dtype == TPU_U32 ? 4 : 2, m = (n + parts - 1) / parts;
  tpu_dtype index = n <= INT32_MAX ? TPU_U32 : TPU_U64;
  tpu_val i = tpu_iota(b, index, 1, &n, 0), first = constant(b, i, 0), late[3];
  for (int64_t k = 1; k < parts; k++) {
    late[k - 1] = tpu_compare(b, TPU_GE, i, constant(b, i, k * m));
    first = tpu_select(b, late[k - 1], constant(b, i, k * m), first);
  }
  bool wide = b->target->platform != TPU_TARGET_TPU;
  philox p = blocks(b, state, tpu_convert(b, tpu_sub(b, i, first), TPU_U64), wide);
  if (dtype == TPU_U64) return join(b, tpu_select(b, late[0], p.c[2], p.c[0]), tpu_select(b, late[0], p.c[3], p.c[1]));
  tpu_val word = p.c[0];
  for (int k = 1; k < 4; k++) word = tpu_select(b, late[k - 1], p.c[k], word);
  return tpu_convert(b, word, TPU_U32);
}

tpu_val tpu_expand_random_bits(tpu_build *b, tpu_val state, tpu_dtype dtype, int rank, const int64_t *dims) {
  int64_t n = tpu_type_numel((tpu_type){dtype, rank, dims});
  if (n == 0) return tpu_full_i(b, dtype, rank, dims, 0);
  return tpu_reshape(b, bits_by_element(b, state, dtype, n), rank, dims);
}
