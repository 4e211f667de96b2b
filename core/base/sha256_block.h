/* The compression function of SHA-256, by the CPU's own instructions where it has them. Private to hash.c and its test.
 * Thread-safe.
 */
#ifndef TPU_BASE_SHA256_BLOCK_H
#define TPU_BASE_SHA256_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Folds `blocks` blocks of 64 bytes into the state. */
void tpu_sha256_blocks(uint32_t state[8], const uint8_t *data, size_t blocks);
void tpu_sha256_blocks_portable(uint32_t state[8], const uint8_t *data, size_t blocks);

#endif
