/* The one allocator of the core. Tests make its n-th call fail.
 * Thread-safe. Sizes in bytes. All return NULL when out of memory.
 */
#ifndef TPU_BASE_ALLOC_H
#define TPU_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *tpu_malloc(size_t size);
void *tpu_calloc(size_t count, size_t size); /* zeroed; checks count * size */
void *tpu_realloc(void *p, size_t size);
void tpu_free(void *p);
char *tpu_strdup(const char *s);

/* Sets the process' allocator up for device buffers in host memory, where it can be; MALLOC_* variables win. */
void tpu_alloc_tune(void);
/* Gives free memory back to the system, where the allocator can. */
void tpu_alloc_trim(void);

/* Tests: let the call after `after` more successful ones fail, once; -1 never fails. */
void tpu_alloc_fail_after(int64_t after);
/* Live blocks from tpu_malloc and its kin, process-wide. */
int64_t tpu_alloc_live(void);

/* a * b and a + b for non-negative sizes; false on overflow, then *out is untouched. */
bool tpu_size_mul(int64_t a, int64_t b, int64_t *out);
bool tpu_size_add(int64_t a, int64_t b, int64_t *out);

#endif
