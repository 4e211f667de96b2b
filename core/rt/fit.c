/* Numbers that a tensor's dtype must hold: x.fill_(1e40), masked_fill of half precision with -1e9. */
#include <math.h>

#include "aten/elementwise.h"
#include "rt/private.h"

/* As c10 names the type here: integers by their widths. */
static const char *type_name(tpu_dtype t) {
  switch (t) {
    case TPU_U8: return "uint8_t";
    case TPU_I8: return "int8_t";
    case TPU_I16: return "int16_t";
    case TPU_I64: return "int64_t";
    case TPU_U16: return "uint16_t";
    case TPU_U32: return "uint32_t";
    case TPU_U64: return "uint64_t";
    default: return tpu_dtype_c_name(t);
  }
}

/* The greatest finite value; 0: not judged. */
static double float_limit(tpu_dtype t) {
  switch (t) {
    case TPU_F16: return 65504;
    case TPU_BF16: return 0x1.fep127;
    case TPU_F32:
    case TPU_C64: return 0x1.fffffep127;
    default: return 0;
  }
}

static bool double_fits(double v, tpu_dtype t) {
  if (!tpu_is_integral(t)) {
    double limit = float_limit(t);
    return limit == 0 || !isfinite(v) || fabs(v) <= limit;
  }
  int bits = 8 * (int)tpu_dtype_bytes(t);
  bool is_unsigned = tpu_dtype_kind(t) == TPU_KIND_UINT;
  double end = ldexp(1, is_unsigned ? bits : bits - 1), low = is_unsigned ? 0 : -end;
  /* The greatest integer of 64 bits is no double: its neighbour passes, as in c10. */
  return v >= low && (bits == 64 ? v <= end : v <= end - 1);
}

/* A negative number of an unsigned type wraps if its magnitude fits. */
static bool int_fits(int64_t v, tpu_dtype t) {
  if (!tpu_is_integral(t)) {
    double limit = float_limit(t);
    return limit == 0 || fabs((double)v) <= limit;
  }
  int bits = 8 * (int)tpu_dtype_bytes(t);
  if (bits == 64) return true;
  int64_t end = INT64_C(1) << bits;
  return tpu_dtype_kind(t) == TPU_KIND_UINT ? v > -end && v < end : v >= -(end / 2) && v < end / 2;
}

static bool number_fits(const tpu_number *n, tpu_dtype t) {
  if (t == TPU_BOOL || n->dtype == TPU_BOOL) return true;
  if (n->dtype == TPU_I64) return int_fits(n->i, t);
  if (n->dtype == TPU_F64) return double_fits(n->f, t);
  return double_fits(n->c[0], t) && (tpu_is_complex(t) ? double_fits(n->c[1], t) : n->c[1] == 0);
}

tpu_status tpu_numbers_fit(const tpu_call *call, tpu_dtype dtype) {
  if ((call->row->fits & TPU_FITS_LOOSE_HALF) && (dtype == TPU_F16 || dtype == TPU_BF16)) dtype = TPU_F64;
  for (int i = 0; i < call->n_args && i < 31; i++) {
    if (!(call->row->fits >> i & 1) || call->args[i].kind != TPU_ARG_NUMBER) continue;
    if (!number_fits(&call->numbers[call->args[i].first], dtype))
      return tpu_error(TPU_INVALID_ARGUMENT, "value cannot be converted to type %s without overflow", type_name(dtype));
  }
  return NULL;
}
