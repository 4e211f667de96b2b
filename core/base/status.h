/* tpu_status: the result of everything that can fail.
 *
 * A status is a pointer; NULL is success. A non-NULL status owns its message and must be either
 * returned to the caller or released. It is immutable and reference counted, so one failure can be
 * kept by every value that depends on it.
 *
 * Thread-safe (the count is atomic). May include: nothing of this project.
 */
#ifndef TPU_BASE_STATUS_H
#define TPU_BASE_STATUS_H

#include <stdarg.h>

/* Codes 1-16 have absl's (and so PJRT's) numbers. The ones from 100 on name PyTorch's exception
 * classes for which absl has no number. */
typedef enum tpu_code {
  TPU_OK = 0,
  TPU_CANCELLED = 1,
  TPU_UNKNOWN = 2,
  TPU_INVALID_ARGUMENT = 3, /* RuntimeError, the class of most of PyTorch's argument errors */
  TPU_DEADLINE_EXCEEDED = 4,
  TPU_NOT_FOUND = 5,
  TPU_ALREADY_EXISTS = 6,
  TPU_PERMISSION_DENIED = 7,
  TPU_RESOURCE_EXHAUSTED = 8, /* torch.OutOfMemoryError */
  TPU_FAILED_PRECONDITION = 9,
  TPU_ABORTED = 10,
  TPU_OUT_OF_RANGE = 11,  /* IndexError */
  TPU_UNIMPLEMENTED = 12, /* NotImplementedError */
  TPU_INTERNAL = 13,
  TPU_UNAVAILABLE = 14,
  TPU_DATA_LOSS = 15,
  TPU_UNAUTHENTICATED = 16,
  TPU_TYPE_ERROR = 100,  /* TypeError */
  TPU_VALUE_ERROR = 101, /* ValueError */
} tpu_code;

typedef struct tpu_status_s *tpu_status;

#if defined(__GNUC__)
#define TPU_MUST_USE __attribute__((warn_unused_result))
#define TPU_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define TPU_MUST_USE
#define TPU_PRINTF(fmt, args)
#endif

/* A new status. Never returns NULL for code != TPU_OK: out of memory yields a static status. */
#define tpu_error(code, ...) tpu_status_create(__FILE__, __LINE__, (code), __VA_ARGS__)
tpu_status tpu_status_create(const char *file, int line, tpu_code code, const char *format, ...) TPU_PRINTF(4, 5) TPU_MUST_USE;
tpu_status tpu_status_create_v(const char *file, int line, tpu_code code, const char *format, va_list args) TPU_MUST_USE;

/* The same failure with text before its message ("while compiling add.Tensor: "). Takes `status`;
 * NULL stays NULL. */
tpu_status tpu_status_prefix(tpu_status status, const char *format, ...) TPU_PRINTF(2, 3) TPU_MUST_USE;

tpu_status tpu_status_retain(tpu_status status) TPU_MUST_USE; /* NULL allowed */
void tpu_status_release(tpu_status status);                   /* NULL allowed */

/* Keeps the first failure: releases `second` if both fail. Takes both. */
tpu_status tpu_status_join(tpu_status first, tpu_status second) TPU_MUST_USE;

tpu_code tpu_status_code(tpu_status status);       /* NULL: TPU_OK */
const char *tpu_status_message(tpu_status status); /* borrowed; NULL: "" */
const char *tpu_status_file(tpu_status status);    /* static; "" if none */
int tpu_status_line(tpu_status status);
const char *tpu_code_name(tpu_code code); /* "INVALID_ARGUMENT"; static */

/* Returns a failure to the caller. Only in functions that own nothing at that point. */
#define TPU_TRY(expr)                            \
  do {                                           \
    tpu_status tpu_try_status_ = (expr);         \
    if (tpu_try_status_) return tpu_try_status_; \
  } while (0)

#endif
