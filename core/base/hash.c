#include "base/hash.h"

#include <string.h>

#include "base/sha256_block.h"

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

void tpu_sha256_init(tpu_sha256 *s) {
  *s = (tpu_sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void tpu_sha256_update(tpu_sha256 *s, const void *data, size_t size) {
  const uint8_t *p = data;
  size_t filled = (size_t)(s->bytes % 64);
  s->bytes += size;
  if (filled) {
    size_t take = 64 - filled < size ? 64 - filled : size;
    if (take) memcpy(s->block + filled, p, take);
    if (filled + take < 64) return;
    tpu_sha256_blocks(s->state, s->block, 1);
    p += take, size -= take;
  }
  tpu_sha256_blocks(s->state, p, size / 64);
  p += size / 64 * 64, size %= 64;
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
