/* What is special about a plugin: one table (quirks.c), keyed by what the plugin says of itself.
 * Each row says which measurement or bug it comes from and has a test. Thread-safe (constant).
 */
#ifndef TPU_PJRT_QUIRKS_H
#define TPU_PJRT_QUIRKS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum tpu_platform { TPU_PLATFORM_CPU, TPU_PLATFORM_TPU, TPU_PLATFORM_OTHER } tpu_platform;

typedef struct tpu_quirks {
  tpu_platform platform;
  bool host_pointers;    /* device memory is host memory: results are read through UnsafePointer */
  bool zero_copy_h2d;    /* 64-byte aligned host memory is taken without a copy */
  bool cpu_device_count; /* create option cpu_device_count (int64) */
  bool needs_launch_id;  /* launch_id 0 deadlocks */
  bool atan_is_broken;   /* lammps 0.115: emit atan2(2x, 2) */
  bool half_dots_fail;   /* half-precision contractions of other than two matrices may fail at run time */
  bool deserialize;      /* serialised executables can be loaded again */
  bool cpu_overrides;    /* takes xla_cpu_* option overrides */
  bool maps_code;        /* each executable takes mapped regions of the process; without one left, the process is stopped */
  bool no_new_dtypes;    /* crashes on type enums it does not know (API minor below 94) */
} tpu_quirks;

/* From the platform's name ("cpu", "tpu", ...), its version text and the API minor. */
tpu_quirks tpu_quirks_find(const char *platform_name, const char *platform_version, int api_minor);

#endif
