#include "base/strbuf.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

void tpu_strbuf_destroy(tpu_strbuf *s) {
  tpu_free(s->data);
  *s = (tpu_strbuf){0};
}

void tpu_strbuf_clear(tpu_strbuf *s) {
  s->size = 0;
  s->failed = false;
  if (s->data) s->data[0] = 0;
}

static bool reserve(tpu_strbuf *s, size_t more) {
  if (s->failed) return false;
  if (s->capacity > s->size && more < s->capacity - s->size) return true;
  if (more > SIZE_MAX / 2 - s->size - 1) {
    s->failed = true;
    return false;
  }
  size_t need = s->size + more + 1, capacity = s->capacity ? s->capacity * 2 : 256;
  if (capacity < need) capacity = need;
  char *data = tpu_realloc(s->data, capacity);
  if (!data) {
    s->failed = true;
    return false;
  }
  s->data = data;
  s->capacity = capacity;
  return true;
}

void tpu_strbuf_put(tpu_strbuf *s, const char *text) { tpu_strbuf_put_n(s, text, strlen(text)); }

void tpu_strbuf_put_n(tpu_strbuf *s, const char *text, size_t n) {
  if (!reserve(s, n)) return;
  if (n) memcpy(s->data + s->size, text, n);
  s->size += n;
  s->data[s->size] = 0;
}

void tpu_strbuf_put_u64(tpu_strbuf *s, uint64_t v) {
  char text[20];
  size_t at = sizeof text;
  do text[--at] = (char)('0' + v % 10);
  while (v /= 10);
  tpu_strbuf_put_n(s, text + at, sizeof text - at);
}

void tpu_strbuf_put_i64(tpu_strbuf *s, int64_t v) {
  if (v < 0) {
    tpu_strbuf_put_n(s, "-", 1);
    tpu_strbuf_put_u64(s, 0 - (uint64_t)v);
  } else {
    tpu_strbuf_put_u64(s, (uint64_t)v);
  }
}

void tpu_strbuf_printf(tpu_strbuf *s, const char *format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, format, again);
  va_end(again);
  if (length < 0) {
    s->failed = true;
  } else if (reserve(s, (size_t)length)) {
    (void)vsnprintf(s->data + s->size, (size_t)length + 1, format, args);
    s->size += (size_t)length;
  }
  va_end(args);
}

char *tpu_strbuf_take(tpu_strbuf *s) {
  char *text = NULL;
  if (reserve(s, 0)) {
    text = s->data;
    text[s->size] = 0;
    s->data = NULL;
  }
  tpu_strbuf_destroy(s);
  return text;
}
