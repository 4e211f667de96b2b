#include "pjrt/compile_options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Field numbers. */
enum { OPTIONS_BUILD = 3, OPTIONS_PORTABLE = 4, OPTIONS_OVERRIDES = 7 };
enum { BUILD_REPLICAS = 4, BUILD_PARTITIONS = 5, BUILD_SPMD = 6, BUILD_OPTIMIZATION = 24, BUILD_MEMORY_FITTING = 25 };
enum { ENTRY_KEY = 1, ENTRY_VALUE = 2 };
enum { VALUE_STRING = 1, VALUE_BOOL = 2, VALUE_INT = 3, VALUE_DOUBLE = 4 };

/* By default XLA's CPU compiler drops NaN in maximum, minimum and clamp. */
static const tpu_option exact[] = {{"xla_cpu_enable_fast_min_max", "false"}};

static void put_varint(tpu_strbuf *s, uint64_t v) {
  char bytes[10];
  size_t n = 0;
  do {
    bytes[n++] = (char)((v & 0x7f) | (v > 0x7f ? 0x80u : 0u));
    v >>= 7;
  } while (v);
  tpu_strbuf_put_n(s, bytes, n);
}

static void put_int(tpu_strbuf *s, unsigned field, uint64_t v) {
  put_varint(s, field << 3 | 0);
  put_varint(s, v);
}

static void put_bytes(tpu_strbuf *s, unsigned field, const char *data, size_t size) {
  put_varint(s, field << 3 | 2);
  put_varint(s, size);
  tpu_strbuf_put_n(s, data, size);
}

static void put_double(tpu_strbuf *s, unsigned field, double v) {
  uint64_t bits;
  char bytes[8];
  memcpy(&bits, &v, sizeof bits);
  for (int i = 0; i < 8; i++) bytes[i] = (char)(bits >> (8 * i) & 0xff);
  put_varint(s, field << 3 | 1);
  tpu_strbuf_put_n(s, bytes, sizeof bytes);
}

static void put_value(tpu_strbuf *s, const char *value) {
  char *end;
  errno = 0;
  long long integer = strtoll(value, &end, 10);
  bool is_integer = *value && !*end && !errno;
  errno = 0;
  double number = strtod(value, &end);
  bool is_number = *value && !*end && !errno;
  if (strcmp(value, "true") == 0 || strcmp(value, "false") == 0) {
    put_int(s, VALUE_BOOL, *value == 't');
  } else if (is_integer) {
    put_int(s, VALUE_INT, (uint64_t)integer);
  } else if (is_number) {
    put_double(s, VALUE_DOUBLE, number);
  } else {
    put_bytes(s, VALUE_STRING, value, strlen(value));
  }
}

static void put_override(tpu_strbuf *s, const tpu_option *option) {
  tpu_strbuf value = {0}, entry = {0};
  put_value(&value, option->value);
  put_bytes(&entry, ENTRY_KEY, option->key, strlen(option->key));
  if (!value.failed) put_bytes(&entry, ENTRY_VALUE, value.data, value.size);
  if (value.failed || entry.failed) {
    s->failed = true;
  } else {
    put_bytes(s, OPTIONS_OVERRIDES, entry.data, entry.size);
  }
  tpu_strbuf_destroy(&value);
  tpu_strbuf_destroy(&entry);
}

/* xla.ExecutionOptions.EffortLevel. A key of these two is a field, not an override. */
static unsigned level_field(const tpu_option *o) {
  if (strcmp(o->key, "xla_optimization_level") == 0) return BUILD_OPTIMIZATION;
  return strcmp(o->key, "xla_memory_fitting_level") == 0 ? BUILD_MEMORY_FITTING : 0;
}
static void put_level(tpu_strbuf *s, const tpu_option *o) {
  static const uint64_t efforts[] = {9, 19, 29, 39};
  unsigned field = level_field(o);
  if (field && o->value[0] == 'O' && o->value[1] >= '0' && o->value[1] <= '3' && !o->value[2])
    put_int(s, field, efforts[o->value[1] - '0']);
}

static bool has_key(const tpu_compile_options *options, const char *key) {
  for (int i = 0; i < options->override_count; i++)
    if (strcmp(options->overrides[i].key, key) == 0) return true;
  return false;
}

void tpu_compile_options_encode(const tpu_compile_options *options, const tpu_quirks *quirks, tpu_strbuf *out) {
  static const tpu_compile_options none = {0};
  if (!options) options = &none;
  uint64_t replicas = options->replicas > 0 ? (uint64_t)options->replicas : 1;
  uint64_t partitions = options->partitions > 0 ? (uint64_t)options->partitions : 1;

  tpu_strbuf build = {0};
  put_int(&build, BUILD_REPLICAS, replicas); /* always both: without them XLA aborts the process */
  put_int(&build, BUILD_PARTITIONS, partitions);
  if (partitions > 1) put_int(&build, BUILD_SPMD, 1);
  for (int i = 0; i < options->override_count; i++) put_level(&build, &options->overrides[i]);
  if (build.failed)
    out->failed = true;
  else
    put_bytes(out, OPTIONS_BUILD, build.data, build.size);
  tpu_strbuf_destroy(&build);

  if (replicas == 1 && partitions == 1) put_int(out, OPTIONS_PORTABLE, 1);
  for (int i = 0; i < options->override_count; i++)
    if (!level_field(&options->overrides[i])) put_override(out, &options->overrides[i]);
  if (!quirks->cpu_overrides) return;
  for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
    if (!has_key(options, exact[i].key)) put_override(out, &exact[i]);
}
