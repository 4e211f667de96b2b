/* tpu_map: open-addressing hash map from a 64-bit key to a pointer. Thread-compatible.
 * The caller supplies well-mixed keys (a hash, or a pointer through tpu_hash_u64); key 0 is allowed.
 */
#ifndef TPU_BASE_MAP_H
#define TPU_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tpu_map_slot {
  uint64_t key;
  void *value; /* NULL: free slot */
} tpu_map_slot;
typedef struct tpu_map {
  tpu_map_slot *slots;
  size_t capacity, size; /* capacity is 0 or a power of two */
} tpu_map;               /* {0} is a valid empty map */

void tpu_map_destroy(tpu_map *m);
void tpu_map_clear(tpu_map *m);                          /* keeps the capacity */
void *tpu_map_get(const tpu_map *m, uint64_t key);       /* NULL: absent */
bool tpu_map_put(tpu_map *m, uint64_t key, void *value); /* value != NULL; replaces; false: out of memory */
void *tpu_map_remove(tpu_map *m, uint64_t key);          /* the value removed, or NULL */
/* Iteration: start with *at = 0; false at the end. The map must not change meanwhile. */
bool tpu_map_next(const tpu_map *m, size_t *at, uint64_t *out_key, void **out_value);

#endif
