/* tpu_arena: memory that is freed all at once. Thread-compatible.
 *
 * Nothing in an arena is freed alone. After an allocation failed the arena is `failed` until reset;
 * further allocations return NULL too, so a caller may check once at the end.
 */
#ifndef TPU_BASE_ARENA_H
#define TPU_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tpu_arena_block tpu_arena_block;
typedef struct tpu_arena {
  tpu_arena_block *head; /* the block allocated from */
  char *next, *end;
  size_t block_bytes; /* size of new blocks; 0 takes the default, 16 KiB */
  bool failed;
} tpu_arena;

void tpu_arena_init(tpu_arena *arena, size_t block_bytes);
/* 16-byte aligned, not zeroed; NULL when out of memory. size 0 gives a valid pointer. */
void *tpu_arena_alloc(tpu_arena *arena, size_t size);
void *tpu_arena_calloc(tpu_arena *arena, size_t count, size_t size);
void *tpu_arena_copy(tpu_arena *arena, const void *src, size_t size);
char *tpu_arena_strdup(tpu_arena *arena, const char *s);
/* Forgets everything; keeps one block for reuse, so a steady user mallocs nothing. */
void tpu_arena_reset(tpu_arena *arena);
void tpu_arena_destroy(tpu_arena *arena);

/* A point to go back to: everything allocated after the mark is forgotten. */
typedef struct tpu_arena_mark {
  tpu_arena_block *head;
  char *next, *end;
} tpu_arena_mark;
tpu_arena_mark tpu_arena_save(const tpu_arena *arena);
void tpu_arena_restore(tpu_arena *arena, tpu_arena_mark mark);

#define TPU_ARENA_ARRAY(arena, type, n) ((type *)tpu_arena_alloc((arena), sizeof(type) * (size_t)(n)))

#endif
