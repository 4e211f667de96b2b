/* tpu_strbuf: a growing string. Thread-compatible. Sticky failure: after an allocation failed it
 * stays `failed` and takes nothing more. Always NUL-terminated once something was put.
 */
#ifndef TPU_BASE_STRBUF_H
#define TPU_BASE_STRBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tpu_strbuf {
  char *data;
  size_t size, capacity;
  bool failed;
} tpu_strbuf; /* {0} is a valid empty buffer */

void tpu_strbuf_destroy(tpu_strbuf *s);
void tpu_strbuf_clear(tpu_strbuf *s);
void tpu_strbuf_put(tpu_strbuf *s, const char *text);
void tpu_strbuf_put_n(tpu_strbuf *s, const char *text, size_t n);
void tpu_strbuf_put_i64(tpu_strbuf *s, int64_t v);
void tpu_strbuf_put_u64(tpu_strbuf *s, uint64_t v);
void tpu_strbuf_printf(tpu_strbuf *s, const char *format, ...) TPU_PRINTF(2, 3);
/* Gives up the string (free with tpu_free); NULL if failed. */
char *tpu_strbuf_take(tpu_strbuf *s);

#endif
