#include "base/arena.h"

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"

enum { ALIGN = 16, DEFAULT_BLOCK = 16 * 1024 };

struct tpu_arena_block {
  tpu_arena_block *previous;
  size_t capacity; /* bytes of data */
  _Alignas(ALIGN) char data[];
};

void tpu_arena_init(tpu_arena *arena, size_t block_bytes) {
  *arena = (tpu_arena){.block_bytes = block_bytes ? block_bytes : DEFAULT_BLOCK};
}

static bool grow(tpu_arena *arena, size_t size) {
  size_t capacity = arena->block_bytes ? arena->block_bytes : DEFAULT_BLOCK;
  if (capacity < size) capacity = size;
  if (capacity > SIZE_MAX - sizeof(tpu_arena_block)) return false;
  tpu_arena_block *block = tpu_malloc(sizeof *block + capacity);
  if (!block) return false;
  block->previous = arena->head;
  block->capacity = capacity;
  arena->head = block;
  arena->next = block->data;
  arena->end = block->data + capacity;
  return true;
}

void *tpu_arena_alloc(tpu_arena *arena, size_t size) {
  if (arena->failed) return NULL;
  if (size > SIZE_MAX - ALIGN) {
    arena->failed = true;
    return NULL;
  }
  size = (size + ALIGN - 1) & ~(size_t)(ALIGN - 1);
  if (!arena->head || size > (size_t)(arena->end - arena->next)) {
    if (!grow(arena, size)) {
      arena->failed = true;
      return NULL;
    }
  }
  void *p = arena->next;
  arena->next += size;
  return p;
}

void *tpu_arena_calloc(tpu_arena *arena, size_t count, size_t size) {
  if (size && count > SIZE_MAX / size) {
    arena->failed = true;
    return NULL;
  }
  void *p = tpu_arena_alloc(arena, count * size);
  return p ? memset(p, 0, count * size) : NULL;
}

void *tpu_arena_copy(tpu_arena *arena, const void *src, size_t size) {
  void *p = tpu_arena_alloc(arena, size);
  if (p && size) memcpy(p, src, size);
  return p;
}

char *tpu_arena_strdup(tpu_arena *arena, const char *s) { return tpu_arena_copy(arena, s, strlen(s) + 1); }

static void free_until(tpu_arena *arena, const tpu_arena_block *stop) {
  while (arena->head != stop) {
    tpu_arena_block *previous = arena->head->previous;
    tpu_free(arena->head);
    arena->head = previous;
  }
}

void tpu_arena_reset(tpu_arena *arena) {
  arena->failed = false;
  if (!arena->head) return;
  /* The largest block stays, so that a user of steady size never allocates again. */
  tpu_arena_block *keep = arena->head;
  for (tpu_arena_block *b = arena->head; b; b = b->previous)
    if (b->capacity > keep->capacity) keep = b;
  for (tpu_arena_block *b = arena->head, *previous; b; b = previous) {
    previous = b->previous;
    if (b != keep) tpu_free(b);
  }
  keep->previous = NULL;
  arena->head = keep;
  arena->next = keep->data;
  arena->end = keep->data + keep->capacity;
}

void tpu_arena_destroy(tpu_arena *arena) {
  free_until(arena, NULL);
  *arena = (tpu_arena){.block_bytes = arena->block_bytes};
}

tpu_arena_mark tpu_arena_save(const tpu_arena *arena) { return (tpu_arena_mark){arena->head, arena->next, arena->end}; }

void tpu_arena_restore(tpu_arena *arena, tpu_arena_mark mark) {
  if (!mark.head) {
    tpu_arena_reset(arena);
    return;
  }
  free_until(arena, mark.head);
  arena->next = mark.next;
  arena->end = mark.end;
  arena->failed = false;
}
