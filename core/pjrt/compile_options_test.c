#include "pjrt/compile_options.h"

#include "base/alloc.h"
#include "base/test.h"

static const char *encode(const tpu_compile_options *options, bool cpu) {
  static char hex[4096];
  tpu_quirks quirks = {.cpu_overrides = cpu};
  tpu_strbuf s = {0};
  tpu_compile_options_encode(options, &quirks, &s);
  if (s.failed || s.size * 2 >= sizeof hex) return "failed";
  for (size_t i = 0; i < s.size; i++) (void)snprintf(hex + 2 * i, 3, "%02x", (unsigned)(unsigned char)s.data[i]);
  tpu_strbuf_destroy(&s);
  return hex;
}

TEST(devices) {
  CHECK_STR(encode(NULL, false),
            "1a042001280120"
            "01");
  CHECK_STR(encode(&(tpu_compile_options){.replicas = 4}, false), "1a0420042801");
  CHECK_STR(encode(&(tpu_compile_options){.partitions = 4}, false), "1a06200128043001");
  CHECK_STR(encode(&(tpu_compile_options){.replicas = 200}, false), "1a0520c8012801");
}

TEST(overrides) {
  tpu_option options[] = {{"a", "true"}, {"b", "-1"}, {"c", "1.5"}, {"d", "1x"}, {"e", ""}};
  CHECK_STR(encode(&(tpu_compile_options){options, 5, 0, 0}, false),
            "1a04200128012001"
            "3a07"
            "0a0161"
            "1202"
            "1001"
            "3a10"
            "0a0162"
            "120b"
            "18ffffffffffffffffff01"
            "3a0e"
            "0a0163"
            "1209"
            "21000000000000f83f"
            "3a09"
            "0a0164"
            "1204"
            "0a023178"
            "3a07"
            "0a0165"
            "1202"
            "0a00");
}

TEST(levels) {
  tpu_option options[] = {{"xla_optimization_level", "O1"}, {"xla_memory_fitting_level", "O3"}, {"a", "true"}};
  CHECK_STR(encode(&(tpu_compile_options){options, 3, 0, 0}, false),
            "1a0a20012801"
            "c00113"
            "c80127"
            "2001"
            "3a07"
            "0a0161"
            "1202"
            "1001");
  options[0].value = "O4"; /* as unset */
  CHECK_STR(encode(&(tpu_compile_options){options, 1, 0, 0}, false), "1a04200128012001");
}

TEST(exact_by_default) {
  tpu_option fast = {"xla_cpu_enable_fast_min_max", "true"};
  const char *text = encode(NULL, true);
  CHECK(strstr(text, "12021000") && strlen(text) > 60);
  text = encode(&(tpu_compile_options){&fast, 1, 0, 0}, true);
  CHECK(strstr(text, "12021001") && !strstr(text, "12021000"));
}

TEST(out_of_memory) {
  tpu_option option = {"key", "value"};
  tpu_compile_options options = {&option, 1, 0, 0};
  tpu_quirks quirks = {.cpu_overrides = true};
  int failures = 0;
  for (int64_t n = 0;; n++) {
    tpu_strbuf s = {0};
    tpu_alloc_fail_after(n);
    tpu_compile_options_encode(&options, &quirks, &s);
    tpu_alloc_fail_after(-1);
    bool failed = s.failed;
    tpu_strbuf_destroy(&s);
    CHECK_INT(tpu_alloc_live(), 0);
    if (!failed) break;
    failures++;
  }
  CHECK_INT(failures, 6);
}

TEST_MAIN(TEST_CASE(devices), TEST_CASE(overrides), TEST_CASE(levels), TEST_CASE(exact_by_default), TEST_CASE(out_of_memory));
