#include "pjrt/quirks.h"

#include <string.h>

/* Every row whose platform and API range match is applied, in order. Measured with plugins of API 0.81, 0.106, 0.115
 * (CPU) and 0.117 (TPU). */
typedef struct row {
  const char *platform; /* "*": all */
  int minor_from, minor_to;
  tpu_quirks set;
} row;

enum { ANY = 1 << 30 };
static const row rows[] = {
    /* A CPU plugin's buffers lie in host memory, 64-byte aligned; a pointer read costs 0.06 us, ToHostBuffer 14 to 20.
     * Host memory aligned likewise is taken without a copy. */
    {"cpu", 0, ANY, {.host_pointers = true, .zero_copy_h2d = true, .cpu_device_count = true, .cpu_overrides = true}},
    {"cpu", 0, ANY, {.deserialize = true}},
    {"tpu", 0, ANY, {.deserialize = true}},
    /* From 0.107 on, devices of one run meet by launch_id, and 0 is no meeting: abort after 40 s. 1 is harmless to all. */
    {"cpu", 107, ANY, {.needs_launch_id = true}},
    /* atan of 64 and more elements returns garbage: a vector helper is called with the wrong registers. */
    {"cpu", 115, 115, {.atan_is_broken = true}},
    /* On processors with bfloat16 products a dot is left in bfloat16 for a kernel that takes no transposed operand, before
     * its operand's transpose is folded into it: "Unsupported element type for DotThunk::Execute: BF16 x BF16 = F32". */
    {"cpu", 82, ANY, {.half_dots_fail = true}},
    /* 5 to 300 regions each, of the 65530 that Linux gives a process: "LLVM ERROR: Unable to allocate section memory!" */
    {"cpu", 0, ANY, {.maps_code = true}},
    /* No range check on PJRT_Buffer_Type: an unknown number is a segmentation fault. */
    {"*", 0, 93, {.no_new_dtypes = true}},
};

tpu_quirks tpu_quirks_find(const char *platform_name, const char *platform_version, int api_minor) {
  (void)platform_version; /* tells nothing on CPU plugins: "cpu" */
  tpu_quirks q = {.platform = TPU_PLATFORM_OTHER};
  if (strcmp(platform_name, "cpu") == 0) q.platform = TPU_PLATFORM_CPU;
  if (strcmp(platform_name, "tpu") == 0) q.platform = TPU_PLATFORM_TPU;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const row *r = &rows[i];
    if (strcmp(r->platform, "*") != 0 && strcmp(r->platform, platform_name) != 0) continue;
    if (api_minor < r->minor_from || api_minor > r->minor_to) continue;
    q.host_pointers |= r->set.host_pointers;
    q.zero_copy_h2d |= r->set.zero_copy_h2d;
    q.cpu_device_count |= r->set.cpu_device_count;
    q.needs_launch_id |= r->set.needs_launch_id;
    q.atan_is_broken |= r->set.atan_is_broken;
    q.half_dots_fail |= r->set.half_dots_fail;
    q.deserialize |= r->set.deserialize;
    q.cpu_overrides |= r->set.cpu_overrides;
    q.maps_code |= r->set.maps_code;
    q.no_new_dtypes |= r->set.no_new_dtypes;
  }
  return q;
}
