/* The types of @main in StableHLO text, for the fake plugin. Thread-safe. */
#ifndef TPU_PJRT_FAKE_PROGRAM_H
#define TPU_PJRT_FAKE_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_MAX_RANK = 32, FAKE_MAX_VALUES = 4096 };

typedef struct fake_type {
  int type; /* PJRT_Buffer_Type */
  size_t rank;
  int64_t dims[FAKE_MAX_RANK];
  size_t bytes;
} fake_type;

typedef struct fake_argument {
  fake_type type;
  bool donated;
  int64_t alias; /* the output that takes this argument's memory, or -1 */
} fake_argument;

typedef struct fake_program {
  fake_argument *arguments;
  fake_type *results;
  size_t argument_count, result_count;
} fake_program;

/* false, with a static reason, if the text has no readable @main. */
bool fake_program_parse(const char *text, size_t size, fake_program *out, const char **out_why);
void fake_program_destroy(fake_program *program);

/* Bytes of one element; 0: unknown type. */
size_t fake_element_bytes(int type);

#endif
