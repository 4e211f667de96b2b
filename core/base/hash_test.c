#include "base/hash.h"

#include "base/sha256_block.h"
#include "base/test.h"

static const char *sha(const char *text, size_t repeat, size_t chunk) {
  static char hex[65];
  uint8_t digest[32];
  tpu_sha256 s;
  tpu_sha256_init(&s);
  size_t size = strlen(text);
  for (size_t r = 0; r < repeat; r++)
    for (size_t at = 0; at < size; at += chunk) tpu_sha256_update(&s, text + at, size - at < chunk ? size - at : chunk);
  tpu_sha256_final(&s, digest);
  tpu_sha256_hex(digest, hex);
  return hex;
}

/* The vectors of FIPS 180-2, appendix B, and the empty message. */
TEST(sha256_vectors) {
  CHECK_STR(sha("", 1, 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_STR(sha("abc", 1, 64), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const char *two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  for (size_t chunk = 1; chunk < 60; chunk++)
    CHECK_STR(sha(two_blocks, 1, chunk), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK_STR(sha("aaaaaaaaaa", 100000, 7), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* With and without the CPU's instructions. */
TEST(sha256_many_blocks) {
  static uint8_t data[64 * 300];
  for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)tpu_hash_u64(i);
  for (size_t blocks = 0; blocks <= 300; blocks += 50) {
    uint32_t a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    tpu_sha256_blocks(a, data, blocks);
    tpu_sha256_blocks_portable(b, data, blocks);
    CHECK(memcmp(a, b, sizeof a) == 0);
  }
}

TEST(hash128) {
  tpu_hash zero = {0}, a = tpu_hash_bytes(zero, "abc", 3), b = tpu_hash_bytes(zero, "abc\0", 4);
  CHECK(!tpu_hash_equal(a, b));
  CHECK(tpu_hash_equal(a, tpu_hash_bytes(zero, "abc", 3)));
  tpu_hash x = zero, y = zero;
  tpu_hash_mix(&x, 1), tpu_hash_mix(&x, 2);
  tpu_hash_mix(&y, 2), tpu_hash_mix(&y, 1);
  CHECK(!tpu_hash_equal(x, y));
}

TEST_MAIN(TEST_CASE(sha256_vectors), TEST_CASE(sha256_many_blocks), TEST_CASE(hash128));
