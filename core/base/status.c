#include "base/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

struct tpu_status_s {
  atomic_int refs; /* 0: static, never freed */
  int line;
  tpu_code code;
  const char *file;
  const char *message; /* the text follows the struct, or is static */
};

static struct tpu_status_s out_of_memory = {
    .code = TPU_RESOURCE_EXHAUSTED,
    .file = "",
    .message = "out of host memory",
};

static struct tpu_status_s *status_new(const char *file, int line, tpu_code code, size_t length) {
  struct tpu_status_s *s = tpu_malloc(sizeof *s + length + 1);
  if (!s) return NULL;
  atomic_init(&s->refs, 1);
  s->line = line;
  s->code = code;
  s->file = file ? file : "";
  s->message = (char *)(s + 1);
  return s;
}

tpu_status tpu_status_create_v(const char *file, int line, tpu_code code, const char *format, va_list args) {
  if (code == TPU_OK) return NULL;
  va_list again;
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, format, again);
  va_end(again);
  if (length < 0) length = 0;
  struct tpu_status_s *s = status_new(file, line, code, (size_t)length);
  if (!s) return &out_of_memory;
  char *text = (char *)(s + 1);
  text[0] = 0;
  (void)vsnprintf(text, (size_t)length + 1, format, args);
  return s;
}

tpu_status tpu_status_create(const char *file, int line, tpu_code code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  tpu_status s = tpu_status_create_v(file, line, code, format, args);
  va_end(args);
  return s;
}

tpu_status tpu_status_prefix(tpu_status status, const char *format, ...) {
  if (!status) return NULL;
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, format, again);
  va_end(again);
  if (length < 0) length = 0;
  size_t tail = strlen(status->message);
  struct tpu_status_s *s = status_new(status->file, status->line, status->code, (size_t)length + tail);
  if (!s) {
    va_end(args);
    return status; /* its own message is better than none */
  }
  char *text = (char *)(s + 1);
  text[0] = 0;
  (void)vsnprintf(text, (size_t)length + 1, format, args);
  va_end(args);
  memcpy(text + length, status->message, tail + 1);
  tpu_status_release(status);
  return s;
}

tpu_status tpu_status_retain(tpu_status status) {
  if (status && status != &out_of_memory) atomic_fetch_add_explicit(&status->refs, 1, memory_order_relaxed);
  return status;
}

void tpu_status_release(tpu_status status) {
  if (!status || status == &out_of_memory) return;
  if (atomic_fetch_sub_explicit(&status->refs, 1, memory_order_acq_rel) == 1) tpu_free(status);
}

tpu_status tpu_status_join(tpu_status first, tpu_status second) {
  if (!first) return second;
  tpu_status_release(second);
  return first;
}

tpu_code tpu_status_code(tpu_status status) { return status ? status->code : TPU_OK; }
const char *tpu_status_message(tpu_status status) { return status ? status->message : ""; }
const char *tpu_status_file(tpu_status status) { return status ? status->file : ""; }
int tpu_status_line(tpu_status status) { return status ? status->line : 0; }

const char *tpu_code_name(tpu_code code) {
  switch (code) {
    case TPU_OK: return "OK";
    case TPU_CANCELLED: return "CANCELLED";
    case TPU_UNKNOWN: return "UNKNOWN";
    case TPU_INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case TPU_DEADLINE_EXCEEDED: return "DEADLINE_EXCEEDED";
    case TPU_NOT_FOUND: return "NOT_FOUND";
    case TPU_ALREADY_EXISTS: return "ALREADY_EXISTS";
    case TPU_PERMISSION_DENIED: return "PERMISSION_DENIED";
    case TPU_RESOURCE_EXHAUSTED: return "RESOURCE_EXHAUSTED";
    case TPU_FAILED_PRECONDITION: return "FAILED_PRECONDITION";
    case TPU_ABORTED: return "ABORTED";
    case TPU_OUT_OF_RANGE: return "OUT_OF_RANGE";
    case TPU_UNIMPLEMENTED: return "UNIMPLEMENTED";
    case TPU_INTERNAL: return "INTERNAL";
    case TPU_UNAVAILABLE: return "UNAVAILABLE";
    case TPU_DATA_LOSS: return "DATA_LOSS";
    case TPU_UNAUTHENTICATED: return "UNAUTHENTICATED";
    case TPU_TYPE_ERROR: return "TYPE_ERROR";
    case TPU_VALUE_ERROR: return "VALUE_ERROR";
  }
  return "UNKNOWN";
}
