#include <pthread.h>
#include <string.h>

#include "aten/elementwise.h"
#include "aten/lower.h"
#include "aten/reduce.h"

static const tpu_row rows[] = {
#define ROW(name, fn, ...) {.aten = name, .lower = fn, .file = __FILE__, .line = __LINE__, __VA_ARGS__},
#include "aten/ops.inc"
};
enum { ROW_COUNT = sizeof rows / sizeof *rows, SLOT_COUNT = 8192 };
_Static_assert(ROW_COUNT * 2 < SLOT_COUNT, "the table of names is too full");

static uint16_t slots[SLOT_COUNT]; /* 1 + row number; 0: free */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint32_t hash_name(const char *s) {
  uint32_t h = 2166136261u;
  for (; *s; s++) h = (h ^ (uint8_t)*s) * 16777619u;
  return h ^ (h >> 15);
}

static void fill_slots(void) {
  for (int i = 0; i < ROW_COUNT; i++) {
    uint32_t at = hash_name(rows[i].aten) % SLOT_COUNT;
    while (slots[at]) at = (at + 1) % SLOT_COUNT;
    slots[at] = (uint16_t)(i + 1);
  }
}

const tpu_row *tpu_op_rows(int *out_n) {
  *out_n = ROW_COUNT;
  return rows;
}

const tpu_row *tpu_op_find(const char *aten) {
  pthread_once(&once, fill_slots);
  for (uint32_t at = hash_name(aten) % SLOT_COUNT; slots[at]; at = (at + 1) % SLOT_COUNT)
    if (strcmp(rows[slots[at] - 1].aten, aten) == 0) return &rows[slots[at] - 1];
  return NULL;
}
