/* tpu_dtype: element types, from dtype.inc. Thread-safe (pure functions). */
#ifndef TPU_BASE_DTYPE_H
#define TPU_BASE_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum tpu_dtype {
#define DTYPE(name, ...) TPU_##name,
#include "base/dtype.inc"
  TPU_DTYPE_COUNT,
  TPU_DTYPE_NONE = 255,
} tpu_dtype;

typedef enum tpu_kind { TPU_KIND_BOOL, TPU_KIND_UINT, TPU_KIND_INT, TPU_KIND_FLOAT, TPU_KIND_COMPLEX } tpu_kind;

const char *tpu_dtype_name(tpu_dtype t);        /* torch's name: "float32", "bool", ... */
const char *tpu_dtype_scalar_name(tpu_dtype t); /* c10's name, as in error texts: "Float", "Long" */
const char *tpu_dtype_hlo(tpu_dtype t);         /* "f32" */
int64_t tpu_dtype_bytes(tpu_dtype t);
tpu_kind tpu_dtype_kind(tpu_dtype t);
int tpu_dtype_pjrt(tpu_dtype t);                 /* PJRT_Buffer_Type */
int tpu_dtype_torch(tpu_dtype t);                /* c10::ScalarType */
tpu_dtype tpu_dtype_from_torch(int scalar_type); /* TPU_DTYPE_NONE: not supported */
tpu_dtype tpu_dtype_from_pjrt(int type);

static inline bool tpu_is_float(tpu_dtype t); /* floating, not complex */
static inline bool tpu_is_complex(tpu_dtype t);
static inline bool tpu_is_integral(tpu_dtype t); /* signed or unsigned, not bool */

tpu_dtype tpu_dtype_real(tpu_dtype t);    /* complex -> its part's type; others unchanged */
tpu_dtype tpu_dtype_complex(tpu_dtype t); /* F32 -> C64, F64 -> C128; F16/BF16 -> C64; complex unchanged */
/* The type PyTorch computes in (at::opmath_type): F32 for F16, BF16 and 8-bit floats, else the same. */
tpu_dtype tpu_dtype_opmath(tpu_dtype t);
/* c10::promoteTypes of two types (the table, without categories). TPU_DTYPE_NONE: not promotable
 * (unsigned 16..64 with signed, 8-bit floats with other types). */
tpu_dtype tpu_dtype_promote(tpu_dtype a, tpu_dtype b);
/* c10::canCast(from, to): false for complex -> real, float -> integral, anything but bool -> bool. */
bool tpu_dtype_can_cast(tpu_dtype from, tpu_dtype to);

static inline bool tpu_is_float(tpu_dtype t) { return tpu_dtype_kind(t) == TPU_KIND_FLOAT; }
static inline bool tpu_is_complex(tpu_dtype t) { return tpu_dtype_kind(t) == TPU_KIND_COMPLEX; }
static inline bool tpu_is_integral(tpu_dtype t) {
  return tpu_dtype_kind(t) == TPU_KIND_INT || tpu_dtype_kind(t) == TPU_KIND_UINT;
}

#endif
