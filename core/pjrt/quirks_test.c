#include "pjrt/quirks.h"

#include "base/test.h"

TEST(platforms) {
  tpu_quirks cpu = tpu_quirks_find("cpu", "cpu", 106);
  CHECK(cpu.platform == TPU_PLATFORM_CPU && cpu.host_pointers && cpu.zero_copy_h2d && cpu.cpu_overrides);
  CHECK(cpu.cpu_device_count && cpu.deserialize && !cpu.atan_is_broken && !cpu.no_new_dtypes);
  tpu_quirks tpu = tpu_quirks_find("tpu", "TFRT TPU v5 lite", 117);
  CHECK(tpu.platform == TPU_PLATFORM_TPU && !tpu.host_pointers && !tpu.zero_copy_h2d && !tpu.cpu_overrides);
  CHECK(tpu.deserialize && !tpu.atan_is_broken);
  tpu_quirks other = tpu_quirks_find("mps", "", 90);
  CHECK(other.platform == TPU_PLATFORM_OTHER && !other.host_pointers && !other.deserialize && other.no_new_dtypes);
}

TEST(versions) {
  CHECK(tpu_quirks_find("cpu", "cpu", 115).atan_is_broken && tpu_quirks_find("cpu", "cpu", 115).needs_launch_id);
  CHECK(!tpu_quirks_find("cpu", "cpu", 116).atan_is_broken && !tpu_quirks_find("cpu", "cpu", 106).needs_launch_id);
  CHECK(tpu_quirks_find("cpu", "cpu", 81).no_new_dtypes);
}

TEST_MAIN(TEST_CASE(platforms), TEST_CASE(versions));
