#include "ir/number.h"

#include <math.h>
#include <string.h>

/* The formats below 32 bits. */
typedef struct small_float {
  int exponent_bits, mantissa_bits, bias;
  bool infinite;     /* has infinities (IEEE); else overflow gives NaN */
  bool unsigned_nan; /* FNUZ: the bits of -0 are the only NaN, and there is no -0 */
} small_float;

static bool small_format(tpu_dtype t, small_float *out) {
  switch (t) {
    case TPU_F16: *out = (small_float){5, 10, 15, true, false}; return true;
    case TPU_BF16: *out = (small_float){8, 7, 127, true, false}; return true;
    case TPU_F8E5M2: *out = (small_float){5, 2, 15, true, false}; return true;
    case TPU_F8E4M3FN: *out = (small_float){4, 3, 7, false, false}; return true;
    case TPU_F8E5M2FNUZ: *out = (small_float){5, 2, 16, false, true}; return true;
    case TPU_F8E4M3FNUZ: *out = (small_float){4, 3, 8, false, true}; return true;
    default: return false;
  }
}

static uint32_t small_encode(small_float f, double v) {
  uint32_t sign = signbit(v) ? 1u << (f.exponent_bits + f.mantissa_bits) : 0;
  uint32_t top = (1u << (f.exponent_bits + f.mantissa_bits)) - 1; /* all ones below the sign */
  uint32_t infinity = ((1u << f.exponent_bits) - 1) << f.mantissa_bits;
  uint32_t nan = f.unsigned_nan ? top + 1 : f.infinite ? infinity | 1u << (f.mantissa_bits - 1) : top;
  if (isnan(v)) return f.unsigned_nan ? nan : sign | nan;
  if (isinf(v)) return f.infinite ? sign | infinity : f.unsigned_nan ? nan : sign | nan;
  double a = fabs(v);
  if (a == 0) return f.unsigned_nan ? 0 : sign;
  int exponent;
  (void)frexp(a, &exponent); /* a = m * 2^exponent, 0.5 <= m < 1 */
  int e = exponent - 1 + f.bias;
  if (e < 1) e = 1; /* subnormal: the smallest exponent's step */
  /* nearbyint rounds half to even in the default mode; scaling by a power of two is exact. */
  double steps = nearbyint(ldexp(a, f.mantissa_bits + f.bias - e));
  if (steps >= ldexp(1, f.mantissa_bits + 1)) steps /= 2, e++;
  uint64_t code = (uint64_t)steps; /* with the implicit one, if there is one */
  uint64_t bits = code < (1u << f.mantissa_bits) ? code : ((uint64_t)e << f.mantissa_bits) + code - (1u << f.mantissa_bits);
  uint64_t limit = f.infinite ? infinity : f.unsigned_nan ? (uint64_t)top + 1 : top;
  if (bits >= limit) return f.infinite ? sign | infinity : f.unsigned_nan ? nan : sign | nan;
  if (bits == 0 && f.unsigned_nan) return 0;
  return sign | (uint32_t)bits;
}

static double small_decode(small_float f, uint32_t bits) {
  uint32_t sign_bit = 1u << (f.exponent_bits + f.mantissa_bits);
  if (f.unsigned_nan && bits == sign_bit) return (double)NAN;
  uint32_t body = bits & (sign_bit - 1), ones = (1u << f.exponent_bits) - 1;
  uint32_t e = body >> f.mantissa_bits, m = body & ((1u << f.mantissa_bits) - 1);
  double a;
  if (f.infinite && e == ones)
    a = m ? (double)NAN : (double)INFINITY;
  else if (!f.infinite && !f.unsigned_nan && body == sign_bit - 1)
    a = (double)NAN;
  else if (e == 0)
    a = ldexp(m, 1 - f.bias - f.mantissa_bits);
  else
    a = ldexp(m + (1u << f.mantissa_bits), (int)e - f.bias - f.mantissa_bits);
  return bits & sign_bit ? -a : a;
}

static uint8_t e8m0_encode(double v) {
  if (!(v > 0) || isinf(v)) return 0xFF;
  int exponent;
  double m = frexp(v, &exponent);
  int e = exponent - 1 + 127 + (m > 0.75); /* ties (m = 0.75) go to the even power */
  if (m == 0.75 && (e & 1)) e++;
  return e < 0 ? 0 : e > 254 ? 0xFF : (uint8_t)e;
}

static int64_t saturate(double v, int64_t lo, int64_t hi) {
  if (isnan(v)) return 0;
  if (v <= (double)lo) return lo;
  if (v >= (double)hi) return hi;
  return (int64_t)v;
}

void tpu_number_from_double(tpu_dtype dtype, double v, void *out) {
  small_float f;
  if (small_format(dtype, &f)) {
    uint32_t bits = small_encode(f, v);
    uint16_t half = (uint16_t)bits;
    uint8_t byte = (uint8_t)bits;
    if (tpu_dtype_bytes(dtype) == 2)
      memcpy(out, &half, 2);
    else
      memcpy(out, &byte, 1);
    return;
  }
  switch (dtype) {
    case TPU_F32: {
      float x = (float)v;
      memcpy(out, &x, sizeof x);
      return;
    }
    case TPU_F64: memcpy(out, &v, sizeof v); return;
    case TPU_C64: {
      float x[2] = {(float)v, 0};
      memcpy(out, x, sizeof x);
      return;
    }
    case TPU_C128: {
      double x[2] = {v, 0};
      memcpy(out, x, sizeof x);
      return;
    }
    case TPU_F8E8M0FNU: {
      uint8_t x = e8m0_encode(v);
      memcpy(out, &x, 1);
      return;
    }
    case TPU_BOOL: {
      uint8_t x = v != 0;
      memcpy(out, &x, 1);
      return;
    }
    case TPU_U64: {
      uint64_t x = isnan(v) || v <= 0 ? 0 : v >= 18446744073709551616.0 ? UINT64_MAX : (uint64_t)v;
      memcpy(out, &x, sizeof x);
      return;
    }
    case TPU_I64: {
      int64_t x = saturate(v, INT64_MIN, INT64_MAX);
      memcpy(out, &x, sizeof x);
      return;
    }
    default: {
      int bits = 8 * (int)tpu_dtype_bytes(dtype);
      bool is_signed = tpu_dtype_kind(dtype) == TPU_KIND_INT;
      int64_t hi = is_signed ? (INT64_C(1) << (bits - 1)) - 1 : (INT64_C(1) << bits) - 1;
      tpu_number_from_int(dtype, saturate(v, is_signed ? -hi - 1 : 0, hi), out);
    }
  }
}

void tpu_number_from_int(tpu_dtype dtype, int64_t v, void *out) {
  switch (tpu_dtype_kind(dtype)) {
    case TPU_KIND_BOOL: {
      uint8_t x = v != 0;
      memcpy(out, &x, 1);
      return;
    }
    case TPU_KIND_INT:
    case TPU_KIND_UINT: {
      uint64_t x = (uint64_t)v;
      uint8_t bytes[8];
      for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(x >> (8 * i));
      memcpy(out, bytes, (size_t)tpu_dtype_bytes(dtype)); /* hosts are little-endian, as PJRT's buffers are */
      return;
    }
    default: tpu_number_from_double(dtype, (double)v, out);
  }
}

uint64_t tpu_number_bits(const void *element, int bytes) {
  const uint8_t *p = element;
  uint64_t x = 0;
  for (int i = 0; i < bytes && i < 8; i++) x |= (uint64_t)p[i] << (8 * i);
  return x;
}

double tpu_number_to_double(tpu_dtype dtype, const void *element) {
  small_float f;
  int bytes = (int)tpu_dtype_bytes(dtype);
  if (small_format(dtype, &f)) return small_decode(f, (uint32_t)tpu_number_bits(element, bytes));
  switch (dtype) {
    case TPU_C64:
    case TPU_F32: {
      float x;
      memcpy(&x, element, sizeof x);
      return (double)x;
    }
    case TPU_C128:
    case TPU_F64: {
      double x;
      memcpy(&x, element, sizeof x);
      return x;
    }
    case TPU_F8E8M0FNU: {
      int e = (int)tpu_number_bits(element, 1);
      return e == 0xFF ? (double)NAN : ldexp(1, e - 127);
    }
    case TPU_U64: return (double)tpu_number_bits(element, 8);
    default: return (double)tpu_number_to_int(dtype, element);
  }
}

int64_t tpu_number_to_int(tpu_dtype dtype, const void *element) {
  int bytes = (int)tpu_dtype_bytes(dtype);
  uint64_t x = tpu_number_bits(element, bytes);
  if (tpu_dtype_kind(dtype) == TPU_KIND_INT && bytes < 8 && x >> (8 * bytes - 1)) x |= ~UINT64_C(0) << (8 * bytes);
  return (int64_t)x;
}

double tpu_number_imag(tpu_dtype dtype, const void *element) {
  if (dtype == TPU_C64) return tpu_number_to_double(TPU_F32, (const char *)element + 4);
  if (dtype == TPU_C128) return tpu_number_to_double(TPU_F64, (const char *)element + 8);
  return 0;
}
