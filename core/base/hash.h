/* Hashes. tpu_hash128: fast, not cryptographic, for keys in memory (stable only within one build).
 * tpu_sha256: FIPS 180-4, for keys on disk. Thread-safe (no state but the caller's).
 */
#ifndef TPU_BASE_HASH_H
#define TPU_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tpu_hash {
  uint64_t lo, hi;
} tpu_hash;

/* Mixes one word; the order of calls matters. */
static inline uint64_t tpu_hash_u64(uint64_t x) {
  x ^= x >> 32;
  x *= UINT64_C(0xd6e8feb86659fd93);
  x ^= x >> 32;
  x *= UINT64_C(0xd6e8feb86659fd93);
  return x ^ (x >> 32);
}
static inline void tpu_hash_mix(tpu_hash *h, uint64_t word) {
  h->lo = (h->lo ^ word) * UINT64_C(0x9e3779b97f4a7c15);
  h->lo ^= h->lo >> 29;
  h->hi = (h->hi + word) * UINT64_C(0xc2b2ae3d27d4eb4f);
  h->hi ^= (h->hi >> 31) ^ h->lo;
}
static inline bool tpu_hash_equal(tpu_hash a, tpu_hash b) { return a.lo == b.lo && a.hi == b.hi; }
tpu_hash tpu_hash_bytes(tpu_hash seed, const void *data, size_t size);

typedef struct tpu_sha256 {
  uint32_t state[8];
  uint64_t bytes;
  uint8_t block[64];
} tpu_sha256;
void tpu_sha256_init(tpu_sha256 *s);
void tpu_sha256_update(tpu_sha256 *s, const void *data, size_t size);
void tpu_sha256_final(tpu_sha256 *s, uint8_t out_digest[32]);
void tpu_sha256_hex(const uint8_t digest[32], char out_hex[65]);

#endif
