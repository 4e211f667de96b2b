/* libfake_pjrt.so: a PJRT plugin for tests. It computes nothing: it reads the types of @main in StableHLO
 * text and returns buffers of zeros. It counts live objects and fails calls on demand. Thread-safe.
 *
 * Load it with tpu_plugin_load, and reach these functions with dlopen of the same path and dlsym, or through
 * fake_pjrt_control. Arguments with tf.aliasing_output or jax.buffer_donor are donated: an aliased output has the
 * input's memory. Copies between host and device are real.
 */
#ifndef TPU_PJRT_FAKE_PLUGIN_H
#define TPU_PJRT_FAKE_PLUGIN_H

#include <stdint.h>

typedef enum fake_pjrt_kind {
  FAKE_PJRT_CLIENTS,
  FAKE_PJRT_BUFFERS,
  FAKE_PJRT_EXECUTABLES, /* loaded and unloaded */
  FAKE_PJRT_EVENTS,
  FAKE_PJRT_ERRORS,
  FAKE_PJRT_TOPOLOGIES,
  FAKE_PJRT_KINDS,
} fake_pjrt_kind;

typedef struct fake_pjrt_control {
  int64_t (*live)(int kind); /* -1: of all kinds */
  /* The call after n more successful ones fails once with `code`; n < 0: none. Destroys are not counted and never fail. */
  void (*fail_after)(int64_t n, int code);
  /* The next execute succeeds, but its outputs and events then report `code`. */
  void (*poison_next)(int code);
  uint64_t (*calls)(void); /* made so far, without destroys */
  uint64_t (*executes)(void);
  /* Of clients created from now on: "cpu", "tpu", ... ; starts as FAKE_PJRT_PLATFORM of the environment, or "cpu". */
  void (*set_platform)(const char *name);
  /* Bytes a device may hold before RESOURCE_EXHAUSTED; negative: no limit. */
  void (*set_memory_limit)(int64_t bytes);
  int64_t (*bytes_in_use)(void); /* of all devices together */
} fake_pjrt_control;

const fake_pjrt_control *fake_pjrt_control_get(void);

/* The same, for ctypes. */
int64_t fake_pjrt_live(int kind);
void fake_pjrt_fail_after(int64_t n, int code);
void fake_pjrt_poison_next(int code);
uint64_t fake_pjrt_calls(void);
uint64_t fake_pjrt_executes(void);
void fake_pjrt_set_platform(const char *name);
void fake_pjrt_set_memory_limit(int64_t bytes);
int64_t fake_pjrt_bytes_in_use(void);

#endif
