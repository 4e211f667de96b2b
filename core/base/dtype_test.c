#include "base/dtype.h"

#include "base/test.h"

TEST(rows) {
  for (int i = 0; i < TPU_DTYPE_COUNT; i++) {
    tpu_dtype t = (tpu_dtype)i;
    CHECK(tpu_dtype_from_torch(tpu_dtype_torch(t)) == t);
    CHECK(tpu_dtype_from_pjrt(tpu_dtype_pjrt(t)) == t);
    CHECK(tpu_dtype_bytes(t) > 0);
  }
  CHECK_STR(tpu_dtype_name(TPU_BF16), "bfloat16");
  CHECK_STR(tpu_dtype_scalar_name(TPU_I64), "Long");
  CHECK_STR(tpu_dtype_hlo(TPU_C64), "complex<f32>");
  CHECK(tpu_dtype_from_torch(12) == TPU_DTYPE_NONE && tpu_dtype_from_pjrt(0) == TPU_DTYPE_NONE);
  CHECK_STR(tpu_dtype_name(TPU_DTYPE_NONE), "none");
  CHECK(tpu_dtype_complex(TPU_BF16) == TPU_C64 && tpu_dtype_real(TPU_C128) == TPU_F64);
  CHECK(tpu_dtype_opmath(TPU_F8E5M2) == TPU_F32 && tpu_dtype_opmath(TPU_F64) == TPU_F64);
  CHECK(tpu_dtype_opmath(TPU_I8) == TPU_I8);
}

/* torch.promote_types and torch.can_cast of torch 2.13, by c10 number; -1: raises. */
#define X (-1)
static const int order[TPU_DTYPE_COUNT] = {11, 0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 15, 23, 24, 25, 26, 27, 28, 29, 44};
static const int promoted[TPU_DTYPE_COUNT][TPU_DTYPE_COUNT] = {
    {11, 0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 15, X, X, X, X, X, X, X, X},
    {0, 0, 2, 2, 3, 4, 5, 6, 7, 9, 10, 15, X, X, X, X, X, X, X, X},
    {1, 2, 1, 2, 3, 4, 5, 6, 7, 9, 10, 15, X, X, X, X, X, X, X, X},
    {2, 2, 2, 2, 3, 4, 5, 6, 7, 9, 10, 15, X, X, X, X, X, X, X, X},
    {3, 3, 3, 3, 3, 4, 5, 6, 7, 9, 10, 15, X, X, X, X, X, X, X, X},
    {4, 4, 4, 4, 4, 4, 5, 6, 7, 9, 10, 15, X, X, X, X, X, X, X, X},
    {5, 5, 5, 5, 5, 5, 5, 6, 7, 9, 10, 6, X, X, X, X, 5, 5, 5, X},
    {6, 6, 6, 6, 6, 6, 6, 6, 7, 9, 10, 6, X, X, X, X, 6, 6, 6, X},
    {7, 7, 7, 7, 7, 7, 7, 7, 7, 10, 10, 7, X, X, X, X, 7, 7, 7, X},
    {9, 9, 9, 9, 9, 9, 9, 9, 10, 9, 10, 9, X, X, X, X, X, X, X, X},
    {10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, X, X, X, X, X, X, X, X},
    {15, 15, 15, 15, 15, 15, 6, 6, 7, 9, 10, 15, X, X, X, X, 15, 15, 15, X},
    {X, X, X, X, X, X, X, X, X, X, X, X, 23, X, X, X, X, X, X, X},
    {X, X, X, X, X, X, X, X, X, X, X, X, X, 24, X, X, X, X, X, X},
    {X, X, X, X, X, X, X, X, X, X, X, X, X, X, 25, X, X, X, X, X},
    {X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, 26, X, X, X, X},
    {X, X, X, X, X, X, 5, 6, 7, X, X, 15, X, X, X, X, 27, X, X, X},
    {X, X, X, X, X, X, 5, 6, 7, X, X, 15, X, X, X, X, X, 28, X, X},
    {X, X, X, X, X, X, 5, 6, 7, X, X, 15, X, X, X, X, X, X, 29, X},
    {X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, 44},
};

TEST(promote) {
  for (int i = 0; i < TPU_DTYPE_COUNT; i++)
    for (int j = 0; j < TPU_DTYPE_COUNT; j++) {
      tpu_dtype a = tpu_dtype_from_torch(order[i]), b = tpu_dtype_from_torch(order[j]);
      tpu_dtype got = tpu_dtype_promote(a, b), want = tpu_dtype_from_torch(promoted[i][j]);
      if (got != want)
        CHECK_FAIL("%s with %s: %s, not %s", tpu_dtype_name(a), tpu_dtype_name(b), tpu_dtype_name(got), tpu_dtype_name(want));
    }
}

TEST(can_cast) {
  CHECK(!tpu_dtype_can_cast(TPU_C64, TPU_F32) && tpu_dtype_can_cast(TPU_C128, TPU_C64));
  CHECK(!tpu_dtype_can_cast(TPU_F32, TPU_I64) && !tpu_dtype_can_cast(TPU_F8E5M2, TPU_U32));
  CHECK(tpu_dtype_can_cast(TPU_I64, TPU_U8) && tpu_dtype_can_cast(TPU_BOOL, TPU_F8E8M0FNU));
  CHECK(!tpu_dtype_can_cast(TPU_U8, TPU_BOOL) && !tpu_dtype_can_cast(TPU_F32, TPU_BOOL));
  CHECK(tpu_dtype_can_cast(TPU_BOOL, TPU_BOOL) && tpu_dtype_can_cast(TPU_I8, TPU_C64));
}

TEST_MAIN(TEST_CASE(rows), TEST_CASE(promote), TEST_CASE(can_cast));
