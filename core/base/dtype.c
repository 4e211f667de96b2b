#include "base/dtype.h"

#include <stddef.h>

static const struct {
  const char *hlo, *name, *scalar_name;
  int torch_type, pjrt, bytes;
  tpu_kind kind;
} rows[TPU_DTYPE_COUNT] = {
#define DTYPE(name, torch, hlo, pjrt, bytes, kind, name_torch, name_c10) \
  {hlo, name_torch, name_c10, torch, pjrt, bytes, TPU_KIND_##kind},
#include "base/dtype.inc"
};

static bool known(tpu_dtype t) { return (unsigned)t < TPU_DTYPE_COUNT; }

const char *tpu_dtype_name(tpu_dtype t) { return known(t) ? rows[t].name : "none"; }
const char *tpu_dtype_scalar_name(tpu_dtype t) { return known(t) ? rows[t].scalar_name : "Undefined"; }
const char *tpu_dtype_hlo(tpu_dtype t) { return known(t) ? rows[t].hlo : "none"; }
int64_t tpu_dtype_bytes(tpu_dtype t) { return known(t) ? rows[t].bytes : 0; }
tpu_kind tpu_dtype_kind(tpu_dtype t) { return known(t) ? rows[t].kind : TPU_KIND_BOOL; }
int tpu_dtype_pjrt(tpu_dtype t) { return known(t) ? rows[t].pjrt : 0; }
int tpu_dtype_torch(tpu_dtype t) { return known(t) ? rows[t].torch_type : -1; }

tpu_dtype tpu_dtype_from_torch(int scalar_type) {
  switch (scalar_type) {
#define DTYPE(name, torch, ...) \
  case torch: return TPU_##name;
#include "base/dtype.inc"
    default: return TPU_DTYPE_NONE;
  }
}

tpu_dtype tpu_dtype_from_pjrt(int type) {
  switch (type) {
#define DTYPE(name, torch, hlo, pjrt, ...) \
  case pjrt: return TPU_##name;
#include "base/dtype.inc"
    default: return TPU_DTYPE_NONE;
  }
}

tpu_dtype tpu_dtype_real(tpu_dtype t) { return t == TPU_C64 ? TPU_F32 : t == TPU_C128 ? TPU_F64 : t; }

tpu_dtype tpu_dtype_complex(tpu_dtype t) {
  switch (t) {
    case TPU_F16:
    case TPU_BF16:
    case TPU_F32: return TPU_C64;
    case TPU_F64: return TPU_C128;
    default: return t;
  }
}

tpu_dtype tpu_dtype_opmath(tpu_dtype t) { return tpu_dtype_kind(t) == TPU_KIND_FLOAT && tpu_dtype_bytes(t) < 4 ? TPU_F32 : t; }

static bool is_float8(tpu_dtype t) { return tpu_is_float(t) && rows[t].bytes == 1; }
static bool is_barebones(tpu_dtype t) { return t == TPU_U16 || t == TPU_U32 || t == TPU_U64; }

/* The order of c10's table among BOOL, U8, I8..I64: the wider wins; U8 with I8 needs I16. */
static int integer_rank(tpu_dtype t) {
  switch (t) {
    case TPU_BOOL: return 0;
    case TPU_U8:
    case TPU_I8: return 1;
    case TPU_I16: return 2;
    case TPU_I32: return 3;
    default: return 4;
  }
}

tpu_dtype tpu_dtype_promote(tpu_dtype a, tpu_dtype b) {
  if (!known(a) || !known(b)) return TPU_DTYPE_NONE;
  if (a == b) return a;
  if (is_float8(a) || is_float8(b)) return TPU_DTYPE_NONE;
  if (is_barebones(a) || is_barebones(b)) {
    if (tpu_is_float(a)) return a;
    if (tpu_is_float(b)) return b;
    return TPU_DTYPE_NONE;
  }
  if (tpu_is_complex(a) || tpu_is_complex(b)) {
    tpu_dtype x = tpu_dtype_real(a), y = tpu_dtype_real(b);
    return x == TPU_F64 || y == TPU_F64 ? TPU_C128 : TPU_C64;
  }
  if (tpu_is_float(a) && tpu_is_float(b)) {
    if (a == TPU_F64 || b == TPU_F64) return TPU_F64;
    return TPU_F32; /* F16 with BF16 too */
  }
  if (tpu_is_float(a)) return a;
  if (tpu_is_float(b)) return b;
  int x = integer_rank(a), y = integer_rank(b);
  if (x != y) return x > y ? a : b;
  return TPU_I16;
}

bool tpu_dtype_can_cast(tpu_dtype from, tpu_dtype to) {
  if (tpu_is_complex(from) && !tpu_is_complex(to)) return false;
  if (tpu_is_float(from) && tpu_is_integral(to)) return false;
  return from == TPU_BOOL || to != TPU_BOOL;
}
