#include "ir/number.h"

#include <math.h>

#include "base/test.h"

static const tpu_dtype smalls[] = {TPU_F16, TPU_BF16, TPU_F8E5M2, TPU_F8E4M3FN, TPU_F8E5M2FNUZ, TPU_F8E4M3FNUZ, TPU_F8E8M0FNU};

static uint64_t encode(tpu_dtype t, double v) {
  uint8_t element[TPU_ELEMENT_BYTES] = {0};
  tpu_number_from_double(t, v, element);
  return tpu_number_bits(element, (int)tpu_dtype_bytes(t));
}

/* Every code of the small formats survives; neighbours' midpoints go to the even one. */
TEST(small_floats) {
  for (size_t k = 0; k < sizeof smalls / sizeof *smalls; k++) {
    tpu_dtype t = smalls[k];
    int bits = 8 * (int)tpu_dtype_bytes(t);
    for (uint64_t code = 0; code < UINT64_C(1) << bits; code++) {
      uint8_t element[2] = {(uint8_t)code, (uint8_t)(code >> 8)}, next[2] = {(uint8_t)(code + 1), (uint8_t)((code + 1) >> 8)};
      double v = tpu_number_to_double(t, element);
      if (isnan(v)) {
        uint64_t back = encode(t, v);
        uint8_t nan[2] = {(uint8_t)back, (uint8_t)(back >> 8)};
        CHECK(isnan(tpu_number_to_double(t, nan)));
        continue;
      }
      if (encode(t, v) != code)
        CHECK_FAIL("%s: code %llx is %g, back %llx", tpu_dtype_name(t), (unsigned long long)code, v,
                   (unsigned long long)encode(t, v));
      if (code + 1 == UINT64_C(1) << bits || (code + 1) == UINT64_C(1) << (bits - 1)) continue;
      double w = tpu_number_to_double(t, next);
      if (!isfinite(v) || !isfinite(w) || t == TPU_F8E8M0FNU) continue;
      double middle = (v + w) / 2;
      uint64_t even = code & 1 ? code + 1 : code;
      if (encode(t, middle) != even) CHECK_FAIL("%s: the middle of %g and %g", tpu_dtype_name(t), v, w);
      CHECK(encode(t, nextafter(middle, v)) == code && encode(t, nextafter(middle, w)) == code + 1);
    }
  }
}

TEST(known_codes) {
  CHECK_INT(encode(TPU_F16, 1), 0x3C00);
  CHECK_INT(encode(TPU_F16, 65519.99), 0x7BFF);
  CHECK_INT(encode(TPU_F16, 65520), 0x7C00);
  CHECK_INT(encode(TPU_F16, -1e9), 0xFC00);
  CHECK_INT(encode(TPU_BF16, 1), 0x3F80);
  CHECK_INT(encode(TPU_BF16, -0.0), 0x8000);
  CHECK_INT(encode(TPU_F8E4M3FN, 448), 0x7E);
  CHECK_INT(encode(TPU_F8E4M3FN, 464), 0x7E);
  CHECK_INT(encode(TPU_F8E4M3FN, 465), 0x7F); /* there is no infinity */
  CHECK_INT(encode(TPU_F8E4M3FN, -(double)INFINITY), 0xFF);
  CHECK_INT(encode(TPU_F8E4M3FNUZ, 1), 0x40);
  CHECK_INT(encode(TPU_F8E4M3FNUZ, -0.0), 0);
  CHECK_INT(encode(TPU_F8E4M3FNUZ, (double)NAN), 0x80);
  CHECK_INT(encode(TPU_F8E8M0FNU, 1), 127);
  CHECK_INT(encode(TPU_F8E8M0FNU, -1), 0xFF);
  CHECK_INT(encode(TPU_F32, 0.1), 0x3DCCCCCD);
}

TEST(integers) {
  CHECK_INT(encode(TPU_I8, -1.9), 0xFF);
  CHECK_INT(encode(TPU_I8, 1e9), 0x7F);
  CHECK_INT(encode(TPU_I8, -1e9), 0x80);
  CHECK_INT(encode(TPU_U8, -5), 0);
  CHECK_INT(encode(TPU_I64, 1e30), INT64_MAX);
  CHECK_INT(encode(TPU_U64, 1e30), -1);
  CHECK_INT(encode(TPU_I32, (double)NAN), 0);
  CHECK_INT(encode(TPU_BOOL, (double)NAN), 1);
  CHECK_INT(encode(TPU_BOOL, 0.25), 1);
  char element[TPU_ELEMENT_BYTES];
  tpu_number_from_int(TPU_I16, 70000, element);
  CHECK_INT(tpu_number_to_int(TPU_I16, element), 70000 - 65536);
  tpu_number_from_int(TPU_U64, -1, element);
  CHECK(tpu_number_to_double(TPU_U64, element) == 18446744073709551615.0);
  tpu_number_from_int(TPU_C64, 3, element);
  CHECK(tpu_number_to_double(TPU_C64, element) == 3 && tpu_number_imag(TPU_C64, element) == 0);
}

TEST_MAIN(TEST_CASE(small_floats), TEST_CASE(known_codes), TEST_CASE(integers));
