#include "base/hash.h"

#include <string.h>

tpu_hash tpu_hash_bytes(tpu_hash seed, const void *data, size_t size) {
  const unsigned char *p = data;
  tpu_hash_mix(&seed, size); /* so that trailing zero bytes count */
  uint64_t word;
  for (; size >= sizeof word; p += sizeof word, size -= sizeof word) {
    memcpy(&word, p, sizeof word);
    tpu_hash_mix(&seed, word);
  }
  if (size) {
    word = 0;
    memcpy(&word, p, size);
    tpu_hash_mix(&seed, word);
  }
  seed.lo = tpu_hash_u64(seed.lo);
  seed.hi = tpu_hash_u64(seed.hi ^ seed.lo);
  return seed;
}

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void compress(uint32_t state[8], const uint8_t block[64]) {
  uint32_t w[64];
  for (int i = 0; i < 16; i++)
    w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
           block[4 * i + 3];
  for (int i = 16; i < 64; i++) {
    uint32_t s0 = rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    uint32_t s1 = rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
  uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
  for (int i = 0; i < 64; i++) {
    uint32_t t1 = h + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & f) ^ (~e & g)) + round_constants[i] + w[i];
    uint32_t t2 = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  state[0] += a, state[1] += b, state[2] += c, state[3] += d;
  state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

void tpu_sha256_init(tpu_sha256 *s) {
  *s = (tpu_sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
                              0x5be0cd19}};
}

void tpu_sha256_update(tpu_sha256 *s, const void *data, size_t size) {
  const uint8_t *p = data;
  size_t filled = (size_t)(s->bytes % 64);
  s->bytes += size;
  if (filled) {
    size_t take = 64 - filled < size ? 64 - filled : size;
    if (take) memcpy(s->block + filled, p, take);
    if (filled + take < 64) return;
    compress(s->state, s->block);
    p += take, size -= take;
  }
  for (; size >= 64; p += 64, size -= 64) compress(s->state, p);
  if (size) memcpy(s->block, p, size);
}

void tpu_sha256_final(tpu_sha256 *s, uint8_t out_digest[32]) {
  uint64_t bits = s->bytes * 8;
  uint8_t tail[72] = {0x80};
  size_t filled = (size_t)(s->bytes % 64), pad = (filled < 56 ? 56 : 120) - filled;
  for (int i = 0; i < 8; i++) tail[pad + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
  tpu_sha256_update(s, tail, pad + 8);
  for (int i = 0; i < 32; i++) out_digest[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}

void tpu_sha256_hex(const uint8_t digest[32], char out_hex[65]) {
  for (int i = 0; i < 32; i++) {
    out_hex[2 * i] = "0123456789abcdef"[digest[i] >> 4];
    out_hex[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
  }
  out_hex[64] = 0;
}
