/* tpu_client: a PJRT client with its addressable devices. Thread-safe.
 *
 * One door: every call of a plugin goes through calls.h, which checks that the function exists in
 * this plugin, fills struct_size and turns a PJRT_Error into a tpu_status. No lock of this project
 * is held across a call.
 */
#ifndef TPU_PJRT_CLIENT_H
#define TPU_PJRT_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "pjrt/plugin.h"
#include "pjrt/quirks.h"

typedef struct tpu_client tpu_client;
typedef struct PJRT_Buffer tpu_buffer;               /* owned by who holds it; tpu_buffer_destroy */
typedef struct PJRT_LoadedExecutable tpu_executable; /* likewise; tpu_executable_destroy */
typedef struct PJRT_Event tpu_event;                 /* likewise; tpu_event_destroy */

/* `devices`: how many devices a CPU plugin shall offer (0: its default). Ignored by others. */
tpu_status tpu_client_create(tpu_plugin *plugin, int devices, tpu_client **out_client) TPU_MUST_USE;
void tpu_client_destroy(tpu_client *client); /* NULL allowed */

tpu_plugin *tpu_client_plugin(const tpu_client *client);
const tpu_quirks *tpu_client_quirks(const tpu_client *client);
const char *tpu_client_platform_name(const tpu_client *client); /* "cpu" */
const char *tpu_client_platform_version(const tpu_client *client);
int tpu_client_device_count(const tpu_client *client);                    /* addressable devices */
const char *tpu_client_device_kind(const tpu_client *client, int device); /* "TPU v5 lite", "cpu" */
int tpu_client_device_id(const tpu_client *client, int device);

typedef struct tpu_memory_stats {
  int64_t bytes_in_use, peak_bytes, bytes_limit; /* -1: not known */
} tpu_memory_stats;
/* UNIMPLEMENTED where the plugin has none. */
tpu_status tpu_client_memory_stats(const tpu_client *client, int device, tpu_memory_stats *out) TPU_MUST_USE;

/* --- events */
tpu_status tpu_event_await(const tpu_client *client, tpu_event *event) TPU_MUST_USE; /* NULL event: done */
bool tpu_event_ready(const tpu_client *client, tpu_event *event);
void tpu_event_destroy(const tpu_client *client, tpu_event *event); /* NULL allowed */

/* --- buffers: dense, dims in row-major order */
typedef enum tpu_host_semantics {
  TPU_HOST_COPY,  /* `data` is not read after the call returns */
  TPU_HOST_ALIAS, /* the buffer may alias `data`, which stays unchanged and alive until *out_done fires
                     (after the buffer's end) */
} tpu_host_semantics;
/* data: dense [dims] in host memory. out_done may be NULL for TPU_HOST_COPY. rank 0 gives a scalar.
 * RESOURCE_EXHAUSTED when out of device memory. */
tpu_status tpu_buffer_from_host(const tpu_client *client, int device, tpu_dtype dtype, int rank, const int64_t *dims,
                                const void *data, tpu_host_semantics semantics, tpu_buffer **out_buffer,
                                tpu_event **out_done) TPU_MUST_USE;
/* Copies the whole buffer into dst (row-major, `size` bytes). *out_done NULL: already there; else
 * dst must live until it fires. With host_pointers it waits for the buffer's producer and copies on the calling thread. */
tpu_status tpu_buffer_to_host(const tpu_client *client, tpu_buffer *buffer, void *dst, size_t size,
                              tpu_event **out_done) TPU_MUST_USE;
/* The address of the data, for platforms with host_pointers; valid once the buffer is ready and as long as it lives. */
tpu_status tpu_buffer_pointer(const tpu_client *client, tpu_buffer *buffer, void **out_pointer) TPU_MUST_USE;
tpu_status tpu_buffer_await(const tpu_client *client, tpu_buffer *buffer) TPU_MUST_USE;
bool tpu_buffer_is_ready(const tpu_client *client, tpu_buffer *buffer);
bool tpu_buffer_is_deleted(const tpu_client *client, tpu_buffer *buffer);
tpu_status tpu_buffer_copy_to_device(const tpu_client *client, tpu_buffer *buffer, int device,
                                     tpu_buffer **out_buffer) TPU_MUST_USE;
void tpu_buffer_destroy(const tpu_client *client, tpu_buffer *buffer); /* NULL allowed */

/* --- executables */
typedef struct tpu_option {
  /* XLA override; the value is sent as bool, int, double or string by its look. Two keys are none:
   * xla_optimization_level and xla_memory_fitting_level, O0 to O3 (anything else: unset). */
  const char *key, *value;
} tpu_option;
typedef struct tpu_compile_options {
  const tpu_option *overrides;
  int override_count;
  /* Room for SPMD: 0 means 1. */
  int replicas, partitions;
} tpu_compile_options;

/* Compiles StableHLO text for one device of the client, portable over all of its devices.
 * INVALID_ARGUMENT: the program is refused (message from the compiler). */
tpu_status tpu_compile(const tpu_client *client, const char *mlir, size_t mlir_size, const tpu_compile_options *options,
                       tpu_executable **out) TPU_MUST_USE;
void tpu_executable_destroy(const tpu_client *client, tpu_executable *executable); /* NULL allowed */
/* Bytes free with tpu_free. UNIMPLEMENTED where the plugin cannot. */
tpu_status tpu_executable_serialize(const tpu_client *client, tpu_executable *executable, char **out_data,
                                    size_t *out_size) TPU_MUST_USE;
tpu_status tpu_executable_deserialize(const tpu_client *client, const char *data, size_t size, tpu_executable **out) TPU_MUST_USE;

typedef struct tpu_program_stats { /* -1: not known. Bytes. */
  int64_t argument_bytes, output_bytes, alias_bytes, temp_bytes, peak_bytes, code_bytes;
  double flops, bytes_accessed, optimal_seconds;
} tpu_program_stats;
tpu_status tpu_executable_stats(const tpu_client *client, tpu_executable *executable, tpu_program_stats *out) TPU_MUST_USE;

/* Runs on one device, asynchronously. inputs[n_inputs]; outputs[n_outputs], as many as the program has results (not
 * checked), are new buffers, usable at once as inputs of further programs. `keep`: indices of inputs that must survive
 * although the program donates them. *out_done (optional) fires when the program ended and tells its late errors, as
 * the outputs do. On failure no output exists; a donated input may be deleted or not (tpu_buffer_is_deleted). */
tpu_status tpu_execute(const tpu_client *client, tpu_executable *executable, int device, tpu_buffer *const *inputs,
                       size_t n_inputs, const int64_t *keep, size_t n_keep, tpu_buffer **outputs, size_t n_outputs,
                       tpu_event **out_done) TPU_MUST_USE;

/* Counters since the client was created, by call: {"execute", 12, ns} ... for profiling and tests. */
typedef struct tpu_call_count {
  const char *name;
  uint64_t calls, ns;
} tpu_call_count;
int tpu_client_counts(const tpu_client *client, tpu_call_count *out, int capacity);

#endif
