#include "base/map.h"

#include <string.h>

#include "base/alloc.h"

void tpu_map_destroy(tpu_map *m) {
  tpu_free(m->slots);
  *m = (tpu_map){0};
}

void tpu_map_clear(tpu_map *m) {
  if (m->capacity) memset(m->slots, 0, m->capacity * sizeof *m->slots);
  m->size = 0;
}

/* The slot that holds `key`, or the free one where it would go. There is always a free slot. */
static tpu_map_slot *find(const tpu_map *m, uint64_t key) {
  size_t mask = m->capacity - 1, at = (size_t)key & mask;
  while (m->slots[at].value && m->slots[at].key != key) at = (at + 1) & mask;
  return &m->slots[at];
}

void *tpu_map_get(const tpu_map *m, uint64_t key) { return m->size ? find(m, key)->value : NULL; }

static bool grow(tpu_map *m) {
  size_t capacity = m->capacity ? m->capacity * 2 : 16;
  if (capacity > SIZE_MAX / sizeof(tpu_map_slot)) return false;
  tpu_map bigger = {tpu_calloc(capacity, sizeof(tpu_map_slot)), capacity, m->size};
  if (!bigger.slots) return false;
  for (size_t i = 0; i < m->capacity; i++)
    if (m->slots[i].value) *find(&bigger, m->slots[i].key) = m->slots[i];
  tpu_free(m->slots);
  *m = bigger;
  return true;
}

bool tpu_map_put(tpu_map *m, uint64_t key, void *value) {
  if (m->capacity) {
    tpu_map_slot *slot = find(m, key);
    if (slot->value) {
      slot->value = value;
      return true;
    }
  }
  if (m->size >= m->capacity - m->capacity / 4 && !grow(m)) return false;
  *find(m, key) = (tpu_map_slot){key, value};
  m->size++;
  return true;
}

void *tpu_map_remove(tpu_map *m, uint64_t key) {
  if (!m->size) return NULL;
  tpu_map_slot *slot = find(m, key);
  void *value = slot->value;
  if (!value) return NULL;
  /* Backward shift: no tombstones. An entry moves into the hole unless its home lies cyclically after the hole. */
  size_t mask = m->capacity - 1, hole = (size_t)(slot - m->slots);
  for (size_t at = (hole + 1) & mask; m->slots[at].value; at = (at + 1) & mask) {
    size_t home = (size_t)m->slots[at].key & mask;
    if (((at - home) & mask) >= ((at - hole) & mask)) {
      m->slots[hole] = m->slots[at];
      hole = at;
    }
  }
  m->slots[hole] = (tpu_map_slot){0, NULL};
  m->size--;
  return value;
}

bool tpu_map_next(const tpu_map *m, size_t *at, uint64_t *out_key, void **out_value) {
  for (; *at < m->capacity; ++*at) {
    const tpu_map_slot *slot = &m->slots[*at];
    if (!slot->value) continue;
    if (out_key) *out_key = slot->key;
    if (out_value) *out_value = slot->value;
    ++*at;
    return true;
  }
  return false;
}
